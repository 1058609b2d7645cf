//! Which token sequences a tokenizer of GPT-2's kind produces, followed one token at a time.
//!
//! A sequence is *canonical* if encoding the text it spells gives the same sequence. A [`PathState`] tells whether a
//! sequence is the beginning of a canonical one, for some text that may go on after it; that is what a search over
//! completions walks through. Two things are decided per token: whether the pre-tokenizer can put a border, or can't,
//! where the token begins (`pre_tokenizer`), and without a border whether the merges leave the two neighbours apart
//! (`bpe_merges`).
//!
//! Exact, but for one case: after a token that ends inside a character, a path is still followed if *some* character
//! would fit its pre-token, whether or not the merges can ever get there. It dies when the character is complete.
//!
//! This module doesn't know what has been typed (see `covering_set`), has no special tokens, and scores nothing.

use std::sync::Arc;

use super::bpe_merges::BpeMerges;
pub use super::bpe_merges::{BpeError, Merge};
use super::character_class::{CharacterClass, CharacterClasses};
use super::pre_tokenizer::{CONTRACTIONS, Edge, PreTokenState, PreTokenStates};
use super::token_characters::{TokenCharacterTable, TokenCharacters, is_continuation};
use super::vocabulary::{TokenId, Vocabulary};

/// A tokenizer of GPT-2's kind: byte-level merges behind GPT-2's pre-tokenizer.
#[derive(Clone, Debug)]
pub struct CanonicalBpe {
    vocabulary: Arc<Vocabulary>,
    merges: BpeMerges,
    classes: CharacterClasses,
    characters: TokenCharacterTable,
    /// The tokens of each of [`CONTRACTIONS`]; none where they can't be spelled.
    contractions: Vec<Option<Vec<TokenId>>>,
    /// Whether any token can follow a lone U+0020 within a pre-token.
    lead_goes_on: bool,
    /// Whether any character but white space can be spelled.
    text_exists: bool,
}

/// How far a sequence of tokens has come: what decides which tokens may follow. 40 bytes, no allocation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PathState {
    last: Option<TokenId>,
    states: PreTokenStates,
    /// The bytes of the character that the last token ends in.
    partial: Partial,
}

/// An unfinished character.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Partial {
    bytes: [u8; 4],
    length: u8,
}

impl Partial {
    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// Adds bytes; none if a character can't have as many.
    fn with(mut self, more: &[u8]) -> Option<Self> {
        let start = usize::from(self.length);
        self.bytes.get_mut(start..start + more.len())?.copy_from_slice(more);
        self.length += more.len() as u8;
        Some(self)
    }
}

impl CanonicalBpe {
    /// Builds a tokenizer from its vocabulary and its merges in rank order.
    ///
    /// Tokens that no merge makes, or whose merge another one always forestalls, are never produced, and that is no
    /// error. Neither are missing bytes: see [`CanonicalBpe::is_encodable`].
    ///
    /// # Errors
    ///
    /// If the merges don't belong to the vocabulary or aren't ordered as training orders them.
    pub fn new(vocabulary: Arc<Vocabulary>, merges: &[Merge]) -> Result<Self, BpeError> {
        let merges = BpeMerges::new(&vocabulary, merges)?;
        let classes = CharacterClasses::new().ok_or(BpeError::NoCharacterClasses)?;
        let characters = TokenCharacterTable::new(&vocabulary, &classes, |token| merges.exists(token));
        let contractions = CONTRACTIONS.iter().map(|text| merges.encode(&vocabulary, text.as_bytes())).collect();
        let mut canon =
            Self { vocabulary, merges, classes, characters, contractions, lead_goes_on: true, text_exists: true };
        canon.lead_goes_on = canon.find_lead();
        canon.text_exists = canon.find_text();
        Ok(canon)
    }

