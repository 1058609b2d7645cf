//! Whether what people type can be finished: from the covering set always, from the typed text's own tokens seldom.

use super::super::normal_form::AddedSpace;
use super::super::vocabulary::TokenId;
use super::Oracle;
use super::samples::{self, Random};

/// Keystroke positions, and from how many of them the text's encoding can be reached.
#[derive(Default)]
struct Reached {
    positions: usize,
    /// From the encoding of what was typed.
    naive: usize,
    /// From that without its last token, where the next one must begin with the dropped bytes ("token healing").
    healed: usize,
    /// From the covering set.
    covered: usize,
    /// Members of the covering sets' contexts, in all and at most.
    contexts: usize,
    most_contexts: usize,
}

impl Reached {
    /// Adds every keystroke of a text, as the tokenizer normalizes it.
    fn add(&mut self, oracle: &Oracle, text: &str) {
        let text = &*oracle.canon.normal_form().normalized(text);
        let target = oracle.encode(text);
        let ends: Vec<usize> = target
            .iter()
            .scan(0, |end, &token| {
                *end += oracle.spell(&[token]).len();
                Some(*end)
            })
            .collect();
        for typed in
            text.char_indices().skip(1).map(|(at, _)| &text[..at]).chain([text]).filter(|typed| !typed.is_empty())
        {
            let tokens = oracle.encode(typed);
            let cover = oracle.canon.covering_set(typed);
            assert_eq!(cover.canonical, tokens, "{typed:?}");
            let spelled = oracle.canon.normal_form().spelled(typed);
            let count = ends.partition_point(|&end| end < spelled.len()) + 1;
            self.positions += 1;
            self.naive += usize::from(target.starts_with(&tokens));
            self.healed += usize::from(is_healed(oracle, &tokens, &target));
            self.covered += usize::from(is_covered(oracle, typed, &target[..count]));
            self.contexts += cover.contexts.len();
            self.most_contexts = self.most_contexts.max(cover.contexts.len());
        }
    }

    fn print(&self, name: &str) {
        let share = |count: usize| 100.0 * count as f64 / self.positions as f64;
        println!(
            "{name:28} {:6} positions: naive {:5.1} %, healed {:5.1} %, covered {:5.1} %; contexts {:.2}, at most {}",
            self.positions,
            share(self.naive),
            share(self.healed),
            share(self.covered),
            self.contexts as f64 / self.positions as f64,
            self.most_contexts,
        );
    }
}

fn is_healed(oracle: &Oracle, tokens: &[TokenId], target: &[TokenId]) -> bool {
    let Some((dropped, before)) = tokens.split_last() else { return true };
    let next = target.strip_prefix(before).and_then(|rest| rest.first());
    next.is_some_and(|next| oracle.spell(&[*next]).starts_with(&oracle.spell(&[*dropped])))
}

/// Whether `path`, the shortest beginning of the target that spells what was typed, is in the covering set.
fn is_covered(oracle: &Oracle, typed: &str, path: &[TokenId]) -> bool {
    let cover = oracle.canon.covering_set(typed);
    let Some((last, before)) = path.split_last() else { return cover.canonical.is_empty() };
    let extends = |context| oracle.canon.extensions(typed, context).contains(last);
    cover.canonical == path || cover.contexts.iter().any(|context| context.tokens == before && extends(context))
}

fn texts(count: usize, mut make: impl FnMut() -> String) -> Vec<String> {
    (0..count).map(|_| make()).collect()
}

/// Words, digits, capitals, Chinese, Japanese and Korean, emoji, and everything else, for each kind of tokenizer.
#[test]
fn every_keystroke_can_be_finished() {
    for (path, oracle) in Oracle::all() {
        let mut random = Random::new(7);
        let multilingual = samples::MULTILINGUAL.iter().chain(samples::TEXTS).map(|text| (*text).to_owned());
        let corpora = [
            ("technical phrases", texts(160, || random.phrase())),
            ("capitals", texts(60, || random.phrase().to_uppercase())),
            ("boolean expressions", texts(60, || random.expression())),
            ("multilingual, awkward", multilingual.collect()),
            ("random Unicode", texts(160, || random.text(12))),
        ];
        let mut positions = 0;
        println!("{}", path.display());
        for (name, texts) in corpora {
            let mut reached = Reached::default();
            for text in texts {
                // Where a space is added, one that isn't needed before an added token is only known when that is whole.
                let form = oracle.canon.normal_form();
                let begins_added = form.added.iter().any(|added| text.starts_with(added));
                if oracle.canon.is_encodable(&text) && (form.space == AddedSpace::Never || !begins_added) {
                    reached.add(&oracle, &text);
                }
            }
            reached.print(name);
            positions += reached.positions;
            assert_eq!(reached.covered, reached.positions, "{}: {name}", path.display());
        }
        assert!(positions >= 10_000, "{positions}");
    }
}
