//! Streamed answers: the events of a running request, turned into bytes by an encoder for each schema. The engine's
//! channel is the only buffer. Dropping the stream, as when the client leaves, cancels the request.

use std::sync::Arc;

use actix_web::HttpResponse;
use actix_web::http::header::{CACHE_CONTROL, HeaderValue};
use actix_web::web::Bytes;
use futures_util::{Stream, StreamExt};

use super::errors::ErrorBody;
use super::framing::Framing;
use super::lmi::{self, Reply, Style, Token};
use super::suggest::{End, SuggestionLine};
use crate::engine::{Engine, Generation, Piece, Running, TaskResult};
use completion::text::Method;
use completion::{Completions, Generated, SampledToken};
use scheduler::Event;

/// The pieces of a running request, which keep its engine loaded.
pub fn pieces<T: TaskResult>(engine: Arc<Engine>, running: Running<T>) -> impl Stream<Item = Piece<T>> {
    running.pieces().inspect(move |_| {
        let _kept = &engine;
    })
}

/// Writes pieces in a schema.
pub trait Encoder<P> {
    /// Appends the bytes of a piece to `out`; appends nothing if the piece has no news for the client.
    fn encode(&mut self, piece: P, out: &mut Vec<u8>);
}

/// A streamed answer.
pub fn respond<P: 'static>(
    content_type: &'static str,
    pieces: impl Stream<Item = P> + 'static,
    mut encoder: impl Encoder<P> + 'static,
) -> HttpResponse {
    let body = pieces.filter_map(move |piece| {
        let mut out = Vec::new();
        encoder.encode(piece, &mut out);
        std::future::ready((!out.is_empty()).then(|| Ok::<_, std::convert::Infallible>(Bytes::from(out))))
    });
    let mut response = HttpResponse::Ok();
    // Proxies that buffer would spoil it.
    response.insert_header((CACHE_CONTROL, HeaderValue::from_static("no-cache")));
    response.insert_header(("X-Accel-Buffering", "no"));
    response.content_type(content_type).streaming(body)
}

/// Suggestions: a line each, then a line with the end.
pub struct SuggestEncoder {
    framing: Framing,
    model: String,
    method: Method,
}

impl SuggestEncoder {
    /// An encoder for an answer of which nothing was sent yet.
    pub fn new(framing: Framing, model: &str, method: Method) -> Self {
        Self { framing, model: model.to_owned(), method }
    }
}

impl Encoder<Piece<Completions>> for SuggestEncoder {
    fn encode(&mut self, piece: Piece<Completions>, out: &mut Vec<u8>) {
        match piece {
            Piece::Event(Event::Suggestion(suggestion)) => {
                self.framing.write(out, &SuggestionLine { suggestion: (&suggestion).into() });
            }
            Piece::Event(Event::Token { .. }) => {}
            Piece::Done(answer) => self.framing.write(out, &End::new(&self.model, self.method, &answer)),
            Piece::Failed(error) => self.framing.write(out, &ErrorBody::from(&error)),
        }
    }
}

/// One line of a stream of tokens.
#[derive(Clone, Debug, PartialEq, serde::Serialize, utoipa::ToSchema)]
pub struct TokenLine {
    /// The token; `null` if there was none at all.
    pub token: Option<Token>,
    /// On the last line: the whole continuation.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Reply)]
    pub reply: Option<Reply>,
}

/// A prompt's continuation: a line a token. The last one has the whole, so a token waits until it is known whether
/// another comes.
pub struct TokenEncoder {
    framing: Framing,
    generation: Generation,
    style: Style,
    waiting: Option<SampledToken>,
}

impl TokenEncoder {
    /// Nothing sent yet. The last line has details in any case.
    pub fn new(framing: Framing, generation: Generation, style: Style) -> Self {
        Self { framing, generation, style: Style { details: true, ..style }, waiting: None }
    }
}

impl Encoder<Piece<Generated>> for TokenEncoder {
    fn encode(&mut self, piece: Piece<Generated>, out: &mut Vec<u8>) {
        let line = |token: &SampledToken, reply| TokenLine { token: Some(lmi::Token::new(token)), reply };
        match piece {
            Piece::Event(Event::Token { token, .. }) => {
                if let Some(waiting) = self.waiting.replace(token) {
                    self.framing.write(out, &line(&waiting, None));
                }
            }
            Piece::Event(Event::Suggestion(_)) => {}
            Piece::Done(answer) => {
                let mut reply = Reply::new(&self.generation, self.style, &answer);
                if let Some(details) = &mut reply.details {
                    // They were sent already.
                    details.tokens.clear();
                }
                let end = answer.result.sequences.first().and_then(|sequence| sequence.end.as_ref());
                // The token that ended the text has a line of its own.
                if let Some(waiting) = end.and_then(|_| self.waiting.take()) {
                    self.framing.write(out, &line(&waiting, None));
                }
                let token = end.or(self.waiting.as_ref()).map(lmi::Token::new);
                self.framing.write(out, &TokenLine { token, reply: Some(reply) });
            }
            Piece::Failed(error) => {
                if let Some(waiting) = self.waiting.take() {
                    self.framing.write(out, &line(&waiting, None));
                }
                self.framing.write(out, &ErrorBody::from(&error));
            }
        }
    }
}
