//! Which token sequences a tokenizer of GPT-2's kind produces, followed one token at a time.
//!
//! A sequence is *canonical* if encoding the text it spells gives the same sequence. A [`PathState`] tells whether a
//! sequence is the beginning of a canonical one, for some text that may go on after it; that is what a search over
//! completions walks through. Two things are decided per token: whether the pre-tokenizer can put a border, or can't,
//! where the token begins (`split`), and without a border whether the merges leave the two neighbours apart (`merges`).
//!
//! Exact, but for one case: after a token that ends inside a character, a path is still followed if *some* character
//! would fit its pre-token, whether or not the merges can ever get there. It dies when the character is complete.
//!
//! This module doesn't know what has been typed (see `cover`), has no special tokens, and scores nothing.

use std::sync::Arc;

use super::bytes::{TokenId, Vocabulary};
use super::kinds::{Kind, Kinds};
use super::lattice::Lattice;
use super::merges::Merges;
pub use super::merges::{CanonError, MergeRule};
use super::shape::{Shape, Shapes, is_continuation};
use super::split::{CONTRACTIONS, Edge, Mode, Modes};

/// A tokenizer of GPT-2's kind: byte-level merges behind GPT-2's pre-tokenizer.
#[derive(Clone, Debug)]
pub struct Canon {
    vocabulary: Arc<Vocabulary>,
    merges: Merges,
    kinds: Kinds,
    shapes: Shapes,
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
    modes: Modes,
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

impl Canon {
    /// Builds a tokenizer from its vocabulary and its merges: left part, right part and merged token, in rank order.
    ///
    /// Tokens that no merge makes, or whose merge another one always forestalls, are never produced, and that is no
    /// error. Neither are missing bytes: see [`Canon::is_encodable`].
    ///
    /// # Errors
    ///
    /// If the merges don't belong to the vocabulary or aren't ordered as training orders them.
    pub fn new(vocabulary: Arc<Vocabulary>, merges: Vec<MergeRule>) -> Result<Self, CanonError> {
        let merges = Merges::new(&vocabulary, &merges)?;
        let kinds = Kinds::new().ok_or(CanonError::NoCharacterClasses)?;
        let shapes = Shapes::new(&vocabulary, &kinds, |token| merges.exists(token));
        let contractions = CONTRACTIONS.iter().map(|text| merges.encode(&vocabulary, text.as_bytes())).collect();
        let mut canon = Self { vocabulary, merges, kinds, shapes, contractions, lead_goes_on: true, text_exists: true };
        canon.lead_goes_on = canon.find_lead();
        canon.text_exists = canon.find_text();
        Ok(canon)
    }

    /// The vocabulary it was built from.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Whether the vocabulary has a token for every byte of the text. A whole byte alphabet encodes everything.
    pub fn is_encodable(&self, text: &str) -> bool {
        text.bytes().all(|byte| self.vocabulary.token(&[byte]).is_some())
    }

    /// The tokens of a text: what `tokenizers` gives without special tokens.
    ///
    /// Characters that aren't [encodable](Self::is_encodable) are left out, as if the text didn't have them. (`tokenizers`
    /// leaves out the bytes, but splits the text with them in.) The text of a special token is text like any other.
    pub fn encode(&self, text: &str) -> Vec<TokenId> {
        if self.is_encodable(text) {
            return Lattice::new(self, text.as_bytes()).canonical();
        }
        let mut buffer = [0; 4];
        let encodable: String = text.chars().filter(|c| self.is_encodable(c.encode_utf8(&mut buffer))).collect();
        Lattice::new(self, encodable.as_bytes()).canonical()
    }

    /// The state before the first token.
    pub fn start(&self) -> PathState {
        let mut modes = Modes::NONE;
        modes.insert(Mode::Closed, Edge::None);
        PathState { last: None, modes, partial: Partial::default() }
    }

