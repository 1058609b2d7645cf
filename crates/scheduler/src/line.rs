//! The policy of the queue: which request is next. Pure: the time is an argument, and nothing is locked.
//!
//! The oldest request is next until one has waited longer than [`LineLimits::patience`]. Then the newest is next: under
//! overload some requests are answered too late, and somebody still looks at the newest keystroke. In a full queue an
//! overdue oldest request is replaced by the new one; otherwise the new one is refused.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long a request waits for its preferred replica before an idle replica may take it: about the time in which the
/// other replica would compute the request's typed text again.
const PREFERENCE: Duration = Duration::from_millis(5);

/// The properties of a queued request that the policy uses.
pub trait Waits {
    /// When the request was received.
    fn received(&self) -> Instant;
    /// The replica that probably has most of its prefixes.
    fn preferred_replica(&self) -> usize;
    /// Whether it needs no replica any more: nobody waits for the answer, or its deadline has passed.
    fn is_over(&self, now: Instant) -> bool;
}

/// Bounds of a queue.
#[derive(Clone, Copy, Debug)]
pub struct LineLimits {
    /// Requests in the queue at most.
    pub length: usize,
    /// Once the oldest has waited longer, the newest is next.
    pub patience: Duration,
}

/// The requests in the queue. See the module's documentation.
#[derive(Debug)]
pub struct Line<T> {
    /// The waiting requests, oldest first.
    items: VecDeque<T>,
    limits: LineLimits,
}

impl<T: Waits> Line<T> {
    /// An empty queue.
    pub fn new(limits: LineLimits) -> Self {
        Self { items: VecDeque::new(), limits }
    }

    /// Requests in the queue.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Adds a request. Returns the one that there is no room for, if any: this one or the oldest.
    pub fn push(&mut self, item: T, now: Instant) -> Option<T> {
        if self.items.len() < self.limits.length {
            self.items.push_back(item);
            return None;
        }
        if !self.is_overloaded(now) {
            return Some(item);
        }
        let oldest = self.items.pop_front();
        self.items.push_back(item);
        oldest
    }

    /// Takes the next request for a replica: one that prefers this replica, else one whose preferred replica is busy
    /// and that has waited for `PREFERENCE`.
    pub fn take(&mut self, replica: usize, idle: &[bool], now: Instant) -> Option<T> {
        let index = self.next(replica, idle, now)?;
        self.items.remove(index)
    }

    /// Whether a replica has a request to take.
    pub fn has(&self, replica: usize, idle: &[bool], now: Instant) -> bool {
        self.next(replica, idle, now).is_some()
    }

    fn next(&self, replica: usize, idle: &[bool], now: Instant) -> Option<usize> {
        let preferring = |item: &T| item.preferred_replica() == replica;
        let neglected = |item: &T| prefers_a_busy_replica(item, idle) && now >= item.received() + PREFERENCE;
        let newest_first = self.is_overloaded(now);
        let find = |wanted: &dyn Fn(&T) -> bool| match newest_first {
            true => self.items.iter().rposition(wanted),
            false => self.items.iter().position(wanted),
        };
        find(&preferring).or_else(|| find(&neglected))
    }

    /// When the first request whose preferred replica is busy may be taken by another one.
    pub fn may_change_replica(&self, idle: &[bool]) -> Option<Instant> {
        let neglected = self.items.iter().filter(|item| prefers_a_busy_replica(*item, idle));
        neglected.map(|item| item.received() + PREFERENCE).min()
    }

    /// Takes out the requests that need no replica any more, oldest first.
    pub fn withdraw(&mut self, now: Instant) -> Vec<T> {
        if !self.items.iter().any(|item| item.is_over(now)) {
            return Vec::new();
        }
        let (over, stay): (Vec<T>, Vec<T>) = self.items.drain(..).partition(|item| item.is_over(now));
        self.items = stay.into();
        over
    }

    /// Takes out all requests.
    pub fn clear(&mut self) -> Vec<T> {
        self.items.drain(..).collect()
    }

    fn is_overloaded(&self, now: Instant) -> bool {
        self.items.front().is_some_and(|oldest| now.saturating_duration_since(oldest.received()) > self.limits.patience)
    }
}

