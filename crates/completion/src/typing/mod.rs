//! How people type what they mean: a noisy channel between a query and the characters that were typed.
//!
//! A query `q` is typed as `t` with the probability `p(t | q)`. Single characters are left out, added, swapped or hit
//! beside the right key. A person may also type all of a text in another case, width or without accents. The search
//! ([`crate::search`]) multiplies that with the model's `p(q)`.
//!
//! | module | holds |
//! |---|---|
//! | [`channel`] | the probability of each edit, in one documented struct |
//! | [`keyboard`] | which keys lie beside each other |
//! | [`fold`] | case, width, accents and compatibility forms |
//! | [`alignment`] | the cheapest way in which the beginning of a text became the typed text |
//! | [`exact_reading`] | how probable the typed text is as it stands, unknown words included |
//! | [`words`] | which words are codes, and whether case is a style |
//! | [`learning`] | a channel from what people typed and accepted |
//! | [`unknown_words`] | how words are spelled that the model doesn't know |
//!
//! Deliberately absent: the model and its distributions.

pub mod alignment;
pub mod channel;
pub mod exact_reading;
pub mod fold;
pub mod keyboard;
pub mod learning;
pub mod unknown_words;
pub mod words;

use std::sync::Arc;

use self::channel::Costs;
use self::fold::{folded, narrow};

/// What a search may take the typed text to mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tolerance {
    /// Only queries that begin with exactly the typed bytes.
    #[default]
    Off,
    /// Also queries that differ in letter case, width, accents or compatibility forms.
    Case,
    /// Also queries that were mistyped, with at most two edits.
    Auto,
}

/// Characters from which one edit is allowed.
const ONE_EDIT_FROM: usize = 3;
/// Characters from which two edits are allowed.
const TWO_EDITS_FROM: usize = 5;

/// What may be wrong with a typed character: see [`words`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errors {
    /// All edits.
    All,
    /// It may be one too many, or stand for a space.
    Stray,
    /// Only the spaces beside it.
    None,
}

impl Errors {
    fn of(word: &words::Character) -> Self {
        match (word.is_code, word.is_stray) {
            (_, true) => Self::Stray,
            (true, false) => Self::None,
            (false, false) => Self::All,
        }
    }
}

/// The characters of a typed text as one of the rows of an alignment compares them.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// The characters, folded as this row of an alignment compares them.
    pub characters: Vec<char>,
    /// By character: what may be wrong with it.
    pub errors: Vec<Errors>,
    /// By character: the one that it must be, case included, if its case is meant.
    pub cased: Vec<Option<char>>,
}

impl Line {
    /// Whether the character at a place is what a character of the text is. `raw` is that before it was folded.
    pub fn matches(&self, at: usize, folded: char, raw: char) -> bool {
        match self.cased.get(at) {
            Some(Some(cased)) => *cased == raw,
            _ => self.characters.get(at) == Some(&folded),
        }
    }

    /// What may be wrong at a place; nothing behind the text.
    fn errors(&self, at: usize) -> Errors {
        self.errors.get(at).copied().unwrap_or(Errors::None)
    }

    /// The character at a place, if it may be one too many.
    pub fn extra(&self, at: usize) -> Option<char> {
        self.characters.get(at).copied().filter(|_| self.errors(at) != Errors::None)
    }

    /// The character at a place, if it may have been typed instead of `meant`.
    pub fn substitute(&self, at: usize, meant: char) -> Option<char> {
        let is_possible = match self.errors(at) {
            Errors::All => true,
            Errors::Stray => meant.is_whitespace(),
            Errors::None => false,
        };
        self.characters.get(at).copied().filter(|_| is_possible)
    }

    /// Whether the characters at a place and behind it may have been swapped. `meant` are those of the text.
    pub fn may_be_swapped(&self, at: usize, meant: [char; 2]) -> bool {
        let is_editable = |at: usize| self.errors(at) == Errors::All;
        let has_space = meant.iter().any(|c| c.is_whitespace());
        has_space || (is_editable(at) && is_editable(at + 1) && meant.iter().copied().all(words::may_be_edited))
    }

    /// Whether the character `meant` may be missing before a place.
    pub fn may_lack_before(&self, at: usize, meant: char) -> bool {
        let before = |count: usize| at.checked_sub(count).map(|at| self.characters[at]);
        let is_code = |at: usize| self.errors.get(at).is_some_and(|&errors| errors != Errors::All);
        if meant.is_whitespace() {
            // No space stands behind a sign that opens something, as in `TA:(heat`: no word is right before that.
            return [before(1), before(2)].into_iter().flatten().any(char::is_alphanumeric);
        }
        !is_code(at) && !at.checked_sub(1).is_some_and(is_code)
    }

