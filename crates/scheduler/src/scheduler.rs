//! The scheduler: which search nodes of which requests go into the next forward, and who gets the results.
//!
//! [`Scheduler::step`] is the whole engine loop. It supplies every task from the prefix cache, collects missing nodes,
//! packs rows, loads, computes and stores, and supplies the results. Requests share every forward, and requests for the
//! same path share its row. There is no time and no thread in here: the caller decides who waits for whom.

mod sharing;

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::client::Flow;
use super::job::{Job, JobId, Usage};
use super::lanes::Lanes;
use super::order::{SHORT_ROW, Turn};
use super::plan::Plan;
use super::prefix_cache::{NodeId, PrefixCache, PrefixCacheStats, Serial};
use super::sources::Sources;
use crate::backend::{Backend, BackendError, Batch, KvCopy, Lane, Outputs, Selected, SourceSlot};
use completion::{Distribution, Logits, Partition, Task, TaskOutput};

/// Up to this vocabulary, in tokens, every computed distribution is kept whole: it is smaller than the pages of a few
/// positions. Any node can then be the context of a half-typed token later without being computed again.
const WHOLE_ROWS_UP_TO_VOCAB: usize = 8192;

/// The fixed cost of a step, in rows, until [`Scheduler::set_forward_cost`] sets a measured one.
const DEFAULT_FORWARD_COST: f64 = 4.0;

/// The outcome of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stepped {
    /// Jobs that are done.
    pub done: Vec<JobId>,
    /// Jobs for which the engine computed something that is no number. They can't go on; the others can.
    pub failed: Vec<JobId>,
    /// Rows of the step; 0 if none was needed.
    pub rows: usize,
}

/// Jobs, prefix cache, lanes and engine. See the module's documentation.
pub struct Scheduler {
    backend: Box<dyn Backend>,
    cache: PrefixCache,
    prefix_cache_bytes: usize,
    lanes: Lanes,
    sources: Sources,
    jobs: Vec<Job>,
    next_id: u64,
    /// Forwards until now.
    forwards: u64,
    /// Positions computed until now.
    positions: u64,
    /// Whether the last step's rows were long.
    was_long: bool,
    /// Whether the latest search rarely ended: the next ones expect the same.
    rarely_ended: bool,
    /// The fixed cost of a step, in rows.
    forward_cost: f64,
    /// Positions of one step, padding included.
    step_tokens: usize,
    batch: Batch,
    outputs: Outputs,
    /// For each lane, the row of the last step's plan that worked on it.
    order: Vec<usize>,
    copies: Vec<KvCopy>,
}

impl Scheduler {
    /// A scheduler over an engine. `prefix_cache_bytes` bounds the prefix cache's distributions; its pages are the
    /// engine's.
    pub fn new(backend: Box<dyn Backend>, prefix_cache_bytes: usize) -> Self {
        let limits = backend.limits();
        let cache = PrefixCache::new(limits.pages, limits.page_bytes, prefix_cache_bytes);
        let lanes = Lanes::new(limits.lanes);
        // The last slot is for warming up, which may happen while all others are used.
        let sources = Sources::new(limits.source.map_or(0, |source| source.slots - 1));
        Self {
            backend,
            cache,
            prefix_cache_bytes,
            lanes,
            sources,
            jobs: Vec::new(),
            next_id: 0,
            forwards: 0,
            positions: 0,
            was_long: false,
            rarely_ended: false,
            forward_cost: DEFAULT_FORWARD_COST,
            step_tokens: usize::MAX,
            batch: Batch::default(),
            outputs: Outputs::default(),
            order: Vec::new(),
            copies: Vec::new(),
        }
    }

    /// Adds a task, and returns the id of its job.
    pub fn add(&mut self, task: impl Into<Task>) -> JobId {
        self.add_of(Flow::default(), task)
    }

    /// Adds a task that a flow pays for.
    pub fn add_of(&mut self, flow: Flow, task: impl Into<Task>) -> JobId {
        self.take_on(flow, task.into(), false)
    }

    /// Adds a task that no request waits for yet. Bulk work need not give way to it.
    pub fn add_ahead(&mut self, task: impl Into<Task>) -> JobId {
        self.take_on(Flow::default(), task.into(), true)
    }

