//! The schema of prompts, as Hugging Face's servers and the Large Model Inference containers have it: `{"inputs",
//! "parameters"}`, answered with `generated_text`. Translates to the engine's types; computes nothing.

mod answer;
mod request;

pub use self::answer::{Details, InputToken, OtherSequence, Reason, Reply, Token};
pub use self::request::{DEFAULT_MAX_NEW_TOKENS, MAX_INPUTS, Parameters, Plan, Request, Style};
