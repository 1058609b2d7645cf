//! Who pays for work, and what kind of work it is. Fair queueing is among flows: a client's work of one class.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::LazyLock;

/// Who pays for the work of a request. Two clients are the same if their key, session or address is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client(u64);

/// Keyed by chance at each start: nobody can choose a name that counts as another's.
static NAMES: LazyLock<RandomState> = LazyLock::new(RandomState::new);

impl Client {
    /// The holder of an API key, by the key's name.
    pub fn key(name: &str) -> Self {
        Self(NAMES.hash_one(("key", name)))
    }

    /// A session: a person who types.
    pub fn session(name: &str) -> Self {
        Self(NAMES.hash_one(("session", name)))
    }

    /// A network address. Whoever has one IPv6 address has a network of 64 bits, so that is what counts.
    pub fn address(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(NAMES.hash_one(("v4", address))),
            IpAddr::V6(address) => Self(NAMES.hash_one(("v6", &address.segments()[..4]))),
        }
    }
}

/// What kind of work a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Somebody waits for it: a keystroke, a single generation.
    #[default]
    Interactive,
    /// A line of a batch, a prompt of a list, or many sequences at once. It comes after interactive work, and gets a
    /// small share beside a full load of that.
    Bulk,
}

/// A client's work of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Who pays.
    pub client: Client,
    /// What for.
    pub class: Class,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_a_key_a_session_an_ipv4_address_or_an_ipv6_network() {
        let address = |text: &str| Client::address(text.parse().unwrap());
        assert_eq!(address("10.0.0.1"), address("::ffff:10.0.0.1"));
        assert_ne!(address("10.0.0.1"), address("10.0.0.2"));
        assert_eq!(address("2001:db8:0:1::1"), address("2001:db8:0:1:ffff::9"));
        assert_ne!(address("2001:db8:0:1::1"), address("2001:db8:0:2::1"));
        assert_ne!(Client::key("a"), Client::session("a"));
        assert_eq!(Client::session("a"), Client::session("a"));
    }
}
