//! `POST /invocations`, and the same for a model by name: reads the request, asks the engine, writes the answer.

use std::sync::Arc;
use std::time::SystemTime;

use actix_web::http::header::{ACCEPT, HeaderName, HeaderValue, ORIGIN};
use actix_web::web::{Bytes, Data, Path};
use actix_web::{HttpRequest, HttpResponse, Result};

use super::answer::{InvocationAnswer, stream_answer, whole_answer};
use super::body::{self, Body};
use super::conventions::{Conventions, IGNORED_FIELDS_HEADER, InputsAnswer, UnknownFields, ignored_names};
use super::framing::{Framing, ServerEvent};
use super::json::refused;
use super::keys::key_of;
use super::request::{Served, WholeBody, client_of, content_type, person_of};
use super::responses::{InvocationErrors, ModelErrors};
use super::sessions::{
    self, CLOSED_SESSION_HEADER, NEW_SESSION_HEADER, NewSession, RequestType, SESSION_HEADER, SessionAnswer,
    SessionHeader,
};
use super::{batch, lines, lmi, plain};
use crate::engine::{Accepted, Engine};
use crate::error::{Error, Kind};
use crate::models::{ModelError, Models};

/// The header of an answer with the number of the version that gave it.
pub(super) const VERSION_HEADER: &str = "x-foretype-version";

/// What the platform passes along and wants to see again.
const ECHOED: [&str; 2] = ["x-amzn-sagemaker-custom-attributes", "x-amzn-sagemaker-inference-id"];

/// Completes typed texts and continues prompts
///
/// A body with `input` is a typed text to complete, one with `inputs` or `prompt` are prompts to continue, one with
/// `requestType` opens or closes a session. Plain text is a prompt, and CSV a list of prompts. With `stream` the answer
/// comes piece by piece, as JSON Lines or server-sent events, whichever the client accepts. A body of JSON Lines has
/// such objects, without `stream`, and is answered with as many lines in the same order; what is wrong with a line is
/// in its place.
#[utoipa::path(
    post,
    path = "/invocations",
    params(
        ("X-Amzn-SageMaker-Session-Id" = Option<String>, Header, max_length = 256,
            pattern = "^[a-zA-Z0-9](-*[a-zA-Z0-9])*$|^NEW_SESSION$",
            description = "Whose request this is, or NEW_SESSION"),
        ("X-Amzn-SageMaker-Custom-Attributes" = Option<String>, Header, description = "Sent back"),
        ("X-Amzn-SageMaker-Inference-Id" = Option<String>, Header, description = "Sent back"),
    ),
    request_body(content(
        (Body = "application/json"), (String = "application/jsonlines"), (String = "text/plain"), (String = "text/csv")
    )),
    responses(
        (status = 200, description = "The answer", content(
            (InvocationAnswer = "application/json"),
            (String = "application/jsonlines"),
            (ServerEvent = "text/event-stream")
        ), headers(
            ("X-Amzn-SageMaker-New-Session-Id" = Option<String>,
                description = "A session that was opened, and when it expires"),
            ("X-Amzn-SageMaker-Closed-Session-Id" = Option<String>, description = "A session that was closed"),
            ("X-Foretype-Version" = Option<u64>, description = "The version of the model that answered"),
        )),
        InvocationErrors,
    )
)]
pub(super) async fn invocations(request: HttpRequest, body: WholeBody, served: Data<Served>) -> HttpResponse {
    let answer = answer(&request, body.0, Form::of(&served), |person| Ok(served.models.only()?.of(person))).await;
    echo(&request, answer)
}

/// Completes and continues with a model by name
///
/// As `POST /invocations`.
#[utoipa::path(
    post,
    path = "/models/{name}/invoke",
    params(
        ("name" = String, Path, description = "The model's name", min_length = 1),
        ("X-Amzn-SageMaker-Session-Id" = Option<String>, Header, max_length = 256,
            pattern = "^[a-zA-Z0-9](-*[a-zA-Z0-9])*$|^NEW_SESSION$",
            description = "Whose request this is, or NEW_SESSION"),
    ),
    request_body(content(
        (Body = "application/json"), (String = "application/jsonlines"), (String = "text/plain"), (String = "text/csv")
    )),
    responses(
        (status = 200, description = "The answer", content(
            (InvocationAnswer = "application/json"),
            (String = "application/jsonlines"),
            (ServerEvent = "text/event-stream")
        )),
        InvocationErrors,
        ModelErrors,
    )
)]
pub(super) async fn invoke(
    request: HttpRequest,
    name: Path<String>,
    body: WholeBody,
    served: Data<Served>,
) -> HttpResponse {
    // Which server this is, and whether it has the model, says more than what is wrong with the body.
    let answer = match served.models.find(Some(&name)) {
        Ok(named) => answer(&request, body.0, Form::of(&served), |person| Ok(named.of(person))).await,
        Err(ModelError::NotLoaded(_)) if matches!(served.models, Models::Single(_)) => Err(ModelError::OneModel.into()),
        Err(error) => Err(error.into()),
    };
    echo(&request, answer)
}

