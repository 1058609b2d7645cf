//! When a text may be cut into pre-tokens here, whatever comes next: the pre-tokenizer's own patterns as an automaton
//! that reads characters, and with each of them whether a pre-token begins there.
//!
//! The patterns look ahead, and a reader from left to right can't. `splitter` guesses for one pattern; here the guesses
//! of all stages are put together, those from which no text can go on are left out, and what is left is made
//! deterministic. So one number, a [`State`], says what the characters so far leave possible. `a  b` is cut into `a`,
//! one space, and the other space with `b`; after `a` and two spaces the state for "cut between the spaces" allows a
//! letter and neither an end nor another space.
//!
//! Nothing here depends on a tokenizer's vocabulary but for the characters that it can spell.

use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU16;

use regex_syntax::hir::ClassUnicode;

use super::character_class::{CharacterClasses, ClassIndex, ClassSet};
use super::pattern::Program;
use super::splitter::{Guess, Piece, Splitter};

/// The most guesses, and the most states.
const MAX_STATES: usize = 20_000;

/// What a pre-tokenizer is made of.
#[derive(Clone, Debug, Default)]
pub(super) struct PreTokenizer {
    /// The patterns of the stages, each with whether its matches are added tokens.
    pub(super) stages: Vec<(Program, bool)>,
    /// Whether every text begins with U+0020 or with an added token.
    pub(super) begins_with_space: bool,
}

/// What may come next in a text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct State(NonZeroU16);

impl State {
    /// Before the first character.
    pub(super) const START: Self = Self(NonZeroU16::MIN);

    pub(super) fn index(self) -> usize {
        usize::from(self.0.get()) - 1
    }
}

/// How a character belongs to the one before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Kind {
    /// It goes on with the pre-token.
    Inside,
    /// It opens a pre-token.
    Border,
    /// One of these two.
    Either,
    /// It opens an added token.
    OpensAdded,
    /// It goes on with an added token.
    InsideAdded,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Inside, Self::Border, Self::Either, Self::OpensAdded, Self::InsideAdded];
}

/// A state's row for one kind: `[classes]`.
type Row = Vec<Option<State>>;

/// The automaton. See the module's documentation.
#[derive(Clone, Debug)]
pub(super) struct PreTokens {
    pub(super) classes: CharacterClasses,
    /// `[states][kinds][classes]`
    next: Vec<Option<State>>,
    /// The classes that may follow. `[states][kinds]`
    live: Vec<ClassSet>,
    /// `[states]`
    may_end: Vec<bool>,
}

impl PreTokens {
    /// Builds the automaton, for texts made of characters that `spells` holds for.
    pub(super) fn new(pre_tokenizer: PreTokenizer, spells: impl Fn(char) -> bool) -> Result<Self, String> {
        let PreTokenizer { stages, begins_with_space } = pre_tokenizer;
        let space = Program::longest_of(&[" "])?;
        let sets: Vec<ClassUnicode> =
            stages.iter().flat_map(|(stage, _)| &stage.sets).chain(&space.sets).cloned().collect();
        let classes = CharacterClasses::new(&sets).ok_or("has patterns with too many sets of characters")?;
        let mut first = 0;
        let mut splitters = Vec::new();
        for (program, is_added) in stages {
            let sets = (first..first + program.sets.len())
                .map(|set| (0..classes.count()).map(|class| classes.is_in(class, set)).collect());
            first += program.sets.len();
            let splitter = Splitter::new(program, sets.collect(), is_added);
            splitters.push(splitter.ok_or("has a pattern that matches the empty text")?);
        }
        let guesser = Guesser { splitters, starts: begins_with_space.then(|| classes.of(' ')) };
        let spelled = spelled(&classes, spells);
        Self::from_guesses(&guesser, classes, &spelled)
    }

