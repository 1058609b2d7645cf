//! The model threads: each is the only owner of an engine, and all share one bounded queue.
//!
//! A thread loads its engine, tests it with a few steps, and works. When the engine fails for good, the thread reports
//! it, answers every waiting request with the failure, and loads the engine once more. A second failure is final,
//! because then the machine is at fault.

use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::admission::Admission;
use super::health::{Board, Health, Watchdog};
use super::options::PoolOptions;
use super::prepared::Prepared;
use super::queue::Queue;
use super::replica::Launcher;
use super::scaler::{Occupied, Room, Scaler};
use crate::backend::{LoadError, Loader};
use crate::line::LineLimits;
use crate::observer::Observer;
use crate::request::{Refusal, Request};
use completion::Task;
use completion::text::TokenId;

/// Why a pool can't start.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// An engine can't be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The system has no thread for it.
    #[error("no thread for the model: {0}")]
    Thread(#[from] std::io::Error),
}

/// The threads. Dropping it waits until the requests that were accepted are answered and the engines are gone: an
/// engine that computes while the process ends would use libraries that are being torn down.
pub struct Pool {
    launcher: Arc<Launcher>,
    queue: Arc<Queue>,
    health: watch::Receiver<Health>,
    /// Where the number of replicas may change.
    scaler: Option<Scaler>,
    _watchdog: Watchdog,
}

impl Pool {
    /// Starts the threads and waits until every engine has computed something. `probe` is the token of the first
    /// forward.
    ///
    /// # Errors
    /// Why an engine can't be loaded, or that there is no thread.
    pub fn start(
        load: &Loader,
        probe: TokenId,
        options: PoolOptions,
        observer: &Arc<dyn Observer>,
    ) -> Result<Self, PoolError> {
        let limits = LineLimits { length: options.max_queued, patience: options.patience };
        let replicas = options.replicas;
        let queue = Arc::new(Queue::new(limits, replicas, Arc::clone(observer)));
        let board = Arc::new(Board::new(replicas.most, Arc::clone(observer)));
        let (tell, told) = replicas.can_change().then(Scaler::channel).unzip();
        let launcher = Arc::new(Launcher {
            load: Arc::clone(load),
            probe,
            options,
            queue: Arc::clone(&queue),
            parking: (0..replicas.most).map(|_| Arc::default()).collect(),
            prepared: (0..replicas.most).map(|_| Arc::new(Prepared::new(options.lookahead))).collect(),
            board: Arc::clone(&board),
            observer: Arc::clone(observer),
            threads: Mutex::new((0..replicas.most).map(|_| None).collect()),
            tell: tell.clone(),
        });
        let watchdog = Watchdog::start(Arc::clone(&board), options.hang_after)?;
        let mut pool = Self { launcher, queue, health: board.watch(), scaler: None, _watchdog: watchdog };
        let mut loading = Vec::new();
        for replica in 0..replicas.at_start() {
            let (loaded, is_loaded) = sync_channel(1);
            pool.launcher.launch(replica, options.in_background, move |result| drop(loaded.send(result)))?;
            loading.push(is_loaded);
        }
        loading.iter().try_for_each(wait_for_load)?;
        observer.replicas(replicas.at_start());
        if let (Some(tell), Some(told)) = (tell, told) {
            pool.scaler = Some(Scaler::start(Arc::clone(&pool.launcher), tell, told)?);
        }
        Ok(pool)
    }

    /// Where replicas that are added get their memory from now on, and what each of those that work has of it. Nothing
    /// for replicas whose number doesn't change.
    pub fn set_room(&self, room: Arc<dyn Room>, occupied: Vec<Occupied>) {
        if let Some(scaler) = &self.scaler {
            scaler.set_room(room, occupied);
        }
    }

    /// Lets replicas that were loaded in the background work at the priority of other threads.
    pub fn release(&self) {
        self.queue.release();
    }

    /// The replica that requests of the same hash prefer. When a replica is added, it gets its share of them from the
    /// others, and the rest stay where they are.
    pub fn preferred_replica(&self, hash: u64) -> usize {
        jump(hash, self.working_replicas())
    }

    /// Replicas that requests are divided among now.
    pub fn working_replicas(&self) -> usize {
        self.scaler.as_ref().map_or(self.launcher.options.replicas.most, Scaler::working)
    }

    /// Accepts a client's request, whose parts are then submitted.
    ///
    /// # Errors
    /// [`Refusal::Stopping`] once [`Pool::drain`] was called.
    pub fn admit(&self) -> Result<Admission, Refusal> {
        Admission::new(&self.queue)
    }

    /// Queues a part of an accepted request. If its preferred replica is parked and has all of its nodes cached, or has
    /// prepared it, this thread answers it instead.
    ///
    /// # Errors
    /// [`Refusal::Unhealthy`] if no engine is running. A full queue is reported through the channel of the request that
    /// is refused, which may be another one.
    pub fn submit(&self, _accepted: &Admission, request: Request) -> Result<(), Refusal> {
        match self.health() {
            Health::Ready => {
                if let Some(request) = self.visit(request).and_then(|request| self.answer(request)) {
                    self.queue.submit(request);
                    self.scaler.iter().for_each(Scaler::asked);
                }
                Ok(())
            }
            Health::Failed(failure) => Err(Refusal::Unhealthy(failure)),
        }
    }