    fn push(&mut self, character: char, errors: Errors, cased: Option<char>) {
        self.characters.push(character);
        self.errors.push(errors);
        self.cased.push(cased);
    }

    /// Number of characters.
    pub fn len(&self) -> usize {
        self.characters.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.characters.is_empty()
    }
}

/// A typed text, prepared for alignment.
///
/// Three rows of characters may be what was meant. The first is the text as it is. The second is its plain form,
/// without the style of the whole text. The third is its folded form: a person may leave out case and accents also
/// where the text has no style. The plain form costs a style, and the folded one costs one more.
#[derive(Clone, Debug)]
pub struct Typed {
    /// The typed characters as they are.
    pub raw: Line,
    /// Whether the text as it is may have edits. If not, only its plain form may.
    pub raw_has_edits: bool,
    /// The characters of the plain form, if that is another text: see [`words`].
    pub plain: Option<Line>,
    /// The typed characters without case, width, accents and compatibility forms.
    pub folded: Line,
    /// By number of characters of `raw`: the number of characters of `folded` that they became. `[raw + 1]`
    folded_before: Vec<usize>,
    /// Whether each character folds to one character.
    pub is_simple: bool,
    /// Whether its plain form is its folded form, in every character's case.
    pub is_folded: bool,
    /// Whether the style of the whole text may be another one than that of what was meant.
    pub has_style: bool,
    /// Edits that are allowed, beside folding: 0, 1 or 2.
    pub max_edits: usize,
    /// Costs of the edits, in nats.
    pub costs: Arc<Costs>,
}

impl Typed {
    /// Prepares a text. With [`Tolerance::Case`] no edits are allowed beside folding.
    pub fn new(text: &str, tolerance: Tolerance, costs: &Arc<Costs>) -> Self {
        let (mut raw, mut plain, mut line) = (Line::default(), Line::default(), Line::default());
        let mut folded_before = vec![0];
        let words = words::classify(text);
        for (character, word) in text.chars().zip(&words.characters) {
            let errors = Errors::of(word);
            raw.push(character, errors, None);
            plain.push(word.plain, errors, None);
            for folded in folded(character) {
                line.push(folded, errors, word.is_cased.then(|| narrow(character)));
            }
            folded_before.push(line.len());
        }
        let max_edits = match line.len() {
            _ if tolerance != Tolerance::Auto => 0,
            0..ONE_EDIT_FROM => 0,
            ONE_EDIT_FROM..TWO_EDITS_FROM => 1,
            _ => 2,
        };
        let (has_style, costs) = (words.has_style, Arc::clone(costs));
        let is_folded = plain.characters == line.characters && line.cased.iter().all(Option::is_none);
        let is_simple = folded_before.iter().enumerate().all(|(before, &folded)| before == folded);
        let plain = (plain.characters != raw.characters).then_some(plain);
        let raw_has_edits = true;
        let folded = line;
        Self { raw, raw_has_edits, plain, folded, folded_before, is_simple, is_folded, has_style, max_edits, costs }
    }

    /// The plain form of the text, if that is another text.
    pub fn plain_text(&self) -> Option<String> {
        self.plain.as_ref().map(|plain| plain.characters.iter().collect())
    }

    /// Prepares a text if anything may be different in what it means: with a tolerance, and unless it folds to nothing.
    pub fn tolerant(text: &str, tolerance: Tolerance, costs: &Arc<Costs>) -> Option<Self> {
        let typed = (tolerance != Tolerance::Off).then(|| Self::new(text, tolerance, costs));
        typed.filter(|typed| !typed.is_empty())
    }

    /// The number of folded characters: how many levels a search for corrections has.
    pub fn len(&self) -> usize {
        self.folded.len()
    }

    /// Whether nothing is left of the text once it is folded.
    pub fn is_empty(&self) -> bool {
        self.folded.is_empty()
    }

    /// The level of the first `count` characters of the raw text: how many folded characters they are.
    pub fn level(&self, count: usize) -> usize {
        self.folded_before[count.min(self.raw.len())]
    }

    /// By level: the bytes of a reading of the text before it. The reading has as many characters as the raw text.
    pub fn bytes_by_level(&self, reading: &str) -> Vec<usize> {
        let mut bytes = vec![0; self.len() + 1];
        let places = reading.char_indices().map(|(at, _)| at).chain([reading.len()]);
        for (count, at) in places.enumerate() {
            bytes[self.level(count)..].fill(at);
        }
        bytes
    }
}
