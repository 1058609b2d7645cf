//! The model threads: each the only owner of an engine, all behind one bounded queue.
//!
//! A thread loads its engine, proves it with forwards, and works. When the engine fails for good, the thread says so, has
//! everyone who waits told, and loads the engine once more; a second failure is final, because then it is the machine's.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::calibrate::calibrate;
use super::health::{Board, Health, Watchdog};
use super::parked::Parked;
use super::queue::Queue;
use super::request::{Refusal, Request};
use super::scheduler::Scheduler;
use super::waiting::LineLimits;
use super::worker::{End, Worker};
use crate::backend::Backend;
use crate::observer::Observer;
use completion::text::TokenId;

/// Makes an engine. Called on the thread that will own it, once for each replica and once more after a failure.
pub type Loader = Arc<dyn Fn() -> Result<Box<dyn Backend>, String> + Send + Sync>;

/// Times that a failed engine is loaded again in the life of a process.
const RESTARTS: usize = 1;

/// Bounds on what waits and runs, and what runs it.
#[derive(Clone, Copy, Debug)]
pub struct PoolOptions {
    /// Requests that wait to be taken on; one more is refused.
    pub max_queued: usize,
    /// Once the oldest has waited so long, the newest is taken first.
    pub patience: Duration,
    /// Requests that share a replica's forwards.
    pub max_batch: usize,
    /// Engines, each with a thread of its own.
    pub replicas: usize,
    /// Positions of one forward, padding included.
    pub step_tokens: usize,
    /// Whether an idle engine prepares for the character that the first suggestion has next.
    pub lookahead: bool,
    /// Bound of each replica's tree of distributions, in bytes.
    pub tree_bytes: usize,
    /// A forward that takes longer is given up: the model is unhealthy until it comes back.
    pub hang_after: Duration,
}

/// The threads. Dropping it waits until the requests that were accepted are answered and the engines are gone: an engine that
/// computes while the process ends would use libraries that are being torn down.
pub struct Pool {
    queue: Arc<Queue>,
    /// By replica.
    parked: Vec<Arc<Parked>>,
    board: Arc<Board>,
    threads: Vec<JoinHandle<()>>,
    health: watch::Receiver<Health>,
    _watchdog: Watchdog,
}

impl Pool {
    /// Starts the threads and waits until every engine has computed something. `probe` is the token of the first forward.
    ///
    /// # Errors
    /// Why an engine can't be loaded, or that there is no thread.
    pub fn start(
        load: &Loader,
        probe: TokenId,
        options: PoolOptions,
        observer: &Arc<dyn Observer>,
    ) -> Result<Self, String> {
        let limits = LineLimits { length: options.max_queued, patience: options.patience };
        let replicas = options.replicas.max(1);
        let queue = Arc::new(Queue::new(limits, replicas, Arc::clone(observer)));
        let board = Arc::new(Board::new(replicas, Arc::clone(observer)));
        let watchdog = Watchdog::start(Arc::clone(&board), options.hang_after);
        let no_thread = |e: std::io::Error| format!("no thread for the model: {e}");
        let mut pool = Self {
            health: board.watch(),
            parked: (0..replicas).map(|_| Arc::default()).collect(),
            threads: Vec::new(),
            _watchdog: watchdog.map_err(no_thread)?,
            queue,
            board,
        };
        let mut loading = Vec::new();
        for replica in 0..replicas {
            let (loaded, is_loaded) = sync_channel(1);
            let life = Replica {
                replica,
                load: Arc::clone(load),
                probe,
                options,
                queue: Arc::clone(&pool.queue),
                parked: Arc::clone(&pool.parked[replica]),
                board: Arc::clone(&pool.board),
                observer: Arc::clone(observer),
            };
            let thread = std::thread::Builder::new().name(format!("model-{replica}"));
            pool.threads.push(thread.spawn(move || life.run(|result| drop(loaded.send(result)))).map_err(no_thread)?);
            loading.push(is_loaded);
        }
        loading.iter().try_for_each(wait_for_load)?;
        Ok(pool)
    }

    /// Queues a request, or answers it at once, on this thread: if its home waits for something to do and has all that it needs
    /// in memory.
    ///
    /// # Errors
    /// [`Refusal::NotReady`] if no engine is running. A full queue is told through the request's own channel, because it may be
    /// another request that has to give way.
    pub fn submit(&self, request: Request) -> Result<(), Refusal> {
        match self.health() {
            Health::Ready => match self.parked[request.home].bring(request) {
                Some(request) => self.queue.submit(request),
                None => Ok(()),
            },
            Health::Failed(reason) => Err(Refusal::NotReady(reason)),
        }
    }

