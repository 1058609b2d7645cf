//! The schema of prompts, as Hugging Face's servers and the Large Model Inference containers have it: `{"inputs",
//! "parameters"}`, answered with `generated_text`. Translates to the engine's types; computes nothing.

mod answer;
mod parameters;
mod request;

pub use self::answer::{Details, InputToken, OtherSequence, Reason, Reply, Token};
pub use self::parameters::{DEFAULT_MAX_NEW_TOKENS, Parameters};
pub use self::request::{MAX_INPUTS, Plan, Request, Style};
