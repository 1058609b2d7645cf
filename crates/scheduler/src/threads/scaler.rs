//! The thread that lets a model's replicas follow its load, as [`crate::scaling`] decides. It loads one replica at a
//! time, or lets one go, and answers requests whose time is over while no replica does.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::health::Board;
use super::queue::Queue;
use super::replica::Launcher;
use crate::backend::LoadError;
use crate::request::{Failure, Refusal};
use crate::scaling::{Change, LOOK_EVERY, Scaling, Seen};

/// Between two looks while requests wait for the first replica: their deadlines are kept meanwhile.
const WAKING_LOOK_EVERY: Duration = Duration::from_millis(10);

/// What a replica occupies until this is dropped.
pub type Occupied = Box<dyn Any + Send + Sync>;

/// Where replicas get their memory: it is reserved before one is loaded.
pub trait Room: Send + Sync {
    /// Reserves the memory of one replica.
    ///
    /// # Errors
    /// Why there is none, in a sentence.
    fn reserve(&self) -> Result<Occupied, String>;
}

/// What the thread is told.
pub(super) enum Told {
    /// A request came while no replica worked.
    Asked,
    /// A replica can work, or why not.
    Loaded(Result<(), LoadError>),
    /// The thread of a replica has ended.
    Ended(usize),
    /// Where the memory of replicas comes from, and that of those which work.
    Room(Arc<dyn Room>, Vec<Occupied>),
    /// The pool is being dropped.
    Stop,
}

/// What is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnderWay {
    Nothing,
    /// The replica after the last one is being loaded, since then.
    Loading(Instant),
    /// This replica was told to end.
    Leaving(usize),
}

/// The running thread, until dropped.
pub(super) struct Scaler {
    tell: SyncSender<Told>,
    thread: Option<JoinHandle<()>>,
    /// Replicas that work.
    working: Arc<AtomicUsize>,
}

impl Scaler {
    /// Starts it for replicas that work; `told` is what they tell.
    pub(super) fn start(
        launcher: Arc<Launcher>,
        tell: SyncSender<Told>,
        told: Receiver<Told>,
    ) -> std::io::Result<Self> {
        let replicas = launcher.options.replicas;
        let working = Arc::new(AtomicUsize::new(replicas.at_start()));
        let life = Life {
            queue: Arc::clone(&launcher.queue),
            board: Arc::clone(&launcher.board),
            scaling: Scaling::new(replicas, Instant::now()),
            working: Arc::clone(&working),
            tell: tell.clone(),
            under_way: UnderWay::Nothing,
            accepted: 0,
            room: None,
            occupied: Vec::new(),
            launcher,
        };
        let thread = std::thread::Builder::new().name("scaler".into()).spawn(move || life.run(&told))?;
        Ok(Self { tell, thread: Some(thread), working })
    }

    /// The channel on which it is told.
    pub(super) fn channel() -> (SyncSender<Told>, Receiver<Told>) {
        sync_channel(16)
    }

    /// Replicas that work.
    pub(super) fn working(&self) -> usize {
        self.working.load(Ordering::SeqCst)
    }

    /// A request waits in the queue: wakes a model that sleeps.
    pub(super) fn asked(&self) {
        if self.working() == 0 {
            // A full channel has something that wakes it, too.
            let _ = self.tell.try_send(Told::Asked);
        }
    }

    /// From where replicas get their memory from now on, and what those that work have of it.
    pub(super) fn set_room(&self, room: Arc<dyn Room>, occupied: Vec<Occupied>) {
        let _ = self.tell.send(Told::Room(room, occupied));
    }
}

