//! A body of JSON Lines, as batch transforms send it: one line of answer for each line, in order. An error takes the
//! place of one answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::HttpResponse;
use actix_web::web::Bytes;
use futures_util::{StreamExt, stream};

use super::answer::whole_answer;
use super::body;
use super::errors::ErrorBody;
use super::framing::Framing;
use super::{json, lines};
use crate::access::Key;
use crate::engine::Engine;
use crate::error::{Error, Kind};

/// Lines that the engine gets at once.
const LINES_IN_FLIGHT: usize = 8;
/// Between two tries of a line that the engine has no room for.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a line is tried that names no deadline.
const TRY_FOR: Duration = Duration::from_secs(60);

/// Answers all lines of a body. Dropping the answer stops the work.
///
/// # Errors
/// If there are no lines.
pub fn respond(engine: Arc<Engine>, body: Bytes, key: Option<Arc<Key>>) -> Result<HttpResponse, Error> {
    let lines = lines::split(&body);
    if lines.is_empty() {
        return Err(Error::new(Kind::InvalidJson, "the body is empty; send a line of JSON for each request"));
    }
    let answers = stream::iter(lines)
        .map(move |line| answer_line(Arc::clone(&engine), body.slice(line), key.clone()))
        .buffered(LINES_IN_FLIGHT)
        .map(Ok::<_, std::convert::Infallible>);
    Ok(HttpResponse::Ok().content_type(lines::CONTENT_TYPE).streaming(answers))
}

async fn answer_line(engine: Arc<Engine>, line: Bytes, key: Option<Arc<Key>>) -> Bytes {
    let mut out = Vec::new();
    match try_line(&engine, &line, key).await {
        Ok(answer) => {
            out = answer;
            out.push(b'\n');
        }
        Err(error) => Framing::Lines.write(&mut out, &ErrorBody::from(&error)),
    }
    out.into()
}

/// The engine being full is the server's trouble, not the line's: it waits as long as it may.
async fn try_line(engine: &Engine, line: &[u8], key: Option<Arc<Key>>) -> Result<Vec<u8>, Error> {
    let mut body = body::read(line)?;
    body.set_key(key);
    if body.streams() {
        return Err(json::refused("stream", true, "a line is answered with a line: leave it out"));
    }
    let give_up = Instant::now() + body.deadline_ms().map_or(TRY_FOR, Duration::from_millis).min(TRY_FOR);
    loop {
        match whole_answer(engine, body.clone()).await {
            Err(error) if error.kind == Kind::Overloaded && Instant::now() + PAUSE < give_up => {
                tokio::time::sleep(PAUSE).await;
            }
            answer => return answer,
        }
    }
}
