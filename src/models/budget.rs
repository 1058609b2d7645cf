//! The memory that models may take together: reserved before a load begins, and given back when the model is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use scheduler::{Occupied, Room};

use super::error::ModelError;

/// Bytes for all models, and how many of them are reserved.
#[derive(Debug)]
pub(super) struct Budget {
    limit: u64,
    reserved: AtomicU64,
}

/// Bytes of a budget, until this is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
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
        let more = |all: u64| all.checked_add(bytes).filter(|all| *all <= self.limit);
        match self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Reservation { budget: Arc::clone(self), bytes }),
            Err(all) => {
                let mib = |bytes: u64| bytes.div_ceil(1 << 20);
                Err(ModelError::Memory { needed: mib(bytes), used: mib(all), limit: mib(self.limit) })
            }
        }
    }
}

impl Reservation {
    /// Takes a part of it out, or all of it if that is less.
    pub(super) fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { budget: Arc::clone(&self.budget), bytes }
    }
}

/// The memory of a model's replicas, of so many bytes each.
#[derive(Debug)]
pub(super) struct ReplicaRoom {
    pub(super) budget: Arc<Budget>,
    pub(super) bytes: u64,
}

impl Room for ReplicaRoom {
    fn reserve(&self) -> Result<Occupied, String> {
        match self.budget.reserve(self.bytes) {
            Ok(memory) => Ok(Box::new(memory)),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Budget {
    /// Reserves memory, or what is left if that is less.
    pub(super) fn reserve_rest(self: &Arc<Self>, bytes: u64) -> Reservation {
        let left = |all: u64| self.limit.saturating_sub(all).min(bytes);
        let all = self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |all| Some(all + left(all)));
        Reservation { budget: Arc::clone(self), bytes: left(all.unwrap_or_else(|all| all)) }
    }

    /// Bytes that are reserved now.
    pub(super) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
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
        let four = budget.reserve(4).unwrap();
        let six = budget.reserve(6).unwrap();
        assert!(budget.reserve(1).unwrap_err().to_string().contains("are used"));
        drop(four);
        drop(budget.reserve(4).unwrap());
        assert!(budget.reserve(5).is_err() && budget.reserve(u64::MAX).is_err());
        let rest = budget.reserve_rest(100);
        assert_eq!((rest.bytes, budget.reserve_rest(1).bytes), (4, 0));
        drop((six, rest));
        let mut ten = budget.reserve(10).unwrap();
        let (three, all) = (ten.split(3), ten.split(100));
        drop(three);
        let room = ReplicaRoom { budget: Arc::clone(&budget), bytes: 2 };
        let two = room.reserve().unwrap();
        assert!((budget.reserved(), all.bytes) == (9, 7) && room.reserve().is_err_and(|e| e.contains("are used")));
        drop((ten, all, two));
        assert_eq!(budget.reserved(), 0);
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
