//! Texts to send: seeded, and never the same twice, so that no answer comes from a cache of the same question.
//!
//! Texts with a common prefix still share the server's prefix cache, as people's texts do; reports say how much.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::model::Name;

/// Held-out queries, and the words in them.
#[derive(Clone, Debug)]
pub struct Queries {
    lines: Vec<String>,
    words: Vec<String>,
}

impl Queries {
    /// Reads one query a line.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let queries = Self::of(&text);
        ensure!(queries.words.len() > 1, "{} has no words", path.display());
        Ok(queries)
    }

    /// Takes the queries from a text with one query a line.
    pub fn of(text: &str) -> Self {
        let lines: Vec<String> = text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
        let words = lines.iter().flat_map(|line| line.split(|c: char| !c.is_alphanumeric()));
        let mut words: Vec<String> = words.filter(|word| word.chars().count() > 2).map(str::to_owned).collect();
        words.sort();
        words.dedup();
        Self { lines, words }
    }
}

/// A stream of texts.
#[derive(Clone, Debug)]
pub struct Texts {
    queries: Queries,
    rng: StdRng,
    used: HashSet<String>,
}

impl Texts {
    /// A stream; the same seed gives the same one.
    pub fn new(queries: Queries, seed: u64) -> Self {
        Self { queries, rng: StdRng::seed_from_u64(seed), used: HashSet::new() }
    }

    /// Goes on with another seed, and still repeats nothing that was sent before.
    pub fn reseed(&mut self, seed: u64) {
        self.rng = StdRng::seed_from_u64(seed);
    }

    /// What someone has typed so far: of the demo's queries for a trained model, some words for the random one.
    pub fn typed(&mut self, model: Name) -> String {
        loop {
            let whole = match model {
                Name::Demo | Name::Smollm2 => self.varied(),
                Name::Gpt2 => self.words(),
            };
            let characters = whole.chars().count();
            let keep = self.rng.random_range(characters / 2..characters);
            let typed: String = whole.chars().take(keep).collect();
            if typed.chars().any(char::is_alphanumeric) && self.used.insert(typed.clone()) {
                return typed;
            }
        }
    }

    /// A whole query, for someone to type.
    pub fn query(&mut self) -> String {
        loop {
            let fresh = self.queries.lines.choose(&mut self.rng).filter(|line| !self.used.contains(*line)).cloned();
            let query = fresh.unwrap_or_else(|| self.varied());
            if self.used.insert(query.clone()) {
                return query;
            }
        }
    }

    /// A held-out query with another first word.
    fn varied(&mut self) -> String {
        let (Some(line), Some(word)) =
            (self.queries.lines.choose(&mut self.rng), self.queries.words.choose(&mut self.rng))
        else {
            return String::new();
        };
        let is_part = |c: char| c.is_alphanumeric() || c == '-';
        let start = line.find(is_part).unwrap_or(0);
        let rest = line[start..].trim_start_matches(is_part);
        format!("{}{word}{rest}", &line[..start])
    }

    fn words(&mut self) -> String {
        let count = self.rng.random_range(4..=7);
        let words: Vec<&str> =
            (0..count).filter_map(|_| self.queries.words.choose(&mut self.rng)).map(String::as_str).collect();
        words.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(seed: u64) -> Texts {
        Texts::new(Queries::of("\"air filter\" $PARA \"pressure drop\"\nbattery cooling\n"), seed)
    }

    #[test]
    fn texts_are_seeded_and_never_repeat() {
        for model in [Name::Demo, Name::Gpt2] {
            let draw = |seed| {
                let mut texts = texts(seed);
                (0..50).map(|_| texts.typed(model)).collect::<Vec<_>>()
            };
            let drawn = draw(1);
            assert_eq!(drawn, draw(1));
            assert_ne!(drawn, draw(2));
            assert_eq!(drawn.iter().collect::<HashSet<_>>().len(), 50);
        }
    }

    #[test]
    fn a_variation_keeps_the_form_of_its_query() {
        let mut texts = texts(3);
        let varied: Vec<String> = (0..20).map(|_| texts.varied()).collect();
        assert!(
            varied.iter().any(|query| query.starts_with('"') && query.ends_with("filter\" $PARA \"pressure drop\""))
        );
    }
}
