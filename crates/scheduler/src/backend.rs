//! The seam between the scheduler and an engine: plain data and one small trait.
//!
//! A [`Backend`] owns the weights, `lanes` KV caches and a pool of KV pages. It computes the batches that it is given.
//! It knows no requests, no text and no time, and decides nothing. One thread owns it (`&mut`), so it holds no lock.
//!
//! [`crate::fake`] computes logits from a hash of the KV contents: deterministic, and wrong whenever the KV is wrong.

use completion::text::TokenId;

/// One of the KV caches that a step works on. A forward of `n` rows uses lanes `0..n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane(pub usize);

/// One page of the KV pool: the keys and values of one position, all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Page(pub usize);

/// A place for what an encoder has read: the keys and values of every cross-attention of the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceSlot(pub usize);

/// The limits of the encoder of an encoder-decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLimits {
    /// Slots: sources that are read at a time.
    pub slots: usize,
    /// Tokens of a source.
    pub tokens: usize,
    /// Memory of one slot, when its source is that long.
    pub slot_bytes: usize,
}

/// The limits and abilities of a backend. Fixed for its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// KV caches, and so rows in one step.
    pub lanes: usize,
    /// Positions in a lane.
    pub context: usize,
    /// Tokens of one row in one step.
    pub chunk: usize,
    /// Selected positions in one step.
    pub selected: usize,
    /// Tokens of the vocabulary. Ids are `0..vocab`.
    pub vocab: usize,
    /// Next tokens reported for each selected position, at most `vocab`.
    pub top_k: usize,
    /// Pages in the pool.
    pub pages: usize,
    /// Memory of one page.
    pub page_bytes: usize,
    /// Of models that read a source with an encoder before they write; `None` for decoders that stand alone.
    pub source: Option<SourceLimits>,
}

/// One lane's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Positions of the lane that are already valid; the row's tokens go to `past_len..past_len + len`.
    pub past_len: usize,
    /// First of the row's tokens in [`Batch::tokens`].
    pub start: usize,
    /// Number of the row's tokens, 1 ..= `Limits::chunk`.
    pub len: usize,
    /// The encoded source that the row reads, in models that have an encoder.
    pub source: Option<SourceSlot>,
}

/// A position whose next-token distribution is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selected {
    /// Index into [`Batch::rows`].
    pub row: usize,
    /// Offset among the row's tokens.
    pub offset: usize,
    /// Whether the whole logits row is wanted beside the top-k.
    pub full: bool,
}

/// One forward: row `r` works on lane `r`.
///
/// Rows are right-padded to the longest inside the backend, and the padding is written to the KV cache too. So every
/// row must satisfy `past_len + longest <= context`, and positions of a lane behind a row's last token are undefined
/// afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The tokens of all rows, one row after the other.
    pub tokens: Vec<TokenId>,
    /// At most `Limits::lanes`.
    pub rows: Vec<Row>,
    /// At most `Limits::selected`.
    pub selected: Vec<Selected>,
}

impl Batch {
    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.rows.clear();
        self.selected.clear();
    }

    /// Adds a row of `tokens` behind `past_len` valid positions.
    pub fn push_row(&mut self, past_len: usize, tokens: impl IntoIterator<Item = TokenId>) {
        self.push_row_of(None, past_len, tokens);
    }

    /// As [`Batch::push_row`], for a row that reads a source.
    pub fn push_row_of(
        &mut self,
        source: Option<SourceSlot>,
        past_len: usize,
        tokens: impl IntoIterator<Item = TokenId>,
    ) {
        let start = self.tokens.len();
        self.tokens.extend(tokens);
        self.rows.push(Row { past_len, start, len: self.tokens.len() - start, source });
    }

    /// The longest row's number of tokens.
    pub fn longest(&self) -> usize {
        self.rows.iter().map(|row| row.len).max().unwrap_or(0)
    }

    /// Says what breaks the contract, if anything does. Backends call it first: a graph would read or write out of
    /// bounds.
    pub fn check(&self, limits: &Limits) -> Result<(), BackendError> {
        let broken = |what: String| Err(BackendError::Contract(what));
        let longest = self.longest();
        if self.rows.is_empty() || self.rows.len() > limits.lanes {
            return broken(format!("{} rows for {} lanes", self.rows.len(), limits.lanes));
        }
        if self.selected.is_empty() || self.selected.len() > limits.selected {
            return broken(format!("{} selected positions, limit {}", self.selected.len(), limits.selected));
        }
        for (index, row) in self.rows.iter().enumerate() {
            if row.len == 0 || row.len > limits.chunk {
                return broken(format!("row {index} has {} tokens, limit {}", row.len, limits.chunk));
            }
        }
        if let Some(index) = self.rows.iter().position(|row| row.past_len + longest > limits.context) {
            let reaches = self.rows[index].past_len + longest;
            return broken(format!("row {index} reaches {reaches} of {} positions", limits.context));
        }
        check_tokens(&self.tokens, limits)?;
        let slots = limits.source.map(|source| source.slots);
        let fits = |row: &Row| match (row.source, slots) {
            (Some(slot), Some(slots)) => slot.0 < slots,
            (found, wanted) => found.is_none() && wanted.is_none(),
        };
        if let Some(index) = self.rows.iter().position(|row| !fits(row)) {
            return broken(format!("row {index} reads the source {:?} of {slots:?}", self.rows[index].source));
        }
        match self.selected.iter().find(|s| s.row >= self.rows.len() || s.offset >= self.rows[s.row].len) {
            Some(s) => broken(format!("selected position {} of row {} does not exist", s.offset, s.row)),
            None => Ok(()),
        }
    }
}

