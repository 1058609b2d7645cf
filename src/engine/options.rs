//! The options of an engine: bounds on requests, and how a model is loaded.

use std::time::Duration;

use backends::options::BackendOptions;
use completion::typing::Tolerance;
use scheduler::PoolOptions;

/// Suggestions of a request that doesn't say.
pub const DEFAULT_SUGGESTIONS: usize = 10;
/// New tokens of a request that doesn't say.
pub const DEFAULT_MAX_NEW_TOKENS: usize = 16;
/// Beams of a search for at most that many suggestions.
pub const DEFAULT_BEAMS: usize = 16;
/// Most suggestions, or sequences, of a request.
pub const MAX_SUGGESTIONS: usize = 100;

/// Tokens of all answers to a request: those of a batch transform of 6 MB, of lines with a short text each.
pub const DEFAULT_MAX_REQUEST_TOKENS: u64 = 1 << 26;

/// Bounds on requests and how they are searched.
#[derive(Clone, Debug)]
pub struct RequestOptions {
    /// Characters of an input.
    pub max_characters: usize,
    /// Tokens that a request may ask for in all: lines x prompts x sequences or suggestions x new tokens.
    pub max_request_tokens: u64,
    /// Beams of a search. If not named: [`DEFAULT_BEAMS`], or as many as the suggestions if these are more.
    pub beams: Option<usize>,
    /// Time for requests that don't say.
    pub default_deadline: Duration,
    /// Most time that a request may ask for.
    pub max_deadline: Duration,
    /// What a typed text may be taken to mean if its request doesn't say.
    pub tolerance: Tolerance,
    /// Least probability of a typed character, as the geometric mean of all, for completions of the text as it stands.
    pub min_probability: f64,
    /// Weight of popular queries against the model, 0 to 1.
    pub popular_weight: f64,
    /// Waiting and running requests.
    pub pool: PoolOptions,
}

impl RequestOptions {
    /// Number of beams of a search for `suggestions` suggestions.
    pub fn beams(&self, suggestions: usize) -> usize {
        self.beams.unwrap_or(DEFAULT_BEAMS.max(suggestions))
    }
}

/// Settings of a loaded model.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The backend's part.
    pub backend: BackendOptions,
    /// Bounds on requests.
    pub requests: RequestOptions,
}
