//! A task: a kind of work with its lengths, and an answer to it.

use std::time::Duration;

use serde::Serialize;

/// A kind of work, with its lengths in tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Task {
    pub(super) name: String,
    pub(super) input: usize,
    pub(super) output: usize,
}

impl std::str::FromStr for Task {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once(':').and_then(|(name, lengths)| Some((name, lengths.split_once('x')?)));
        let lengths = parts.and_then(|(name, (input, output))| {
            Some(Self { name: name.to_owned(), input: input.parse().ok()?, output: output.parse().ok()? })
        });
        lengths
            .filter(|task| task.input > 0 && task.output > 0)
            .ok_or_else(|| format!("{text} is not NAME:INPUTxOUTPUT"))
    }
}

/// An answered request.
pub(super) struct Answered {
    pub(super) took: Duration,
    pub(super) texts: Vec<String>,
}
