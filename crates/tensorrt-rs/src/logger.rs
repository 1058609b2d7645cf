//! TensorRT's log: messages go to `tracing` (target `tensorrt`), and the latest errors are kept for the result of a
//! failed call.
//!
//! A library keeps the first logger that it sees. So each opened library has one, which is never freed.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};

use crate::sys::{TrtLogger, TrtShim, call};
use crate::types::{Flavour, Severity};

/// Errors that are kept: more than one call reports, few enough to read.
const KEPT: usize = 32;

/// One library's logger. Called by TensorRT from any of its threads.
pub(crate) struct Logger {
    raw: *mut TrtLogger,
    log: &'static Log,
}

// SAFETY: `raw` is an object without state that TensorRT calls from several threads at once; it forwards to `log`,
// which is Sync.
unsafe impl Send for Logger {}
// SAFETY: as above.
unsafe impl Sync for Logger {}

struct Log {
    flavour: Flavour,
    recent: Mutex<Recent>,
}

#[derive(Default)]
struct Recent {
    /// Errors so far, those that were dropped included.
    count: u64,
    errors: VecDeque<(ThreadId, String)>,
}

/// Every log that was made, so that those that live for good are still reachable.
static LOGS: Mutex<Vec<&'static Log>> = Mutex::new(Vec::new());

impl Logger {
    pub(crate) fn new(table: &TrtShim, flavour: Flavour) -> Self {
        let log: &'static Log = Box::leak(Box::new(Log { flavour, recent: Mutex::default() }));
        LOGS.lock().unwrap_or_else(PoisonError::into_inner).push(log);
        let user: *const Log = log;
        // SAFETY: `log` is never freed, and `receive` takes it for what it is.
        let raw = unsafe { call!(table, logger_create, Some(receive), user.cast_mut().cast()) };
        assert!(!raw.is_null(), "out of memory");
        Self { raw, log }
    }

    pub(crate) fn as_ptr(&self) -> *mut TrtLogger {
        self.raw
    }

    /// Where the log is now, for [`Logger::errors_since`].
    pub(crate) fn mark(&self) -> u64 {
        self.log.recent().count
    }

    /// The errors since a mark: this thread's, and if it had none, those of TensorRT's own threads.
    pub(crate) fn errors_since(&self, mark: u64) -> Vec<String> {
        let recent = self.log.recent();
        let new = usize::try_from(recent.count.saturating_sub(mark)).unwrap_or(usize::MAX).min(recent.errors.len());
        let new: Vec<_> = recent.errors.iter().skip(recent.errors.len() - new).collect();
        let mine = thread::current().id();
        let any_mine = new.iter().any(|(thread, _)| *thread == mine);
        new.into_iter().filter(|(thread, _)| !any_mine || *thread == mine).map(|(_, text)| text.clone()).collect()
    }
}

impl Log {
    fn recent(&self) -> std::sync::MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn receive(&self, severity: Severity, message: &str) {
        let message = message.trim_end();
        let flavour = self.flavour.name();
        match severity {
            Severity::InternalError | Severity::Error => {
                tracing::error!(target: "tensorrt", flavour, "{message}");
                let mut recent = self.recent();
                recent.count += 1;
                recent.errors.push_back((thread::current().id(), message.to_owned()));
                if recent.errors.len() > KEPT {
                    recent.errors.pop_front();
                }
            }
            Severity::Warning => tracing::warn!(target: "tensorrt", flavour, "{message}"),
            // What TensorRT thinks worth knowing is for its developers.
            Severity::Info => tracing::debug!(target: "tensorrt", flavour, "{message}"),
            Severity::Verbose => tracing::trace!(target: "tensorrt", flavour, "{message}"),
        }
    }
}

unsafe extern "C" fn receive(user: *mut c_void, severity: i32, message: *const c_char) {
    // A panic must not reach C++: a subscriber's failure costs the message.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: `user` is the `Log` given to `logger_create`, which is never freed.
        let log = unsafe { &*user.cast_const().cast::<Log>() };
        // SAFETY: TensorRT hands over a string that is there during the call.
        let message = unsafe { CStr::from_ptr(message) };
        log.receive(Severity::from_raw(severity), &message.to_string_lossy());
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logger() -> Logger {
        let log = Box::leak(Box::new(Log { flavour: Flavour::Rtx, recent: Mutex::default() }));
        Logger { raw: std::ptr::null_mut(), log }
    }

    #[test]
    fn a_call_gets_the_errors_that_came_while_it_ran() {
        let logger = logger();
        logger.log.receive(Severity::Error, "before");
        let mark = logger.mark();
        assert!(logger.errors_since(mark).is_empty());
        logger.log.receive(Severity::Error, "one\n");
        logger.log.receive(Severity::Warning, "a warning");
        logger.log.receive(Severity::InternalError, "two");
        assert_eq!(logger.errors_since(mark), ["one", "two"]);
        (0..100).for_each(|i| logger.log.receive(Severity::Error, &i.to_string()));
        let errors = logger.errors_since(mark);
        assert_eq!((errors.len(), errors[KEPT - 1].as_str()), (KEPT, "99"));
    }

    #[test]
    fn other_threads_errors_are_taken_only_where_this_one_has_none() {
        let logger = logger();
        let mark = logger.mark();
        thread::scope(|scope| scope.spawn(|| logger.log.receive(Severity::Error, "theirs")).join().unwrap());
        assert_eq!(logger.errors_since(mark), ["theirs"]);
        logger.log.receive(Severity::Error, "mine");
        assert_eq!(logger.errors_since(mark), ["mine"]);
    }
}
