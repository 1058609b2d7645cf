//! A walk through the tree of tokens: finds those that few enough edits turn into what was typed.
//!
//! The walk knows no log-probabilities. It finds what that of each token must be at least, and its caller looks them
//! up.

use super::{FilterAt, LENGTHS};
use crate::search::edit_automaton::{Classes, EditAutomaton, KINDS, LONGEST, Run, States};
use crate::text::TokenId;
use crate::text::folded_tokens::class_of;
use crate::text::token_tree::Branch;

/// Finds tokens. See the module's documentation.
pub(super) struct Walk<'a> {
    at: &'a FilterAt<'a>,
    automaton: &'a EditAutomaton,
    /// Tokens are looked for whose log-probability is at most this.
    most: f32,
    /// By kind of states: the characters of the shortest token that may reach its floor from there. No other kind's are
    /// fewer than those of the first one, which may become any.
    shortest: [usize; KINDS],
    found: Vec<(TokenId, f32)>,
}

impl<'a> Walk<'a> {
    /// For tokens whose log-probability is at most `most`.
    pub(super) fn new(at: &'a FilterAt<'a>, automaton: &'a EditAutomaton, most: f32) -> Self {
        let joint = at.filter.score + f64::from(most);
        let shortest = at.least.each_ref().map(|least| {
            let reaches = |&length: &usize| least[length] <= joint;
            (1..LENGTHS).find(reaches).unwrap_or(usize::MAX)
        });
        Self { at, automaton, most, shortest, found: Vec::new() }
    }

    /// All states of the kinds from which a token of at most `longest` characters may reach its floor.
    fn affordable(&self, longest: usize) -> States {
        self.shortest.map(|shortest| if shortest <= longest { u64::MAX } else { 0 })
    }

    /// Walks, and returns the tokens, each with what its log-probability must be at least.
    pub(super) fn tokens(mut self) -> Vec<(TokenId, f32)> {
        let (filter, automaton) = (self.at.filter, self.automaton);
        let start = automaton.start();
        let space = if filter.skips_space { 1 << class_of(' ') } else { 0 };
        let classes = automaton.next(start, &self.affordable(LENGTHS)) | space;
        self.below(filter.folded.tree().root(), 0, start, classes);
        self.found
    }

    /// Walks on behind `depth` characters, which lead to the states of `run`: the classes are those of what may follow.
    fn below(&mut self, branch: Branch, depth: usize, run: &Run, classes: Classes) {
        let (filter, automaton) = (self.at.filter, self.automaton);
        let tree = filter.folded.tree();
        for (class, branch) in tree.branches(branch, classes) {
            let longest = usize::from(tree.longest(branch));
            if longest < self.shortest[0] {
                continue;
            }
            let affordable = self.affordable(longest);
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
        if tokens.is_empty() {
            return;
        }
        let needed = self.at.lowest(self.automaton, states) - self.at.filter.score;
        // Rounded down: what is let through is aligned.
        let needed = (needed as f32).next_down();
        if needed <= self.most {
            self.found.extend(tokens.iter().map(|&token| (token, needed)));
        }
    }
}
