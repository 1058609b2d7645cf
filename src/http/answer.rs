//! Sends a body of `POST /invocations` to the engine and writes its answer, as one document or as a stream.

use std::sync::Arc;

use actix_web::HttpResponse;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use utoipa::ToSchema;

use super::body::Body;
use super::completions;
use super::conventions::InputsAnswer;
use super::framing::Framing;
use super::json;
use super::lmi::{self, InputToken, Reply};
use super::openai::Completion as OpenAiCompletion;
use super::sessions::SessionAnswer;
use super::stream::{SuggestEncoder, TokenEncoder, pieces, respond};
use super::suggest::Suggestions;
use crate::engine::{Accepted, Completion};
use crate::error::{Error, Kind};
use completion::text::Method;

/// Prompts of one list that are worked on at once.
const PROMPTS_IN_FLIGHT: usize = 8;

/// An answer of `POST /invocations`.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum InvocationAnswer<'a> {
    /// The answer to a typed text.
    Suggest(Suggestions<'a>),
    /// The answer to a single prompt.
    One(Reply),
    /// To a list of prompts.
    Many(Vec<Reply>),
    /// The answer to prompts in OpenAI's schema.
    Complete(OpenAiCompletion),
    /// The answer to a request about a session.
    Session(SessionAnswer),
}

/// The answer to a body, sent as it is made.
///
/// # Errors
/// The engine's.
pub(super) fn stream_answer(accepted: &Accepted, body: Body, framing: Framing) -> Result<HttpResponse, Error> {
    let engine = Arc::clone(accepted.engine());
    match body {
        Body::Suggest(invocation) => {
            let running = accepted.start_completion(&Completion::from(invocation))?;
            let encoder = SuggestEncoder::new(framing, engine.name(), engine.method(Method::default()));
            Ok(respond(framing.content_type(), pieces(engine, running), encoder))
        }
        Body::Generate(request) => {
            let lmi::Plan { generations, style, .. } = request.plan(engine.context(), draw_seed)?;
            let generation = generations.into_iter().next().unwrap_or_default();
            let running = accepted.start_generation(&generation)?;
            let encoder = TokenEncoder::new(framing, generation, style);
            Ok(respond(framing.content_type(), pieces(engine, running), encoder))
        }
        Body::Complete(request) => {
            let (plan, blank) = completions::plan(*request, engine.name())?;
            completions::stream_answer(accepted, plan, blank)
        }
        Body::Session(_) => Err(no_session_here()),
    }
}

/// The answer to a body that isn't streamed, as JSON.
///
/// # Errors
/// The engine's.
pub(super) async fn whole_answer(accepted: &Accepted, body: Body, form: InputsAnswer) -> Result<Vec<u8>, Error> {
    match body {
        Body::Suggest(invocation) => {
            let answer = accepted.complete(&invocation.into()).await?;
            let (name, method) = (accepted.engine().name(), accepted.engine().method(Method::default()));
            json::write(&InvocationAnswer::Suggest(Suggestions::new(name, method, &answer)))
        }
        Body::Generate(request) => {
            let lmi::Plan { generations, list, style } = request.plan(accepted.engine().context(), draw_seed)?;
            let reply = async |generation| {
                let answer = accepted.generate(generation).await?;
                let mut reply = Reply::new(generation, style, &answer);
                if let Some(details) = reply.details.as_mut().filter(|_| style.prefill) {
                    let read = accepted.engine().prompt_tokens(generation)?;
                    let token = |(id, text)| InputToken { id, text, logprob: () };
                    details.prefill = read.into_iter().map(token).collect();
                }
                Ok::<_, Error>(reply)
            };
            let replies = stream::iter(&generations).map(reply).buffered(PROMPTS_IN_FLIGHT);
            let mut replies: Vec<Reply> = replies.try_collect().await?;
            // A prompt that isn't in a list has one reply.
            json::write(&if list || form == InputsAnswer::HuggingFace {
                InvocationAnswer::Many(replies)
            } else {
                InvocationAnswer::One(replies.remove(0))
            })
        }
        Body::Complete(request) => {
            let (plan, blank) = completions::plan(*request, accepted.engine().name())?;
            json::write(&InvocationAnswer::Complete(completions::whole_answer(accepted, plan, blank).await?))
        }
        Body::Session(_) => Err(no_session_here()),
    }
}

/// Small enough for clients whose numbers are doubles.
fn draw_seed() -> u64 {
    u64::from(rand::random::<u32>())
}

fn no_session_here() -> Error {
    Error::new(Kind::InvalidField, "requestType is there; sessions are opened and closed by a request of their own")
}