    /// The engines' state.
    pub fn health(&self) -> Health {
        self.health.borrow().clone()
    }

    /// Follows the engines' state.
    pub fn watch_health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    /// Accepts nothing more; what was accepted is answered, with what is found until then when `within` has passed.
    pub fn drain(&self, within: Duration) {
        self.queue.close(Some(Instant::now() + within));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.queue.close(None);
        for (replica, thread) in self.threads.drain(..).enumerate() {
            // One that never comes back would keep the process from ending. A panic was reported when it happened.
            if !self.board.hangs(replica) {
                let _ = thread.join();
            }
        }
    }
}

fn wait_for_load(loaded: &Receiver<Result<(), String>>) -> Result<(), String> {
    loaded.recv().unwrap_or_else(|_| Err("loading the model ended in a panic".into()))
}

/// The life of one replica, on its thread.
struct Replica {
    replica: usize,
    load: Loader,
    probe: TokenId,
    options: PoolOptions,
    queue: Arc<Queue>,
    parked: Arc<Parked>,
    board: Arc<Board>,
    observer: Arc<dyn Observer>,
}

impl Replica {
    fn run(self, loaded: impl FnOnce(Result<(), String>)) {
        let mut worker = match self.worker() {
            Ok(worker) => {
                loaded(Ok(()));
                worker
            }
            Err(reason) => return loaded(Err(reason)),
        };
        for restart in 1.. {
            // The worker deals with panics of the engine; this is for those nobody thought of.
            let ended = catch_unwind(AssertUnwindSafe(|| worker.run()));
            let reason = match ended.unwrap_or_else(|_| End::Failed("its thread panicked".to_owned())) {
                End::Closed => return,
                End::Failed(reason) => reason,
            };
            self.board.set_failed(self.replica, Some(reason.clone()));
            self.queue.refuse_waiting(&Refusal::NotReady(reason));
            if restart > RESTARTS {
                tracing::error!(replica = self.replica, "the engine failed again; it stays unhealthy");
                return;
            }
            tracing::warn!(replica = self.replica, "loading the engine again");
            worker = match self.worker() {
                Ok(worker) => worker,
                Err(reason) => {
                    tracing::error!(replica = self.replica, %reason, "the engine can't be loaded again");
                    return;
                }
            };
            self.observer.restarted();
            self.board.set_failed(self.replica, None);
        }
    }

    /// Loads and proves an engine.
    fn worker(&self) -> Result<Worker, String> {
        let made = catch_unwind(AssertUnwindSafe(|| -> Result<Scheduler, String> {
            let mut scheduler = Scheduler::new((self.load)()?, self.options.tree_bytes);
            scheduler.set_step_tokens(self.options.step_tokens);
            calibrate(&mut scheduler, self.probe).map_err(|error| error.to_string())?;
            Ok(scheduler)
        }));
        let scheduler = made.unwrap_or_else(|_| Err("loading the model ended in a panic".into()))?;
        Ok(Worker {
            replica: self.replica,
            scheduler,
            queue: Arc::clone(&self.queue),
            parked: Arc::clone(&self.parked),
            board: Arc::clone(&self.board),
            observer: self.observer.replica(self.replica),
            max_batch: self.options.max_batch.max(1),
            lookahead: self.options.lookahead,
            probe: self.probe,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::backend::Limits;
    use crate::fake::FakeBackend;
    use crate::observer::Unobserved;

    fn options() -> PoolOptions {
        PoolOptions {
            max_queued: 4,
            patience: Duration::from_secs(1),
            max_batch: 4,
            replicas: 1,
            step_tokens: 64,
            lookahead: false,
            tree_bytes: 1 << 20,
            hang_after: Duration::from_secs(60),
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
        let load: Loader = Arc::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
            Ok(Box::new(backend()))
        });
        let observer: Arc<dyn Observer> = Arc::new(Unobserved);
        let pool = Pool::start(&load, TokenId(1), options(), &observer).unwrap();
        assert_eq!(loads.load(Ordering::Relaxed), 1);
        let mut panicked = false;
        while !panicked {
            // The thread may not have parked its loop yet.
            pool.parked[0].visit(|_| {
                panicked = true;
                panic!("on purpose")
            });
        }
        let mut health = pool.watch_health();
        let wait = async { health.wait_for(|health| *health == Health::Ready).await.is_ok() };
        assert!(tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(wait));
        assert_eq!(loads.load(Ordering::Relaxed), 2);
    }
}
