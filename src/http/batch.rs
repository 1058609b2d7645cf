//! A body of JSON Lines, as batch transforms send it: one line of answer for each line, in order. An error takes the
//! place of one answer.

use std::ops::Range;
use std::sync::Arc;

use actix_web::HttpResponse;
use actix_web::web::Bytes;
use futures_util::{StreamExt, stream};
use scheduler::Client;

use super::answer::whole_answer;
use super::body;
use super::conventions::{Conventions, UnknownFields};
use super::errors::ErrorBody;
use super::framing::Framing;
use super::{json, lines};
use crate::access::Key;
use crate::engine::{Accepted, Engine, Work};
use crate::error::{Error, Kind};

/// Lines that are worked on at once.
const LINES_IN_FLIGHT: usize = 8;
/// Lines that are read before other clients of the HTTP thread have their turn.
const LINES_AT_A_TIME: usize = 64;

/// What holds for each line.
#[derive(Clone)]
pub struct Each {
    /// The key that the body came with.
    pub key: Option<Arc<Key>>,
    /// What clients of other systems are used to.
    pub conventions: Conventions,
}

/// Answers all lines of a body. Dropping the answer stops the work.
///
/// # Errors
/// If there are no lines, or they ask for too much.
pub async fn respond(engine: Arc<Engine>, client: Client, body: Bytes, each: Each) -> Result<HttpResponse, Error> {
    let lines = lines::split(&body);
    if lines.is_empty() {
        return Err(Error::new(Kind::InvalidJson, "the body is empty; send a line of JSON for each request"));
    }
    let work = work(&body, &lines, (engine.context(), each.conventions.unknown)).await;
    let accepted = Arc::new(Accepted::new(engine, client, work)?);
    let answers = stream::iter(lines)
        .map(move |line| answer_line(Arc::clone(&accepted), body.slice(line), each.clone()))
        .buffered(LINES_IN_FLIGHT)
        .map(Ok::<_, std::convert::Infallible>);
    Ok(HttpResponse::Ok().content_type(lines::CONTENT_TYPE).streaming(answers))
}

/// What all lines ask for; lines with errors ask for nothing.
async fn work(body: &[u8], lines: &[Range<usize>], (context, unknown): (usize, UnknownFields)) -> Work {
    let mut work = Work::batch();
    for lines in lines.chunks(LINES_AT_A_TIME) {
        let bodies = lines.iter().filter_map(|line| body::read(&body[line.clone()], unknown).ok());
        work = bodies.fold(work, |work, body| work.and(body.work(context)));
        tokio::task::yield_now().await;
    }
    work
}

async fn answer_line(accepted: Arc<Accepted>, line: Bytes, each: Each) -> Bytes {
    let mut out = Vec::new();
    match try_line(&accepted, &line, each).await {
        Ok(answer) => {
            out = answer;
            out.push(b'\n');
        }
        Err(error) => Framing::Lines.write(&mut out, &ErrorBody::from(&error)),
    }
    out.into()
}

async fn try_line(accepted: &Accepted, line: &[u8], each: Each) -> Result<Vec<u8>, Error> {
    let mut body = body::read(line, each.conventions.unknown)?;
    body.set_key(each.key);
    if body.streams() {
        return Err(json::refused("stream", true, "a line is answered with a line: leave it out"));
    }
    whole_answer(accepted, body, each.conventions.inputs).await
}
