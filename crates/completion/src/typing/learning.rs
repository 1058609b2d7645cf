//! Learns a channel from what people typed and what they then accepted.
//!
//! Each pair is aligned once, by the cheapest edits of the prior channel. The edits are counted, and the counts are
//! added to those that the prior expects of 2,000 characters, so that few pairs change little.

use super::channel::{Channel, Costs};
use super::fold::folded;

/// Typed characters that the prior channel weighs as much as.
const PRIOR_CHARACTERS: f64 = 2000.0;
/// Typed texts that the prior's probability of a style weighs as much as.
const PRIOR_TEXTS: f64 = 100.0;
/// Keys that may be typed instead of another one or in addition, and those of them beside a key.
const KEYS: f64 = 26.0;
const NEIGHBOURS: f64 = 6.0;
/// Most edits of a pair; with more, the accepted text is another query and no correction.
const MAX_EDITS: usize = 2;

/// A channel that was learnt.
#[derive(Clone, Debug, PartialEq)]
pub struct Learnt {
    /// The channel. Its limits of the search are the prior's.
    pub channel: Channel,
    /// Number of pairs that were counted.
    pub used: usize,
    /// Number of pairs with more than two edits, which were left out.
    pub skipped: usize,
}

/// An edit of one character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edit {
    None,
    Omitted,
    Extra,
    Doubled,
    Swapped,
    Neighbour,
    Substituted,
}

/// How often each edit was seen.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    characters: f64,
    omitted: f64,
    extra: f64,
    doubled: f64,
    swapped: f64,
    neighbour: f64,
    substituted: f64,
    texts: f64,
    styled: f64,
}

/// The cheapest way to a cell: its cost in nats, its number of edits, and the last edit.
#[derive(Clone, Copy, Debug)]
struct Cell {
    cost: f32,
    edits: usize,
    last: Edit,
}

/// Learns a channel from pairs of a typed text and the query that was accepted then. `prior` is what is assumed without
/// pairs, and has the keyboard.
pub fn learn<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>, prior: &Channel) -> Learnt {
    let costs = prior.costs();
    let (mut counts, mut used, mut skipped) = (Counts::default(), 0, 0);
    for (typed, accepted) in pairs {
        match edits(typed, accepted, &costs) {
            Some(edits) => {
                counts.add(typed, &edits);
                counts.styled += f64::from(u8::from(is_styled(typed, accepted)));
                used += 1;
            }
            None => skipped += 1,
        }
    }
    Learnt { channel: counts.channel(prior), used, skipped }
}

impl Counts {
    fn add(&mut self, typed: &str, edits: &[Edit]) {
        self.texts += 1.0;
        self.characters += typed.chars().count() as f64;
        for edit in edits {
            let count = match edit {
                Edit::None => continue,
                Edit::Omitted => &mut self.omitted,
                Edit::Extra => &mut self.extra,
                Edit::Doubled => &mut self.doubled,
                Edit::Swapped => &mut self.swapped,
                Edit::Neighbour => &mut self.neighbour,
                Edit::Substituted => &mut self.substituted,
            };
            *count += 1.0;
        }
    }

    /// The channel of these counts and those that the prior expects. `keys` is by how many keys an edit can be made.
    fn channel(&self, prior: &Channel) -> Channel {
        let rate = |count: f64, prior: f64, keys: f64| {
            (count / keys + prior * PRIOR_CHARACTERS) / (self.characters + PRIOR_CHARACTERS)
        };
        Channel {
            omitted: rate(self.omitted, prior.omitted, 1.0),
            extra: rate(self.extra, prior.extra, KEYS),
            doubled: rate(self.doubled, prior.doubled, 1.0),
            swapped: rate(self.swapped, prior.swapped, 1.0),
            neighbour: rate(self.neighbour, prior.neighbour, NEIGHBOURS),
            substituted: rate(self.substituted, prior.substituted, KEYS - NEIGHBOURS),
            style: (self.styled + prior.style * PRIOR_TEXTS) / (self.texts + PRIOR_TEXTS),
            ..prior.clone()
        }
    }
}

/// Whether a text is the beginning of another one but for case, width or accents.
fn is_styled(typed: &str, accepted: &str) -> bool {
    let mut accepted_folded = accepted.chars().flat_map(folded);
    !accepted.starts_with(typed) && typed.chars().flat_map(folded).all(|c| accepted_folded.next() == Some(c))
}

/// The cheapest edits with which the beginning of `accepted` became `typed`; `None` if there are more than
/// [`MAX_EDITS`].
fn edits(typed: &str, accepted: &str, costs: &Costs) -> Option<Vec<Edit>> {
    let typed: Vec<char> = typed.chars().flat_map(folded).collect();
    let accepted: Vec<char> = accepted.chars().flat_map(folded).take(typed.len() + MAX_EDITS).collect();
    let width = accepted.len() + 1;
    // [typed + 1, accepted + 1]
    let mut cells: Vec<Cell> = Vec::with_capacity((typed.len() + 1) * width);
    for i in 0..=typed.len() {
        for j in 0..width {
            let options = [Edit::None, Edit::Omitted, Edit::Extra, Edit::Swapped];
            let reached = options.into_iter().filter_map(|edit| {
                let (up, left) = steps(edit);
                let before = cells[i.checked_sub(up)? * width..][j.checked_sub(left)?];
                let (last, cost) = edit_of(edit, &typed[..i], &accepted[..j], costs)?;
                let edits = before.edits + usize::from(last != Edit::None);
                Some(Cell { cost: before.cost + cost, edits, last })
            });
            let start = (i == 0 && j == 0).then_some(Cell { cost: 0.0, edits: 0, last: Edit::None });
            let best = reached.chain(start).min_by(|a, b| a.cost.total_cmp(&b.cost));
            cells.push(best.unwrap_or(Cell { cost: f32::INFINITY, edits: usize::MAX >> 1, last: Edit::None }));
        }
    }
    let ends = &cells[typed.len() * width..];
    let (mut j, end) = ends.iter().enumerate().min_by(|a, b| a.1.cost.total_cmp(&b.1.cost))?;
    if end.edits > MAX_EDITS {
        return None;
    }
    let (mut i, mut found) = (typed.len(), Vec::new());
    while (i, j) != (0, 0) {
        let last = cells[i * width + j].last;
        let (up, left) = steps(last);
        (i, j) = (i - up, j - left);
        found.push(last);
    }
    Some(found)
}

