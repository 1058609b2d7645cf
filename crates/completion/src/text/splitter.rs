//! One stage of a pre-tokenizer: a pattern cuts a text into its matches and what lies between, and every piece goes to
//! the next stage.
//!
//! A reader from left to right can't see how long a match will become. It guesses where the pieces end, and keeps what
//! would prove the guess wrong: the ways to match longer, or to match where it said that nothing matches. A guess is a
//! [`Guess`]; it dies when one of these comes true. Whether a guess can still come true at all is found by
//! `pre_tokenizer`, which knows what may follow.

use super::character_class::ClassIndex;
use super::pattern::{Instruction, Place, Program};

/// A pattern over classes of characters.
#[derive(Clone, Debug)]
pub(super) struct Splitter {
    code: Vec<Instruction>,
    /// By set of the pattern: the classes that it consists of. `[sets][classes]`
    sets: Vec<Vec<bool>>,
    /// Whether its matches are tokens, which no further stage splits.
    pub(super) is_added: bool,
}

/// The piece that is open.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) enum Piece {
    /// Text between matches.
    Gap,
    /// A match: where it can go on, the preferred place first.
    Match(Vec<Place>),
}

/// What a reader believes of a text read so far.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct Guess {
    pub(super) piece: Piece,
    /// Places from which nothing may match any more; sorted.
    never: Vec<Place>,
}

/// The ways to go on from some places.
struct Ahead {
    /// Instructions that read a character, the preferred one first, down to the match.
    reads: Vec<Place>,
    matches: bool,
}

impl Splitter {
    /// A pattern, given the classes that each of its sets consists of. None if it can match nothing at all.
    pub(super) fn new(program: Program, sets: Vec<Vec<bool>>, is_added: bool) -> Option<Self> {
        let classes = sets.first().map_or(0, Vec::len);
        let splitter = Self { code: program.code, sets, is_added };
        let matches_nothing = (0..classes).map(Some).chain([None]).any(|next| splitter.ahead(&[0], next).matches);
        (!matches_nothing).then_some(splitter)
    }

    /// The guesses after a first character.
    pub(super) fn start(&self, next: ClassIndex) -> Vec<Guess> {
        self.opened(next, Vec::new(), true)
    }

    /// The guess after one more character of the open piece.
    pub(super) fn inside(&self, guess: &Guess, next: ClassIndex) -> Option<Guess> {
        let mut never = self.still_never(guess, next)?;
        let piece = match &guess.piece {
            Piece::Gap => {
                never.extend(self.read(&self.ahead(&[0], Some(next)).reads, next));
                Piece::Gap
            }
            Piece::Match(places) => {
                let places = self.read(&self.ahead(places, Some(next)).reads, next);
                if places.is_empty() {
                    return None;
                }
                Piece::Match(places)
            }
        };
        Some(Guess { piece, never: sorted(never) })
    }

    /// The guesses after a character that opens a new piece.
    pub(super) fn border(&self, guess: &Guess, next: ClassIndex) -> Vec<Guess> {
        let Some(mut never) = self.still_never(guess, next) else { return Vec::new() };
        match &guess.piece {
            Piece::Gap => self.opened(next, never, false),
            Piece::Match(places) => {
                let ahead = self.ahead(places, Some(next));
                if !ahead.matches {
                    return Vec::new();
                }
                never.extend(self.read(&ahead.reads, next));
                self.opened(next, never, true)
            }
        }
    }

    /// Whether the text may end here.
    pub(super) fn may_end(&self, guess: &Guess) -> bool {
        let ends = match &guess.piece {
            Piece::Gap => true,
            Piece::Match(places) => self.ahead(places, None).matches,
        };
        ends && !self.ahead(&guess.never, None).matches
    }

    /// A character opens a match, or what lies between matches: then no match may begin with the character.
    fn opened(&self, next: ClassIndex, never: Vec<Place>, may_be_gap: bool) -> Vec<Guess> {
        let places = self.read(&self.ahead(&[0], Some(next)).reads, next);
        let mut guesses = Vec::with_capacity(2);
        if may_be_gap {
            let never = sorted([never.as_slice(), &places].concat());
            guesses.push(Guess { piece: Piece::Gap, never });
        }
        if !places.is_empty() {
            guesses.push(Guess { piece: Piece::Match(places), never: sorted(never) });
        }
        guesses
    }

    /// What may never match after one more character; none if it just did.
    fn still_never(&self, guess: &Guess, next: ClassIndex) -> Option<Vec<Place>> {
        let ahead = self.ahead(&guess.never, Some(next));
        (!ahead.matches).then(|| self.read(&ahead.reads, next))
    }

    /// Follows the instructions that read nothing.
    fn ahead(&self, places: &[Place], next: Option<ClassIndex>) -> Ahead {
        let mut ahead = Ahead { reads: Vec::new(), matches: false };
        let mut seen = vec![false; self.code.len()];
        let mut open: Vec<Place> = places.iter().rev().copied().collect();
        while let Some(place) = open.pop() {
            if std::mem::replace(&mut seen[usize::from(place)], true) {
                continue;
            }
            match &self.code[usize::from(place)] {
                Instruction::Read(_) => ahead.reads.push(place),
                Instruction::Look(set, wanted) => {
                    if next.is_some_and(|next| self.has(*set, next)) == *wanted {
                        open.push(place + 1);
                    }
                }
                Instruction::Fork(places) => open.extend(places.iter().rev()),
                Instruction::Match => {
                    ahead.matches = true;
                    break;
                }
            }
        }
        ahead
    }

    /// The places behind the instructions that read this character.
    fn read(&self, reads: &[Place], next: ClassIndex) -> Vec<Place> {
        let fits = |place: &&Place| match self.code[usize::from(**place)] {
            Instruction::Read(set) => self.has(set, next),
            _ => false,
        };
        reads.iter().filter(fits).map(|place| place + 1).collect()
    }

    fn has(&self, set: u16, class: ClassIndex) -> bool {
        self.sets[usize::from(set)][class]
    }
}

fn sorted(mut places: Vec<Place>) -> Vec<Place> {
    places.sort_unstable();
    places.dedup();
    places
}
