//! Typing with errors: what a person gets who makes one or two, or who writes in another style.
//!
//! Errors are drawn by the shares of Dhakal et al. 2018 ("Observations on Typing from 136 Million Keystrokes", CHI):
//! 1.65 substitutions, 0.80 omissions and 0.67 insertions in 100 characters. A tenth of the errors are swapped
//! neighbours instead, which that study counts as two substitutions. Wrong and extra letters are neighbours of the
//! right key in three of five cases and any letter in the others. Codes, such as `$PRE3` and `IPC:H04L`, are typed
//! right: an error there makes another code, which no one can tell from the right one.

use comfy_table::{Table, presets};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::metrics::{Keystroke, mean, paired_bootstrap, percentile};
use super::replay::{Contender, LIST, Replay};
use completion::typing::keyboard::Layout;
use completion::typing::{fold, words};
use scheduler::backend::BackendError;

/// Where a list is asked for, as a share of the characters behind the last error.
const PLACES: [f64; 2] = [0.3, 0.9];
/// Resamples of the bootstrap.
const RESAMPLES: usize = 2000;

/// How a query is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Typed without an error.
    Right,
    /// Typed with one error.
    OneError,
    /// Typed with two errors.
    TwoErrors,
    /// Typed In Title Case.
    TitleCase,
    /// Typed in capitals.
    Capitals,
    /// In full-width letters.
    FullWidth,
    /// Without the query's accents; only queries that have some.
    NoAccents,
    /// With an accent on the first vowel of each word that isn't a code.
    Accents,
}

impl Style {
    const ALL: [Self; 8] = [
        Self::Right,
        Self::OneError,
        Self::TwoErrors,
        Self::TitleCase,
        Self::Capitals,
        Self::FullWidth,
        Self::NoAccents,
        Self::Accents,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Right => "right",
            Self::OneError => "one error",
            Self::TwoErrors => "two errors",
            Self::TitleCase => "Title Case",
            Self::Capitals => "CAPITALS",
            Self::FullWidth => "full width",
            Self::NoAccents => "no accents",
            Self::Accents => "áccents",
        }
    }

    /// Whether a text must get the list that it gets in the plain style.
    fn is_styled(self) -> bool {
        !matches!(self, Self::Right | Self::OneError | Self::TwoErrors)
    }
}

/// A list that was asked for, and the one for the same beginning of the query, typed right.
pub struct Asked {
    /// Index of the query.
    query: usize,
    /// What was typed.
    typed: String,
    /// The beginning of the query that was meant.
    meant: String,
    /// Rank of the query in the list for what was typed; `None` if it is not in the list.
    rank: Option<usize>,
    /// Rank of the query in the list for the right text; `None` if it is not in the list.
    right: Option<usize>,
    /// Whether both lists are the same: see [`is_same`].
    same: bool,
    /// What the list cost after the key before it.
    cost: Keystroke,
    /// What it cost once more, in milliseconds: all of it was remembered then.
    again_ms: f64,
    /// Whether the first suggestion for the right text had half of the probability and is no longer the first.
    lost: bool,
}

/// The lists of one contender for one style.
pub struct Typed {
    contender: Contender,
    style: Style,
    asked: Vec<Asked>,
}

/// A typed text, with the beginning of the query that was meant.
struct Mistyped {
    typed: String,
    meant: String,
    style: Style,
}

/// Asks each contender for lists for each style of each query. The text is the same for all contenders.
///
/// # Errors
/// The engine's.
pub fn run(
    replay: &mut Replay<'_>,
    queries: &[String],
    contenders: &[Contender],
    seed: u64,
) -> Result<Vec<Typed>, BackendError> {
    let mut all = Vec::new();
    for style in Style::ALL {
        for &contender in contenders {
            let mut asked = Vec::new();
            for (index, query) in queries.iter().enumerate() {
                let mut rng = StdRng::seed_from_u64(seed.wrapping_mul(1_000_003) ^ index as u64);
                for mistyped in mistype(query, style, &mut rng) {
                    if replay.text.is_encodable(&mistyped.meant) && fits(replay, &mistyped.meant) {
                        asked.push(ask(replay, contender, index, query, &mistyped)?);
                    }
                }
            }
            all.push(Typed { contender, style, asked });
        }
    }
    Ok(all)
}