/// Characters of the typed and of the accepted text that an edit takes.
fn steps(edit: Edit) -> (usize, usize) {
    match edit {
        Edit::None | Edit::Neighbour | Edit::Substituted => (1, 1),
        Edit::Omitted => (0, 1),
        Edit::Extra | Edit::Doubled => (1, 0),
        Edit::Swapped => (2, 2),
    }
}

/// The edit at the end of both texts that takes as many characters as `shape`, and its cost in nats.
fn edit_of(shape: Edit, typed: &[char], accepted: &[char], costs: &Costs) -> Option<(Edit, f32)> {
    let key = typed.last().copied();
    match shape {
        Edit::Omitted => Some((Edit::Omitted, costs.omitted)),
        Edit::Extra | Edit::Doubled => {
            let doubled = typed.len() > 1 && key == Some(typed[typed.len() - 2]);
            Some(if doubled { (Edit::Doubled, costs.doubled) } else { (Edit::Extra, costs.extra) })
        }
        Edit::Swapped => {
            let pair = |text: &[char]| Some((*text.get(text.len().checked_sub(2)?)?, *text.last()?));
            let ((a, b), (c, d)) = (pair(typed)?, pair(accepted)?);
            (a != b && (a, b) == (d, c)).then_some((Edit::Swapped, costs.swapped))
        }
        Edit::None | Edit::Neighbour | Edit::Substituted => {
            let (typed, meant) = (key?, *accepted.last()?);
            let cost = costs.substitution(meant, typed);
            let edit = if cost == costs.neighbour { Edit::Neighbour } else { Edit::Substituted };
            Some(if typed == meant { (Edit::None, 0.0) } else { (edit, cost) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_told_apart() {
        let costs = Channel::default().costs();
        for (typed, accepted, expected) in [
            ("wireless ch", "wireless charger", vec![]),
            ("wirless ch", "wireless charger", vec![Edit::Omitted]),
            ("wiireless", "wireless charger", vec![Edit::Doubled]),
            ("wirelxess", "wireless charger", vec![Edit::Extra]),
            ("heta pump", "heat pump", vec![Edit::Swapped]),
            ("hest pump", "heat pump", vec![Edit::Neighbour]),
            ("hepmt pump", "heat pump", vec![Edit::Extra, Edit::Substituted]),
            ("HEAT PUM", "heat pump", vec![]),
        ] {
            let found = edits(typed, accepted, &costs).unwrap();
            let mut found: Vec<Edit> = found.into_iter().filter(|&edit| edit != Edit::None).collect();
            found.sort_by_key(|edit| format!("{edit:?}"));
            assert_eq!(found, expected, "{typed}");
        }
        assert_eq!(edits("solar panel", "heat pump", &costs), None);
        assert!(
            is_styled("HEAT PU", "heat pump") && !is_styled("heat", "heat pump") && !is_styled("HETA", "heat pump")
        );
    }

    #[test]
    fn many_pairs_count_and_none_change_nothing() {
        let prior = Channel::default();
        assert_eq!(learn([], &prior), Learnt { channel: prior.clone(), used: 0, skipped: 0 });
        // One of ten texts of ten characters has two characters swapped.
        let pairs = (0..20_000).map(|i| (if i % 10 == 0 { "haet pumps" } else { "heat pumps" }, "heat pumps"));
        let Learnt { channel, used, skipped } = learn(pairs.chain([("solar", "heat pumps")]), &prior);
        assert_eq!((used, skipped), (20_000, 1));
        assert!((channel.swapped - 0.01).abs() < 1e-3 && channel.omitted < prior.omitted, "{channel:?}");
        assert!(channel.style < prior.style && channel.beams == prior.beams);
        Channel::from_json(&serde_json::to_string(&channel).unwrap()).unwrap();
    }

    #[test]
    fn what_is_learnt_is_what_errs() {
        use rand::{Rng, SeedableRng};
        let mut rng = rand::rngs::StdRng::seed_from_u64(7);
        let accepted = "solar panel for a small house";
        let mut typed = Vec::new();
        for _ in 0..20_000 {
            let mut text: Vec<char> = accepted.chars().take(20).collect();
            let place = rng.random_range(1..text.len() - 1);
            match rng.random_range(0..10) {
                0 => drop(text.remove(place)),
                1 if text[place] != text[place - 1] => text.insert(place, text[place - 1]),
                _ => {}
            }
            typed.push(text.into_iter().collect::<String>());
        }
        let pairs = typed.iter().map(|typed| (typed.as_str(), accepted));
        let channel = learn(pairs, &Channel::default()).channel;
        assert!((channel.omitted - 0.1 / 20.0).abs() < 5e-4, "{channel:?}");
        assert!((channel.doubled - 0.1 / 20.0).abs() < 5e-4, "{channel:?}");
        assert!(channel.swapped < 1e-4 && channel.neighbour < 1e-4, "{channel:?}");
    }
}
