//! Work that gives way to requests: threads of a low priority. A thread that gave its priority up doesn't get it
//! back, so that such threads end, or hand on what they have.

use std::panic::resume_unwind;

/// How much nicer than others such a thread is. Beside one other thread it gets a tenth of a core: less, and a busy
/// machine would never load anything.
const NICER: i32 = 10;

/// Gives this thread's priority up, and that of the threads which it starts from now on.
pub(super) fn give_way() {
    // Linux means one thread by this. Where it is refused, the work goes on at the priority that it has.
    if let Err(error) = rustix::process::nice(NICER) {
        tracing::debug!(%error, "the priority of a thread stays");
    }
}

/// Lets this thread work only where a core has nothing else to do. For work that may be left undone: a busy machine
/// never gets to it.
pub(super) fn give_way_to_all() {
    #[cfg(target_os = "linux")]
    {
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: 0 stands for this thread, and the parameters outlive the call.
        if unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) } != 0 {
            tracing::debug!(error = %std::io::Error::last_os_error(), "the scheduling of a thread stays");
        }
    }
}

/// Does some work on a thread of a low priority, and waits for it. Without a thread the work is done on this one.
///
/// # Panics
/// If the work does.
pub fn in_background<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let (mut work, mut result) = (Some(work), None);
    std::thread::scope(|scope| {
        let (work, result) = (&mut work, &mut result);
        let body = move || {
            give_way();
            *result = work.take().map(|work| work());
        };
        let thread = std::thread::Builder::new().name("background".into()).spawn_scoped(scope, body);
        if let Ok(Err(panic)) = thread.map(std::thread::ScopedJoinHandle::join) {
            resume_unwind(panic);
        }
    });
    result.unwrap_or_else(|| work.take().map(|work| work()).expect("the work wasn't begun, or has a result"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_in_the_background_gives_way_and_this_thread_does_not() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let before = nice();
        assert_eq!(in_background(nice), (before + NICER).min(19));
        assert_eq!(nice(), before);
        let panic = std::panic::catch_unwind(|| in_background(|| panic!("on purpose")));
        assert!(panic.is_err());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_thread_that_gives_way_to_all_works_on_idle_cores_only() {
        // The 41st field is the scheduling policy; the third one follows the name in brackets.
        let policy = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let (_, fields) = stat.rsplit_once(") ").unwrap();
            fields.split(' ').nth(41 - 3).unwrap().parse::<i32>().unwrap()
        };
        let other = std::thread::spawn(move || {
            give_way_to_all();
            policy()
        });
        assert_eq!((other.join().unwrap(), policy()), (libc::SCHED_IDLE, libc::SCHED_OTHER));
    }
}