fn echo(request: &HttpRequest, answer: Result<HttpResponse, Error>) -> HttpResponse {
    let mut response = answer.unwrap_or_else(HttpResponse::from_error);
    for name in ECHOED.map(HeaderName::from_static) {
        if let Some(value) = request.headers().get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response
}

/// The form of an answer.
#[derive(Clone, Copy)]
pub(super) struct Form {
    pub conventions: Conventions,
    /// Whether the answer is a stream, where the path says that and not the body.
    pub stream: Option<bool>,
}

impl Form {
    fn of(served: &Served) -> Self {
        Self { conventions: served.conventions, stream: None }
    }

    /// The form of a stream where the client asks for none.
    fn framing(self, body: &Body) -> Framing {
        match (body, self.stream, self.conventions.inputs) {
            (Body::Generate(_), Some(true), _) | (Body::Generate(_), _, InputsAnswer::HuggingFace) => Framing::Events,
            _ => Framing::Lines,
        }
    }
}

/// Reads a body that is no JSON Lines.
fn read(request: &HttpRequest, body: Result<Bytes, Error>, unknown: UnknownFields) -> Result<Body, Error> {
    let prompts = |inputs| Body::Generate(Box::new(lmi::Request::of(inputs)));
    match content_type(request)?.as_str() {
        // What the SageMaker SDK sends by default.
        "" | "application/json" | "application/octet-stream" => body::read(&body?, unknown),
        // A page of any site may send plain text without the browser asking first.
        plain::TEXT if !request.headers().contains_key(ORIGIN) => plain::text(&body?).map(prompts),
        plain::CSV => plain::csv(&body?).map(prompts),
        other => {
            let message = format!(
                "the content type is {other}; send application/json, application/jsonlines, text/csv or, from \
                 programs, text/plain"
            );
            Err(Error::new(Kind::UnsupportedMediaType, message))
        }
    }
}

pub(super) async fn answer(
    request: &HttpRequest,
    body: Result<Bytes, Error>,
    form: Form,
    engine: impl FnOnce(u64) -> Result<Arc<Engine>, Error>,
) -> Result<HttpResponse, Error> {
    let header = sessions::read_header(request.headers().get(SESSION_HEADER).map(HeaderValue::as_bytes))?;
    let Form { conventions, stream } = form;
    if lines::CONTENT_TYPES.contains(&content_type(request)?.as_str()) {
        let (body, each) = (body?, batch::Each { key: key_of(request), conventions });
        let session = if let SessionHeader::Id(id) = &header { Some(id.as_str()) } else { None };
        let engine = engine(person_of(request, session))?;
        let version = engine.version().number;
        let mut response = batch::respond(engine, client_of(request, session), body, each).await?;
        set_header(&mut response, VERSION_HEADER, &version.to_string());
        return Ok(response);
    }
    let mut body = read(request, body, conventions.unknown)?;
    if let (Body::Generate(asked), Some(_)) = (&mut body, stream) {
        asked.stream = stream;
    }
    let ignored = ignored_names(body.ignored());
    if let Body::Session(asked) = body {
        return about_session(asked.request_type, header);
    }
    body.set_key(key_of(request));
    let opened = (header == SessionHeader::New).then(|| sessions::open(SystemTime::now()));
    match (&opened, header) {
        (Some(opened), _) => body.set_session(&opened.id),
        (None, SessionHeader::Id(id)) => body.set_session(&id),
        (None, _) => {}
    }
    let engine = engine(person_of(request, body.session()))?;
    let version = engine.version().number;
    let work = body.work(engine.context());
    let accepted = Accepted::new(engine, client_of(request, body.session()), work)?;
    let mut response = if body.streams() {
        let accept = request.headers().get(ACCEPT).map(HeaderValue::as_bytes);
        let framing = Framing::accepted(accept, form.framing(&body));
        stream_answer(&accepted, body, framing)?
    } else {
        HttpResponse::Ok()
            .content_type("application/json")
            .body(whole_answer(&accepted, body, conventions.inputs).await?)
    };
    set_header(&mut response, VERSION_HEADER, &version.to_string());
    if let Some(opened) = opened {
        set_header(&mut response, NEW_SESSION_HEADER, &opened.header);
    }
    if let Some(ignored) = ignored {
        set_header(&mut response, IGNORED_FIELDS_HEADER, &ignored);
    }
    Ok(response)
}

fn about_session(request: RequestType, header: SessionHeader) -> Result<HttpResponse, Error> {
    let (name, value, session) = match (request, header) {
        (RequestType::NewSession, _) => {
            let NewSession { id, header } = sessions::open(SystemTime::now());
            (NEW_SESSION_HEADER, header, id)
        }
        (RequestType::CloseSession | RequestType::Close, SessionHeader::Id(id)) => {
            (CLOSED_SESSION_HEADER, id.clone(), id)
        }
        (RequestType::CloseSession | RequestType::Close, _) => {
            return Err(refused(
                "requestType",
                "CLOSE_SESSION",
                &format!("name the session in the header {SESSION_HEADER}"),
            ));
        }
    };
    let mut response = HttpResponse::Ok().json(InvocationAnswer::Session(SessionAnswer { session }));
    set_header(&mut response, name, &value);
    Ok(response)
}

pub(super) fn set_header(response: &mut HttpResponse, name: &'static str, value: &str) {
    // Both are made of characters that headers may have.
    if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_str(value)) {
        response.headers_mut().insert(name, value);
    }
}