fn fits(replay: &Replay<'_>, typed: &str) -> bool {
    replay.text.prompt().len() + replay.text.encode_query(typed).len() + 8 < replay.options.context
}

fn ask(
    replay: &mut Replay<'_>,
    contender: Contender,
    index: usize,
    query: &str,
    Mistyped { typed, meant, style }: &Mistyped,
) -> Result<Asked, BackendError> {
    let rank = |list: &[String]| list.iter().position(|text| text == query).map(|place| place + 1);
    // The key before it: what a person typed a moment ago is remembered.
    let before = &typed[..typed.char_indices().last().map_or(0, |(at, _)| at)];
    if !before.trim().is_empty() {
        replay.keystroke(before, contender)?;
    }
    let (cost, list) = replay.keystroke(typed, contender)?;
    let again_ms = replay.keystroke(typed, contender)?.0.latency_ms;
    // In another style a text must get what it gets in the plain one; else its exact list is the measure.
    let plain = if contender == Contender::Tolerant && !style.is_styled() { Contender::Exact } else { contender };
    let (right, exact) = replay.list(meant, plain)?;
    let certain = exact.first().is_some_and(|&probability| probability >= 0.5);
    Ok(Asked {
        query: index,
        typed: typed.clone(),
        meant: meant.clone(),
        rank: rank(&list),
        right: rank(&right),
        same: is_same(&list, &right, meant),
        cost,
        again_ms,
        lost: certain && list.first() != right.first(),
    })
}

/// Whether a list is that of the right text, but for that text itself, which only another one can be completed to.
fn is_same(list: &[String], right: &[String], meant: &str) -> bool {
    let others: Vec<&String> = list.iter().filter(|text| *text != meant).collect();
    let room = LIST - (list.len() - others.len());
    others.iter().copied().eq(right.iter().take(room))
}

/// What is typed of a query, at each of [`PLACES`].
fn mistype(query: &str, style: Style, rng: &mut StdRng) -> Vec<Mistyped> {
    let characters: Vec<char> = query.chars().collect();
    let errors = match style {
        Style::OneError => 1,
        Style::TwoErrors => 2,
        _ => 0,
    };
    // The errors are in the first two thirds, so that there is something behind them.
    let most = (characters.len() * 2 / 3).max(2);
    if characters.len() < 6 || most < 2 + 2 * errors {
        return Vec::new();
    }
    let words = words::classify(query);
    let possible: Vec<usize> = (1..most).filter(|&at| !words.characters[at].is_code).collect();
    let mut places: Vec<usize> = possible.choose_multiple(rng, errors).copied().collect();
    places.sort_unstable();
    if places.len() < errors || places.windows(2).any(|pair| pair[1] - pair[0] < 2) {
        return Vec::new();
    }
    let mut typed = characters.clone();
    let mut grown = 0isize;
    for &place in &places {
        grown += spoil(&mut typed, place.saturating_add_signed(grown), rng);
    }
    // One more character than the last error needs.
    let behind = places.last().map_or(2, |last| last + 2).min(characters.len() - 1);
    let lists = PLACES.map(|share| {
        let end = behind + ((characters.len() - behind) as f64 * share) as usize;
        let end = end.clamp(1, characters.len() - 1);
        let meant: String = characters[..end].iter().collect();
        let typed: String = typed.iter().take(end.saturating_add_signed(grown)).collect();
        Mistyped { typed: styled(&typed, style), meant, style }
    });
    let is_asked = |Mistyped { typed, meant, style }: &Mistyped| {
        !typed.trim().is_empty() && (*style != Style::NoAccents || typed != meant)
    };
    lists.into_iter().filter(is_asked).collect()
}