    fn from_guesses(guesser: &Guesser, classes: CharacterClasses, spelled: &[ClassIndex]) -> Result<Self, String> {
        let graph = Graph::new(guesser, spelled)?;
        let count = classes.count();
        let mut built = Self { classes, next: Vec::new(), live: Vec::new(), may_end: Vec::new() };
        let mut known = HashMap::from([(vec![0], State::START)]);
        let mut open = vec![vec![0]];
        let mut at = 0;
        while let Some(guesses) = open.get(at).cloned() {
            at += 1;
            built.may_end.push(guesses.iter().any(|&guess| graph.may_end[guess]));
            for kind in Kind::ALL {
                let mut row: Row = vec![None; count];
                let mut live = ClassSet::default();
                for &class in spelled {
                    let after = graph.after(&guesses, class, kind);
                    if after.is_empty() {
                        continue;
                    }
                    live.insert(class);
                    let state = known.len();
                    row[class] = Some(*known.entry(after).or_insert_with_key(|after| {
                        open.push(after.clone());
                        State(NonZeroU16::MIN.saturating_add(state as u16))
                    }));
                }
                built.next.extend(row);
                built.live.push(live);
            }
            if known.len() > MAX_STATES {
                return Err("has patterns that need too many states".to_owned());
            }
        }
        Ok(built)
    }

    /// The state after one more character; none if no text goes on like that.
    pub(super) fn step(&self, state: State, class: ClassIndex, kind: Kind) -> Option<State> {
        self.next[(state.index() * Kind::ALL.len() + kind as usize) * self.classes.count() + class]
    }

    /// The state after more characters of the same pre-token or added token.
    pub(super) fn steps(
        &self,
        state: State,
        mut classes: impl Iterator<Item = ClassIndex>,
        kind: Kind,
    ) -> Option<State> {
        classes.try_fold(state, |state, class| self.step(state, class, kind))
    }

    /// Whether a character of one of these classes may follow.
    pub(super) fn allows(&self, state: State, classes: ClassSet, kind: Kind) -> bool {
        self.follows(state, kind).meets(classes)
    }

    /// The classes that may follow.
    pub(super) fn follows(&self, state: State, kind: Kind) -> ClassSet {
        self.live[state.index() * Kind::ALL.len() + kind as usize]
    }

    /// Whether the text may end here.
    pub(super) fn may_end(&self, state: State) -> bool {
        self.may_end[state.index()]
    }

    /// The classes of the characters that lead to a state within a pre-token.
    pub(super) fn leading_to(&self, state: State) -> ClassSet {
        let mut classes = ClassSet::default();
        for class in 0..self.classes.count() {
            if self.states_behind(class).any(|to| to == state) {
                classes.insert(class);
            }
        }
        classes
    }

    /// The states behind a character that goes on with a pre-token or opens one. Some come twice.
    pub(super) fn states_behind(&self, class: ClassIndex) -> impl Iterator<Item = State> + '_ {
        let kinds = [Kind::Inside, Kind::Border, Kind::Either];
        self.states().flat_map(move |from| kinds.map(|kind| self.step(from, class, kind))).flatten()
    }

    /// All states.
    pub(super) fn states(&self) -> impl Iterator<Item = State> {
        (0..self.may_end.len()).map(|state| State(NonZeroU16::MIN.saturating_add(state as u16)))
    }

    /// Every state from which only the same pre-token can go on.
    pub(super) fn only_inside(&self) -> impl Iterator<Item = State> + '_ {
        let none = |state: State, kind| self.follows(state, kind) == ClassSet::default();
        self.states()
            .filter(move |&state| !self.may_end(state) && none(state, Kind::Border) && none(state, Kind::OpensAdded))
    }
}

/// The classes of which a character can be spelled.
fn spelled(classes: &CharacterClasses, spells: impl Fn(char) -> bool) -> Vec<ClassIndex> {
    let mut found = vec![false; classes.count()];
    for character in '\0'..=char::MAX {
        let class = classes.of(character);
        found[class] = found[class] || spells(character);
    }
    (0..classes.count()).filter(|&class| found[class]).collect()
}

/// The stages' guesses in order. In an added token the later stages have none; before the first character all lack
/// theirs.
type Guesses = Vec<Option<Guess>>;

