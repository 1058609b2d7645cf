//! Whether the engines work, and the watchdog that notices a step that takes too long.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::observer::Observer;
use crate::request::Failure;

/// Interval at which the watchdog looks for steps that hang.
const WATCH_EVERY: Duration = Duration::from_millis(100);

/// The state of a model's engines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Real steps have succeeded.
    Ready,
    /// An engine failed, or its step does not end.
    Failed(Failure),
}

#[derive(Clone, Debug, Default)]
struct Replica {
    failed: Option<Failure>,
    hangs: bool,
}

/// The health of each replica. The model is as healthy as the worst of them.
pub(super) struct Board {
    replicas: Mutex<Vec<Replica>>,
    /// By replica: when its forward began, in milliseconds since `epoch`, plus one; 0 while it doesn't compute.
    computing_since: Vec<AtomicU64>,
    epoch: Instant,
    health: watch::Sender<Health>,
    observer: Arc<dyn Observer>,
}

impl Board {
    /// All replicas work.
    pub(super) fn new(replicas: usize, observer: Arc<dyn Observer>) -> Self {
        observer.healthy(true);
        Self {
            replicas: Mutex::new(vec![Replica::default(); replicas]),
            computing_since: (0..replicas).map(|_| AtomicU64::new(0)).collect(),
            epoch: Instant::now(),
            health: watch::Sender::new(Health::Ready),
            observer,
        }
    }

    /// Follows the model's health.
    pub(super) fn watch(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Says that a replica failed, or (`None`) works.
    pub(super) fn set_failed(&self, replica: usize, failed: Option<Failure>) {
        self.change(replica, |entry| entry.failed = failed);
    }

    /// Says that a replica begins to compute.
    pub(super) fn begin(&self, replica: usize) {
        self.computing_since[replica].store(self.now_ms() + 1, Ordering::Relaxed);
    }

    /// Says that a replica has computed. Returns whether it had been given up.
    pub(super) fn end(&self, replica: usize) -> bool {
        self.computing_since[replica].store(0, Ordering::Relaxed);
        let hung = self.hangs(replica);
        if hung {
            self.change(replica, |entry| entry.hangs = false);
        }
        hung
    }

    /// Whether a replica failed, or hangs.
    pub(super) fn is_failed(&self) -> bool {
        *self.health.borrow() != Health::Ready
    }

    /// Whether a replica's forward doesn't come back.
    pub(super) fn hangs(&self, replica: usize) -> bool {
        self.replicas.lock().unwrap_or_else(PoisonError::into_inner)[replica].hangs
    }

    /// Declares replicas hung whose forward has taken longer than `limit`.
    fn look(&self, limit: Duration) {
        for (replica, since) in self.computing_since.iter().enumerate() {
            let since = since.load(Ordering::Relaxed);
            if since > 0 && self.now_ms() + 1 - since > limit.as_millis() as u64 && !self.hangs(replica) {
                tracing::error!(replica, limit_ms = limit.as_millis() as u64, "a model step doesn't come back");
                self.change(replica, |entry| entry.hangs = true);
            }
        }
    }

    fn change(&self, replica: usize, change: impl FnOnce(&mut Replica)) {
        let mut replicas = self.replicas.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut replicas[replica]);
        let failed =
            replicas.iter().find_map(|entry| entry.failed.clone().or_else(|| entry.hangs.then_some(Failure::Hangs)));
        self.observer.healthy(failed.is_none());
        let health = failed.map_or(Health::Ready, Health::Failed);
        self.health.send_if_modified(|now| {
            let changed = *now != health;
            *now = health;
            changed
        });
    }

    fn now_ms(&self) -> u64 {
        self.epoch.elapsed().as_millis() as u64
    }
}

/// The thread that looks at a board now and then, until dropped.
pub(super) struct Watchdog {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts looking for steps that take longer than `limit`.
    pub(super) fn start(board: Arc<Board>, limit: Duration) -> std::io::Result<Self> {
        let (stop, stopped) = sync_channel(0);
        let body = move || {
            while stopped.recv_timeout(WATCH_EVERY) == Err(RecvTimeoutError::Timeout) {
                board.look(limit);
            }
        };
        let thread = std::thread::Builder::new().name("watchdog".into()).spawn(body)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It can't panic on purpose, and there is nobody to tell.
            let _ = thread.join();
        }
    }
}