/// Makes an error; returns by how many characters the text grew.
fn spoil(text: &mut Vec<char>, at: usize, rng: &mut StdRng) -> isize {
    let swapped = at + 1 < text.len() && text[at] != text[at + 1] && rng.random_range(0..10) == 0;
    if swapped {
        text.swap(at, at + 1);
        return 0;
    }
    match rng.random_range(0..312) {
        0..165 => {
            text[at] = wrong_key(text[at], rng);
            0
        }
        165..245 => {
            text.remove(at);
            -1
        }
        _ => {
            let key = wrong_key(text[at], rng);
            text.insert(at, key);
            1
        }
    }
}

fn wrong_key(right: char, rng: &mut StdRng) -> char {
    let letters: Vec<char> = ('a'..='z').filter(|&letter| letter != right.to_ascii_lowercase()).collect();
    let near: Vec<char> = letters.iter().copied().filter(|&key| Layout::Qwerty.are_neighbours(right, key)).collect();
    let keys = if !near.is_empty() && rng.random_range(0..5) < 3 { near } else { letters };
    keys[rng.random_range(0..keys.len())]
}

fn styled(text: &str, style: Style) -> String {
    match style {
        Style::Right | Style::OneError | Style::TwoErrors => text.to_owned(),
        Style::Capitals => text.to_uppercase(),
        Style::TitleCase => {
            let mut starts = true;
            let title = text.chars().map(|c| {
                let mut capitals = c.to_uppercase();
                let capital = if capitals.len() == 1 { capitals.next() } else { None };
                let c = capital.filter(|_| starts).unwrap_or(c);
                starts = !c.is_alphanumeric();
                c
            });
            title.collect()
        }
        Style::NoAccents => fold::without_accents(text),
        Style::Accents => {
            let words = words::classify(text).characters;
            let mut is_marked = false;
            let marked = text.chars().zip(words).map(|(c, word)| {
                is_marked &= c.is_alphabetic();
                let vowel = "aeiouAEIOU".find(c).filter(|_| !is_marked && !word.is_code);
                let accented = vowel.and_then(|at| "áéíóúÁÉÍÓÚ".chars().nth(at));
                is_marked |= accented.is_some();
                accented.unwrap_or(c)
            });
            marked.collect()
        }
        Style::FullWidth => {
            let wide = |c: char| char::from_u32(u32::from(c) - 0x21 + 0xff01).unwrap_or(c);
            text.chars().map(|c| if ('!'..='~').contains(&c) { wide(c) } else { c }).collect()
        }
    }
}

/// A list, for programs.
#[derive(Debug, serde::Serialize)]
pub struct List<'a> {
    set: &'a str,
    method: &'static str,
    style: &'static str,
    /// The query that was meant.
    query: &'a str,
    /// What was typed.
    typed: &'a str,
    /// The beginning of the query that was meant.
    meant: &'a str,
    /// Rank of the query in the list.
    rank: Option<usize>,
    /// Whether the list is that of the right text: see [`run`].
    same: bool,
    latency_ms: f64,
}

/// All lists, in order.
pub fn lists<'a>(set: &'a str, queries: &'a [String], typed: &'a [Typed]) -> impl Iterator<Item = List<'a>> {
    typed.iter().flat_map(move |Typed { contender, style, asked }| {
        asked.iter().map(move |asked| List {
            set,
            method: contender.name(),
            style: style.name(),
            query: &queries[asked.query],
            typed: &asked.typed,
            meant: &asked.meant,
            rank: asked.rank,
            same: asked.same,
            latency_ms: asked.cost.latency_ms,
        })
    })
}

