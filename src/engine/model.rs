//! What requests are checked against: the model's tokenizer, its limits, and the server's bounds.

use std::sync::Arc;
use std::time::Duration;

use super::options::RequestOptions;
use crate::error::{Error, Kind};
use bundle::Template;
use completion::popular::PopularQueries;
use completion::text::Text;
use scheduler::backend::Limits;

/// Most bytes of a session's name.
const MAX_SESSION_BYTES: usize = 256;

/// A model's text side, its limits, and the server's bounds on requests.
pub(super) struct Model {
    pub text: Arc<Text>,
    /// Popular queries, if there are any.
    pub popular: Option<Arc<PopularQueries>>,
    /// The text around every input; `text` begins with what stands before the input.
    pub template: Option<Arc<Template>>,
    /// Positions of a request: prompt, typed text and new tokens.
    pub context: usize,
    /// Tokens that the encoder reads, in models that have one.
    pub encoder_tokens: Option<usize>,
    /// How many of the best tokens a distribution lists.
    pub listed: usize,
    pub options: RequestOptions,
}

/// What a bundle has of its own beside the text side.
pub(super) struct Own {
    pub popular: Option<PopularQueries>,
    pub template: Option<Template>,
}

impl Model {
    pub(super) fn new(text: Text, extras: Own, limits: &Limits, options: RequestOptions) -> Self {
        let encoder_tokens = limits.source.map(|source| source.tokens);
        let (popular, template) = (extras.popular.map(Arc::new), extras.template.map(Arc::new));
        let (text, context, listed) = (Arc::new(text), limits.context, limits.top_k);
        Self { text, popular, template, context, encoder_tokens, listed, options }
    }

    /// The time that a request gets.
    pub(super) fn deadline(&self, deadline_ms: Option<u64>) -> Result<Duration, Error> {
        let Some(deadline_ms) = deadline_ms else { return Ok(self.options.default_deadline) };
        in_range("deadline_ms", deadline_ms, self.options.max_deadline.as_millis() as u64)?;
        Ok(Duration::from_millis(deadline_ms))
    }
}

/// Checks the length of a session's name.
pub(super) fn check_session(session: Option<&str>) -> Result<Option<&str>, Error> {
    match session {
        Some(name) if name.is_empty() || name.len() > MAX_SESSION_BYTES => {
            let message = format!("session has {} bytes; it must have 1 to {MAX_SESSION_BYTES}", name.len());
            Err(Error::new(Kind::InvalidValue, message))
        }
        session => Ok(session),
    }
}

/// Checks that a field's value is from 1 to `limit`.
pub(super) fn in_range(field: &str, value: u64, limit: u64) -> Result<(), Error> {
    if (1..=limit).contains(&value) {
        return Ok(());
    }
    Err(Error::new(Kind::InvalidValue, format!("{field} is {value}; it must be from 1 to {limit}")))
}