fn check_tokens(tokens: &[TokenId], limits: &Limits) -> Result<(), BackendError> {
    match tokens.iter().find(|token| token.0 as usize >= limits.vocab) {
        Some(token) => Err(BackendError::Contract(format!("token {} in a vocabulary of {}", token.0, limits.vocab))),
        None => Ok(()),
    }
}

/// Says what breaks the contract of [`Backend::encode`], if anything does.
pub fn check_source(slot: SourceSlot, tokens: &[TokenId], limits: &Limits) -> Result<(), BackendError> {
    let broken = |what: String| Err(BackendError::Contract(what));
    match limits.source {
        None => broken("a source for a model without an encoder".to_owned()),
        Some(limits) if slot.0 >= limits.slots => broken(format!("{slot:?} of {}", limits.slots)),
        Some(limits) if tokens.is_empty() || tokens.len() > limits.tokens => {
            broken(format!("a source of {} tokens, limit {}", tokens.len(), limits.tokens))
        }
        Some(_) => check_tokens(tokens, limits),
    }
}

/// The results of a step, in the order of [`Batch::selected`]. Reused from call to call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outputs {
    /// Best next tokens, best first. `[selected, top_k]`
    pub top_ids: Vec<u32>,
    /// Logits of the best tokens. `[selected, top_k]`
    pub top_logits: Vec<f32>,
    /// logsumexp over the vocabulary's logits. `[selected]`
    pub logsumexp: Vec<f32>,
    /// Whole logits rows of those marked `full`, in order. `[full, vocab]`
    pub logits: Vec<f32>,
}

impl Outputs {
    /// Empties the outputs and keeps their memory.
    pub fn clear(&mut self) {
        self.top_ids.clear();
        self.top_logits.clear();
        self.logsumexp.clear();
        self.logits.clear();
    }
}

/// One copy of the keys and values of one position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvCopy {
    /// From a page into position `position` of a lane.
    Load {
        /// The page to copy from.
        page: Page,
        /// The destination's lane.
        lane: Lane,
        /// The destination's position.
        position: usize,
    },
    /// From position `position` of a lane into a page.
    Store {
        /// The source's lane.
        lane: Lane,
        /// The source's position.
        position: usize,
        /// The page to copy into.
        page: Page,
    },
}

impl KvCopy {
    /// The lane and its position, and the page; one is copied to the other.
    pub fn endpoints(&self) -> (Lane, usize, Page) {
        match *self {
            Self::Load { page, lane, position } | Self::Store { lane, position, page } => (lane, position, page),
        }
    }
}

/// Why a call of a backend failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The caller broke the contract of the seam; a bug in the scheduler.
    #[error("the batch breaks the backend's contract: {0}")]
    Contract(String),
    /// The engine reported an error.
    #[error("the engine failed: {0}")]
    Engine(String),
    /// The engine computed something that is no number.
    #[error("the engine computed NaN or infinity at selected position {0}")]
    NotANumber(usize),
}

/// An error of an engine's own: `?` turns it into [`BackendError::Engine`].
pub trait EngineError: std::error::Error {}

impl<E: EngineError> From<E> for BackendError {
    fn from(error: E) -> Self {
        Self::engine(error)
    }
}

impl BackendError {
    /// An error of a library that the engine uses.
    pub fn engine(error: impl std::error::Error) -> Self {
        Self::Engine(error.to_string())
    }
}

/// Why an engine can't be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The engine's own reason.
    #[error(transparent)]
    Engine(Box<dyn std::error::Error + Send + Sync>),
    /// The engine was loaded, and failed on its first steps.
    #[error(transparent)]
    FirstStep(#[from] BackendError),
    /// Loading it panicked.
    #[error("loading the model ended in a panic")]
    Panicked,
}