    fn take_on(&mut self, flow: Flow, mut task: Task, ahead: bool) -> JobId {
        // What others' searches were like would show in what a search of a partition costs.
        if self.rarely_ended && task.paths().partition() == Partition::default() {
            task.expect_no_ends();
        }
        let id = JobId(self.next_id);
        self.next_id += 1;
        let usage = Usage::of(&task);
        self.jobs.push(Job { id, flow, task, source: None, places: Vec::new(), usage, served: self.forwards, ahead });
        id
    }

    /// Gives a task up, finished or not, and returns what it came to and cost until now.
    pub fn remove(&mut self, id: JobId) -> Option<(TaskOutput, Usage)> {
        self.take(id).map(|(task, usage)| (task.output(), usage))
    }

    /// Gives a task up, finished or not, and returns it with what it cost until now.
    pub fn take(&mut self, id: JobId) -> Option<(Task, Usage)> {
        let index = self.jobs.iter().position(|job| job.id == id)?;
        let job = self.jobs.remove(index);
        for &place in job.places.iter().rev() {
            self.cache.release(place);
        }
        if let Some(source) = job.source {
            self.sources.release(source.slot);
        }
        if let Some(rarely_ended) =
            job.task.rarely_ended().filter(|_| job.task.paths().partition() == Partition::default())
        {
            self.rarely_ended = rarely_ended;
        }
        Some((job.task, job.usage))
    }

    /// The task of a job; `None` if the job has ended.
    pub fn task(&self, id: JobId) -> Option<&Task> {
        self.jobs.iter().find(|job| job.id == id).map(|job| &job.task)
    }

    /// The model work of a job so far.
    pub fn usage(&self, id: JobId) -> Option<Usage> {
        self.jobs.iter().find(|job| job.id == id).map(|job| job.usage)
    }

    /// Jobs that are not removed yet.
    pub fn jobs(&self) -> usize {
        self.jobs.len()
    }

    /// Positions computed so far, for all jobs.
    pub fn positions_computed(&self) -> u64 {
        self.positions
    }

    /// Counters and sizes of the prefix cache.
    pub fn prefix_cache_stats(&self) -> PrefixCacheStats {
        self.cache.stats()
    }

    /// Forgets everything that was computed; after an engine error nothing of it can be trusted. Jobs must be removed
    /// before.
    pub fn reset(&mut self) {
        debug_assert!(self.jobs.is_empty(), "jobs refer to the cache");
        let limits = self.backend.limits();
        self.cache = PrefixCache::new(limits.pages, limits.page_bytes, self.prefix_cache_bytes);
        self.lanes.clear();
        self.sources.clear();
    }

    /// Advances one task as far as the prefix cache allows, by at most `rounds` rounds, and never with the engine.
    /// Whether it is done.
    pub fn replay(&mut self, id: JobId, mut rounds: usize) -> bool {
        let job = self.jobs.iter_mut().find(|job| job.id == id);
        job.is_some_and(|job| job.settle(&mut self.cache, &mut rounds))
    }

    /// Advances every task as far as the prefix cache allows, and then by at most one step.
    ///
    /// # Errors
    /// The engine's; then no job can go on, and [`Scheduler::reset`] is due after removing them.
    pub fn step(&mut self) -> Result<Stepped, BackendError> {
        self.read_sources()?;
        let turn = Turn::of(self.forwards, self.was_long);
        let bulk_rows = self.bulk_rows(turn);
        let mut stepped = Stepped { done: self.settle(turn, bulk_rows), ..Stepped::default() };
        if !stepped.done.is_empty() {
            return Ok(stepped);
        }
        self.speculate(bulk_rows);
        let plan = self.plan(turn, bulk_rows);
        if plan.rows.is_empty() {
            return Ok(stepped);
        }
        stepped.rows = plan.rows.len();
        match self.compute(&plan) {
            Ok(()) => stepped.done = self.settle(turn, bulk_rows),
            // The prefix cache has nothing of this forward; who needs nothing of the broken part computes again and
            // gets an answer.
            Err(BackendError::NotANumber(position)) => stepped.failed = self.users_of(&plan, position),
            Err(error) => return Err(error),
        }
        Ok(stepped)
    }

