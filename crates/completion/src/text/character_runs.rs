//! Runs of characters, by what they do to the states of a pre-tokenizer within one pre-token.
//!
//! A pattern tells few runs apart. Those of the 49,152 tokens of SmolLM2-135M do 19 different things to its 31 states.
//! So whether a token may follow is looked up, and its characters aren't gone through one by one.

use rustc_hash::FxHashMap;

use super::character_class::ClassIndex;
use super::pre_tokenizer::{Kind, PreTokens, State};

/// The most entries of [`Runs::after`].
const MAX_ENTRIES: usize = 4_000_000;

/// What a run does: runs that lead every state to the same one are equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Run(u16);

impl Run {
    /// The run of no character.
    pub(super) const EMPTY: Self = Self(0);
}

/// What each run does.
#[derive(Clone, Debug)]
pub(super) struct Runs {
    /// The state behind a run that begins in a state; none if no text goes on like that. `[runs][states]`
    after: Vec<Option<State>>,
    states: usize,
}

impl Runs {
    /// The state behind a run.
    pub(super) fn after(&self, state: State, run: Run) -> Option<State> {
        self.after[usize::from(run.0) * self.states + state.index()]
    }

    fn of(&self, run: Run) -> &[Option<State>] {
        &self.after[usize::from(run.0) * self.states..][..self.states]
    }
}

/// Finds the runs of a vocabulary's tokens.
pub(super) struct RunFinder<'a> {
    pre_tokens: &'a PreTokens,
    runs: Runs,
    known: FxHashMap<Vec<Option<State>>, Run>,
    /// A run with one more character.
    longer: FxHashMap<(Run, ClassIndex), Run>,
}

impl<'a> RunFinder<'a> {
    pub(super) fn new(pre_tokens: &'a PreTokens) -> Self {
        let identity: Vec<Option<State>> = pre_tokens.states().map(Some).collect();
        let runs = Runs { after: identity.clone(), states: identity.len() };
        let known = FxHashMap::from_iter([(identity, Run::EMPTY)]);
        Self { pre_tokens, runs, known, longer: FxHashMap::default() }
    }

    /// The run of characters of these classes; none if there are too many different ones.
    pub(super) fn find(&mut self, classes: impl IntoIterator<Item = ClassIndex>) -> Option<Run> {
        classes.into_iter().try_fold(Run::EMPTY, |run, class| match self.longer.get(&(run, class)) {
            Some(&longer) => Some(longer),
            None => self.add(run, class),
        })
    }

    /// The runs found so far.
    pub(super) fn into_runs(self) -> Runs {
        self.runs
    }

    fn add(&mut self, run: Run, class: ClassIndex) -> Option<Run> {
        let step = |state: &Option<State>| state.and_then(|state| self.pre_tokens.step(state, class, Kind::Inside));
        let after: Vec<Option<State>> = self.runs.of(run).iter().map(step).collect();
        let longer = match self.known.get(&after) {
            Some(&known) => known,
            None => {
                let new = Run(u16::try_from(self.known.len()).ok()?);
                self.runs.after.extend(&after);
                self.known.insert(after, new);
                new
            }
        };
        self.longer.insert((run, class), longer);
        (self.runs.after.len() <= MAX_ENTRIES).then_some(longer)
    }
}

#[cfg(test)]
mod tests {
    use super::super::pattern::Program;
    use super::super::pre_tokenizer::PreTokenizer;
    use super::*;

    #[test]
    fn a_run_does_what_its_characters_do_one_by_one() {
        let pattern = r"'s|'re| ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
        let stages = vec![(Program::regex(pattern).unwrap(), false)];
        let automaton = PreTokens::new(PreTokenizer { stages, begins_with_space: false }, |_| true).unwrap();
        let mut finder = RunFinder::new(&automaton);
        let texts = ["", "a", "re", "res", "word", "  ", "12", "123", "1234", "'s", "'", "--", "a1", " a", "é日"];
        let classes = |text: &str| text.chars().map(|c| automaton.classes.of(c)).collect::<Vec<_>>();
        let found: Vec<Run> = texts.iter().map(|text| finder.find(classes(text)).unwrap()).collect();
        let runs = finder.into_runs();
        let mut live = 0;
        for (text, &run) in texts.iter().zip(&found) {
            for state in automaton.states() {
                let expected = automaton.steps(state, classes(text).into_iter(), Kind::Inside);
                assert_eq!(runs.after(state, run), expected, "{text}");
                live += usize::from(expected.is_some());
            }
        }
        assert!(live > texts.len(), "{live}");
        let run = |text: &str| found[texts.iter().position(|other| *other == text).unwrap()];
        assert_eq!(run("word"), run("é日"));
        assert_ne!(run("123"), run("1234"));
        assert_eq!(run(""), Run::EMPTY);
    }
}
