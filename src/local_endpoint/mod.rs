//! Amazon SageMaker's runtime API in front of servers or containers on this machine. Client code written with an AWS
//! SDK runs against it once its endpoint URL is changed. For development only: it checks no signatures, and no request
//! to a deployed model passes through here.

pub mod event_stream;
pub mod routing;

use std::net::TcpListener;
use std::time::Duration;

use actix_web::dev::Server;
use actix_web::http::StatusCode;
use actix_web::http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use actix_web::web::{self, Bytes, Data, PayloadConfig};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer};
use awc::error::SendRequestError;
use awc::{Client, ClientResponse};
use futures_util::{StreamExt, stream};
use serde_json::json;

use self::routing::Routing;

/// Most bytes of a request's body, SageMaker's limit.
const MAX_BODY_BYTES: usize = 6_291_456;
/// Most bytes of an answer that isn't streamed.
const MAX_ANSWER_BYTES: usize = 25 << 20;

/// What SageMaker passes on to a container. Everything else that a client sends stays here.
const PASSED_ON: [&str; 8] = [
    "x-amzn-sagemaker-custom-attributes",
    "x-amzn-sagemaker-inference-id",
    "x-amzn-sagemaker-target-model",
    "x-amzn-sagemaker-target-variant",
    "x-amzn-sagemaker-target-container-hostname",
    "x-amzn-sagemaker-inference-component",
    SESSION,
    "x-amzn-sagemaker-enable-explanations",
];
/// What of a container's answer reaches the client.
const PASSED_BACK: [&str; 3] = ["x-amzn-sagemaker-custom-attributes", NEW_SESSION, CLOSED_SESSION];
const SESSION: &str = "x-amzn-sagemaker-session-id";
const NEW_SESSION: &str = "x-amzn-sagemaker-new-session-id";
const CLOSED_SESSION: &str = "x-amzn-sagemaker-closed-session-id";
const TARGET_MODEL: &str = "x-amzn-sagemaker-target-model";
/// How a client that wants a stream says what it accepts.
const STREAM_ACCEPT: &str = "x-amzn-sagemaker-accept";
const STREAM_CONTENT_TYPE: &str = "x-amzn-sagemaker-content-type";

/// Settings of the runtime API.
#[derive(Clone, Debug)]
pub struct Options {
    /// Servers or containers, such as `http://127.0.0.1:8080`: the endpoint's instances, one at least.
    pub targets: Vec<String>,
    /// The only endpoint that there is; any name will do if absent.
    pub endpoint: Option<String>,
    /// Time for a container's answer to begin.
    pub timeout: Duration,
}

/// Starts serving on a listener that is bound already.
///
/// # Errors
/// The operating system's.
pub fn start(listener: TcpListener, options: &Options) -> std::io::Result<Server> {
    let options = options.clone();
    let routing = Data::new(Routing::new(options.targets.clone()));
    let server = HttpServer::new(move || {
        App::new()
            .app_data(routing.clone())
            .app_data(Data::new(options.clone()))
            .app_data(Data::new(Client::builder().timeout(options.timeout).finish()))
            .app_data(PayloadConfig::new(MAX_BODY_BYTES))
            .route("/ping", web::get().to(HttpResponse::Ok))
            .route("/endpoints/{name}/invocations", web::post().to(invoke))
            .route("/endpoints/{name}/invocations-response-stream", web::post().to(invoke_streaming))
            .default_service(web::to(|request: HttpRequest| async move {
                let message = format!("there is no {} {}", request.method(), request.path());
                refusal(StatusCode::NOT_FOUND, "UnknownOperationException", &message)
            }))
    });
    Ok(server.workers(1).tcp_nodelay(true).listen(listener)?.run())
}

/// `InvokeEndpoint`.
async fn invoke(request: HttpRequest, name: web::Path<String>, body: actix_web::Result<Bytes>) -> HttpResponse {
    let mut answer = match call(&request, &name, body, ACCEPT.as_str()).await {
        Ok(answer) => answer,
        Err(refused) => return refused,
    };
    let body = match answer.body().limit(MAX_ANSWER_BYTES).await {
        Ok(body) => body,
        Err(error) => return model_error(0, &format!("the answer broke off: {error}"), &name),
    };
    let mut response = HttpResponse::Ok();
    for (name, value) in passed_back(answer.headers()) {
        response.insert_header((name, value));
    }
    if let Some(value) = answer.headers().get(CONTENT_TYPE) {
        response.insert_header((CONTENT_TYPE, value.clone()));
    }
    response.body(body)
}

/// `InvokeEndpointWithResponseStream`.
async fn invoke_streaming(
    request: HttpRequest,
    name: web::Path<String>,
    body: actix_web::Result<Bytes>,
) -> HttpResponse {
    let answer = match call(&request, &name, body, STREAM_ACCEPT).await {
        Ok(answer) => answer,
        Err(refused) => return refused,
    };
    let mut response = HttpResponse::Ok();
    for (name, value) in passed_back(answer.headers()) {
        response.insert_header((name, value));
    }
    if let Some(value) = answer.headers().get(CONTENT_TYPE) {
        response.insert_header((STREAM_CONTENT_TYPE, value.clone()));
    }
    // A stream that breaks ends with an exception, so that a client can tell it from one that is complete.
    let frames = stream::unfold(Some(answer), |answer| async {
        let mut answer = answer?;
        match answer.next().await? {
            Ok(piece) => Some((event_stream::payload_part(&piece), Some(answer))),
            Err(error) => Some((event_stream::model_stream_error(&format!("the answer broke off: {error}")), None)),
        }
    });
    response
        .content_type(event_stream::CONTENT_TYPE)
        .streaming(frames.map(|frame| Ok::<_, std::convert::Infallible>(Bytes::from(frame))))
}