    /// Runs one token in each of `rows` rows through the engine, so that a server that says it is ready has computed
    /// something.
    ///
    /// # Errors
    /// The engine's.
    pub fn warm_up(&mut self, token: completion::text::TokenId, rows: usize) -> Result<(), BackendError> {
        self.batch.clear();
        let source = self.backend.limits().source.map(|source| SourceSlot(source.slots - 1));
        if let Some(slot) = source {
            self.backend.encode(slot, &[token])?;
        }
        for row in 0..rows.clamp(1, self.backend.limits().lanes) {
            self.batch.push_row_of(source, 0, [token]);
            self.batch.selected.push(Selected { row, offset: 0, full: false });
        }
        self.lanes.clear();
        self.backend.forward(&self.batch, &mut self.outputs)
    }

    /// Sets the fixed cost of a step, in rows. The higher it is, the more nodes a step computes speculatively.
    pub fn set_forward_cost(&mut self, rows: f64) {
        self.forward_cost = rows.max(0.0);
    }

    /// Sets how many positions one step may have, padding included. A single row may exceed it.
    pub fn set_step_tokens(&mut self, step_tokens: usize) {
        self.step_tokens = step_tokens;
    }

    /// Gives jobs the slots of their sources. At most one source is read in a step, so that those who write wait for no
    /// more of them.
    fn read_sources(&mut self) -> Result<(), BackendError> {
        for job in &mut self.jobs {
            let Some(tokens) = job.missing_source().cloned() else { continue };
            let partition = job.task.paths().partition();
            let Some((held, is_new)) = self.sources.hold(partition, &tokens) else { continue };
            job.source = Some(held);
            if is_new {
                return self.backend.encode(held.slot, &tokens);
            }
        }
        Ok(())
    }

    /// The jobs that fail if the engine gave NaN at a selected position: all that wanted it or a later one of its row.
    fn users_of(&self, plan: &Plan, position: usize) -> Vec<JobId> {
        let broken = self.batch.selected.get(position);
        let row = broken.and_then(|at| Some((&plan.rows[*self.order.get(at.row)?], at.offset)));
        let Some((row, offset)) = row else { return self.jobs.iter().map(|job| job.id).collect() };
        let shares = |place: &NodeId| row.computed()[offset..].contains(place);
        let users = plan.users.iter().filter(|(_, _, place)| shares(place)).map(|&(job, ..)| job);
        let mut users: Vec<usize> = users.chain([row.job]).collect();
        users.sort_unstable();
        users.dedup();
        users.into_iter().map(|index| self.jobs[index].id).collect()
    }

    /// Loads, computes, stores, and hands out one plan's results.
    fn compute(&mut self, plan: &Plan) -> Result<(), BackendError> {
        let order = self.load(plan)?;
        self.order.clone_from(&order);
        let selected = self.fill_batch(plan, &order);
        if let Err(error) = self.backend.forward(&self.batch, &mut self.outputs) {
            self.lanes.clear();
            return Err(error);
        }
        self.was_long = self.batch.longest() > SHORT_ROW;
        self.store(plan, &order)?;
        self.hand_out(plan, &selected);
        Ok(())
    }

    /// Brings every row's past into its lane. Returns, lane by lane, the index of the plan's row that works on it.
    fn load(&mut self, plan: &Plan) -> Result<Vec<usize>, BackendError> {
        let serials: Vec<Vec<Serial>> =
            plan.rows.iter().map(|row| row.path.iter().map(|&node| self.cache.serial(node)).collect()).collect();
        let pasts: Vec<&[Serial]> = plan.rows.iter().zip(&serials).map(|(row, s)| &s[..row.past]).collect();
        let assigned = self.lanes.assign(&pasts);
        let mut order = vec![0; plan.rows.len()];
        self.copies.clear();
        for (index, (row, &(lane, valid))) in plan.rows.iter().zip(&assigned).enumerate() {
            order[lane] = index;
            for position in valid..row.past {
                let page = self.cache.page(row.path[position]);
                let page = page.ok_or_else(|| BackendError::Contract("a past position without a page".into()))?;
                self.copies.push(KvCopy::Load { page, lane: Lane(lane), position });
            }
        }
        for (lane, &index) in order.iter().enumerate() {
            let row = &plan.rows[index];
            self.lanes.set(lane, serials[index][..row.past + row.len].iter().copied());
        }
        self.backend.copy_kv(&self.copies)?;
        Ok(order)
    }

