//! Which token sequences a tokenizer of byte pairs produces, followed one token at a time.
//!
//! A sequence is *canonical* if encoding the text it spells gives the same sequence. A [`PathState`] tells whether a
//! sequence is the beginning of a canonical one, for some text that may go on after it; that is what a search over
//! completions walks through. Three things are decided per token. `pre_tokenizer` says whether there can be a border
//! between pre-tokens where the token begins. `bpe_merges` says whether the merges leave the two neighbours apart if
//! there is none. `normal_form` says whether the normalizer leaves the text as it is.
//!
//! Exact, but for two cases in which a path is still followed though it must die later. After a token that ends inside
//! a character, it is enough that *some* character would fit its pre-token. And where a pre-token has to go on, it is
//! enough that one more token can follow.
//!
//! This module doesn't know what has been typed (see `covering_set`), has no special tokens, and scores nothing.

use std::collections::HashSet;
use std::sync::Arc;

use super::bpe_file::BpeTokenizer;
use super::bpe_merges::BpeMerges;
pub use super::bpe_merges::{BpeError, Merge};
use super::normal_form::{Composing, NormalForm};
use super::pre_tokenizer::{Kind, PreTokens, State};
use super::token_characters::{TokenCharacterTable, TokenCharacters, is_continuation};
use super::vocabulary::{TokenId, Vocabulary};

/// A tokenizer that merges pairs behind a pre-tokenizer.
#[derive(Clone, Debug)]
pub struct CanonicalBpe {
    vocabulary: Arc<Vocabulary>,
    merges: BpeMerges,
    pre_tokens: PreTokens,
    characters: TokenCharacterTable,
    normal_form: NormalForm,
    /// Tokens whose text is found in a text before anything else is done with it.
    added: HashSet<TokenId>,
    /// States in which the pre-token must go on, with last tokens that no token can follow.
    stuck: HashSet<(State, TokenId)>,
    /// Whether characters that are tokens are never spelled by the tokens of their bytes.
    by_characters: bool,
}

