//! OpenAI's routes: completions and the list of models.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::web::{Data, Path};
use actix_web::{HttpRequest, HttpResponse, Result};
use futures_util::{Stream, StreamExt, TryStreamExt, stream};

use super::conventions::{IGNORED_FIELDS_HEADER, ignored_names};
use super::errors::{ErrorBody, OpenAiError};
use super::framing::{Framing, ServerEvent};
use super::invoke::{VERSION_HEADER, set_header};
use super::json;
use super::keys::key_of;
use super::openai::{
    self, Choice, Completion, CompletionRequest, CompletionUsage, FinishReason, ListObject, Logprobs, ModelCard,
    ModelCards, Plan, renamed,
};
use super::request::{Served, WholeBody, client_of, expect_json, person_of};
use super::responses::OpenAiErrors;
use super::sessions;
use super::stream::{Encoder, pieces, respond};
use crate::engine::{Accepted, Piece};
use crate::error::Error;
use crate::models::{ModelError, Versions};
use completion::{Generated, SampledToken, SequenceFinish};
use scheduler::Event;

/// Prompts of one list that are worked on at once.
const PROMPTS_IN_FLIGHT: usize = 8;

/// Continues prompts, in OpenAI's schema
#[utoipa::path(
    post,
    path = "/v1/completions",
    request_body = CompletionRequest,
    responses(
        (status = 200, description = "The continuations", content(
            (Completion = "application/json"), (ServerEvent = "text/event-stream")
        )),
        OpenAiErrors,
    )
)]
pub(super) async fn completions(
    request: HttpRequest,
    body: WholeBody,
    served: Data<Served>,
) -> Result<HttpResponse, OpenAiError> {
    expect_json(&request)?;
    let (mut asked, ignored) = json::parse_foreign::<CompletionRequest>(&body.0?, served.conventions.unknown)?;
    sessions::check_salt(asked.salt.as_deref())?;
    asked.key = key_of(&request);
    let engine = served.models.find(asked.model.as_deref()).map_err(Error::from)?.of(person_of(&request, None));
    let version = engine.version().number;
    let stream = asked.stream.unwrap_or(false);
    let work = asked.work(engine.context());
    let (plan, blank) = plan(asked, engine.name())?;
    let accepted = Accepted::new(engine, client_of(&request, None), work)?;
    let mut response = if stream {
        stream_answer(&accepted, plan, blank)?
    } else {
        HttpResponse::Ok().json(whole_answer(&accepted, plan, blank).await?)
    };
    set_header(&mut response, VERSION_HEADER, &version.to_string());
    if let Some(Ok(ignored)) = ignored_names(&ignored).map(HeaderValue::try_from) {
        response.headers_mut().insert(HeaderName::from_static(IGNORED_FIELDS_HEADER), ignored);
    }
    Ok(response)
}

/// What a request comes to, and an answer without choices.
///
/// # Errors
/// Names the field that asks for what isn't done.
pub(super) fn plan(mut asked: CompletionRequest, engine: &str) -> Result<(Plan, Completion), Error> {
    let name = asked.model.take();
    Ok((asked.plan()?, Completion::new(name.as_deref().unwrap_or(engine), now())))
}

/// Where a prompt of tokens is to be sent back, its text.
fn spell_echoes(accepted: &Accepted, plan: &mut Plan) -> Result<(), Error> {
    for generation in plan.generations.iter_mut().filter(|_| plan.echo) {
        if let Some(tokens) = &generation.prompt_tokens {
            generation.prompt = accepted.engine().decode(tokens)?;
        }
    }
    Ok(())
}

/// The answer to all prompts.
///
/// # Errors
/// The engine's.
pub(super) async fn whole_answer(accepted: &Accepted, mut plan: Plan, blank: Completion) -> Result<Completion, Error> {
    let answers =
        stream::iter(&plan.generations).map(|generation| accepted.generate(generation)).buffered(PROMPTS_IN_FLIGHT);
    let answers: Vec<_> = answers.try_collect().await.map_err(renamed)?;
    spell_echoes(accepted, &mut plan)?;
    Ok(blank.with_answers(&plan, &answers))
}

/// The answer to all prompts, sent as it is made.
///
/// # Errors
/// The engine's.
pub(super) fn stream_answer(accepted: &Accepted, mut plan: Plan, blank: Completion) -> Result<HttpResponse, Error> {
    let engine = accepted.engine();
    let started: Result<Vec<_>, Error> = plan.generations.iter().map(|one| accepted.start_generation(one)).collect();
    let numbered =
        started.map_err(renamed)?.into_iter().enumerate().map(|(prompt, running)| {
            pieces(Arc::clone(engine), running).map(move |piece| (prompt, piece)).boxed_local()
        });
    spell_echoes(accepted, &mut plan)?;
    let encoder = ChunkEncoder::new(blank, plan);
    Ok(respond(Framing::Events.content_type(), with_end(stream::select_all(numbered)), encoder))
}

/// What a stream of several prompts is made of.
type Numbered = Option<(usize, Piece<Generated>)>;