    /// Whether the path is the whole encoding of the text it spells, which is valid UTF-8 then.
    pub fn may_end(&self, path: &PathState) -> bool {
        path.partial.length == 0 && path.modes.iter().any(|(mode, _)| mode.may_end())
    }

    /// The state after one more token; none if no text's encoding begins with these tokens.
    pub fn may_follow(&self, path: &PathState, next: TokenId) -> Option<PathState> {
        let shape = self.shapes.get(next)?;
        let after = if path.partial.length == 0 {
            self.step_at_border(path, next, &shape)
        } else {
            self.step_inside_character(path, next, &shape)
        }?;
        (!after.modes.is_empty()).then_some(after)
    }

    /// A token that begins with a character, or with the beginning of one.
    fn step_at_border(&self, path: &PathState, next: TokenId, shape: &Shape) -> Option<PathState> {
        if shape.head > 0 {
            return None;
        }
        // The same for every guess: an open pre-token's last token is the path's.
        let mut pair = None;
        let mut joins = || *pair.get_or_insert_with(|| self.joins(path, next));
        let mut modes = Modes::NONE;
        for (mode, _) in path.modes.iter() {
            let Some((&first, rest)) = shape.whole.split_first() else {
                if shape.tail_kinds.any(|kind| mode.continued(kind).is_some()) && joins() {
                    modes.insert(mode, Edge::Continues);
                }
                if shape.tail_kinds.any(|kind| mode.may_close_before(kind)) {
                    modes.insert(mode, Edge::Opens);
                }
                continue;
            };
            if let Some(mode) = mode.continued(first)
                && joins()
            {
                self.go_on(mode, rest, shape, &mut modes);
            }
            for mode in mode.started(first).into_iter().flatten() {
                self.go_on(mode, rest, shape, &mut modes);
            }
            self.follow_contraction(mode, first, next, &mut modes);
        }
        Some(PathState { last: Some(next), modes, partial: self.tail(next, shape)? })
    }

    /// A token that begins inside a character: no border can be there.
    fn step_inside_character(&self, path: &PathState, next: TokenId, shape: &Shape) -> Option<PathState> {
        let bytes = self.vocabulary.bytes(next)?;
        let partial = path.partial.with(bytes.get(..shape.head)?)?;
        if shape.head == 0 || !self.joins(path, next) {
            return None;
        }
        let mut modes = Modes::NONE;
        match std::str::from_utf8(partial.as_bytes()) {
            Ok(character) => {
                let kind = self.kinds.of(character.chars().next()?);
                for (mode, edge) in path.modes.iter() {
                    let guesses = match edge {
                        Edge::Opens => mode.started(kind),
                        _ => [mode.continued(kind), None],
                    };
                    for mode in guesses.into_iter().flatten() {
                        self.go_on(mode, shape.whole, shape, &mut modes);
                    }
                }
                Some(PathState { last: Some(next), modes, partial: self.tail(next, shape)? })
            }
            // The character still isn't complete.
            Err(_) if shape.head == bytes.len() => {
                let kinds = self.kinds.of_partial(partial.as_bytes())?;
                for (mode, edge) in path.modes.iter() {
                    let fits = |kind| match edge {
                        Edge::Opens => mode.may_close_before(kind),
                        _ => mode.continued(kind).is_some(),
                    };
                    if kinds.any(fits) {
                        modes.insert(mode, edge);
                    }
                }
                Some(PathState { last: Some(next), modes, partial })
            }
            Err(_) => None,
        }
    }

    /// Goes on from a guess through the rest of a token, where no border can be.
    fn go_on(&self, mode: Mode, rest: &[Kind], shape: &Shape, modes: &mut Modes) {
        let Some(mode) = rest.iter().try_fold(mode, |mode, &kind| mode.continued(kind)) else { return };
        if shape.tail > 0 {
            if shape.tail_kinds.any(|kind| mode.continued(kind).is_some()) {
                modes.insert(mode, Edge::Continues);
            }
        } else if self.is_possible(mode) {
            modes.insert(mode, Edge::None);
        }
    }

