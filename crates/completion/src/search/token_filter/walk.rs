//! A walk through the tree of tokens: finds those that few enough edits turn into what was typed.
//!
//! The walk knows no log-probabilities. It finds what that of each token must be at least, and its caller looks them
//! up.

use super::{Floor, LENGTHS, TokenFilter};
use crate::search::edit_automaton::{Classes, EditAutomaton, KINDS, LONGEST, Run, States};
use crate::text::TokenId;
use crate::text::folded_tokens::class_of;
use crate::text::token_tree::Branch;

/// Finds tokens. See the module's documentation.
pub(super) struct Walk<'a> {
    filter: &'a TokenFilter<'a>,
    automaton: &'a EditAutomaton,
    floor: &'a Floor,
    /// By kind of states: the characters of the shortest token that reaches its floor from there.
    shortest: [usize; KINDS],
    found: Vec<(TokenId, f32)>,
}

impl<'a> Walk<'a> {
    /// For tokens whose log-probability is below `most`.
    pub(super) fn new(filter: &'a TokenFilter<'a>, automaton: &'a EditAutomaton, floor: &'a Floor, most: f64) -> Self {
        let most = filter.score + most;
        let shortest = automaton.costs().map(|cost| {
            let reaches = |&length: &usize| floor.by_length[length] + f64::from(cost) <= most;
            (1..LENGTHS).find(reaches).unwrap_or(usize::MAX)
        });
        Self { filter, automaton, floor, shortest, found: Vec::new() }
    }

    /// All states of the kinds from which a token of at most `longest` characters may reach its floor.
    fn affordable(&self, longest: usize) -> States {
        let longest = longest.min(LENGTHS - 1);
        self.shortest.map(|shortest| if shortest <= longest { u64::MAX } else { 0 })
    }

    /// Walks, and returns the tokens, each with what its log-probability must be at least.
    pub(super) fn tokens(mut self) -> Vec<(TokenId, f32)> {
        let Self { filter, automaton, .. } = self;
        let start = automaton.start();
        let space = if filter.skips_space { 1 << class_of(' ') } else { 0 };
        let classes = automaton.next(start, &self.affordable(LENGTHS)) | space;
        self.below(filter.folded.tree().root(), 0, start, classes);
        self.found
    }

    /// Walks on behind `depth` characters, which lead to the states of `run`: the classes are those of what may follow.
    fn below(&mut self, branch: Branch, depth: usize, run: &Run, classes: Classes) {
        let Self { filter, automaton, .. } = *self;
        let tree = filter.folded.tree();
        for (class, branch) in tree.branches(branch, classes) {
            let affordable = self.affordable(usize::from(tree.longest(branch)));
            let Some(run) = filter.push(automaton, run, class, depth == 0, &affordable) else { continue };
            if automaton.has_ended(&run.states) {
                // A token that uses up all that was typed may go on with anything.
                self.take(tree.all(branch), &run.states);
            } else if depth + 1 == LONGEST {
                self.found.extend(tree.all(branch).iter().map(|&token| (token, f32::NEG_INFINITY)));
            } else {
                self.take(tree.own(branch), &run.states);
                if tree.goes_on(branch) {
                    self.below(branch, depth + 1, &run, automaton.next(&run, &affordable));
                }
            }
        }
    }

    /// Takes tokens that lead to the states.
    fn take(&mut self, tokens: &[TokenId], states: &States) {
        if !tokens.is_empty() {
            let needed = self.filter.lowest(self.automaton, self.floor, states) - self.filter.score;
            // Rounded down: what is let through is aligned.
            let needed = (needed as f32).next_down();
            self.found.extend(tokens.iter().map(|&token| (token, needed)));
        }
    }
}
