//! Who asks: whose cache a request may use, and who pays for it.

use std::sync::Arc;

use completion::Partition;
use sha2::{Digest, Sha256};

use crate::access::Key;

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The key of the request, where keys are asked for.
    pub key: Option<Arc<Key>>,
    /// The request's own salt.
    pub salt: Option<String>,
}

impl Caller {
    /// The part of the prefix cache and of the sessions that is the caller's. Those who have the same salts share it,
    /// and nobody else can compute or guess it.
    pub(super) fn partition(&self) -> Partition {
        let salts = [self.key.as_ref().and_then(|key| key.salt()), self.salt.as_deref()];
        if salts == [None, None] {
            return Partition::default();
        }
        let mut hasher = Sha256::new();
        for salt in salts {
            // A length, so that what one salt ends with can't begin the other.
            hasher.update(salt.map_or(u64::MAX, |salt| salt.len() as u64).to_le_bytes());
            hasher.update(salt.unwrap_or_default());
        }
        let hash: [u8; 32] = hasher.finalize().into();
        let (half, _) = hash.split_at(16);
        Partition(half.try_into().map_or(0, u128::from_le_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Keys;

    #[test]
    fn salts_that_differ_anywhere_differ_in_their_partition() {
        let json = r#"{"keys": [{"name": "a", "key": "a-0123456789abcdef", "salt": "x"},
            {"name": "b", "key": "b-0123456789abcdef", "salt": "x"}, {"name": "c", "key": "c-0123456789abcdef"}]}"#;
        let keys = Keys::parse(json.as_bytes(), &Keys::default()).unwrap();
        let of = |key: &str, salt: Option<&str>| {
            let key = keys.find(format!("{key}-0123456789abcdef").as_bytes());
            Caller { key, salt: salt.map(str::to_owned) }.partition()
        };
        assert_eq!(of("none", None), Partition::default());
        assert_eq!(of("c", None), Partition::default());
        assert_eq!((of("a", None), of("a", Some("y"))), (of("b", None), of("b", Some("y"))));
        let all = [
            of("c", None),
            of("a", None),
            of("a", Some("y")),
            of("c", Some("x")),
            of("c", Some("xy")),
            of("a", Some("")),
        ];
        let distinct: std::collections::BTreeSet<u128> = all.iter().map(|partition| partition.0).collect();
        assert_eq!(distinct.len(), all.len());
    }
}