    /// Writes the batch. Returns the node of each selected position.
    fn fill_batch(&mut self, plan: &Plan, order: &[usize]) -> Vec<NodeId> {
        let whole_rows = self.backend.limits().vocab <= WHOLE_ROWS_UP_TO_VOCAB;
        self.batch.clear();
        let mut selected = Vec::new();
        for (lane, &index) in order.iter().enumerate() {
            let row = &plan.rows[index];
            let source = self.jobs[row.job].source.map(|source| source.slot);
            self.batch.push_row_of(source, row.past, row.computed().iter().map(|&node| self.cache.token(node)));
            for &(offset, full) in &row.selected {
                self.batch.selected.push(Selected { row: lane, offset, full: full || whole_rows });
                selected.push(row.path[row.past + offset]);
            }
            let job = &mut self.jobs[row.job];
            job.usage.positions_computed += row.len;
            if job.task.is_reading() {
                job.usage.typed_positions_computed += row.len;
            }
        }
        self.forwards += 1;
        self.positions += self.batch.tokens.len() as u64;
        // Who gets something out of this forward was served, whoever's row it is.
        for index in plan.rows.iter().map(|row| row.job).chain(plan.users.iter().map(|user| user.0)) {
            self.jobs[index].served = self.forwards;
        }
        for (index, job) in self.jobs.iter_mut().enumerate() {
            job.usage.forwards += usize::from(plan.rows.iter().any(|row| row.job == index));
        }
        if selected.is_empty() {
            // All rows were cut before their targets; a graph still needs a position to compute its head for.
            self.batch.selected.push(Selected { row: 0, offset: 0, full: false });
            selected.push(plan.rows[order[0]].computed()[0]);
        }
        selected
    }

    /// Gives the computed positions pages in the prefix cache and copies them there. Where the pool has none to give,
    /// the position stays in its lane only and is computed again when needed.
    fn store(&mut self, plan: &Plan, order: &[usize]) -> Result<(), BackendError> {
        let mut keep = FxHashSet::default();
        // Where there are pages for all, nobody has to give one up, and long paths need not be collected.
        if self.cache.free_pages() < plan.rows.iter().map(|row| row.len).sum::<usize>() {
            keep.extend(plan.rows.iter().flat_map(|row| row.path.iter().copied()));
        }
        self.copies.clear();
        for (lane, &index) in order.iter().enumerate() {
            let row = &plan.rows[index];
            for (offset, &node) in row.computed().iter().enumerate() {
                if let Some(page) = self.cache.give_page(node, &keep) {
                    self.copies.push(KvCopy::Store { lane: Lane(lane), position: row.past + offset, page });
                }
            }
            if let Some(&last) = row.path.last() {
                self.cache.touch(last, self.jobs[row.job].flow.class);
            }
        }
        self.backend.copy_kv(&self.copies)
    }

    /// Keeps the distributions in the prefix cache and supplies everyone who wanted them: directly, because the prefix
    /// cache may be too small.
    fn hand_out(&mut self, plan: &Plan, selected: &[NodeId]) {
        let limits = self.backend.limits();
        let (top_k, vocab) = (limits.top_k, limits.vocab);
        let mut rows = self.outputs.logits.chunks_exact(vocab);
        let mut computed: FxHashMap<NodeId, Arc<Distribution>> = FxHashMap::default();
        for (index, (&node, selected)) in selected.iter().zip(&self.batch.selected).enumerate() {
            let best = index * top_k..(index + 1) * top_k;
            let row = if selected.full { rows.next() } else { None };
            let next = Arc::new(Distribution::from_logits(Logits {
                best_ids: &self.outputs.top_ids[best.clone()],
                best: &self.outputs.top_logits[best],
                row,
                logsumexp: self.outputs.logsumexp[index],
                vocab,
            }));
            computed.insert(node, Arc::clone(&next));
            self.cache.give_next(node, next);
        }
        for &(job, node, place) in &plan.users {
            if let Some(next) = computed.get(&place) {
                self.jobs[job].task.paths_mut().supply(node, Arc::clone(next));
                self.jobs[job].usage.positions_saved += usize::from(plan.owner(place) != Some(job));
            }
        }
    }
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