    /// Brings a search to its preferred replica's loop, if that is parked. Returns a request that has to be queued.
    fn visit(&self, request: Request) -> Option<Request> {
        if !matches!(request.task, Task::Search(_)) {
            return Some(request);
        }
        let mut request = Some(request);
        let replica = request.as_ref().map_or(0, |request| request.preferred_replica);
        self.launcher.parking[replica]
            .visit(|parked| request.take().into_iter().for_each(|request| parked.visit(request)));
        request
    }

    /// Answers a search that its preferred replica has prepared. Returns a request that has to be queued.
    fn answer(&self, request: Request) -> Option<Request> {
        let replica = request.preferred_replica;
        let left = self.launcher.prepared[replica].answer(request);
        if left.is_none() {
            // The key after it is to be prepared.
            self.queue.call(replica);
        }
        left
    }

    /// The engines' state.
    pub fn health(&self) -> Health {
        self.health.borrow().clone()
    }

    /// Follows the engines' state.
    pub fn watch_health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    /// Whether the pool accepts no further request.
    pub fn is_draining(&self) -> bool {
        self.queue.stop_by().is_some()
    }

    /// Accepts no further request. What was accepted is answered in all its parts, with what is found until then when
    /// `within` has passed.
    pub fn drain(&self, within: Duration) {
        self.queue.close(Instant::now() + within);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.queue.abandon();
        drop(self.scaler.take());
        self.launcher.join();
        // A model that sleeps wakes for nobody any more.
        self.queue.refuse_waiting(&Refusal::Stopping);
    }
}

/// Which of so many replicas a hash prefers, by jump consistent hashing. Without replicas, the first.
fn jump(mut hash: u64, replicas: usize) -> usize {
    let (mut chosen, mut next) = (0, 0.0);
    while next < replicas as f64 {
        chosen = next as usize;
        hash = hash.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        next = (chosen + 1) as f64 * ((1_u64 << 31) as f64 / ((hash >> 33) + 1) as f64);
    }
    chosen
}

fn wait_for_load(loaded: &Receiver<Result<(), LoadError>>) -> Result<(), LoadError> {
    loaded.recv().unwrap_or(Err(LoadError::Panicked))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::options::RESTART_EVERY;
    use super::*;
    use crate::backend::Limits;
    use crate::fake::FakeBackend;
    use crate::observer::Unobserved;
    use crate::scaling::Replicas;

    fn options() -> PoolOptions {
        PoolOptions {
            max_queued: 4,
            patience: Duration::from_secs(1),
            max_batch: 4,
            replicas: Replicas::fixed(1),
            in_background: false,
            step_tokens: 64,
            lookahead: false,
            prefix_cache_bytes: 1 << 20,
            hang_after: Duration::from_secs(60),
            restart_every: RESTART_EVERY,
        }
    }

    fn backend() -> FakeBackend {
        let (lanes, pages) = (4, 64);
        let (context, chunk, selected) = (16, 16, 16);
        let limits =
            Limits { lanes, context, chunk, selected, vocab: 32, top_k: 8, pages, page_bytes: 64, source: None };
        FakeBackend::hashed(limits, 1, 4.0)
    }

    #[test]
    fn a_panic_on_the_thread_that_brings_a_request_ends_the_engine_like_one_of_its_own() {
        let loads = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&loads);
        let load: Loader = Arc::new(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
            Ok(Box::new(backend()))
        });
        let observer: Arc<dyn Observer> = Arc::new(Unobserved);
        let pool = Pool::start(&load, TokenId(1), options(), &observer).unwrap();
        assert_eq!(loads.load(Ordering::Relaxed), 1);
        let mut panicked = false;
        while !panicked {
            // The thread may not have parked its loop yet.
            pool.launcher.parking[0].visit(|_| {
                panicked = true;
                panic!("on purpose")
            });
        }
        let mut health = pool.watch_health();
        let wait = async { health.wait_for(|health| *health == Health::Ready).await.is_ok() };
        assert!(tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(wait));
        assert_eq!(loads.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_replica_that_is_added_takes_its_share_and_the_rest_stay() {
        let hashes: Vec<u64> = (0..9000_u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        assert!(hashes.iter().all(|&hash| jump(hash, 1) == 0 && jump(hash, 0) == 0));
        for replicas in 1..6 {
            let moved: Vec<usize> = hashes
                .iter()
                .map(|&hash| (jump(hash, replicas), jump(hash, replicas + 1)))
                .filter_map(|(before, after)| (before != after).then_some(after))
                .collect();
            assert!(moved.iter().all(|&after| after == replicas), "only to the new one");
            let share = hashes.len() / (replicas + 1);
            assert!((share * 9 / 10..share * 11 / 10).contains(&moved.len()), "{} of {share}", moved.len());
        }
    }
}
