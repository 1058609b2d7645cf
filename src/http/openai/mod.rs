//! OpenAI's schema of completions, and its errors. Translates to the engine's types; computes nothing. Chat is not
//! supported.

mod answer;
mod errors;
mod models;
mod request;

pub use self::answer::{Choice, Completion, CompletionObject, CompletionUsage, FinishReason, Logprobs};
pub use self::errors::{ErrorBody, ErrorClass, ErrorInner, renamed};
pub use self::models::{ListObject, ModelCard, ModelCards, ModelObject};
pub use self::request::{CompletionRequest, DEFAULT_MAX_TOKENS, MAX_PROMPTS, Plan, StreamOptions};
