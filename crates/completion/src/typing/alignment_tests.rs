//! Alignments against brute force: every way to edit a text, one edit after the other.

use std::sync::{Arc, LazyLock};

use rand::{Rng, SeedableRng};
use rustc_hash::FxHashMap;

use super::*;
use crate::typing::channel::Channel;
use crate::typing::{Errors, Tolerance};

fn typed(text: &str) -> Typed {
    static COSTS: LazyLock<Arc<Costs>> = LazyLock::new(|| Arc::new(Channel::default().costs()));
    Typed::new(text, Tolerance::Auto, &COSTS)
}

/// The cheapest costs of having typed `typed[i..]` for a beginning of `text[j..]`, with so many edits left. Straight
/// from the definition: each edit is tried everywhere.
struct Brute<'a> {
    typed: &'a Line,
    /// Folded characters, each with the one it comes from.
    text: &'a [(char, char)],
    costs: &'a Costs,
    known: FxHashMap<(usize, usize, usize), f32>,
}

impl Brute<'_> {
    fn least(&mut self, i: usize, j: usize, left: usize) -> f32 {
        if i == self.typed.len() {
            return 0.0;
        }
        if let Some(&known) = self.known.get(&(i, j, left)) {
            return known;
        }
        let (typed, text, costs) = (self.typed, self.text, self.costs);
        let mut least = f32::INFINITY;
        let is_same = text.get(j).is_some_and(|&(c, raw)| typed.matches(i, c, raw));
        if is_same {
            least = least.min(self.least(i + 1, j + 1, left));
        }
        if left > 0 {
            let errors = |at: usize| typed.errors.get(at).copied();
            let doubled = i > 0 && typed.characters[i - 1] == typed.characters[i];
            let extra = if doubled { costs.doubled } else { costs.extra };
            if errors(i) != Some(Errors::None) {
                least = least.min(extra + self.least(i + 1, j, left - 1));
            }
            if let Some(&(c, raw)) = text.get(j) {
                let is_space = raw == ' ';
                let is_code = |at: usize| errors(at).is_some_and(|errors| errors != Errors::All);
                let is_word = |at: usize| typed.characters.get(at).is_some_and(|c| c.is_alphanumeric());
                let ends_word = (i > 0 && is_word(i - 1)) || (i > 1 && is_word(i - 2));
                if (is_space && ends_word)
                    || (!is_space && may_be_edited(raw) && !is_code(i) && (i == 0 || !is_code(i - 1)))
                {
                    least = least.min(costs.omitted + self.least(i, j + 1, left - 1));
                }
                let is_hit = may_be_edited(raw) && errors(i) == Some(Errors::All);
                if !is_same && (is_hit || (is_space && errors(i) == Some(Errors::Stray))) {
                    let key = typed.characters[i];
                    least = least.min(costs.substitution(c, key) + self.least(i + 1, j + 1, left - 1));
                }
                if let Some(&(next, next_raw)) = text.get(j + 1).filter(|next| next.0 != c)
                    && typed.matches(i, next, next_raw)
                    && typed.matches(i + 1, c, raw)
                    && (is_space
                        || next_raw == ' '
                        || !is_code(i) && !is_code(i + 1) && may_be_edited(raw) && may_be_edited(next_raw))
                {
                    least = least.min(costs.swapped + self.least(i + 2, j + 2, left - 1));
                }
            }
        }
        self.known.insert((i, j, left), least);
        least
    }
}

fn brute(typed: &Typed, text: &str) -> Option<f32> {
    let costs = &typed.costs;
    let least = |line: &Line, text: &[(char, char)]| {
        let mut brute = Brute { typed: line, text, costs, known: FxHashMap::default() };
        brute.least(0, 0, typed.max_edits)
    };
    let as_it_is: Vec<(char, char)> = text.chars().map(|c| (c, c)).collect();
    let raw = least(&typed.raw, &as_it_is);
    let plain = typed.plain.as_ref().map(|line| costs.style() + least(line, &as_it_is));
    let forms: Vec<(char, char)> = text.chars().flat_map(|raw| folded(raw).map(move |c| (c, raw))).collect();
    let style = if plain.is_some() { 2.0 * costs.style() } else { costs.style() };
    let styled = if typed.has_style { style + least(&typed.folded, &forms) } else { f32::INFINITY };
    Some(raw.min(plain.unwrap_or(f32::INFINITY)).min(styled)).filter(|cost| cost.is_finite())
}

