//! How many replicas a model has, between a least and a greatest number. Pure: the time is an argument.
//!
//! One more when a request has been waiting for long at each look of a while: then the replicas are full, and it isn't
//! just a step that everyone waits for. One fewer when those that stay would have been busy at most half of the time,
//! for as long as [`Replicas::max_idle`]. The last one goes, if it may, when nobody asked anything for so long; a model
//! without replicas sleeps, and the next request wakes it.

use std::time::{Duration, Instant};

/// Between two looks at a model whose number of replicas may change.
pub const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A request that has waited longer waits for a place, and not for the end of a step.
const LATE: Duration = Duration::from_millis(50);
/// For how long every look must find a late request before a replica is added.
const LATE_FOR: Duration = Duration::from_millis(300);
/// Time until a load that failed is tried again.
pub const RETRY_AFTER: Duration = Duration::from_secs(10);

/// How many replicas a model may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// At least; with 0 the model sleeps while nobody asks.
    pub least: usize,
    /// At most.
    pub most: usize,
    /// Time after which a replica that isn't needed goes.
    pub max_idle: Duration,
}

impl Replicas {
    /// A number that doesn't change.
    pub fn fixed(replicas: usize) -> Self {
        let replicas = replicas.max(1);
        Self { least: replicas, most: replicas, max_idle: Duration::MAX }
    }

    /// How many a model starts with: one that will sleep proves first that it works.
    pub fn at_start(self) -> usize {
        self.least.max(1)
    }

    /// Whether the number may change.
    pub fn can_change(self) -> bool {
        self.least < self.most
    }
}

/// What a look at a model finds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Replicas that work.
    pub replicas: usize,
    /// How long the oldest request in the queue has waited.
    pub oldest: Option<Duration>,
    /// The time of all steps for requests until now.
    pub busy: Duration,
    /// Whether a request is being worked on, or was since the last look.
    pub asked: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    None,
    /// Load one more replica.
    Grow,
    /// Let the last one go.
    Shrink,
}

/// The policy. See the module's documentation.
#[derive(Debug)]
pub struct Scaling {
    replicas: Replicas,
    /// Since when every look has found a late request.
    late_since: Option<Instant>,
    /// Since when one replica fewer would do.
    easy_since: Option<Instant>,
    /// When the last look was, and the busy time until then.
    last: (Instant, Duration),
    /// When a load that failed may be tried again.
    retry: Option<Instant>,
}

impl Scaling {
    /// A model that has just started.
    pub fn new(replicas: Replicas, now: Instant) -> Self {
        Self { replicas, late_since: None, easy_since: Some(now), last: (now, Duration::ZERO), retry: None }
    }

    /// A load failed.
    pub fn failed(&mut self, now: Instant) {
        self.retry = Some(now + RETRY_AFTER);
    }

    /// Looks at the model.
    pub fn look(&mut self, seen: Seen, now: Instant) -> Change {
        let (last, busy_before) = std::mem::replace(&mut self.last, (now, seen.busy));
        let busy = seen.busy.saturating_sub(busy_before);
        let is_late = seen.oldest.is_some_and(|oldest| oldest > LATE);
        let spare = u32::try_from(seen.replicas.saturating_sub(1)).unwrap_or(u32::MAX);
        let is_easy = match spare {
            0 => !seen.asked && seen.oldest.is_none(),
            spare => !is_late && busy <= (now - last) * spare / 2,
        };
        self.late_since = is_late.then(|| self.late_since.unwrap_or(now));
        self.easy_since = is_easy.then(|| self.easy_since.unwrap_or(now));
        if self.wants_more(seen, now) {
            (self.late_since, self.easy_since, self.retry) = (None, None, None);
            return Change::Grow;
        }
        let is_long = self.easy_since.is_some_and(|since| now - since >= self.replicas.max_idle);
        if is_long && seen.replicas > self.replicas.least {
            self.easy_since = None;
            return Change::Shrink;
        }
        Change::None
    }

