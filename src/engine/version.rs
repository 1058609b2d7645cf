//! Which version of a model an engine is.

use std::time::SystemTime;

/// A version of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Counted from 1, for as long as the server has a model of this name.
    pub number: u64,
    /// When it began to answer.
    pub since: SystemTime,
    /// SHA-256 of its bundle's manifest, which has those of all other files; of a model without a bundle, none.
    pub checksum: Option<String>,
    /// Where it came from, as whoever loaded it named that.
    pub url: String,
}

impl Version {
    /// The first version.
    pub(super) fn first(checksum: Option<String>) -> Self {
        Self { number: 1, since: SystemTime::now(), checksum, url: String::new() }
    }

    /// Makes this the version of that number, from now on.
    pub(super) fn begins(&mut self, number: u64) {
        (self.number, self.since) = (number, SystemTime::now());
    }
}
