//! docs/clients.md against the tests: what a row of its tables names as its test exists.

use std::path::Path;

use crate::support::repository;

/// Where tests of rows are, beside the unit tests in `src`.
const FOLDERS: [&str; 4] = ["tests/suite", "tests/e2e", "src", "engine-build/tests/suite"];

/// Every file of a folder, and of those below, with its text.
fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let is_source = entry.extension().is_some_and(|extension| extension == "rs" || extension == "py");
        if entry.is_dir() {
            sources(&entry, found);
        } else if is_source {
            let name = entry.file_name().unwrap().to_string_lossy().into_owned();
            found.push((name, std::fs::read_to_string(&entry).unwrap()));
        }
    }
}

/// The tests in the last cells of tables whose last column is `test`: a name, or a file with a name behind it.
fn named(page: &str) -> Vec<(String, Vec<String>)> {
    let mut rows = Vec::new();
    let mut of_tests = false;
    for line in page.lines() {
        let Some(cells) = line.strip_prefix('|').and_then(|line| line.strip_suffix('|')) else {
            of_tests = false;
            continue;
        };
        let last = cells.rsplit('|').next().unwrap().trim();
        of_tests |= last == "test";
        if of_tests && last != "test" && !last.starts_with("---") {
            let words = last.split('`').skip(1).step_by(2).map(str::to_owned).collect();
            rows.push((line.to_owned(), words));
        }
    }
    rows
}

#[test]
fn the_page_on_clients_names_tests_that_exist() {
    let page = std::fs::read_to_string(repository("docs/clients.md")).unwrap();
    let makefile = std::fs::read_to_string(repository("Makefile")).unwrap();
    let mut files = Vec::new();
    FOLDERS.iter().for_each(|folder| sources(&repository(folder), &mut files));
    let rows = named(&page);
    assert!(rows.len() > 25, "{} rows", rows.len());
    for (row, words) in rows {
        assert!(!words.is_empty(), "no test: {row}");
        let mut file = None;
        for word in &words {
            if word.ends_with(".rs") || word.ends_with(".py") {
                file = Some(word);
                assert!(files.iter().any(|(name, _)| name == word), "there is no {word}: {row}");
            } else if let Some(target) = word.strip_prefix("make ") {
                let target = target.split(' ').next().unwrap();
                assert!(makefile.contains(&format!("\n{target}:")), "there is no target {target}: {row}");
            } else {
                let declared = [format!("fn {word}("), format!("def {word}(")];
                let within = |(name, text): &(String, String)| {
                    file.is_none_or(|file| name == file) && declared.iter().any(|declared| text.contains(declared))
                };
                assert!(files.iter().any(within), "there is no test {word}: {row}");
            }
        }
    }
}
