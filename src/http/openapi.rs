//! The OpenAPI document, generated from the handlers' attributes and the wire types.

use actix_web::HttpResponse;
use actix_web::web::Data;
use utoipa::OpenApi;

use super::errors::ErrorBody;
use super::request::Served;
use super::{completions, generate, invoke, models, schemas, status, stream, suggest};

#[derive(OpenApi)]
#[openapi(
    paths(
        invoke::invocations,
        generate::generate,
        generate::generate_stream,
        generate::info,
        status::ping,
        status::execution_parameters,
        status::metrics,
        document,
        completions::completions,
        completions::models,
        completions::model,
        models::list,
        models::load,
        models::get,
        models::put,
        models::extras,
        models::prefixes,
        models::unload,
        invoke::invoke,
    ),
    components(schemas(stream::TokenLine, suggest::SuggestedQuery))
)]
struct Document;

/// This document
#[utoipa::path(get, path = "/openapi.json", tag = "status", responses(
    (status = 200, description = "The OpenAPI document", body = schemas::AnyObject),
    (status = 405, description = "Another method", body = ErrorBody),
))]
pub(super) async fn document(served: Data<Served>) -> HttpResponse {
    let context = served.models.only().ok().map(|versions| versions.main().context());
    HttpResponse::Ok().json(with_limits(context))
}

/// The document, with the limit of tokens that follows from the model's context where one model is served.
fn with_limits(context: Option<usize>) -> serde_json::Value {
    let mut document = serde_json::to_value(Document::openapi()).unwrap_or_default();
    if let Some(context) = context {
        for (schema, field) in
            [("Invocation", "max_new_tokens"), ("Parameters", "max_new_tokens"), ("CompletionRequest", "max_tokens")]
        {
            let path = format!("/components/schemas/{schema}/properties/{field}");
            if let Some(serde_json::Value::Object(field)) = document.pointer_mut(&path) {
                field.insert("maximum".to_owned(), context.into());
            }
        }
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_limits_new_tokens() {
        let document = with_limits(Some(48));
        assert_eq!(document["openapi"], "3.1.0");
        assert_eq!(document["components"]["schemas"]["Invocation"]["properties"]["max_new_tokens"]["maximum"], 48);
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = with_limits(None);
        let text = document.to_string();
        for reference in text.split("\"$ref\":\"#").skip(1) {
            let path = reference.split('"').next().unwrap();
            assert!(document.pointer(path).is_some(), "{path}");
        }
    }
}