struct Guesser {
    splitters: Vec<Splitter>,
    /// The class with which every text begins that doesn't begin with an added token.
    starts: Option<ClassIndex>,
}

impl Guesser {
    fn start(&self) -> Option<Guesses> {
        None
    }

    /// What may be believed after one more character, which opens a piece (`border`) or goes on with one.
    fn after(&self, guesses: &Option<Guesses>, class: ClassIndex, border: bool) -> Vec<Guesses> {
        let Some(guesses) = guesses else {
            let mut found = if border { self.opened(class) } else { Vec::new() };
            found.retain(|found| self.starts.is_none_or(|starts| class == starts) || self.is_added(found));
            return found;
        };
        if !border {
            return self.inside(guesses, guesses.len(), class).into_iter().collect();
        }
        let mut found = Vec::new();
        for (stage, guess) in guesses.iter().enumerate() {
            // The border of one stage is the end of a text to those behind it.
            let Some(guess) = guess else { break };
            let ended = (stage + 1..guesses.len())
                .all(|stage| guesses[stage].as_ref().is_none_or(|guess| self.splitters[stage].may_end(guess)));
            let Some(before) = self.inside(guesses, stage, class).filter(|_| ended) else { continue };
            for guess in self.splitters[stage].border(guess, class) {
                found.extend(self.completed(before.clone(), guess, class));
            }
        }
        found
    }

    /// The first `stages` guesses after one more character of their open pieces.
    fn inside(&self, guesses: &Guesses, stages: usize, class: ClassIndex) -> Option<Guesses> {
        let guesses = guesses[..stages].iter().zip(&self.splitters);
        guesses
            .map(|(guess, splitter)| match guess {
                Some(guess) => splitter.inside(guess, class).map(Some),
                None => Some(None),
            })
            .collect()
    }

    /// What all stages may believe after the first character of a text.
    fn opened(&self, class: ClassIndex) -> Vec<Guesses> {
        let Some(splitter) = self.splitters.first() else { return vec![Vec::new()] };
        splitter.start(class).into_iter().flat_map(|guess| self.completed(Vec::new(), guess, class)).collect()
    }

    /// Adds a stage's guess and those of the stages behind it, which begin with this character.
    fn completed(&self, mut before: Guesses, guess: Guess, class: ClassIndex) -> Vec<Guesses> {
        let stage = before.len();
        let is_added = self.splitters[stage].is_added && guess.piece != Piece::Gap;
        before.push(Some(guess));
        if is_added {
            before.resize(self.splitters.len(), None);
            return vec![before];
        }
        let Some(splitter) = self.splitters.get(stage + 1) else { return vec![before] };
        let guesses = splitter.start(class).into_iter();
        guesses.flat_map(|guess| self.completed(before.clone(), guess, class)).collect()
    }

    /// Whether an added token is open.
    fn is_added(&self, guesses: &Guesses) -> bool {
        let mut stages = guesses.iter().zip(&self.splitters);
        stages.any(|(guess, splitter)| splitter.is_added && guess.as_ref().is_some_and(|g| g.piece != Piece::Gap))
    }

    fn may_end(&self, guesses: &Option<Guesses>) -> bool {
        let Some(guesses) = guesses else { return true };
        let mut stages = guesses.iter().zip(&self.splitters);
        stages.all(|(guess, splitter)| guess.as_ref().is_none_or(|guess| splitter.may_end(guess)))
    }
}

/// What one more character leads to: the number of guesses, and whether an added token is open there.
type Successors = Vec<(usize, bool)>;

/// All guesses from which some text can go on, and what they lead to.
struct Graph {
    /// `[guesses]`
    may_end: Vec<bool>,
    /// `[guesses][classes][border]`
    next: Vec<Vec<[Successors; 2]>>,
    spelled: Vec<ClassIndex>,
    /// Whether an added token is open. `[guesses]`
    is_added: Vec<bool>,
}