#[test]
fn costs_are_those_of_brute_force() {
    let mut rng = rand::rngs::StdRng::seed_from_u64(11);
    let letters = ['a', 'b', 's', 'A', 'B', 'é', 'ß', ' ', '7', '('];
    let mut draw = |most: usize| -> String {
        (0..rng.random_range(1..=most)).map(|_| letters[rng.random_range(0..letters.len())]).collect()
    };
    let (mut finished, mut cases) = (0, 0);
    for case in 0..30_000 {
        let query = draw(7);
        // Half of the texts are a query with a character more or instead of another.
        let text = match case % 2 {
            0 => draw(7),
            _ => {
                let (at, more) = (draw(7).len() % (query.chars().count() + 1), draw(1));
                let rest = query.chars().skip(at + case / 2 % 2);
                query.chars().take(at).chain(more.chars()).chain(rest).collect()
            }
        };
        let typed = typed(&text);
        let found = Alignment::of_text(&typed, &query).map(|finished| finished.cost);
        let expected = brute(&typed, &query);
        cases += 1;
        finished += usize::from(expected.is_some());
        match (found, expected) {
            (Some(found), Some(expected)) => assert!((found - expected).abs() < 1e-4, "{text:?} {query:?}"),
            (found, expected) => assert_eq!(found, expected, "{text:?} {query:?}"),
        }
    }
    assert!(finished > cases / 5, "{finished} of {cases}");
}

#[test]
fn edits_and_what_was_meant() {
    fn finished<'a>(text: &str, query: &'a str) -> Option<(u8, &'a str)> {
        let Finished { edits, meant, .. } = Alignment::of_text(&typed(text), query)?;
        Some((edits, &query[..meant]))
    }
    assert_eq!(finished("wirless char", "wireless charger"), Some((1, "wireless char")));
    assert_eq!(finished("heat exchnager", "heat exchanger plate"), Some((1, "heat exchanger")));
    assert_eq!(finished("SOLAR PAN", "solar panel"), Some((1, "solar pan")));
    assert_eq!(finished("ｌｉｔｈｉｕｍ", "lithium ion"), Some((1, "lithium")));
    assert_eq!(finished("Wirless char", "wireless charger"), Some((2, "wireless char")));
    assert_eq!(finished("solar", "solar"), Some((0, "solar")));
    assert_eq!(finished("strasse", "Straße 7"), Some((1, "Straße")));
    // One edit below five characters, none below three.
    assert_eq!(finished("ba", "ab"), None);
    assert_eq!(finished("slar", "solar"), Some((1, "solar")));
    assert_eq!(finished("slra", "solar"), None);
    assert_eq!(finished("W", "wireless"), Some((1, "w")));
    // Codes are typed as they are meant.
    assert_eq!(finished("heat $PRE3 pupm", "heat $PRE3 pump"), Some((1, "heat $PRE3 pump")));
    assert_eq!(finished("heat $PRE3 pump", "heat $PR3 pump"), None);
    assert_eq!(finished("TTL:(heta exch", "TTL:(heat exchanger)"), Some((1, "TTL:(heat exch")));
    // The spaces beside them are typed like any others.
    for typed in ["H04L9/08NOT TTL:(key", "H04L9/08 N OTTTL:(key", "H04L9/08kNOT TTL:(key", "H04L9/08 NOTi TTL:(key"] {
        let errors = 1 + u8::from(typed.contains("N OTTTL"));
        assert_eq!(finished(typed, "H04L9/08 NOT TTL:(key"), Some((errors, "H04L9/08 NOT TTL:(key")), "{typed}");
    }
    assert_eq!(finished("3d printer", "3 printer"), None);
    assert_eq!(finished("(heat)NOT cold", "(heat) NOT cold"), Some((1, "(heat) NOT cold")));
    assert_eq!(finished("TTL:(heat", "TTL:( heat"), Some((2, "TTL:( heat")));
}

#[test]
fn what_is_cheaper_later_is_found_and_a_budget_only_drops_what_costs_more() {
    let typed = typed("batrey");
    let mut alignment = Alignment::start(&typed);
    let mut costs = Vec::new();
    for c in "battery".chars() {
        alignment.push(&typed, c, f32::INFINITY);
        costs.push(alignment.finished().map(|finished| finished.cost));
    }
    assert!(costs[6].unwrap() < costs[5].unwrap_or(f32::INFINITY), "{costs:?}");
    let mut frugal = Alignment::start(&typed);
    "battery".chars().for_each(|c| frugal.push(&typed, c, costs[6].unwrap()));
    assert_eq!(frugal.finished().map(|finished| finished.cost), costs[6]);
    let mut poor = Alignment::start(&typed);
    "battery".chars().for_each(|c| poor.push(&typed, c, 1.0));
    assert!(poor.is_dead());
}

/// The last character may have been swapped with the next one, although it is no other edit.
#[test]
fn a_pending_swap_is_an_edit_that_is_left() {
    let costs = Arc::new(Channel::default().costs());
    for (typed, is_left) in [("hte", true), ("hxe", false)] {
        let typed = Typed::new(typed, Tolerance::Auto, &costs);
        let mut alignment = Alignment::start(&typed);
        alignment.push(&typed, 't', f32::INFINITY);
        assert_eq!((typed.max_edits, alignment.may_be_edited(&typed)), (1, is_left), "{:?}", typed.raw.characters);
        alignment.push(&typed, 'h', f32::INFINITY);
        let swapped = Ways { level: 2, cost: costs.swapped, edits: 1 };
        assert_eq!(alignment.reached(&typed).any(|ways| ways == swapped), is_left, "{:?}", typed.raw.characters);
    }
}