    /// The vocabulary it was built from.
    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }

    /// Whether the vocabulary has a token for every byte of the text. A whole byte alphabet encodes everything.
    pub fn is_encodable(&self, text: &str) -> bool {
        text.bytes().all(|byte| self.vocabulary.token(&[byte]).is_some())
    }

    /// The state before the first token.
    pub fn start(&self) -> PathState {
        let mut states = PreTokenStates::NONE;
        states.insert(PreTokenState::Closed, Edge::None);
        PathState { last: None, states, partial: Partial::default() }
    }

    /// Whether the path is the whole encoding of the text it spells, which is valid UTF-8 then.
    pub fn may_end(&self, path: &PathState) -> bool {
        path.partial.length == 0 && path.states.iter().any(|(state, _)| state.may_end())
    }

    /// The state after one more token; none if no text's encoding begins with these tokens.
    pub fn may_follow(&self, path: &PathState, next: TokenId) -> Option<PathState> {
        let token = self.characters.get(next)?;
        let after = if path.partial.length == 0 {
            self.step_at_border(path, next, &token)
        } else {
            self.step_inside_character(path, next, &token)
        }?;
        (!after.states.is_empty()).then_some(after)
    }

    /// A token that begins with a character, or with the beginning of one.
    fn step_at_border(&self, path: &PathState, next: TokenId, token: &TokenCharacters) -> Option<PathState> {
        if token.head > 0 {
            return None;
        }
        // The same for every guess: an open pre-token's last token is the path's.
        let mut pair = None;
        let mut joins = || *pair.get_or_insert_with(|| self.joins(path, next));
        let mut states = PreTokenStates::NONE;
        for (state, _) in path.states.iter() {
            let Some((&first, rest)) = token.whole.split_first() else {
                if token.tail_classes.any(|class| state.continued(class).is_some()) && joins() {
                    states.insert(state, Edge::Continues);
                }
                if token.tail_classes.any(|class| state.may_close_before(class)) {
                    states.insert(state, Edge::Opens);
                }
                continue;
            };
            if let Some(state) = state.continued(first)
                && joins()
            {
                self.go_on(state, rest, token, &mut states);
            }
            for state in state.started(first).into_iter().flatten() {
                self.go_on(state, rest, token, &mut states);
            }
            self.follow_contraction(state, first, next, &mut states);
        }
        Some(PathState { last: Some(next), states, partial: self.tail(next, token)? })
    }

    /// A token that begins inside a character: no border can be there.
    fn step_inside_character(&self, path: &PathState, next: TokenId, token: &TokenCharacters) -> Option<PathState> {
        let bytes = self.vocabulary.bytes(next)?;
        let partial = path.partial.with(bytes.get(..token.head)?)?;
        if token.head == 0 || !self.joins(path, next) {
            return None;
        }
        let mut states = PreTokenStates::NONE;
        match std::str::from_utf8(partial.as_bytes()) {
            Ok(character) => {
                let class = self.classes.of(character.chars().next()?);
                for (state, edge) in path.states.iter() {
                    let guesses = match edge {
                        Edge::Opens => state.started(class),
                        _ => [state.continued(class), None],
                    };
                    for state in guesses.into_iter().flatten() {
                        self.go_on(state, token.whole, token, &mut states);
                    }
                }
                Some(PathState { last: Some(next), states, partial: self.tail(next, token)? })
            }
            // The character still isn't complete.
            Err(_) if token.head == bytes.len() => {
                let classes = self.classes.of_partial(partial.as_bytes())?;
                for (state, edge) in path.states.iter() {
                    let fits = |class| match edge {
                        Edge::Opens => state.may_close_before(class),
                        _ => state.continued(class).is_some(),
                    };
                    if classes.any(fits) {
                        states.insert(state, edge);
                    }
                }
                Some(PathState { last: Some(next), states, partial })
            }
            Err(_) => None,
        }
    }

    /// Goes on from a guess through the rest of a token, where no border can be.
    fn go_on(
        &self,
        state: PreTokenState,
        rest: &[CharacterClass],
        token: &TokenCharacters,
        states: &mut PreTokenStates,
    ) {
        let Some(state) = rest.iter().try_fold(state, |state, &class| state.continued(class)) else { return };
        if token.tail > 0 {
            if token.tail_classes.any(|class| state.continued(class).is_some()) {
                states.insert(state, Edge::Continues);
            }
        } else if self.is_possible(state) {
            states.insert(state, Edge::None);
        }
    }

    /// Whether any text can follow, for the guesses that need one.
    fn is_possible(&self, state: PreTokenState) -> bool {
        match state {
            PreTokenState::Lead => self.lead_goes_on,
            PreTokenState::ClosedBeforeText => self.text_exists,
            _ => true,
        }
    }

    /// The guess that `next` is the first, or one more, of a contraction's tokens.
    fn follow_contraction(
        &self,
        state: PreTokenState,
        first: CharacterClass,
        next: TokenId,
        states: &mut PreTokenStates,
    ) {
        let (which, read) = match state {
            PreTokenState::Contraction { which, tokens } => (which, usize::from(tokens)),
            _ if first == CharacterClass::Quote && state.may_close_before(first) => (u8::MAX, 0),
            _ => return,
        };
        let mut still = 0;
        for (index, tokens) in self.contractions.iter().enumerate() {
            let tokens = tokens.as_deref().filter(|tokens| which >> index & 1 == 1 && tokens.get(read) == Some(&next));
            match tokens {
                Some(tokens) if tokens.len() == read + 1 => states.insert(PreTokenState::Closed, Edge::None),
                Some(_) => still |= 1 << index,
                None => {}
            }
        }
        if still != 0 {
            states.insert(PreTokenState::Contraction { which: still, tokens: read as u8 + 1 }, Edge::None);
        }
    }

    /// Whether the merges leave the path's last token and `next` apart within a pre-token.
    fn joins(&self, path: &PathState, next: TokenId) -> bool {
        path.last.is_some_and(|last| self.merges.is_canonical_pair(last, next))
    }

    /// The unfinished character at the end of a token.
    fn tail(&self, token: TokenId, characters: &TokenCharacters) -> Option<Partial> {
        if characters.tail == 0 {
            return Some(Partial::default());
        }
        let bytes = self.vocabulary.bytes(token)?;
        Partial::default().with(&bytes[bytes.len() - characters.tail..])
    }

    /// Whether anything follows a token that is one U+0020 within its pre-token.
    fn find_lead(&self) -> bool {
        let Some(space) = self.vocabulary.token(b" ") else { return false };
        let mut states = PreTokenStates::NONE;
        states.insert(PreTokenState::Lead, Edge::None);
        self.reaches_character(&PathState { last: Some(space), states, partial: Partial::default() })
    }

    /// Whether tokens can follow up to the end of a character.
    fn reaches_character(&self, path: &PathState) -> bool {
        // A token that ends inside the character that it began in makes it longer, so that this comes to an end; one
        // that ends inside another character is counted as if that one could be completed.
        let begun = path.partial.length;
        (0..self.vocabulary.len() as u32).map(TokenId).any(|token| {
            let is_inside = || self.characters.get(token).is_some_and(|token| token.whole.is_empty());
            self.may_follow(path, token).is_some_and(|after| match after.partial.length {
                0 => true,
                length if length > begun && is_inside() => self.reaches_character(&after),
                _ => true,
            })
        })
    }

    /// Whether any character but white space can be spelled: almost always `!` can.
    fn find_text(&self) -> bool {
        let mut buffer = [0; 4];
        ('!'..=char::MAX).any(|c| !self.classes.of(c).is_white() && self.is_encodable(c.encode_utf8(&mut buffer)))
    }

    /// Whether the pre-tokenizer lets one token span these bytes after the path. A quick way to see that none can;
    /// yes doesn't mean that there is one.
    pub(super) fn may_span(&self, path: &PathState, bytes: &[u8]) -> bool {
        let head = bytes.iter().take_while(|&&byte| is_continuation(byte)).count();
        if path.partial.length > 0 || head > 0 {
            return true; // too rare to be worth a second automaton
        }
        let Some(text) = bytes.utf8_chunks().next().map(|chunk| chunk.valid()) else { return true };
        let mut characters = text.chars().map(|character| self.classes.of(character));
        let Some(first) = characters.next() else { return true };
        let rest =
            |state: PreTokenState| characters.clone().try_fold(state, |state, class| state.continued(class)).is_some();
        path.states.iter().any(|(state, _)| {
            let contraction = matches!(state, PreTokenState::Contraction { .. }) || first == CharacterClass::Quote;
            contraction
                || state.continued(first).is_some_and(rest)
                || state.started(first).into_iter().flatten().any(rest)
        })
    }
}