    fn wants_more(&self, seen: Seen, now: Instant) -> bool {
        if seen.replicas >= self.replicas.most || self.retry.is_some_and(|retry| now < retry) {
            return false;
        }
        match seen.replicas {
            // Nobody can wait for a model whose load failed.
            0 => seen.oldest.is_some() || self.retry.is_some(),
            _ => self.late_since.is_some_and(|since| now - since >= LATE_FOR),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A model that is looked at, in a time of its own.
    struct Looked {
        scaling: Scaling,
        now: Instant,
        seen: Seen,
    }

    impl Looked {
        fn new(least: usize, most: usize) -> Self {
            let (now, replicas) = (Instant::now(), Replicas { least, most, max_idle: 1000 * MS });
            let seen = Seen { replicas: replicas.at_start(), ..Seen::default() };
            Self { scaling: Scaling::new(replicas, now), now, seen }
        }

        /// Looks for so long; `busy` is the share of the time that one replica would be busy, in percent.
        fn look(&mut self, ms: u32, oldest_ms: Option<u32>, busy: u32) -> Vec<Change> {
            let mut changes = Vec::new();
            for _ in 0..ms / 100 {
                self.now += LOOK_EVERY;
                self.seen.busy += LOOK_EVERY * busy / 100;
                self.seen.oldest = oldest_ms.map(|ms| ms * MS);
                self.seen.asked = busy > 0;
                match self.scaling.look(self.seen, self.now) {
                    Change::None => continue,
                    Change::Grow => self.seen.replicas += 1,
                    Change::Shrink => self.seen.replicas -= 1,
                }
                changes.push(if self.seen.replicas > 1 { Change::Grow } else { Change::Shrink });
            }
            changes
        }
    }

    #[test]
    fn replicas_grow_under_a_load_that_waits_and_go_when_it_has_gone() {
        let mut looked = Looked::new(1, 2);
        assert_eq!(looked.look(2000, Some(10), 100), [], "waiting for a step is no reason");
        for _ in 0..10 {
            assert_eq!(looked.look(300, Some(60), 100), [], "nor is a burst");
            looked.look(100, None, 100);
        }
        assert_eq!(looked.look(2000, Some(60), 100), [Change::Grow], "once, as 2 is the most");
        assert_eq!(looked.look(5000, None, 60), [], "one replica would be busy for more than half of the time");
        assert_eq!(looked.look(900, None, 20), []);
        assert_eq!(looked.look(100, Some(60), 20), [], "somebody waits: it begins anew");
        assert_eq!(looked.look(900, None, 20), []);
        assert_eq!(looked.look(5000, None, 20), [Change::Shrink]);
        assert_eq!(looked.seen.replicas, 1, "1 is the least");
    }

    #[test]
    fn the_last_replica_goes_when_nobody_asks_and_comes_with_the_next_request() {
        let mut looked = Looked::new(0, 2);
        assert_eq!(looked.look(5000, None, 1), [], "somebody asks now and then");
        looked.look(1100, None, 0);
        assert_eq!(looked.seen.replicas, 0);
        assert_eq!(looked.look(5000, None, 0), []);
        looked.look(100, Some(0), 0);
        assert_eq!(looked.seen.replicas, 1, "at once, however short the wait");
    }

    #[test]
    fn a_load_that_failed_is_tried_again_later() {
        let mut looked = Looked::new(1, 2);
        looked.scaling.failed(looked.now);
        assert_eq!(looked.look(9900, Some(60), 100), []);
        assert_eq!(looked.look(200, Some(60), 100), [Change::Grow]);
        let mut asleep = Looked::new(0, 1);
        asleep.look(1100, None, 0);
        asleep.scaling.failed(asleep.now);
        asleep.look(9900, Some(0), 0);
        assert_eq!(asleep.seen.replicas, 0);
        asleep.look(200, None, 0);
        assert_eq!(asleep.seen.replicas, 1, "although nobody waits: they were refused");
    }

    #[test]
    fn a_number_that_does_not_change_stays() {
        let mut looked = Looked::new(2, 2);
        assert_eq!(looked.look(5000, Some(60), 100), []);
        assert_eq!(looked.look(5000, None, 0), []);
        assert!(!Replicas::fixed(3).can_change() && Replicas::fixed(3).at_start() == 3);
    }
}
