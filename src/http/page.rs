//! The demo page: a search box that completes as a person types, with the cost of each key. Its HTML, style and
//! scripts are in the binary. The page asks the same routes as other clients, and is no part of the OpenAPI
//! document.

use actix_web::web::Data;
use actix_web::{HttpResponse, Result};

use super::request::Served;
use crate::error::{Error, Kind};
use crate::models::Models;

/// Only this server's own style, script and answers; no inline code, no frames, no forms.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
     trusted-types 'none'";

/// How the page says which routes it must ask, and what it says for models by name.
const ONE_MODEL: &str = r#"data-models="one""#;
const BY_NAME: &str = r#"data-models="by-name""#;

/// The page's HTML.
pub(super) async fn index(served: Data<Served>) -> Result<HttpResponse, Error> {
    let html = include_str!("page/index.html");
    let html = match served.models {
        Models::Single(_) => html.to_owned(),
        Models::Multi(_) => html.replacen(ONE_MODEL, BY_NAME, 1),
    };
    file(&served, "text/html; charset=utf-8", html)
}

/// The page's style sheet.
pub(super) async fn style(served: Data<Served>) -> Result<HttpResponse, Error> {
    file(&served, "text/css; charset=utf-8", include_str!("page/page.css").to_owned())
}

/// The page's script: the search box.
pub(super) async fn script(served: Data<Served>) -> Result<HttpResponse, Error> {
    file(&served, "text/javascript; charset=utf-8", include_str!("page/page.js").to_owned())
}

/// The script of what each key cost.
pub(super) async fn costs(served: Data<Served>) -> Result<HttpResponse, Error> {
    file(&served, "text/javascript; charset=utf-8", include_str!("page/costs.js").to_owned())
}

fn file(served: &Served, content_type: &str, body: String) -> Result<HttpResponse, Error> {
    if !served.page {
        let message = "the page is off; start foretype with --page or FORETYPE_PAGE=true to turn it on";
        return Err(Error::new(Kind::NotFound, message));
    }
    // A browser asks again each time: another version of the server has another page.
    Ok(HttpResponse::Ok()
        .content_type(content_type)
        .insert_header(("Cache-Control", "no-cache"))
        .insert_header(("Content-Security-Policy", CONTENT_SECURITY_POLICY))
        .insert_header(("Cross-Origin-Resource-Policy", "same-origin"))
        .insert_header(("Referrer-Policy", "no-referrer"))
        .insert_header(("X-Content-Type-Options", "nosniff"))
        .body(body))
}
