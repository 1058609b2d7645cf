//! The memory that models may take together: reserved before a load begins, and given back when the model is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::ModelError;

/// Bytes for all models, and how many of them are reserved.
#[derive(Debug)]
pub(super) struct Budget {
    limit: u64,
    reserved: AtomicU64,
}

/// Bytes of a budget, until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    pub(super) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, reserved: AtomicU64::new(0) })
    }

    /// Reserves memory.
    ///
    /// # Errors
    /// There isn't so much left.
    pub(super) fn reserve(self: &Arc<Self>, bytes: u64) -> Result<Reservation, ModelError> {
        let mut reservation = Reservation { budget: Arc::clone(self), bytes: 0 };
        reservation.resize(bytes)?;
        Ok(reservation)
    }
}

impl Reservation {
    /// Makes it larger or smaller.
    ///
    /// # Errors
    /// There isn't so much left; the reservation is as before then.
    pub(super) fn resize(&mut self, bytes: u64) -> Result<(), ModelError> {
        let Budget { limit, reserved } = &*self.budget;
        let own = self.bytes;
        let resized = |all: u64| (all - own).checked_add(bytes).filter(|all| all <= limit || bytes <= own);
        if let Err(all) = reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, resized) {
            let mib = |bytes: u64| bytes.div_ceil(1 << 20);
            return Err(ModelError::Memory { needed: mib(bytes), used: mib(all - own), limit: mib(*limit) });
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.reserved.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_is_within_the_limit_and_comes_back() {
        let budget = Budget::new(10);
        let mut four = budget.reserve(4).unwrap();
        let five = budget.reserve(5).unwrap();
        assert!(budget.reserve(2).unwrap_err().to_string().contains("are used"));
        assert!(four.resize(6).is_err());
        four.resize(5).unwrap();
        drop(five);
        four.resize(10).unwrap();
        assert!(budget.reserve(1).is_err() && budget.reserve(u64::MAX).is_err());
        four.resize(0).unwrap();
        drop(budget.reserve(10).unwrap());
        drop(four);
        assert_eq!(budget.reserved.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn threads_together_keep_the_limit() {
        let budget = Budget::new(100);
        let got: usize = std::thread::scope(|scope| {
            let reserve = || (0..50).map(|_| budget.reserve(3)).filter_map(Result::ok).map(std::mem::forget).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(reserve)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((got, budget.reserved.load(Ordering::Relaxed)), (33, 99));
    }
}
