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
//!
//! Deliberately absent: the model and its distributions.

pub mod alignment;
pub mod channel;
pub mod exact_reading;
pub mod fold;
pub mod keyboard;

use std::sync::Arc;

use self::channel::Costs;
use self::fold::folded;

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

/// A typed text, prepared for alignment.
#[derive(Clone, Debug)]
pub struct Typed {
    /// Its characters.
    pub raw: Vec<char>,
    /// Its characters without case, width, accents and compatibility forms.
    pub folded: Vec<char>,
    /// By number of characters of `raw`: the number of characters of `folded` that they became. `[raw + 1]`
    folded_before: Vec<usize>,
    /// Edits that are allowed, beside folding: 0, 1 or 2.
    pub max_edits: usize,
    /// What the edits cost.
    pub costs: Arc<Costs>,
}

impl Typed {
    /// Prepares a text. With [`Tolerance::Case`] no edits are allowed beside folding.
    pub fn new(text: &str, tolerance: Tolerance, costs: &Arc<Costs>) -> Self {
        let raw: Vec<char> = text.chars().collect();
        let (mut all, mut folded_before) = (Vec::with_capacity(raw.len()), vec![0]);
        for &character in &raw {
            all.extend(folded(character));
            folded_before.push(all.len());
        }
        let max_edits = match all.len() {
            _ if tolerance != Tolerance::Auto => 0,
            0..ONE_EDIT_FROM => 0,
            ONE_EDIT_FROM..TWO_EDITS_FROM => 1,
            _ => 2,
        };
        Self { raw, folded: all, folded_before, max_edits, costs: Arc::clone(costs) }
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
}
