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

use rustc_hash::FxHashSet;

use super::bpe_file::BpeTokenizer;
use super::bpe_merges::BpeMerges;
pub use super::bpe_merges::{BpeError, Merge};
use super::character_runs::Run;
use super::normal_form::{Composing, NormalForm};
use super::pre_tokenizer::{Kind, PreTokens, State};
use super::token_characters::{Parts, TokenCharacterTable, TokenCharacters, is_continuation};
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
    /// In states in which the pre-token must go on: last tokens that no token can follow. `[states]`
    stuck: Vec<FxHashSet<TokenId>>,
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
        let exists = |token| merges.exists(token);
        let is_added = |token| added.contains(&token);
        let characters = TokenCharacterTable::new(&vocabulary, &pre_tokens, is_added, exists)
            .ok_or_else(|| BpeError::PreTokenizer("has patterns that need too many states".to_owned()))?;
        let stuck = vec![FxHashSet::default(); pre_tokens.states().count()];
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
            self.step_inside_character(path, next, token)
        } else if token.is_added {
            self.step_added(path, next)
        } else {
            self.step_at_border(path, next, token)
        }?;
        if self.stuck[after.state.index()].contains(&next) {
            return None;
        }
        self.compose(path, next, after)
    }

    /// An added token: nothing goes on with it.
    fn step_added(&self, path: &PathState, next: TokenId) -> Option<PathState> {
        let text = Parts::of(self.vocabulary.bytes(next)?)?.text;
        let mut classes = text.chars().map(|character| self.pre_tokens.classes.of(character));
        let state = self.pre_tokens.step(path.state, classes.next()?, Kind::OpensAdded)?;
        let state = self.pre_tokens.steps(state, classes, Kind::InsideAdded)?;
        Some(PathState { last: None, state, ..self.start() })
    }

    /// A token that begins with a character, or with the beginning of one.
    fn step_at_border(&self, path: &PathState, next: TokenId, token: TokenCharacters) -> Option<PathState> {
        if token.head > 0 {
            return None;
        }
        let Some((first, rest)) = token.whole else { return self.step_into_character(path, next, token) };
        let step = |kind| self.pre_tokens.step(path.state, usize::from(first), kind);
        let inside = step(Kind::Inside).filter(|_| self.joins(path, next));
        let state = match (inside, step(Kind::Border)) {
            (Some(_), Some(_)) => step(Kind::Either),
            (inside, border) => inside.or(border),
        };
        self.go_on(path, self.characters.runs.after(state?, rest)?, (next, token))
    }

    /// A token that is the beginning of a character.
    fn step_into_character(&self, path: &PathState, next: TokenId, token: TokenCharacters) -> Option<PathState> {
        let allows = |kind| self.pre_tokens.allows(path.state, self.characters.tail_classes(next), kind);
        let kind = match (allows(Kind::Inside) && self.joins(path, next), allows(Kind::Border)) {
            (true, true) => Kind::Either,
            (true, false) => Kind::Inside,
            (false, true) => Kind::Border,
            (false, false) => return None,
        };
        Some(PathState { last: Some(next), kind, partial: self.tail(next, token)?, ..*path })
    }

    /// A token that begins inside a character: no border can be there.
    fn step_inside_character(&self, path: &PathState, next: TokenId, token: TokenCharacters) -> Option<PathState> {
        let bytes = self.vocabulary.bytes(next)?;
        let head = usize::from(token.head);
        let partial = path.partial.with(bytes.get(..head)?)?;
        if head == 0 || !self.joins(path, next) {
            return None;
        }
        match std::str::from_utf8(partial.as_bytes()) {
            Ok(character) => {
                if self.by_characters && self.is_whole(character) {
                    return None;
                }
                let class = self.pre_tokens.classes.of(character.chars().next()?);
                let mut state = self.pre_tokens.step(path.state, class, path.kind)?;
                if let Some((first, rest)) = token.whole {
                    state = self.pre_tokens.step(state, usize::from(first), Kind::Inside)?;
                    state = self.characters.runs.after(state, rest)?;
                }
                self.go_on(path, state, (next, token))
            }
            // The character still isn't complete.
            Err(_) if head == bytes.len() => {
                let classes = self.pre_tokens.classes.of_partial(partial.as_bytes())?;
                let fits = self.pre_tokens.allows(path.state, classes, path.kind);
                fits.then_some(PathState { last: Some(next), partial, ..*path })
            }
            Err(_) => None,
        }
    }

    /// Goes on behind the whole characters of a token, which lead to `state`.
    #[inline]
    fn go_on(&self, path: &PathState, state: State, (next, token): (TokenId, TokenCharacters)) -> Option<PathState> {
        let may_begin = || self.pre_tokens.allows(state, self.characters.tail_classes(next), Kind::Inside);
        if token.tail > 0 && !may_begin() {
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
        let Parts { head, text, .. } = Parts::of(bytes)?;
        // Nothing if the character still isn't complete.
        let first = path.partial.with(&bytes[..head])?;
        let first = std::str::from_utf8(first.as_bytes()).unwrap_or_default();
        for character in first.chars().chain(text.chars()) {
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
    #[inline]
    fn tail(&self, token: TokenId, characters: TokenCharacters) -> Option<Partial> {
        if characters.tail == 0 {
            return Some(Partial::default());
        }
        let bytes = self.vocabulary.bytes(token)?;
        Partial::default().with(&bytes[bytes.len() - usize::from(characters.tail)..])
    }

    /// Finds the tokens that no token can follow where their pre-token must go on.
    fn find_stuck(&self) -> Vec<FxHashSet<TokenId>> {
        let mut stuck = self.stuck.clone();
        for state in self.pre_tokens.only_inside() {
            let leading = self.pre_tokens.leading_to(state);
            for (token, bytes) in self.vocabulary.in_order() {
                let characters = self.characters.get(token).filter(|token| !token.is_added && token.tail == 0);
                let Some(whole) = characters.and_then(|characters| characters.whole) else { continue };
                let path = PathState { last: Some(token), state, ..self.start() };
                let last = Parts::of(bytes).and_then(|parts| parts.text.chars().last());
                let leads = last.is_some_and(|last| leading.has(self.pre_tokens.classes.of(last)));
                if leads && self.leads_to(whole, state) && !self.reaches_character(&path) {
                    stuck[state.index()].insert(token);
                }
            }
        }
        stuck
    }

    /// Whether a token's whole characters, which are of one pre-token, can lead to a state.
    fn leads_to(&self, (first, rest): (u8, Run), state: State) -> bool {
        let mut starts = self.pre_tokens.states_behind(usize::from(first));
        starts.any(|start| self.characters.runs.after(start, rest) == Some(state))
    }

    /// Whether tokens can follow up to the end of a character.
    fn reaches_character(&self, path: &PathState) -> bool {
        // A token that ends inside the character that it began in makes it longer, so that this comes to an end; one
        // that ends inside another character is counted as if that one could be completed.
        let begun = path.partial.length;
        (0..self.vocabulary.len() as u32).map(TokenId).any(|token| {
            let is_inside = || self.characters.get(token).is_some_and(|token| token.whole.is_none());
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
            let mut classes = text.chars().map(|character| self.pre_tokens.classes.of(character));
            let state = classes.next().and_then(|first| self.pre_tokens.step(State::START, first, Kind::Border));
            !self.added.contains(token)
                && state.is_some_and(|state| self.pre_tokens.steps(state, classes, Kind::Inside).is_some())
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
