//! docs/tuning.md against the command line: every flag has a row, every row a flag, names and defaults are the
//! program's, and the other cells are one sentence each.

use std::collections::BTreeMap;

use clap::{Arg, CommandFactory};
use foretype::cli::Cli;

use crate::support::repository;

/// By command and flag: the variable and the default that the page tells.
fn rows() -> BTreeMap<(&'static str, String), (String, String)> {
    let page = std::fs::read_to_string(repository("docs/tuning.md")).unwrap();
    let mut command = "serve";
    let mut rows = BTreeMap::new();
    for line in page.lines() {
        if line.starts_with("## ") {
            command = if line.contains("`build`") { "build" } else { "serve" };
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let [_, names, default, does, costs, _] = cells[..]
            && let Some((flag, variable)) = names.split_once(", ")
            && flag.starts_with("`--")
        {
            let is_sentence = |cell: &str| cell.ends_with('.') && !cell.contains(". ");
            assert!(is_sentence(does) && is_sentence(costs), "not one sentence a cell: {line}");
            let bare = |text: &str| text.trim_matches('`').to_owned();
            rows.insert((command, bare(flag)), (bare(variable), default.to_owned()));
        }
    }
    rows
}

/// A flag's variable and default, as a row has them.
fn told(arg: &Arg) -> (String, String) {
    let variable = arg.get_env().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let default: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    let default = if arg.get_action().takes_values() { default.join(" ") } else { "off".to_owned() };
    (variable, default)
}

#[test]
fn the_page_on_tuning_has_every_flag_with_its_variable_and_default() {
    let mut command = Cli::command();
    command.build();
    let mut rows = rows();
    let mut wrong = Vec::new();
    for name in ["serve", "build"] {
        let sub = command.find_subcommand(name).unwrap();
        // What all commands have stands with `serve`.
        for arg in sub.get_arguments().filter(|arg| name == "serve" || !arg.is_global_set()) {
            let Some(flag) = arg.get_long().filter(|flag| !["help", "version"].contains(flag)) else { continue };
            let (variable, default) = told(arg);
            let row = rows.remove(&(name, format!("--{flag}")));
            if row != Some((variable.clone(), default.clone())) {
                wrong.push(format!("{name}: | `--{flag}`, `{variable}` | {default} | what it does | what it costs |"));
            }
        }
    }
    let gone: Vec<_> = rows.keys().collect();
    assert!(
        wrong.is_empty() && gone.is_empty(),
        "docs/tuning.md is behind the program. Write these rows into the table of their command, or correct the first \
         two cells:\n\
         {}\nand remove these, which no command has: {gone:?}",
        wrong.join("\n")
    );
}