    /// Whether any text can follow, for the guesses that need one.
    fn is_possible(&self, mode: Mode) -> bool {
        match mode {
            Mode::Lead => self.lead_goes_on,
            Mode::ClosedBeforeText => self.text_exists,
            _ => true,
        }
    }

    /// The guess that `next` is the first, or one more, of a contraction's tokens.
    fn follow_contraction(&self, mode: Mode, first: Kind, next: TokenId, modes: &mut Modes) {
        let (which, read) = match mode {
            Mode::Contraction { which, tokens } => (which, usize::from(tokens)),
            _ if first == Kind::Quote && mode.may_close_before(first) => (u8::MAX, 0),
            _ => return,
        };
        let mut still = 0;
        for (index, tokens) in self.contractions.iter().enumerate() {
            let tokens = tokens.as_deref().filter(|tokens| which >> index & 1 == 1 && tokens.get(read) == Some(&next));
            match tokens {
                Some(tokens) if tokens.len() == read + 1 => modes.insert(Mode::Closed, Edge::None),
                Some(_) => still |= 1 << index,
                None => {}
            }
        }
        if still != 0 {
            modes.insert(Mode::Contraction { which: still, tokens: read as u8 + 1 }, Edge::None);
        }
    }

    /// Whether the merges leave the path's last token and `next` apart within a pre-token.
    fn joins(&self, path: &PathState, next: TokenId) -> bool {
        path.last.is_some_and(|last| self.merges.is_canonical_pair(last, next))
    }

    /// The unfinished character at the end of a token.
    fn tail(&self, token: TokenId, shape: &Shape) -> Option<Partial> {
        if shape.tail == 0 {
            return Some(Partial::default());
        }
        let bytes = self.vocabulary.bytes(token)?;
        Partial::default().with(&bytes[bytes.len() - shape.tail..])
    }

    /// Whether anything follows a token that is one U+0020 within its pre-token.
    fn find_lead(&self) -> bool {
        let Some(space) = self.vocabulary.token(b" ") else { return false };
        let mut modes = Modes::NONE;
        modes.insert(Mode::Lead, Edge::None);
        self.reaches_character(&PathState { last: Some(space), modes, partial: Partial::default() })
    }

    /// Whether tokens can follow up to the end of a character.
    fn reaches_character(&self, path: &PathState) -> bool {
        // A token that ends inside the character that it began in makes it longer, so that this comes to an end; one
        // that ends inside another character is counted as if that one could be completed.
        let begun = path.partial.length;
        (0..self.vocabulary.len() as u32).map(TokenId).any(|token| {
            let is_inside = || self.shapes.get(token).is_some_and(|shape| shape.whole.is_empty());
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
        ('!'..=char::MAX).any(|c| !self.kinds.of(c).is_white() && self.is_encodable(c.encode_utf8(&mut buffer)))
    }

    /// Whether the pre-tokenizer lets one token span these bytes after the path. A quick way to see that none can;
    /// yes doesn't mean that there is one.
    pub(super) fn may_span(&self, path: &PathState, bytes: &[u8]) -> bool {
        let head = bytes.iter().take_while(|&&byte| is_continuation(byte)).count();
        if path.partial.length > 0 || head > 0 {
            return true; // too rare to be worth a second automaton
        }
        let Some(text) = bytes.utf8_chunks().next().map(|chunk| chunk.valid()) else { return true };
        let mut characters = text.chars().map(|character| self.kinds.of(character));
        let Some(first) = characters.next() else { return true };
        let rest = |mode: Mode| characters.clone().try_fold(mode, |mode, kind| mode.continued(kind)).is_some();
        path.modes.iter().any(|(mode, _)| {
            let contraction = matches!(mode, Mode::Contraction { .. }) || first == Kind::Quote;
            contraction
                || mode.continued(first).is_some_and(rest)
                || mode.started(first).into_iter().flatten().any(rest)
        })
    }
}