impl Graph {
    fn new(guesser: &Guesser, spelled: &[ClassIndex]) -> Result<Self, String> {
        let mut known = HashMap::from([(guesser.start(), 0)]);
        let mut open = vec![guesser.start()];
        let mut graph = Self { may_end: Vec::new(), next: Vec::new(), spelled: spelled.to_vec(), is_added: Vec::new() };
        let mut at = 0;
        while let Some(guesses) = open.get(at).cloned() {
            at += 1;
            graph.may_end.push(guesser.may_end(&guesses));
            graph.is_added.push(guesses.as_ref().is_some_and(|guesses| guesser.is_added(guesses)));
            let rows = spelled.iter().map(|&class| {
                [false, true].map(|border| {
                    let after = guesser.after(&guesses, class, border).into_iter();
                    after
                        .map(|after| {
                            let is_added = guesser.is_added(&after);
                            let number = known.len();
                            let number = *known.entry(Some(after)).or_insert_with_key(|after| {
                                open.push(after.clone());
                                number
                            });
                            (number, is_added)
                        })
                        .collect::<Vec<_>>()
                })
            });
            let rows = rows.collect();
            graph.next.push(rows);
            if known.len() > MAX_STATES {
                return Err("has patterns that need too many guesses".to_owned());
            }
        }
        graph.prune();
        Ok(graph)
    }

    /// Leaves out the guesses from which no text can come to its end.
    fn prune(&mut self) {
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); self.next.len()];
        for (from, rows) in self.next.iter().enumerate() {
            rows.iter().flatten().flatten().for_each(|&(to, _)| before[to].push(from));
        }
        let mut live = self.may_end.clone();
        let mut open: Vec<usize> = (0..live.len()).filter(|&guess| live[guess]).collect();
        while let Some(guess) = open.pop() {
            for &from in &before[guess] {
                if !std::mem::replace(&mut live[from], true) {
                    open.push(from);
                }
            }
        }
        self.next.iter_mut().flatten().flatten().for_each(|after| after.retain(|&(to, _)| live[to]));
    }

    /// What a set of guesses becomes.
    fn after(&self, guesses: &[usize], class: ClassIndex, kind: Kind) -> Vec<usize> {
        let Ok(place) = self.spelled.binary_search(&class) else { return Vec::new() };
        let (borders, added): (&[usize], bool) = match kind {
            Kind::Inside => (&[0], false),
            Kind::Border => (&[1], false),
            Kind::Either => (&[0, 1], false),
            Kind::OpensAdded => (&[1], true),
            Kind::InsideAdded => (&[0], true),
        };
        let mut after = BTreeSet::new();
        for &guess in guesses {
            for &border in borders {
                // Nothing but its own token goes on with an added token.
                let targets = self.next[guess][place][border].iter();
                after.extend(targets.filter(|&&(_, is_added)| is_added == added).map(|&(to, _)| to));
            }
        }
        after.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

    #[test]
    fn a_border_may_stand_where_some_text_has_one() {
        let stages = vec![(Program::regex(GPT2).unwrap(), false)];
        let automaton = PreTokens::new(PreTokenizer { stages, begins_with_space: false }, |_| true).unwrap();
        let state = |cut: &str| {
            let mut kind = Kind::Border;
            let mut state = State::START;
            for character in cut.chars() {
                if character == '|' {
                    kind = Kind::Border;
                    continue;
                }
                state = automaton.step(state, automaton.classes.of(character), kind)?;
                kind = Kind::Inside;
            }
            Some(state)
        };
        let ends = |cut: &str| state(cut).map(|state| automaton.may_end(state));
        assert_eq!(ends("a|  "), Some(true));
        assert_eq!(ends("a| | "), Some(false));
        assert_eq!(ends("a| | b"), Some(true));
        assert_eq!(ends("a|  |b"), None);
        assert_eq!(ends("it|'s"), Some(true));
        assert_eq!(ends("it|'|s"), None);
        assert_eq!(ends("it|'|r"), Some(true));
        assert_eq!(ends("it|'|re"), None);
        assert_eq!(ends("ab|1"), Some(true));
        assert_eq!(ends("ab1"), None);
    }
}