/// How far a sequence of tokens has come: what decides which tokens may follow. 24 bytes, no allocation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PathState {
    /// The last token, if the next one can belong to the same pre-token.
    last: Option<TokenId>,
    state: State,
    /// How the character that the last token ends in belongs to the one before it.
    kind: Kind,
    /// The bytes of the character that the last token ends in.
    partial: Partial,
    composing: Composing,
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
    /// Builds a tokenizer from what its file says.
    ///
    /// Tokens that no merge makes, or whose merge another one always forestalls, are never produced, and that is no
    /// error. Neither are missing bytes: see [`CanonicalBpe::is_encodable`].
    ///
    /// # Errors
    ///
    /// If the merges don't belong to the vocabulary or aren't ordered as training orders them, or if the pre-tokenizer
    /// can't be followed from left to right.
    pub fn new(file: BpeTokenizer) -> Result<Self, BpeError> {
        let BpeTokenizer { vocabulary, merges, pre_tokenizer, normal_form, added, by_characters, whole_words } = file;
        let added: HashSet<TokenId> = added.into_iter().collect();
        let merges = BpeMerges::new(&vocabulary, &merges, &added, by_characters)?;
        let spells = Spelling::new(&vocabulary);
        let pre_tokens = PreTokens::new(pre_tokenizer, |c| spells.spells(c)).map_err(BpeError::PreTokenizer)?;
        let exists = |token| merges.exists(token) || added.contains(&token);
        let characters = TokenCharacterTable::new(&vocabulary, &pre_tokens.classes, exists);
        let stuck = HashSet::new();
        let vocabulary = Arc::new(vocabulary);
        let mut canon = Self { vocabulary, merges, pre_tokens, characters, normal_form, added, stuck, by_characters };
        canon.stuck = canon.find_stuck();
        match canon.unmerged().filter(|_| whole_words) {
            Some(token) => Err(BpeError::WholeWord { token }),
            None => Ok(canon),
        }
    }

    /// The vocabulary it was built from.
    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }

    /// What is done with a text before it is split.
    pub fn normal_form(&self) -> &NormalForm {
        &self.normal_form
    }

    /// Whether the vocabulary can spell the text. A whole byte alphabet encodes everything.
    pub fn is_encodable(&self, text: &str) -> bool {
        let mut buffer = [0; 4];
        let is_known = |byte: u8| self.vocabulary.token(&[byte]).is_some();
        self.normal_form.spelled(text).chars().all(|character| {
            let bytes = character.encode_utf8(&mut buffer).as_bytes();
            bytes.iter().all(|&byte| is_known(byte)) || self.by_characters && self.vocabulary.token(bytes).is_some()
        })
    }

    /// The state before the first token.
    pub fn start(&self) -> PathState {
        let (partial, composing) = (Partial::default(), Composing::default());
        PathState { last: None, state: State::START, kind: Kind::Border, partial, composing }
    }

    /// Whether the path is the whole encoding of the text it spells, which is valid UTF-8 then.
    pub fn may_end(&self, path: &PathState) -> bool {
        path.partial.length == 0 && self.pre_tokens.may_end(path.state)
    }

    /// The state after one more token; none if no text's encoding begins with these tokens.
    pub fn may_follow(&self, path: &PathState, next: TokenId) -> Option<PathState> {
        let token = self.characters.get(next)?;
        let after = if path.partial.length > 0 {
            self.step_inside_character(path, next, &token)
        } else if !self.added.is_empty() && self.added.contains(&next) {
            self.step_added(path, &token)
        } else {
            self.step_at_border(path, next, &token)
        }?;
        if !self.stuck.is_empty() && self.stuck.contains(&(after.state, next)) {
            return None;
        }
        self.compose(path, next, after)
    }

    /// An added token: nothing goes on with it.
    fn step_added(&self, path: &PathState, token: &TokenCharacters) -> Option<PathState> {
        let (&first, rest) = token.whole.split_first()?;
        let state = self.pre_tokens.step(path.state, usize::from(first), Kind::OpensAdded)?;
        let state = self.pre_tokens.steps(state, rest, Kind::InsideAdded)?;
        Some(PathState { last: None, state, ..self.start() })
    }

    /// A token that begins with a character, or with the beginning of one.
    fn step_at_border(&self, path: &PathState, next: TokenId, token: &TokenCharacters) -> Option<PathState> {
        if token.head > 0 {
            return None;
        }
        let follows = |kind| match token.whole.first() {
            Some(&first) => self.pre_tokens.step(path.state, usize::from(first), kind).is_some(),
            None => self.pre_tokens.allows(path.state, token.tail_classes, kind),
        };
        let kind = match (follows(Kind::Inside) && self.joins(path, next), follows(Kind::Border)) {
            (true, true) => Kind::Either,
            (true, false) => Kind::Inside,
            (false, true) => Kind::Border,
            (false, false) => return None,
        };
        match token.whole.split_first() {
            Some((&first, rest)) => {
                let state = self.pre_tokens.step(path.state, usize::from(first), kind)?;
                self.go_on(path, state, rest, (next, token))
            }
            None => Some(PathState { last: Some(next), kind, partial: self.tail(next, token)?, ..*path }),
        }
    }

    /// A token that begins inside a character: no border can be there.
    fn step_inside_character(&self, path: &PathState, next: TokenId, token: &TokenCharacters) -> Option<PathState> {
        let bytes = self.vocabulary.bytes(next)?;
        let partial = path.partial.with(bytes.get(..token.head)?)?;
        if token.head == 0 || !self.joins(path, next) {
            return None;
        }
        match std::str::from_utf8(partial.as_bytes()) {
            Ok(character) => {
                if self.by_characters && self.is_whole(character) {
                    return None;
                }
                let class = self.pre_tokens.classes.of(character.chars().next()?);
                let state = self.pre_tokens.step(path.state, class, path.kind)?;
                self.go_on(path, state, token.whole, (next, token))
            }
            // The character still isn't complete.
            Err(_) if token.head == bytes.len() => {
                let classes = self.pre_tokens.classes.of_partial(partial.as_bytes())?;
                let fits = self.pre_tokens.allows(path.state, classes, path.kind);
                fits.then_some(PathState { last: Some(next), partial, ..*path })
            }
            Err(_) => None,
        }
    }

    /// Goes on through the rest of a token, where no border can be.
    fn go_on(
        &self,
        path: &PathState,
        state: State,
        rest: &[u8],
        (next, token): (TokenId, &TokenCharacters),
    ) -> Option<PathState> {
        let state = self.pre_tokens.steps(state, rest, Kind::Inside)?;
        if token.tail > 0 && !self.pre_tokens.allows(state, token.tail_classes, Kind::Inside) {
            return None;
        }
        Some(PathState { last: Some(next), state, kind: Kind::Inside, partial: self.tail(next, token)?, ..*path })
    }

    /// Adds what the normalizer must leave alone: the characters that `next` completes or has.
    fn compose(&self, path: &PathState, next: TokenId, mut after: PathState) -> Option<PathState> {
        if !self.normal_form.composes() {
            return Some(after);
        }
        let bytes = self.vocabulary.bytes(next)?;
        let mut composing = path.composing;
        if self.added.contains(&next) && self.normal_form.keeps(bytes) {
            after.composing = Composing::default();
            return Some(after);
        }
        let (head, whole) = bytes.split_at(self.characters.get(next)?.head);
        let whole = &whole[..whole.len() - self.characters.get(next)?.tail];
        // Nothing if the character still isn't complete.
        let first = path.partial.with(head)?;
        let first = std::str::from_utf8(first.as_bytes()).unwrap_or_default();
        for character in first.chars().chain(std::str::from_utf8(whole).ok()?.chars()) {
            composing = composing.with(character)?;
        }
        after.composing = composing;
        Some(after)
    }

    /// Whether the merges leave the path's last token and `next` apart within a pre-token.
    fn joins(&self, path: &PathState, next: TokenId) -> bool {
        path.last.is_some_and(|last| self.merges.is_canonical_pair(last, next))
    }

    /// Whether a character is a token of its own.
    fn is_whole(&self, character: &str) -> bool {
        self.vocabulary.token(character.as_bytes()).is_some() || character == "\u{2581}"
    }

    /// The unfinished character at the end of a token.
    fn tail(&self, token: TokenId, characters: &TokenCharacters) -> Option<Partial> {
        if characters.tail == 0 {
            return Some(Partial::default());
        }
        let bytes = self.vocabulary.bytes(token)?;
        Partial::default().with(&bytes[bytes.len() - characters.tail..])
    }

    /// Finds the tokens that no token can follow where their pre-token must go on.
    fn find_stuck(&self) -> HashSet<(State, TokenId)> {
        let mut stuck = HashSet::new();
        for state in self.pre_tokens.only_inside() {
            let leading = self.pre_tokens.leading_to(state);
            for (token, _) in self.vocabulary.in_order() {
                let Some(characters) = self.characters.get(token).filter(|_| !self.added.contains(&token)) else {
                    continue;
                };
                let path = PathState { last: Some(token), state, ..self.start() };
                let last = characters.whole.last().filter(|_| characters.tail == 0);
                let leads = last.is_some_and(|&last| leading.has(usize::from(last)));
                if leads && self.pre_tokens.lead_to(characters.whole, state) && !self.reaches_character(&path) {
                    stuck.insert((state, token));
                }
            }
        }
        stuck
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

    /// A token that the merges never make, though a text may be just that token.
    fn unmerged(&self) -> Option<TokenId> {
        let is_word = |token: &TokenId, bytes: &[u8]| {
            let Ok(text) = std::str::from_utf8(bytes) else { return false };
            let mut classes = text.chars().map(|character| self.pre_tokens.classes.of(character) as u8);
            let first = classes.next();
            let state = first.and_then(|first| self.pre_tokens.step(State::START, first.into(), Kind::Border));
            let rest: Vec<u8> = classes.collect();
            !self.added.contains(token)
                && state.is_some_and(|state| self.pre_tokens.steps(state, &rest, Kind::Inside).is_some())
        };
        let mut unmerged = self.vocabulary.in_order().filter(|(token, _)| !self.merges.exists(*token));
        unmerged.find(|(token, bytes)| is_word(token, bytes)).map(|(token, _)| token)
    }

    /// Whether the pre-tokenizer lets one token span these bytes after the path. A quick way to see that none can;
    /// yes doesn't mean that there is one.
    pub(super) fn may_span(&self, path: &PathState, bytes: &[u8]) -> bool {
        let head = bytes.iter().take_while(|&&byte| is_continuation(byte)).count();
        if path.partial.length > 0 || head > 0 {
            return true; // too rare to be worth a second automaton
        }
        let Some(text) = bytes.utf8_chunks().next().map(|chunk| chunk.valid()) else { return true };
        let spans = |opens, goes_on| {
            let mut kinds = std::iter::once(opens).chain(std::iter::repeat(goes_on));
            let step = |state, class| self.pre_tokens.step(state, class, kinds.next().unwrap_or(goes_on));
            text.chars().map(|character| self.pre_tokens.classes.of(character)).try_fold(path.state, step).is_some()
        };
        spans(Kind::Either, Kind::Inside) || !self.added.is_empty() && spans(Kind::OpensAdded, Kind::InsideAdded)
    }
}

/// Which characters a vocabulary can spell.
struct Spelling<'a> {
    vocabulary: &'a Vocabulary,
    /// By byte: whether there is a token for just it. `[256]`
    bytes: Vec<bool>,
}

impl<'a> Spelling<'a> {
    fn new(vocabulary: &'a Vocabulary) -> Self {
        Self { vocabulary, bytes: (0..=255).map(|byte| vocabulary.token(&[byte]).is_some()).collect() }
    }

    fn spells(&self, character: char) -> bool {
        let mut buffer = [0; 4];
        let bytes = character.encode_utf8(&mut buffer).as_bytes();
        bytes.iter().all(|&byte| self.bytes[usize::from(byte)]) || self.vocabulary.token(bytes).is_some()
    }
}