impl Drop for Scaler {
    fn drop(&mut self) {
        let _ = self.tell.send(Told::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// The state of the thread.
struct Life {
    launcher: Arc<Launcher>,
    queue: Arc<Queue>,
    board: Arc<Board>,
    scaling: Scaling,
    working: Arc<AtomicUsize>,
    tell: SyncSender<Told>,
    under_way: UnderWay,
    /// Requests that were accepted until the last look.
    accepted: u64,
    room: Option<Arc<dyn Room>>,
    /// What each working replica has of the room.
    occupied: Vec<Occupied>,
}

impl Life {
    fn run(mut self, told: &Receiver<Told>) {
        loop {
            let told = match self.pause() {
                Some(pause) => told.recv_timeout(pause),
                None => told.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match told {
                Ok(Told::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(Told::Asked) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Told::Loaded(result)) => self.loaded(result),
                Ok(Told::Ended(replica)) => self.ended(replica),
                Ok(Told::Room(room, occupied)) => (self.room, self.occupied) = (Some(room), occupied),
            }
            self.look();
        }
    }

    /// Until the next look, if one is needed without being told.
    fn pause(&self) -> Option<Duration> {
        let waits = self.queue.look().oldest.is_some();
        match self.working() {
            0 if waits => Some(WAKING_LOOK_EVERY),
            // Nobody is let in until it has been tried again.
            0 if !self.board.is_failed() => None,
            _ => Some(LOOK_EVERY),
        }
    }

    fn look(&mut self) {
        let waiting = self.queue.look();
        let asked = waiting.admissions > 0 || waiting.accepted != self.accepted;
        self.accepted = waiting.accepted;
        let seen = Seen { replicas: self.working(), oldest: waiting.oldest, busy: waiting.busy, asked };
        if self.under_way != UnderWay::Nothing {
            return;
        }
        match self.scaling.look(seen, Instant::now()) {
            Change::None => {}
            Change::Grow => self.grow(waiting.oldest),
            // An engine that failed says nothing about the load.
            Change::Shrink if self.board.is_failed() => {}
            Change::Shrink => self.shrink(),
        }
    }

    /// Begins to load a replica, if there is room for it.
    fn grow(&mut self, waited: Option<Duration>) {
        match self.room.as_ref().map(|room| room.reserve()).transpose() {
            Ok(occupied) => self.occupied.extend(occupied),
            Err(reason) => return self.no_room(reason),
        }
        let replica = self.working();
        let waited_ms = waited.unwrap_or_default().as_millis() as u64;
        tracing::info!(replica, waited_ms, "requests wait: another replica is loaded");
        self.queue.want(replica + 1);
        self.under_way = UnderWay::Loading(Instant::now());
        let tell = self.tell.clone();
        // At normal priority: requests wait for it, and may use all that there is.
        if let Err(error) = self.launcher.launch(replica, false, move |loaded| drop(tell.send(Told::Loaded(loaded)))) {
            self.loaded(Err(LoadError::engine(format!("there is no thread for it: {error}"))));
        }
    }

    fn no_room(&mut self, reason: String) {
        if self.working() == 0 {
            // Whoever asks next tries again.
            tracing::error!(reason, "the model can't wake");
            return self.queue.refuse_waiting(&Refusal::Asleep(reason));
        }
        tracing::warn!(reason, "requests wait, and there is no room for another replica");
        self.scaling.failed(Instant::now());
    }

    fn loaded(&mut self, loaded: Result<(), LoadError>) {
        let UnderWay::Loading(since) = std::mem::replace(&mut self.under_way, UnderWay::Nothing) else { return };
        let replicas = self.working();
        match loaded {
            Ok(()) => {
                self.set_working(replicas + 1);
                let load_ms = since.elapsed().as_micros() as f64 / 1e3;
                tracing::info!(replicas = replicas + 1, load_ms, "a replica was added");
                self.board.set_failed(replicas, None);
            }
            Err(reason) => {
                tracing::error!(replica = replicas, %reason, "the replica can't be loaded");
                self.queue.want(replicas);
                self.occupied.truncate(replicas);
                self.scaling.failed(Instant::now());
                if replicas == 0 {
                    let failure = Failure::Load(reason.to_string());
                    self.board.set_failed(replicas, Some(failure.clone()));
                    self.queue.refuse_waiting(&Refusal::Unhealthy(failure));
                }
            }
        }
    }

    /// Tells the last replica to end. Its requests go to others, or wake the model again.
    fn shrink(&mut self) {
        let replica = self.working() - 1;
        self.set_working(replica);
        self.under_way = UnderWay::Leaving(replica);
        self.queue.want(replica);
    }

    fn ended(&mut self, replica: usize) {
        // Others have failed, and said so.
        if self.under_way == UnderWay::Leaving(replica) {
            self.under_way = UnderWay::Nothing;
            self.occupied.truncate(replica);
            tracing::info!(replicas = replica, "a replica that nobody needed has gone");
        }
    }

    fn working(&self) -> usize {
        self.working.load(Ordering::SeqCst)
    }

    fn set_working(&self, replicas: usize) {
        self.working.store(replicas, Ordering::SeqCst);
        self.launcher.observer.replicas(replicas);
    }
}
