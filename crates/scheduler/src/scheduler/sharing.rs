//! What of a step is whose: which tasks advance, which of them speculate, and whose nodes are planned.

use rustc_hash::FxHashMap;

use super::Scheduler;
use crate::client::Client;
use crate::job::{Job, JobId};
use crate::order::{Turn, one_of_each};
use crate::plan::{Plan, PlanLimits, Wants};

/// Beside interactive work, bulk work has one of so many rows, in the steps that it has a part in.
const BULK_SHARE: usize = 4;

/// The share of speculative requests that are wanted in the end: of the last ones of a step, with the demo model and
/// SmolLM2-135M.
const HIT_RATE: f64 = 0.7;

impl Scheduler {
    /// Rows of this step that bulk work may have: all of them, or beside interactive work a few of every so many.
    pub(super) fn bulk_rows(&self, turn: Turn) -> usize {
        let lanes = self.backend.limits().lanes;
        match self.is_interactive() {
            false => lanes,
            true if turn.has_bulk() => lanes.div_ceil(BULK_SHARE),
            true => 0,
        }
    }

    /// Advances every task as far as the prefix cache allows, and returns those that are done. What takes long is
    /// spread over several steps: choosing tokens from whole vocabularies, and bulk work. A step settles twice, so that
    /// such tasks choose as many tokens in it as it has rows, and bulk ones as many as they may have of these.
    pub(super) fn settle(&mut self, turn: Turn, bulk_rows: usize) -> Vec<JobId> {
        let (mut choices, mut unbounded) = (self.backend.limits().lanes.div_ceil(2), usize::MAX);
        let mut bulk_choices = bulk_rows.div_ceil(2);
        let (mut done, mut slow) = (Vec::new(), Vec::new());
        for (index, job) in self.jobs.iter_mut().enumerate() {
            if !job.is_quick() {
                slow.push(index);
            } else if job.settle(&mut self.cache, &mut unbounded) {
                done.push(job.id);
            }
        }
        turn.sort(&mut slow, |&index| self.jobs[index].standing(0));
        for index in one_of_each(slow, |&index| self.jobs[index].flow.client) {
            let job = &mut self.jobs[index];
            let choices = if job.is_bulk() { &mut bulk_choices } else { &mut choices };
            if *choices > 0 && job.settle(&mut self.cache, choices) {
                done.push(job.id);
            }
        }
        done
    }

    /// Whether an interactive request wants something of this step.
    pub(super) fn is_interactive(&self) -> bool {
        self.jobs.iter().any(|job| !job.is_bulk() && !job.ahead && job.missing_source().is_none())
    }

    /// Lets every task ask for what it will probably want next, to fill the step that it has to wait for anyway. The
    /// rows of a step are shared evenly among clients, and a client's among its jobs.
    pub(super) fn speculate(&mut self, bulk_rows: usize) {
        let takes_part = |job: &Job| bulk_rows > 0 || !job.is_bulk();
        let mut jobs: FxHashMap<Client, usize> = FxHashMap::default();
        for job in self.jobs.iter().filter(|job| takes_part(job)) {
            *jobs.entry(job.flow.client).or_default() += 1;
        }
        let (lanes, clients) = (self.backend.limits().lanes, jobs.len());
        for job in self.jobs.iter_mut().filter(|job| takes_part(job)) {
            let sharing = clients * jobs.get(&job.flow.client).copied().unwrap_or(1);
            // The more share a step, the less of it each saves.
            let mut worth = rows_worth_filling(self.forward_cost / sharing as f64);
            if job.ahead {
                // A request that comes meanwhile waits for this step: half as long again as the shortest, at most.
                worth = worth.min(1 + (self.forward_cost / 2.0) as usize);
            }
            job.speculate(&mut self.cache, worth.min(lanes / sharing));
        }
    }

    /// Packs missing nodes of all jobs into rows, those of bulk jobs into so many.
    pub(super) fn plan(&mut self, turn: Turn, mut bulk_rows: usize) -> Plan {
        let limits = self.backend.limits();
        let mut plan = Plan::new(PlanLimits {
            rows: limits.lanes,
            context: limits.context,
            chunk: limits.chunk,
            positions: self.step_tokens,
            selected: limits.selected,
        });
        let sharing = self.jobs.iter().enumerate().filter(|(_, job)| bulk_rows > 0 || !job.is_bulk());
        let mut wants: Vec<Wants> = sharing.filter_map(|(index, job)| job.wants(index, &self.cache)).collect();
        turn.sort(&mut wants, |wants| wants.standing);
        let mut wants = one_of_each(wants, |wants| self.jobs[wants.job].flow.client);
        if bulk_rows < limits.lanes {
            for wants in wants.iter_mut().filter(|wants| self.jobs[wants.job].is_bulk()) {
                wants.targets.truncate(bulk_rows);
                bulk_rows -= wants.targets.len();
            }
            wants.retain(|wants| !wants.targets.is_empty());
        }
        plan.pack(&wants, turn, &self.cache);
        plan
    }
}

/// How many rows of a step are worth filling for a task. `forward_cost` is its share of a step's fixed cost, in rows.
///
/// Each speculative row costs a row. If it is wanted, it saves a row of a later forward and that forward's fixed cost,
/// spread over its n rows. It pays while HIT_RATE * (1 + forward_cost / n) > 1.
pub(super) fn rows_worth_filling(forward_cost: f64) -> usize {
    1 + (HIT_RATE / (1.0 - HIT_RATE) * forward_cost) as usize
}
