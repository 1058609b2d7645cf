//! Bulk work beside interactive work: it delays that little, gets on nevertheless, and is done as it would be alone.

use super::*;

/// A line of a batch: many sequences of a text.
fn bulk(scheduler: &mut Scheduler, text: &Arc<Text>, seed: u64) -> JobId {
    let flow = Flow { client: Client::session("batch"), class: Class::Bulk };
    scheduler.add_of(flow, generation(text, seed))
}

fn keystroke(scheduler: &mut Scheduler, text: &Arc<Text>, typed: &str) -> JobId {
    let flow = Flow { client: Client::session("somebody"), class: Class::Interactive };
    scheduler.add_of(flow, search(text, typed, 4, 4))
}

/// Steps until a job is done, and rows of those steps.
fn steps_until_done(scheduler: &mut Scheduler, job: JobId) -> (u64, usize) {
    let (before, mut rows) = (scheduler.forwards, 0);
    while scheduler.jobs.iter().any(|other| other.id == job) {
        let stepped = scheduler.step().unwrap();
        rows += stepped.rows;
        for done in stepped.done {
            scheduler.remove(done).unwrap();
        }
        assert!(scheduler.forwards - before < 1000, "it starves");
    }
    (scheduler.forwards - before, rows)
}

#[test]
fn a_keystroke_takes_hardly_more_steps_and_rows_beside_bulk_work_than_alone() {
    let text = text();
    let mut alone = endless(&text, 8);
    let job = keystroke(&mut alone, &text, "a b");
    let (steps_alone, rows_alone) = steps_until_done(&mut alone, job);
    for begun in 0..16 {
        let mut beside = endless(&text, 8);
        for seed in 0..12 {
            bulk(&mut beside, &text, seed);
        }
        // They are in the middle of their work when it comes.
        (0..begun).for_each(|_| drop(beside.step().unwrap()));
        let job = keystroke(&mut beside, &text, "a b");
        let (steps, rows) = steps_until_done(&mut beside, job);
        // One step in eight has bulk work in it, which may be a prompt that no other row fits beside.
        let shared = steps_alone / (LONGEST_WAITING_EVERY - 1) + 1;
        assert!(steps <= steps_alone + shared, "{steps} steps instead of {steps_alone}, begun at {begun}");
        let most = rows_alone + 4 * shared as usize;
        assert!(rows <= most, "{rows} rows instead of {rows_alone}, begun at {begun}");
    }
}

#[test]
fn bulk_work_gets_on_beside_keystrokes_without_a_pause() {
    let text = text();
    let mut scheduler = endless(&text, 8);
    let jobs: Vec<JobId> = (0..4).map(|seed| bulk(&mut scheduler, &text, seed)).collect();
    let mut rng = StdRng::seed_from_u64(3);
    let mut left = jobs.len();
    while left > 0 {
        while scheduler.jobs() < left + 4 {
            keystroke(&mut scheduler, &text, &typed(&mut rng));
        }
        for done in scheduler.step().unwrap().done {
            scheduler.remove(done).unwrap();
            left -= usize::from(jobs.contains(&done));
        }
        assert!(scheduler.forwards < 20_000, "{left} bulk jobs starve");
    }
}

#[test]
fn what_somebody_typed_is_known_after_bulk_work_that_needs_far_more_memory() {
    let text = text();
    // Few pages, and then few bytes for distributions.
    for (pages, prefix_cache_bytes) in [(128, 1 << 20), (1024, 60_000)] {
        let mut scheduler = scheduler(&text, 8, 16, pages, prefix_cache_bytes);
        let first = keystroke(&mut scheduler, &text, "a b");
        let (completions, usage) = finish(&mut scheduler, first);
        assert!(usage.positions_computed > 0);
        for seed in 0..16 {
            bulk(&mut scheduler, &text, seed);
        }
        finish_all(&mut scheduler);
        assert!(scheduler.prefix_cache_stats().evicted > 300, "{:?}", scheduler.prefix_cache_stats());
        let again = keystroke(&mut scheduler, &text, "a b");
        let (same, usage) = finish(&mut scheduler, again);
        assert_eq!((same, usage.positions_computed), (completions, 0), "{pages} pages");
    }
}