/// Whether a request's preferred replica is busy.
fn prefers_a_busy_replica(item: &impl Waits, idle: &[bool]) -> bool {
    !idle.get(item.preferred_replica()).copied().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Someone {
        id: u64,
        received: Instant,
        deadline: Instant,
        preferred_replica: usize,
    }

    impl Waits for Someone {
        fn received(&self) -> Instant {
            self.received
        }
        fn preferred_replica(&self) -> usize {
            self.preferred_replica
        }
        fn is_over(&self, now: Instant) -> bool {
            self.deadline <= now
        }
    }

    const MS: Duration = Duration::from_millis(1);

    fn someone(id: u64, received: Instant) -> Someone {
        Someone { id, received, deadline: received + 1000 * MS, preferred_replica: 0 }
    }

    fn line(length: usize) -> Line<Someone> {
        Line::new(LineLimits { length, patience: 100 * MS })
    }

    #[test]
    fn in_order_while_nobody_waits_long_and_the_newest_first_after_that() {
        let start = Instant::now();
        let mut line = line(8);
        for id in 0..4 {
            assert_eq!(line.push(someone(id, start + id as u32 * MS), start), None);
        }
        assert_eq!(line.take(0, &[true], start + 50 * MS).map(|s| s.id), Some(0));
        assert_eq!(line.take(0, &[true], start + 200 * MS).map(|s| s.id), Some(3));
        // The oldest has waited 101 ms at 102.
        assert_eq!(line.take(0, &[true], start + 100 * MS).map(|s| s.id), Some(1));
        assert_eq!(line.len(), 1);
    }

    #[test]
    fn a_full_line_refuses_the_newcomer_and_under_overload_the_oldest() {
        let start = Instant::now();
        let mut line = line(2);
        assert_eq!(line.push(someone(0, start), start), None);
        assert_eq!(line.push(someone(1, start), start), None);
        assert_eq!(line.push(someone(2, start), start).map(|s| s.id), Some(2));
        let later = start + 150 * MS;
        assert_eq!(line.push(someone(3, later), later).map(|s| s.id), Some(0));
        assert_eq!(line.withdraw(start + 1100 * MS).iter().map(|s| s.id).collect::<Vec<_>>(), [1]);
        assert_eq!(line.clear().len(), 1);
    }

    #[test]
    fn replicas_take_their_own_first_and_after_a_while_help_busy_ones() {
        let (start, later) = (Instant::now(), Instant::now() + PREFERENCE);
        let mut line = line(8);
        for (id, preferred_replica) in [(0, 1), (1, 0), (2, 1)] {
            line.push(Someone { preferred_replica, ..someone(id, start) }, start);
        }
        assert_eq!(line.take(0, &[true, true], start).map(|s| s.id), Some(1));
        assert_eq!(line.take(0, &[true, true], later), None, "replica 1 is idle and will take them");
        assert_eq!(line.may_change_replica(&[true, true]), None);
        assert_eq!(line.take(0, &[true, false], start), None, "replica 1 may be about to take them");
        assert_eq!(line.may_change_replica(&[true, false]), Some(start + PREFERENCE));
        assert_eq!(line.take(0, &[true, false], later).map(|s| s.id), Some(0));
        assert_eq!(line.take(1, &[true, false], start).map(|s| s.id), Some(2));
    }

    #[test]
    fn random_use_loses_nobody_and_keeps_the_bound() {
        let mut rng = StdRng::seed_from_u64(11);
        let (start, mut now) = (Instant::now(), Instant::now());
        let mut line = line(16);
        let (mut pushed, mut left) = (0u64, std::collections::HashSet::new());
        for _ in 0..100_000 {
            now += rng.random_range(0..20) * MS;
            let gone: Vec<Someone> = match rng.random_range(0..10) {
                0..5 => {
                    pushed += 1;
                    let deadline = now + rng.random_range(1..400) * MS;
                    let preferred_replica = rng.random_range(0..2);
                    line.push(Someone { deadline, preferred_replica, ..someone(pushed, now) }, now)
                        .into_iter()
                        .collect()
                }
                5..8 => {
                    let (replica, idle) = (rng.random_range(0..2), [rng.random_bool(0.5), rng.random_bool(0.5)]);
                    line.take(replica, &idle, now).into_iter().collect()
                }
                _ => {
                    let over = line.withdraw(now);
                    assert!(over.iter().all(|s| s.deadline <= now) && line.items.iter().all(|s| s.deadline > now));
                    over
                }
            };
            assert!(gone.iter().all(|s| left.insert(s.id)), "someone left twice");
            assert!(line.len() <= 16);
            assert!(line.items.iter().zip(line.items.iter().skip(1)).all(|(a, b)| a.received <= b.received));
            assert_eq!(left.len() + line.len(), pushed as usize);
        }
        assert!(now > start + 100 * MS && pushed > 1000);
    }
}
