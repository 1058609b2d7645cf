//! Tests of [`super`]: seeded random use against its invariants.

use super::*;
use crate::client::Client;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Someone {
    id: u64,
    received: Instant,
    deadline: Instant,
    preferred_replica: usize,
    flow: Flow,
}

impl Waits for Someone {
    fn received(&self) -> Instant {
        self.received
    }
    fn flow(&self) -> Flow {
        self.flow
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
    Someone { id, received, deadline: received + 1000 * MS, preferred_replica: 0, flow: Flow::default() }
}

fn seeker(replica: usize, idle: &[bool]) -> Seeker<'_> {
    Seeker { replica, idle, room: Room::ALL }
}

fn flow(client: usize, class: Class) -> Flow {
    Flow { client: Client::session(&client.to_string()), class }
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
    assert_eq!(line.take(seeker(0, &[true]), start + 50 * MS).map(|s| s.id), Some(0));
    assert_eq!(line.take(seeker(0, &[true]), start + 200 * MS).map(|s| s.id), Some(3));
    // The oldest has waited 101 ms at 102.
    assert_eq!(line.take(seeker(0, &[true]), start + 100 * MS).map(|s| s.id), Some(1));
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
    assert_eq!(line.take(seeker(0, &[true, true]), start).map(|s| s.id), Some(1));
    assert_eq!(line.take(seeker(0, &[true, true]), later), None, "replica 1 is idle and will take them");
    assert_eq!(line.may_change_replica(&[true, true]), None);
    assert_eq!(line.take(seeker(0, &[true, false]), start), None, "replica 1 may be about to take them");
    assert_eq!(line.may_change_replica(&[true, false]), Some(start + PREFERENCE));
    assert_eq!(line.take(seeker(0, &[true, false]), later).map(|s| s.id), Some(0));
    assert_eq!(line.take(seeker(1, &[true, false]), start).map(|s| s.id), Some(2));
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
                line.push(Someone { deadline, preferred_replica, ..someone(pushed, now) }, now).into_iter().collect()
            }
            5..8 => {
                let (replica, idle) = (rng.random_range(0..2), [rng.random_bool(0.5), rng.random_bool(0.5)]);
                line.take(seeker(replica, &idle), now).into_iter().collect()
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

/// What came of random use by several clients, one of whom sends much more than the others.
struct Crowd {
    rng: StdRng,
    now: Instant,
    line: Line<Someone>,
    /// Positions that one of their requests costs, by client.
    costs: Vec<usize>,
    /// Positions computed, by client.
    computed: Vec<usize>,
    running: Vec<Someone>,
    pushed: u64,
}

impl Crowd {
    fn new(seed: u64, clients: usize) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let costs = (0..clients).map(|_| rng.random_range(1..200)).collect();
        let line = Line::new(LineLimits { length: 32, patience: Duration::MAX });
        let now = Instant::now();
        Self { rng, now, line, costs, computed: vec![0; clients], running: Vec::new(), pushed: 0 }
    }

    fn push(&mut self, client: usize, class: Class) -> Option<Someone> {
        self.pushed += 1;
        let deadline = self.now + Duration::from_secs(1_000_000);
        let flow = flow(client, class);
        self.line.push(Someone { deadline, flow, ..someone(self.pushed, self.now) }, self.now)
    }

    fn client(&self, one: &Someone) -> usize {
        (0..self.costs.len()).find(|&client| flow(client, one.flow.class) == one.flow).unwrap()
    }

    /// Takes one request, and ends another one.
    fn serve(&mut self, room: Room) -> Option<Someone> {
        self.now += MS;
        let taken = self.line.take(Seeker { replica: 0, idle: &[true], room }, self.now)?;
        self.running.push(taken);
        if self.running.len() > 4 {
            let ended = self.running.swap_remove(self.rng.random_range(0..self.running.len()));
            let client = self.client(&ended);
            self.line.fair.charge(ended.flow, self.costs[client]);
            self.line.fair.ends(ended.flow);
            self.computed[client] += self.costs[client];
        }
        Some(taken)
    }
}

#[test]
fn clients_who_always_wait_get_the_same_number_of_positions() {
    for seed in 0..20 {
        let mut crowd = Crowd::new(seed, 5);
        for _ in 0..5000 {
            // The first sends ten times as much as the others.
            let client = if crowd.rng.random_bool(0.5) { 0 } else { crowd.rng.random_range(0..5) };
            crowd.push(client, Class::Interactive);
            (0..5).for_each(|client| {
                while crowd.line.fair.waiting(flow(client, Class::Interactive)) < 3 {
                    crowd.push(client, Class::Interactive);
                }
            });
            crowd.serve(Room::ALL);
        }
        let (least, most) = (crowd.computed.iter().min().unwrap(), crowd.computed.iter().max().unwrap());
        // What runs at a time isn't charged yet, and counts as an ordinary keystroke.
        assert!(most - least <= 2000, "seed {seed}: {:?} at {:?} each", crowd.computed, crowd.costs);
    }
}

#[test]
fn nobody_is_refused_while_another_holds_more_places_and_nobody_is_lost() {
    for seed in 0..20 {
        let mut crowd = Crowd::new(seed, 6);
        let mut left = std::collections::HashSet::new();
        for _ in 0..5000 {
            let flood = crowd.rng.random_bool(0.7);
            let client = if flood { 0 } else { crowd.rng.random_range(1..6) };
            let class = if crowd.rng.random_bool(0.5) { Class::Bulk } else { Class::Interactive };
            if let Some(refused) = crowd.push(client, class) {
                assert!(left.insert(refused.id));
                let fair = &crowd.line.fair;
                let flows = crowd.line.items.iter().map(|item| fair.waiting(item.flow));
                let most = flows.max().unwrap();
                assert!(fair.waiting(refused.flow) + 1 >= most, "seed {seed}: {refused:?} beside one with {most}");
            }
            let room = Room { bulk: crowd.rng.random_bool(0.2), ..Room::ALL };
            if crowd.rng.random_bool(0.4)
                && let Some(taken) = crowd.serve(room)
            {
                assert!(left.insert(taken.id));
                let waits = crowd.line.items.iter().any(|item| item.flow.class == Class::Interactive);
                assert!(taken.flow.class == Class::Interactive || !waits, "bulk work went first");
            }
            assert!(crowd.line.len() <= 32);
            assert_eq!(left.len() + crowd.line.len(), crowd.pushed as usize);
        }
    }
}

#[test]
fn who_types_beside_a_flood_is_next_and_keeps_a_place() {
    for seed in 0..20 {
        let mut crowd = Crowd::new(seed, 2);
        for _ in 0..200 {
            for _ in 0..40 {
                crowd.push(0, Class::Interactive);
            }
            for _ in 0..crowd.rng.random_range(1..9) {
                crowd.serve(Room::ALL);
            }
            assert_ne!(
                crowd.push(1, Class::Interactive).map(|refused| refused.flow),
                Some(flow(1, Class::Interactive))
            );
            // Those places are taken, but none by this client.
            let room = Room { interactive: false, ..Room::ALL };
            let taken = crowd.serve(room).unwrap();
            assert_eq!(taken.flow, flow(1, Class::Interactive));
            let at = crowd.running.iter().position(|one| one.id == taken.id);
            if let Some(at) = at {
                crowd.running.swap_remove(at);
                crowd.line.fair.ends(taken.flow);
            }
        }
    }
}
