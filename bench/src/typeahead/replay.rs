//! What people type who take a suggestion: the first half of a held-out query, then foretype's first suggestion to its
//! end.

use anyhow::{Result, bail};

use crate::client::{Invocation, Outcome, Pool};
use crate::workload::Texts;

/// Characters of a text at most.
const MAX_KEYS: usize = 40;

/// A text that someone types.
#[derive(Clone, Debug)]
pub(super) struct Typed {
    pub(super) text: String,
    /// Characters that are the query's; the others agree with the suggestion.
    pub(super) own: usize,
}

/// A key: what has been typed with it, and whether it agrees with the first suggestion.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) typed: String,
    pub(super) agrees: bool,
}

/// Texts of that kind, the same for every server that is measured: foretype is asked for each once.
#[derive(Debug)]
pub(super) struct Followed {
    texts: Texts,
    typed: Vec<Typed>,
}

impl Followed {
    pub(super) fn new(texts: Texts) -> Self {
        Self { texts, typed: Vec::new() }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.typed.len()
    }

    /// Asks for suggestions until there are `count` texts. A query without suggestions is left out.
    pub(super) async fn ask(
        &mut self,
        count: usize,
        pool: &Pool,
        invocation: impl Fn(&str) -> Invocation,
    ) -> Result<()> {
        while self.typed.len() < count {
            let query: Vec<char> = self.texts.query().chars().collect();
            let own = query.len().div_ceil(2).min(MAX_KEYS / 2);
            let asked = invocation(&query[..own].iter().collect::<String>());
            let outcome = match pool.complete(&asked).await {
                // nginx closes a connection after some number of requests.
                Outcome::Lost(_) => pool.complete(&asked).await,
                outcome => outcome,
            };
            match outcome {
                Outcome::Answered(answer) => {
                    let first = answer.suggestions.into_iter().next();
                    self.typed
                        .extend(first.map(|first| Typed { text: first.text.chars().take(MAX_KEYS).collect(), own }));
                }
                Outcome::Status(status) => bail!("{status} for {:?}", asked.input),
                Outcome::Lost(reason) => bail!("no answer for {:?}: {reason}", asked.input),
            }
        }
        Ok(())
    }

    /// The texts, in order.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> + Clone {
        self.typed.iter().map(|typed| typed.text.as_str())
    }

    /// All keys of the first `count` texts, one text after the other.
    pub(super) fn keys(&self, count: usize) -> impl Iterator<Item = Key> {
        self.typed.iter().take(count).flat_map(keys)
    }
}

fn keys(typed: &Typed) -> impl Iterator<Item = Key> {
    let ends = typed.text.char_indices().map(|(at, character)| at + character.len_utf8()).enumerate();
    ends.map(|(index, end)| Key { typed: typed.text[..end].to_owned(), agrees: index >= typed.own })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_whole_characters_and_agree_behind_what_is_own() {
        let typed = Typed { text: "aäb".into(), own: 2 };
        let keys: Vec<(String, bool)> = keys(&typed).map(|key| (key.typed, key.agrees)).collect();
        assert_eq!(keys, [("a".into(), false), ("aä".into(), false), ("aäb".into(), true)]);
    }
}