impl LoadError {
    /// The engine's own reason.
    pub fn engine(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Engine(reason.into())
    }
}

/// Makes the engine of a replica, counted from 0. Called on the thread that will own it, once for each replica and once
/// more after a failure.
pub type Loader = std::sync::Arc<dyn Fn(usize) -> Result<Box<dyn Backend>, LoadError> + Send + Sync>;

/// An engine, as the scheduler sees it.
pub trait Backend: Send {
    /// The limits and abilities of the backend.
    fn limits(&self) -> &Limits;

    /// One forward: writes the rows' keys and values into their lanes and the selected positions' distributions to
    /// `out`.
    ///
    /// # Errors
    /// A batch that breaks the contract is refused before anything is computed. After an engine error the lanes are
    /// undefined.
    fn forward(&mut self, batch: &Batch, out: &mut Outputs) -> Result<(), BackendError>;

    /// Copies keys and values between lanes and pages, in order.
    ///
    /// # Errors
    /// A lane, position or page that doesn't exist is refused; copies before it in the list were done.
    fn copy_kv(&mut self, copies: &[KvCopy]) -> Result<(), BackendError>;

    /// Reads a source with the encoder and keeps what the decoder needs of it in a slot, in place of what was there.
    /// Rows that name the slot read it from then on. Backends whose [`Limits::source`] is `None` have nothing to add to
    /// this.
    ///
    /// # Errors
    /// A source that breaks the contract is refused before anything is computed. After an engine error the slot is
    /// undefined.
    fn encode(&mut self, slot: SourceSlot, tokens: &[TokenId]) -> Result<(), BackendError> {
        check_source(slot, tokens, self.limits())?;
        Err(BackendError::Contract("a backend that has an encoder, and no use for it".to_owned()))
    }
}

/// Refuses results that are no numbers: a NaN would otherwise silently reorder suggestions.
pub fn check_numbers(out: &Outputs) -> Result<(), BackendError> {
    match out.logsumexp.iter().position(|x| !x.is_finite()) {
        Some(position) => Err(BackendError::NotANumber(position)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            lanes: 2,
            context: 8,
            chunk: 4,
            selected: 4,
            vocab: 10,
            top_k: 3,
            pages: 4,
            page_bytes: 1,
            source: None,
        }
    }

    #[test]
    fn sources_are_for_models_with_an_encoder() {
        let source = Some(SourceLimits { slots: 2, tokens: 3, slot_bytes: 1 });
        let with = Limits { source, ..limits() };
        let batch = |slot: Option<usize>| {
            let mut batch = Batch::default();
            batch.push_row_of(slot.map(SourceSlot), 0, [TokenId(1)]);
            batch.selected.push(Selected { row: 0, offset: 0, full: false });
            batch
        };
        batch(Some(1)).check(&with).unwrap();
        for (slot, limits) in [(Some(2), &with), (None, &with), (Some(0), &limits())] {
            let error = batch(slot).check(limits).unwrap_err().to_string();
            assert!(error.contains("row 0 reads the source"), "{error}");
        }
        check_source(SourceSlot(1), &[TokenId(9); 3], &with).unwrap();
        for (slot, tokens) in [(2, vec![0]), (0, vec![]), (0, vec![0; 4]), (0, vec![10])] {
            let tokens: Vec<TokenId> = tokens.into_iter().map(TokenId).collect();
            check_source(SourceSlot(slot), &tokens, &with).unwrap_err();
        }
        check_source(SourceSlot(0), &[TokenId(0)], &limits()).unwrap_err();
    }

    #[test]
    fn a_batch_that_breaks_the_contract_is_named() {
        let ok = || {
            let mut batch = Batch::default();
            batch.push_row(4, [TokenId(1), TokenId(2)]);
            batch.selected.push(Selected { row: 0, offset: 1, full: false });
            batch
        };
        ok().check(&limits()).unwrap();
        type Breakage = fn(&mut Batch);
        let broken: [(Breakage, &str); 6] = [
            (|b| b.rows.clear(), "0 rows"),
            (|b| b.selected.clear(), "0 selected"),
            (|b| b.rows[0].past_len = 7, "reaches 9 of 8"),
            (|b| b.tokens[0] = TokenId(10), "token 10"),
            (|b| b.selected[0].offset = 2, "position 2 of row 0"),
            (|b| b.push_row(0, [TokenId(0); 5]), "row 1 has 5 tokens"),
        ];
        for (breakage, message) in broken {
            let mut batch = ok();
            breakage(&mut batch);
            let error = batch.check(&limits()).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