/// Sends a request to the container; anything but a success is the client's error already.
async fn call(
    request: &HttpRequest,
    endpoint: &str,
    body: actix_web::Result<Bytes>,
    accept: &str,
) -> Result<ClientResponse, HttpResponse> {
    let (Some(options), Some(client), Some(routing)) =
        (request.app_data::<Data<Options>>(), request.app_data::<Data<Client>>(), request.app_data::<Data<Routing>>())
    else {
        return Err(HttpResponse::InternalServerError().finish());
    };
    if options.endpoint.as_deref().is_some_and(|only| only != endpoint) {
        let message = format!("Endpoint {endpoint} of account 000000000000 not found.");
        return Err(refusal(StatusCode::BAD_REQUEST, "ValidationError", &message));
    }
    let body = body.map_err(|error| {
        let message = format!("the body can't be taken (at most {MAX_BODY_BYTES} bytes): {error}");
        refusal(StatusCode::BAD_REQUEST, "ValidationError", &message)
    })?;
    let (instance, target) = routing.choose(text(request.headers(), SESSION));
    let mut onward = client.post(format!("{}{}", target.trim_end_matches('/'), path(request.headers())));
    for (name, value) in PASSED_ON.iter().filter_map(|name| Some((*name, request.headers().get(*name)?))) {
        onward = onward.insert_header((name, value.clone()));
    }
    for (name, from) in [(CONTENT_TYPE, CONTENT_TYPE.as_str()), (ACCEPT, accept)] {
        if let Some(value) = request.headers().get(from) {
            onward = onward.insert_header((name, value.clone()));
        }
    }
    let mut answer = onward.send_body(body).await.map_err(|error| match error {
        SendRequestError::Timeout => {
            model_error(0, "Your invocation timed out while waiting for a response from container primary.", endpoint)
        }
        SendRequestError::Connect(_) | SendRequestError::Url(_) => {
            let message = format!("the container at {target} can't be reached: {error}");
            refusal(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", &message)
        }
        error => model_error(0, &format!("the container's answer can't be read: {error}"), endpoint),
    })?;
    if answer.status().is_success() {
        if let Some(opened) = text(answer.headers(), NEW_SESSION) {
            // Behind the name stands when it expires.
            routing.opened(opened.split(';').next().unwrap_or(opened), instance);
        }
        if let Some(closed) = text(answer.headers(), CLOSED_SESSION) {
            routing.closed(closed);
        }
        return Ok(answer);
    }
    let message = answer.body().limit(MAX_ANSWER_BYTES).await.unwrap_or_default();
    Err(model_error(answer.status().as_u16(), &String::from_utf8_lossy(&message), endpoint))
}

/// A model by name has a path of its own; SageMaker loads it first, here the client has to.
fn path(headers: &HeaderMap) -> String {
    match text(headers, TARGET_MODEL) {
        Some(name) => format!("/models/{}/invoke", name.trim_end_matches(".tar.gz")),
        None => "/invocations".into(),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn passed_back(headers: &HeaderMap) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    PASSED_BACK.iter().filter_map(|name| Some((HeaderName::from_static(name), headers.get(*name)?.clone())))
}

/// What a client gets to see of a container's error.
fn model_error(status: u16, message: &str, endpoint: &str) -> HttpResponse {
    let whose = if (400..500).contains(&status) { "client" } else { "server" };
    let body = json!({
        "Message": format!(
            "Received {whose} error ({status}) from primary with message \"{message}\". See the container's log."
        ),
        "OriginalMessage": message,
        "OriginalStatusCode": status,
        "LogStreamArn": format!("arn:aws:logs:local:000000000000:log-group:/aws/sagemaker/Endpoints/{endpoint}"),
    });
    HttpResponse::build(StatusCode::FAILED_DEPENDENCY).insert_header(("x-amzn-errortype", "ModelError")).json(body)
}

/// The answer to a request that SageMaker itself would refuse.
fn refusal(status: StatusCode, kind: &'static str, message: &str) -> HttpResponse {
    HttpResponse::build(status).insert_header(("x-amzn-errortype", kind)).json(json!({"Message": message}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_model_has_a_path_of_its_own() {
        let mut headers = HeaderMap::new();
        assert_eq!(path(&headers), "/invocations");
        headers.insert(HeaderName::from_static(TARGET_MODEL), HeaderValue::from_static("terms.tar.gz"));
        assert_eq!(path(&headers), "/models/terms/invoke");
    }

    #[test]
    fn the_clients_errors_and_the_containers_are_told_apart() {
        let response = model_error(429, "busy", "demo");
        assert_eq!(response.status(), StatusCode::FAILED_DEPENDENCY);
        assert_eq!(response.headers().get("x-amzn-errortype").unwrap(), "ModelError");
    }
}