/// One row for each style and contender.
pub fn table(typed: &[Typed]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header([
        "typed",
        "method",
        "lists",
        "MRR@10 [95 %]",
        "of the right text's",
        "the same list",
        "certain first lost",
        "p50 ms",
        "p99 ms",
        "again p50 ms",
        "again p99 ms",
        "positions",
    ]);
    for Typed { contender, style, asked } in typed.iter().filter(|typed| !typed.asked.is_empty()) {
        let reciprocal = |rank: Option<usize>| rank.map_or(0.0, |rank| 1.0 / rank as f64);
        let queries = asked.iter().map(|asked| asked.query).max().map_or(0, |last| last + 1);
        // The bootstrap draws queries, not lists: a query's lists depend on each other.
        let by_query = |of: &dyn Fn(&Asked) -> f64| -> Vec<f64> {
            let of_query = |query| mean(asked.iter().filter(|asked| asked.query == query).map(of));
            (0..queries).filter(|&query| asked.iter().any(|asked| asked.query == query)).map(of_query).collect()
        };
        let found = by_query(&|asked| reciprocal(asked.rank));
        let right = by_query(&|asked| reciprocal(asked.right));
        let interval = paired_bootstrap(&found, &vec![0.0; found.len()], RESAMPLES);
        let share = |of: &dyn Fn(&Asked) -> bool| mean(asked.iter().map(|asked| f64::from(u8::from(of(asked)))));
        let latencies: Vec<f64> = asked.iter().map(|asked| asked.cost.latency_ms).collect();
        let again: Vec<f64> = asked.iter().map(|asked| asked.again_ms).collect();
        table.add_row([
            style.name().to_owned(),
            contender.name().to_owned(),
            asked.len().to_string(),
            format!("{:.4} [{:.4}, {:.4}]", interval.mean, interval.low, interval.high),
            format!("{:.1} %", 100.0 * interval.mean / mean(right.into_iter()).max(f64::MIN_POSITIVE)),
            format!("{:.1} %", 100.0 * share(&|asked| asked.same)),
            format!("{:.1} %", 100.0 * share(&|asked| asked.lost)),
            format!("{:.2}", percentile(&latencies, 50.0)),
            format!("{:.2}", percentile(&latencies, 99.0)),
            format!("{:.2}", percentile(&again, 50.0)),
            format!("{:.2}", percentile(&again, 99.0)),
            format!("{:.1}", mean(asked.iter().map(|asked| asked.cost.computed as f64))),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_mistyped_as_the_style_says() {
        let mut rng = StdRng::seed_from_u64(3);
        let query = "wireless charging pad";
        for mistyped in mistype(query, Style::Capitals, &mut rng) {
            assert_eq!(mistyped.typed, mistyped.meant.to_uppercase());
            assert!(query.starts_with(&mistyped.meant) && mistyped.meant.len() < query.len());
        }
        for _ in 0..200 {
            for style in [Style::OneError, Style::TwoErrors] {
                for mistyped in mistype(query, style, &mut rng) {
                    let grown = mistyped.typed.chars().count().abs_diff(mistyped.meant.chars().count());
                    assert!(grown <= 2, "{}", mistyped.typed);
                }
            }
        }
        assert_eq!(styled("heat (pump", Style::TitleCase), "Heat (Pump");
        assert_eq!(styled("ab c", Style::FullWidth), "ａｂ ｃ");
        let typed = |query: &str, rng: &mut StdRng| mistype(query, Style::NoAccents, rng).len();
        assert_eq!((typed("crème brûlée torch", &mut rng), typed("lens module", &mut rng)), (2, 0));
        assert_eq!(styled("heat $PARA (pump", Style::Accents), "héat $PARA (púmp");
        assert_eq!(styled("hôtel éc", Style::TitleCase), "Hôtel Éc");
    }

    #[test]
    fn a_list_may_have_the_right_text_itself_in_a_place_of_its_own() {
        let texts = |range: std::ops::Range<usize>| range.map(|index| format!("café {index}")).collect::<Vec<_>>();
        let with = |range| [vec!["café".to_owned()], texts(range)].concat();
        assert!(is_same(&texts(0..10), &texts(0..10), "café") && is_same(&with(0..9), &texts(0..10), "café"));
        assert!(is_same(&with(0..3), &texts(0..3), "café"));
        assert!(!is_same(&with(0..3), &texts(0..4), "café") && !is_same(&texts(0..9), &texts(0..10), "café"));
    }
}
