//! How many requests share a replica's steps, by class. Pure policy.
//!
//! Interactive requests have `--max-batch` places. Bulk ones have half as many beside them, so that neither class keeps
//! the other out. Some more are for clients who have nothing running: others with long requests can't keep them out.

/// The places of a replica.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    max_batch: usize,
}

/// Which requests a replica may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Interactive ones.
    pub interactive: bool,
    /// Interactive ones of clients who have nothing running.
    pub newcomers: bool,
    /// Bulk ones.
    pub bulk: bool,
}

impl Room {
    /// For everyone.
    pub const ALL: Self = Self { interactive: true, newcomers: true, bulk: true };
}

impl Places {
    /// Places for `max_batch` interactive requests, and what goes beside them.
    pub fn new(max_batch: usize) -> Self {
        Self { max_batch: max_batch.max(1) }
    }

    /// What there is room for beside the requests that run.
    pub fn room(self, interactive: usize, bulk: usize) -> Room {
        Room {
            interactive: interactive < self.max_batch,
            newcomers: interactive < self.max_batch + self.max_batch.div_ceil(4),
            bulk: bulk < self.max_batch.div_ceil(2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_class_keeps_the_other_out() {
        let places = Places::new(64);
        assert_eq!(places.room(0, 0), Room::ALL);
        assert_eq!(places.room(63, 32), Room { interactive: true, newcomers: true, bulk: false });
        assert_eq!(places.room(64, 31), Room { interactive: false, newcomers: true, bulk: true });
        assert_eq!(places.room(80, 32), Room { interactive: false, newcomers: false, bulk: false });
        assert_eq!(Places::new(0).room(1, 0), Room { interactive: false, newcomers: true, bulk: true });
    }
}