/// All pieces, then one `None`.
fn with_end(pieces: impl Stream<Item = (usize, Piece<Generated>)>) -> impl Stream<Item = Numbered> {
    pieces.map(Some).chain(stream::iter([None]))
}

/// How much of a choice was sent.
#[derive(Clone, Default)]
struct SentChoice {
    characters: usize,
    prompt: bool,
}

/// Chunks as OpenAI's clients expect them: server-sent events, the last of which says `[DONE]`.
struct ChunkEncoder {
    /// A chunk without choices.
    blank: Completion,
    plan: Plan,
    usage: CompletionUsage,
    /// How much of each choice was sent.
    sent: Vec<SentChoice>,
    failed: bool,
}

impl ChunkEncoder {
    fn new(blank: Completion, plan: Plan) -> Self {
        let choices = plan.generations.iter().map(|generation| generation.sequences).sum();
        Self {
            blank,
            plan,
            usage: CompletionUsage::default(),
            sent: vec![SentChoice::default(); choices],
            failed: false,
        }
    }

    fn write(&self, choices: Vec<Choice>, usage: Option<CompletionUsage>, out: &mut Vec<u8>) {
        Framing::Events.write(out, &Completion { choices, usage, ..self.blank.clone() });
    }

    fn token(&mut self, prompt: usize, sequence: usize, token: &SampledToken, out: &mut Vec<u8>) {
        let (index, text) = self.text(prompt, sequence, &token.text);
        let logprobs = self.plan.logprobs.then(|| {
            let mut logprobs = Logprobs::default();
            logprobs.push(token, &mut self.sent[index].characters);
            logprobs
        });
        self.write(vec![Choice { index, text, logprobs, finish_reason: None }], None, out);
    }

    fn end(&mut self, prompt: usize, sequence: usize, finish: Option<SequenceFinish>, out: &mut Vec<u8>) {
        let (index, text) = self.text(prompt, sequence, "");
        let finish_reason = Some(FinishReason::new(finish));
        self.write(vec![Choice { index, text, logprobs: None, finish_reason }], None, out);
    }

    /// The index of a choice, and what to send of it: with the prompt if that is wanted and wasn't sent.
    fn text(&mut self, prompt: usize, sequence: usize, text: &str) -> (usize, String) {
        // All prompts have the same number of sequences.
        let generation = &self.plan.generations[prompt];
        let index = prompt * generation.sequences + sequence;
        let echo = self.plan.echo && !std::mem::replace(&mut self.sent[index].prompt, true);
        (index, format!("{}{text}", if echo { generation.prompt.as_str() } else { "" }))
    }
}

impl Encoder<Numbered> for ChunkEncoder {
    fn encode(&mut self, piece: Numbered, out: &mut Vec<u8>) {
        match piece {
            _ if self.failed => {}
            Some((prompt, Piece::Event(Event::Token { sequence, token }))) => self.token(prompt, sequence, &token, out),
            Some((_, Piece::Event(Event::Suggestion(_)))) => {}
            Some((prompt, Piece::Done(answer))) => {
                for (sequence, ended) in answer.result.sequences.iter().enumerate() {
                    self.end(prompt, sequence, ended.finish, out);
                }
                self.usage.add(&answer.result);
            }
            Some((_, Piece::Failed(error))) => {
                self.failed = true;
                Framing::Events.write(out, &openai::ErrorBody::from(&renamed(error)));
                out.extend_from_slice(DONE);
            }
            None => {
                if self.plan.include_usage {
                    self.write(Vec::new(), Some(self.usage), out);
                }
                out.extend_from_slice(DONE);
            }
        }
    }
}

/// The end of OpenAI's streams.
const DONE: &[u8] = b"data: [DONE]\n\n";

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The names that requests may use: of models, and of their versions where there are several.
fn names(served: &Served) -> Vec<String> {
    served.models.ready().iter().flat_map(Versions::names).collect()
}

/// The models that can be named, in OpenAI's schema
#[utoipa::path(get, path = "/v1/models", responses(
    (status = 200, description = "The models", body = ModelCards),
    (status = 405, description = "Another method", body = ErrorBody),
))]
pub(super) async fn models(served: Data<Served>) -> HttpResponse {
    let data = names(&served).iter().map(|name| ModelCard::new(name, served.started)).collect();
    HttpResponse::Ok().json(ModelCards { object: ListObject::List, data })
}

/// A model, in OpenAI's schema
#[utoipa::path(get, path = "/v1/models/{id}", 
    params(("id" = String, Path, description = "The model's name", min_length = 1)),
    responses(
        (status = 200, description = "The model", body = ModelCard),
        (status = 404, description = "There is no such model", body = openai::ErrorBody),
        (status = 405, description = "Another method", body = ErrorBody),
    )
)]
pub(super) async fn model(id: Path<String>, served: Data<Served>) -> Result<HttpResponse, OpenAiError> {
    let mut names = names(&served);
    names.retain(|name| *name == *id);
    match names.first() {
        Some(name) => Ok(HttpResponse::Ok().json(ModelCard::new(name, served.started))),
        None => Err(Error::from(ModelError::NotLoaded(id.into_inner())).into()),
    }
}
