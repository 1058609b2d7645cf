//! What tests leave out is named, counted, and, where it could be had, a failure.
//!
//! | variable | effect |
//! |---|---|
//! | `FORETYPE_REQUIRE=all` | [`skip`] fails the test |
//! | `FORETYPE_SKIPPED=FILE` | every skip adds a line to the file, which `make test` counts at its end |
//! | `FORETYPE_LONG=1` | random tests run all of their cases, and a tenth otherwise |

use std::io::Write;

/// Leaves out a test that needs something this machine could have.
///
/// # Panics
/// With `FORETYPE_REQUIRE=all`.
pub fn skip(what: &str, why: &str) {
    assert!(
        std::env::var("FORETYPE_REQUIRE").as_deref() != Ok("all"),
        "{what}: {why}, and FORETYPE_REQUIRE=all asks for it"
    );
    absent(what, why);
}

/// Leaves out a test that needs what this machine can't have: a GPU, an instruction set.
///
/// # Panics
/// If `FORETYPE_SKIPPED` names a file that can't be written.
pub fn absent(what: &str, why: &str) {
    // Not `eprintln!`: the test harness hides what passing tests print.
    let _ = writeln!(std::io::stderr(), "SKIPPED {what}: {why}");
    if let Some(file) = std::env::var_os("FORETYPE_SKIPPED") {
        let mut file =
            std::fs::OpenOptions::new().append(true).create(true).open(file).expect("the list of skips is writable");
        // One write a line: tests of several processes append at the same time.
        file.write_all(format!("{what}: {why}\n").as_bytes()).expect("the list of skips is writable");
    }
}

/// The number of random cases to run, of `all` that `make test-long` runs.
#[must_use]
pub fn cases(all: usize) -> usize {
    if std::env::var_os("FORETYPE_LONG").is_some() { all } else { all.div_ceil(10) }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Runs [`leaves_something_out`] in a process of its own: whether it passes, and what it adds to the list of skips.
    fn leave_out(require: &str) -> (bool, String) {
        let list = std::env::temp_dir().join(format!("foretype-skipped-{}-{require}", std::process::id()));
        let run = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::leaves_something_out", "--ignored"])
            .env("FORETYPE_REQUIRE", require)
            .env("FORETYPE_SKIPPED", &list)
            .output()
            .unwrap();
        let listed = std::fs::read_to_string(&list).unwrap_or_default();
        let _ = std::fs::remove_file(list);
        (run.status.success(), listed)
    }

    #[test]
    fn what_is_left_out_is_listed_and_fails_where_all_is_asked_for() {
        assert_eq!(leave_out(""), (true, "a thing: it is not here\n".to_owned()));
        assert_eq!(leave_out("all"), (false, String::new()));
    }

    #[test]
    #[ignore = "the test above runs it"]
    fn leaves_something_out() {
        skip("a thing", "it is not here");
    }
}
