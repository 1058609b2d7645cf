//! What a build reports while it runs.

/// Hears how far a build is, and may end it. `()` listens to nothing.
pub trait Progress {
    /// A stage begins, in which [`Progress::advance`] will report `total_bytes` in all.
    fn stage(&self, name: &str, total_bytes: u64);
    /// This many more bytes, or steps, of the stage are done.
    fn advance(&self, amount: u64);
    /// A stage begins, in which [`Progress::advance`] will report `total` steps, if it can tell at all.
    fn steps(&self, name: &str, total: u64) {
        self.stage(name, total);
    }
    /// Whether nobody wants the bundle any more. The build then ends with
    /// [`BuildError::Cancelled`](crate::BuildError::Cancelled).
    fn is_cancelled(&self) -> bool {
        false
    }
}

impl Progress for () {
    fn stage(&self, _name: &str, _total_bytes: u64) {}
    fn advance(&self, _amount: u64) {}
}
