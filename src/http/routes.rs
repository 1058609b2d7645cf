//! Which handler serves which path and method.

use actix_web::web::{self, ServiceConfig};
use actix_web::{HttpRequest, Resource, Route};

use super::errors::{method_not_allowed, path_not_found};
use super::{completions, generate, invoke, models, openapi, page, status};

/// Which of the routes a listener has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Routes {
    /// All of them.
    #[default]
    All,
    /// Those for clients.
    Public,
    /// Those for operators: models by name, and metrics.
    Admin,
}

/// Registers the routes.
pub(super) fn configure(routes: Routes, config: &mut ServiceConfig) {
    let (get, post, head) = (web::get, web::post, web::head);
    let ping = vec![get().to(status::ping), post().to(status::ping), head().to(status::ping)];
    config.service(resource("/ping", ping, "GET, HEAD, POST"));
    if routes != Routes::Public {
        admin(config);
    }
    if routes != Routes::Admin {
        public(config);
    }
    config.default_service(web::to(path_not_found));
}

fn admin(config: &mut ServiceConfig) {
    let (get, post, put, delete) = (web::get, web::post, web::put, web::delete);
    config
        .service(resource("/metrics", vec![get().to(status::metrics)], "GET"))
        .service(resource("/models", vec![get().to(models::list), post().to(models::load)], "GET, POST"))
        .service(resource(
            "/models/{name}",
            vec![get().to(models::get), put().to(models::put), delete().to(models::unload)],
            "DELETE, GET, PUT",
        ))
        .service(resource("/models/{name}/extras", vec![put().to(models::extras)], "PUT"))
        .service(resource("/models/{name}/prefixes", vec![get().to(models::prefixes)], "GET"));
}

fn public(config: &mut ServiceConfig) {
    let (get, post, head) = (web::get, web::post, web::head);
    config
        .service(resource("/invocations", vec![post().to(invoke::invocations)], "POST"))
        .service(resource("/generate", vec![post().to(generate::generate)], "POST"))
        .service(resource("/generate_stream", vec![post().to(generate::generate_stream)], "POST"))
        .service(resource("/info", vec![get().to(generate::info)], "GET"))
        .service(resource("/execution-parameters", vec![get().to(status::execution_parameters)], "GET"))
        .service(resource("/openapi.json", vec![get().to(openapi::document)], "GET"))
        .service(resource("/v1/completions", vec![post().to(completions::completions)], "POST"))
        .service(resource("/v1/models", vec![get().to(completions::models)], "GET"))
        .service(resource("/v1/models/{id}", vec![get().to(completions::model)], "GET"))
        .service(resource("/models/{name}/invoke", vec![post().to(invoke::invoke)], "POST"))
        .service(resource(
            "/",
            vec![get().to(page::index), head().to(page::index), post().to(invoke::invocations)],
            "GET, HEAD, POST",
        ))
        .service(resource("/page.css", vec![get().to(page::style), head().to(page::style)], "GET, HEAD"))
        .service(resource("/page.js", vec![get().to(page::script), head().to(page::script)], "GET, HEAD"))
        .service(resource("/costs.js", vec![get().to(page::costs), head().to(page::costs)], "GET, HEAD"));
}

fn resource(path: &str, routes: Vec<Route>, allowed: &'static str) -> Resource {
    let default = web::to(move |request: HttpRequest| method_not_allowed(request, allowed));
    routes.into_iter().fold(web::resource(path), Resource::route).default_service(default)
}
