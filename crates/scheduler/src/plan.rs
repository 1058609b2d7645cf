//! Packs wanted nodes into the rows of one step. Pure policy.
//!
//! A row computes a node and its missing ancestors. Rows of one step are padded to the longest, so only rows of similar
//! length share a step. A node that doesn't fit waits for the next forward, in which another job comes first. Two rows
//! never compute the same position: a node below a position that another row computes waits one step and then finds it
//! in the prefix cache.

use rustc_hash::FxHashMap;

use super::order::{Standing, Turn};
use super::prefix_cache::{NodeId, PrefixCache};
use completion::NodeIndex;

/// Bounds of one step; see [`crate::backend::Limits`].
#[derive(Clone, Copy, Debug)]
pub struct PlanLimits {
    /// Most rows of a step.
    pub rows: usize,
    /// Positions of a lane.
    pub context: usize,
    /// The most tokens of a row.
    pub chunk: usize,
    /// Positions of all rows, padding included; a single row may exceed it.
    pub positions: usize,
    /// Selected positions.
    pub selected: usize,
}

/// A node whose distribution a job wants.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The node in the job's search.
    pub node: NodeIndex,
    /// The node in the prefix cache.
    pub place: NodeId,
    /// Whether the whole logits row is wanted.
    pub full: bool,
    /// Whether the job can go on without it.
    pub speculative: bool,
}

/// The nodes that one job lacks.
#[derive(Clone, Debug)]
pub struct Wants {
    /// Index of the job.
    pub job: usize,
    /// The properties that decide the job's place in the order.
    pub standing: Standing,
    /// At least one: what it waits for, then what it can go on without.
    pub targets: Vec<Target>,
}

impl Wants {
    /// Nodes that the job waits for.
    fn required(&self) -> &[Target] {
        &self.targets[..self.targets.iter().take_while(|target| !target.speculative).count()]
    }

    /// Speculative nodes, which the job can go on without.
    fn speculative(&self) -> &[Target] {
        &self.targets[self.required().len()..]
    }
}

/// One row of the next forward.
#[derive(Clone, Debug)]
pub struct PlannedRow {
    /// The job it was planned for.
    pub job: usize,
    /// Nodes from position 0 to the last one that is computed.
    pub path: Vec<NodeId>,
    /// Positions whose keys and values are in pages.
    pub past: usize,
    /// Positions to compute.
    pub len: usize,
    /// Offsets among the computed ones whose distribution is wanted, and whether the whole row is.
    pub selected: Vec<(usize, bool)>,
}

impl PlannedRow {
    /// The nodes to compute.
    pub fn computed(&self) -> &[NodeId] {
        &self.path[self.past..self.past + self.len]
    }
}

/// The next forward.
#[derive(Clone, Debug)]
pub struct Plan {
    limits: PlanLimits,
    /// The rows of the step.
    pub rows: Vec<PlannedRow>,
    /// The users of the rows: job, node of its search, node of the prefix cache.
    pub users: Vec<(usize, NodeIndex, NodeId)>,
    /// The row of each computed node, and the node's offset in that row.
    computed: FxHashMap<NodeId, (usize, usize)>,
    selected: usize,
    /// The longest that a row may be; set by the first row.
    class: usize,
    longest_past: usize,
}

impl Plan {
    /// An empty plan.
    pub fn new(limits: PlanLimits) -> Self {
        Self {
            limits,
            rows: Vec::new(),
            users: Vec::new(),
            computed: FxHashMap::default(),
            selected: 0,
            class: 0,
            longest_past: 0,
        }
    }

    /// Whether nothing more can be added. Positions that are computed anyway can still be selected until then.
    pub fn is_full(&self) -> bool {
        self.selected >= self.limits.selected
    }

    /// The job whose row computes a node in this step.
    pub fn owner(&self, node: NodeId) -> Option<usize> {
        self.computed.get(&node).map(|&(row, _)| self.rows[row].job)
    }

    /// Positions that a row for this node would have to compute.
    pub fn row_len(place: NodeId, cache: &PrefixCache) -> usize {
        let mut path = Vec::new();
        cache.path(place, &mut path);
        path.len() - past(&path, cache)
    }

    /// Packs required nodes in job order, then speculative nodes of all jobs in turn, until the step is full.
    pub fn pack(&mut self, wants: &[Wants], turn: Turn, cache: &PrefixCache) {
        let one_each = usize::from(turn == Turn::LongestWaiting);
        for wants in wants {
            wants.required().iter().take(one_each).for_each(|target| self.add(wants.job, target, cache));
        }
        for wants in wants {
            wants.required().iter().skip(one_each).for_each(|target| self.add(wants.job, target, cache));
        }
        for round in 0..wants.iter().map(|wants| wants.speculative().len()).max().unwrap_or(0) {
            for wants in wants {
                if let Some(target) = wants.speculative().get(round) {
                    self.add(wants.job, target, cache);
                }
            }
        }
    }

    /// Adds a wanted node, if it fits into this step.
    pub fn add(&mut self, job: usize, target: &Target, cache: &PrefixCache) {
        if self.is_full() {
            return;
        }
        if !self.computed.contains_key(&target.place) && !self.add_row(job, target.place, cache) {
            return;
        }
        // The row may have been cut before the target.
        let Some(&(row, offset)) = self.computed.get(&target.place) else { return };
        let selected = &mut self.rows[row].selected;
        match selected.iter_mut().find(|(at, _)| *at == offset) {
            Some((_, full)) => *full |= target.full,
            None => {
                selected.push((offset, target.full));
                self.selected += 1;
            }
        }
        self.users.push((job, target.node, target.place));
    }

    fn add_row(&mut self, job: usize, place: NodeId, cache: &PrefixCache) -> bool {
        let mut path = Vec::new();
        cache.path(place, &mut path);
        let past = past(&path, cache);
        let len = (path.len() - past).min(self.limits.chunk);
        if self.rows.len() >= self.limits.rows || !self.fits(past, len) {
            return false;
        }
        if path[past..].iter().any(|node| self.computed.contains_key(node)) {
            return false;
        }
        path.truncate(past + len);
        for (offset, &node) in path[past..].iter().enumerate() {
            self.computed.insert(node, (self.rows.len(), offset));
        }
        if self.rows.is_empty() {
            self.class = len.next_power_of_two();
        }
        self.longest_past = self.longest_past.max(past);
        self.rows.push(PlannedRow { job, path, past, len, selected: Vec::new() });
        true
    }

    /// Whether a row is of the plan's class of lengths and, padded, stays inside every lane.
    fn fits(&self, past: usize, len: usize) -> bool {
        if self.rows.is_empty() {
            return true;
        }
        let longest = self.rows.iter().map(|row| row.len).max().unwrap_or(0).max(len);
        let similar = len <= self.class && len * 4 > self.class;
        let padded = (self.rows.len() + 1).saturating_mul(longest);
        similar && padded <= self.limits.positions && past.max(self.longest_past) + longest <= self.limits.context
    }
}

/// Positions of a path whose keys and values are in pages.
fn past(path: &[NodeId], cache: &PrefixCache) -> usize {
    let paged = path.iter().take_while(|&&node| cache.page(node).is_some()).count();
    // A node that has its page but not its distribution is computed again.
    paged.min(path.len() - 1)
}
