//! The policy of the queue: which request is next. Pure: the time is an argument, and nothing is locked.
//!
//! Interactive requests come before bulk ones, and the flow for which the fewest positions were computed before others
//! ([`crate::fair`]). Of one flow the oldest request is next, until that has waited longer than
//! [`LineLimits::patience`]. Then the newest interactive one is next: under overload some requests are answered too
//! late, and somebody still looks at the newest keystroke.
//!
//! A full queue takes from the flow with the most places: its oldest request if that is overdue, otherwise its newest.
//! So nobody is refused while somebody else holds more places.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::client::{Class, Flow};
use super::fair::Fair;
use super::places::Room;

/// How long a request waits for its preferred replica before an idle replica may take it: about the time in which the
/// other replica would compute the request's typed text again.
const PREFERENCE: Duration = Duration::from_millis(5);

/// The properties of a queued request that the policy uses.
pub trait Waits {
    /// When the request was received.
    fn received(&self) -> Instant;
    /// Whose it is, and of which class.
    fn flow(&self) -> Flow;
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
    /// Once the oldest of a flow has waited longer, the newest is next.
    pub patience: Duration,
}

/// A replica that looks for a request.
#[derive(Clone, Copy, Debug)]
pub struct Seeker<'a> {
    /// Its number.
    pub replica: usize,
    /// By replica: whether it has nothing to do.
    pub idle: &'a [bool],
    /// Which requests it has room for.
    pub room: Room,
}

/// The requests in the queue. See the module's documentation.
#[derive(Debug)]
pub struct Line<T> {
    /// The waiting requests, oldest first.
    items: VecDeque<T>,
    limits: LineLimits,
    /// The accounts of the flows, of running requests too.
    pub fair: Fair,
}

impl<T: Waits> Line<T> {
    /// An empty queue.
    pub fn new(limits: LineLimits) -> Self {
        Self { items: VecDeque::new(), limits, fair: Fair::default() }
    }

    /// Requests in the queue.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// When the request that came first was received.
    pub fn oldest(&self) -> Option<Instant> {
        self.items.iter().map(T::received).min()
    }

    /// Adds a request. Returns the one that there is no room for, if any: this one or another.
    pub fn push(&mut self, item: T, now: Instant) -> Option<T> {
        let flow = item.flow();
        self.fair.waits(flow);
        self.items.push_back(item);
        if self.items.len() <= self.limits.length {
            return None;
        }
        let largest = self.fair.largest(flow);
        let of_flow = |item: &T| item.flow() == largest;
        let index = match self.is_overdue(largest, now) {
            true => self.items.iter().position(of_flow),
            false => self.items.iter().rposition(of_flow),
        };
        self.fair.withdrawn(largest);
        self.items.remove(index?)
    }

    /// Takes the next request for a replica: one that prefers this replica, else one whose preferred replica is busy
    /// and that has waited for `PREFERENCE`.
    pub fn take(&mut self, seeker: Seeker, now: Instant) -> Option<T> {
        let index = self.next(seeker, now)?;
        let item = self.items.remove(index)?;
        self.fair.taken(item.flow());
        Some(item)
    }

    /// Whether a replica has a request to take.
    pub fn has(&self, seeker: Seeker, now: Instant) -> bool {
        self.next(seeker, now).is_some()
    }

    fn next(&self, seeker: Seeker, now: Instant) -> Option<usize> {
        let preferring = |item: &T| item.preferred_replica() == seeker.replica;
        let neglected = |item: &T| prefers_a_busy_replica(item, seeker.idle) && now >= item.received() + PREFERENCE;
        let has_room = |item: &T| self.has_room(seeker.room, item.flow());
        self.first(|item| preferring(item) && has_room(item), now)
            .or_else(|| self.first(|item| neglected(item) && has_room(item), now))
    }

    fn has_room(&self, room: Room, flow: Flow) -> bool {
        match flow.class {
            Class::Interactive => room.interactive || (room.newcomers && !self.fair.is_running(flow)),
            Class::Bulk => room.bulk,
        }
    }

    /// The next of those that are wanted.
    fn first(&self, wanted: impl Fn(&T) -> bool, now: Instant) -> Option<usize> {
        let flows = self.items.iter().filter(|item| wanted(item)).map(T::flow);
        let next = flows.min_by_key(|&flow| (flow.class, self.fair.rank(flow)))?;
        let of_flow = |item: &T| item.flow() == next && wanted(item);
        match self.is_overdue(next, now) {
            true => self.items.iter().rposition(of_flow),
            false => self.items.iter().position(of_flow),
        }
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
        over.iter().for_each(|item| self.fair.withdrawn(item.flow()));
        over
    }

    /// Takes out all requests.
    pub fn clear(&mut self) -> Vec<T> {
        let all: Vec<T> = self.items.drain(..).collect();
        all.iter().for_each(|item| self.fair.withdrawn(item.flow()));
        all
    }

    /// Whether the oldest interactive request of a flow has waited so long that its newest is of more use. Bulk work is
    /// of use whenever it is done.
    fn is_overdue(&self, flow: Flow, now: Instant) -> bool {
        let waited = |item: &T| now.saturating_duration_since(item.received());
        let oldest = || self.items.iter().find(|item| item.flow() == flow);
        flow.class == Class::Interactive && oldest().is_some_and(|oldest| waited(oldest) > self.limits.patience)
    }
}

/// Whether a request's preferred replica is busy.
fn prefers_a_busy_replica(item: &impl Waits, idle: &[bool]) -> bool {
    !idle.get(item.preferred_replica()).copied().unwrap_or(false)
}

#[cfg(test)]
#[path = "line_tests.rs"]
mod tests;
