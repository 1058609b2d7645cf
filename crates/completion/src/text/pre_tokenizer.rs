//! GPT-2's pre-tokenizer as a small nondeterministic automaton that reads a text from left to right.
//!
//! The regex is `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`, and it looks ahead in two
//! places. A run of white space loses its last character to the text that follows: `"a b"` is `"a"`, `" "`, `" b"` with
//! two spaces. An apostrophe at the start of a pre-token is alone or a contraction, depending on up to two letters
//! after it. A reader who can't look ahead guesses instead: each guess is a [`PreTokenState`], it lives in a
//! [`PreTokenStates`] beside the other guesses, and it dies at the first character that proves it wrong.
//!
//! This module knows characters only: nothing of bytes, tokens or merges. Contractions are followed as tokens, in
//! `canonical`, because there are only seven of them.

use super::character_class::CharacterClass;

/// A guess about the pre-token that is open, or was just closed, after the characters read so far.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum PreTokenState {
    /// Nothing is open and anything may follow: the start of the text, or the end of a contraction.
    Closed,
    /// The last white space (not U+0020) before other text: a pre-token of its own. White space can't follow.
    ClosedBeforeText,
    /// White space that is followed by white space or by the end. What comes next may be the run's last character,
    /// which isn't part of this pre-token.
    Run,
    /// U+0020 before other text: it opens the pre-token that the text goes on with.
    Lead,
    /// Letters.
    Letters,
    /// The first letter after an apostrophe that wasn't a contraction's: an `e` can't follow.
    LettersNotE,
    /// The first letter after an apostrophe that wasn't a contraction's: an `l` can't follow.
    LettersNotL,
    /// Numbers.
    Numbers,
    /// Characters that are neither letters, numbers nor white space.
    Others,
    /// An apostrophe that opens a pre-token, and isn't a contraction's.
    Quote,
    /// An apostrophe that opens a contraction, and perhaps some of its letters.
    Contraction {
        /// Bit `i`: the guess is contraction `i` of [`CONTRACTIONS`].
        which: u8,
        /// How many of the contraction's tokens have been read.
        tokens: u8,
    },
}

/// The contractions of the regex. None is the beginning of another.
pub(super) const CONTRACTIONS: [&str; 7] = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"];

impl PreTokenState {
    /// The guess after one more character of the same pre-token; none if the pre-token can't go on with it.
    pub(super) fn continued(self, class: CharacterClass) -> Option<Self> {
        match self {
            Self::Letters if class.is_letter() => Some(Self::Letters),
            Self::LettersNotE if class.is_letter() && class != CharacterClass::LetterE => Some(Self::Letters),
            Self::LettersNotL if class.is_letter() && class != CharacterClass::LetterL => Some(Self::Letters),
            Self::Numbers if class == CharacterClass::Number => Some(Self::Numbers),
            Self::Others | Self::Quote if class.is_other() => Some(Self::Others),
            Self::Run if class.is_white() => Some(Self::Run),
            Self::Lead if class.is_letter() => Some(Self::Letters),
            Self::Lead if class == CharacterClass::Number => Some(Self::Numbers),
            Self::Lead if class.is_other() => Some(Self::Others),
            _ => None,
        }
    }

    /// The guesses after a character that opens a new pre-token; none if one can't begin there with it.
    ///
    /// Where this is an apostrophe, [`PreTokenState::Contraction`] is one more guess.
    pub(super) fn started(self, class: CharacterClass) -> [Option<Self>; 2] {
        if !self.may_close_before(class) {
            return [None; 2];
        }
        let run = (self != Self::Run).then_some(Self::Run);
        match class {
            CharacterClass::Space => [run, Some(Self::Lead)],
            CharacterClass::White => [run, Some(Self::ClosedBeforeText)],
            CharacterClass::LetterRv if self == Self::Quote => [Some(Self::LettersNotE), None],
            CharacterClass::LetterL if self == Self::Quote => [Some(Self::LettersNotL), None],
            CharacterClass::Number => [Some(Self::Numbers), None],
            CharacterClass::Quote => [Some(Self::Quote), None],
            CharacterClass::Other => [Some(Self::Others), None],
            _ => [Some(Self::Letters), None],
        }
    }

    /// Whether a pre-token may end here when a character of this class follows.
    pub(super) fn may_close_before(self, class: CharacterClass) -> bool {
        match self {
            Self::Closed => true,
            Self::ClosedBeforeText => !class.is_white(),
            Self::Run => class.is_white(), // the last white space of the run
            Self::Letters | Self::LettersNotE | Self::LettersNotL => !class.is_letter(),
            Self::Numbers => class != CharacterClass::Number,
            Self::Others => !class.is_other(),
            Self::Quote => !class.is_other() && class != CharacterClass::LetterStmd,
            Self::Lead | Self::Contraction { .. } => false,
        }
    }

    /// Whether the text may end here.
    pub(super) fn may_end(self) -> bool {
        !matches!(self, Self::ClosedBeforeText | Self::Lead | Self::Contraction { .. })
    }
}

/// How an unfinished character at the end of a path belongs to the pre-tokens, as far as its tokens decide that.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Edge {
    /// No character is unfinished.
    None,
    /// The character opens a new pre-token.
    Opens,
    /// The character continues the open pre-token.
    Continues,
}

/// The live guesses about one text: in practice at most three.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct PreTokenStates {
    guesses: [(PreTokenState, Edge); Self::CAPACITY],
    length: u8,
}

impl PreTokenStates {
    const CAPACITY: usize = 4;

    /// No guess: a text that isn't possible.
    pub(super) const NONE: Self = Self { guesses: [(PreTokenState::Closed, Edge::None); Self::CAPACITY], length: 0 };

    /// Adds a guess, once.
    pub(super) fn insert(&mut self, state: PreTokenState, edge: Edge) {
        if self.iter().any(|guess| guess == (state, edge)) {
            return;
        }
        let slot = self.guesses.get_mut(usize::from(self.length));
        debug_assert!(slot.is_some(), "more guesses than the automaton can make");
        if let Some(slot) = slot {
            *slot = (state, edge);
            self.length += 1;
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (PreTokenState, Edge)> + '_ {
        self.guesses.iter().take(usize::from(self.length)).copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }
}
