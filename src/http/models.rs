//! Models by name, as Amazon SageMaker's multi-model endpoints load and unload them, and new versions of them and of a
//! server's one model. Loading blocks, so it runs off the HTTP threads.

use std::collections::BTreeMap;
use std::time::SystemTime;

use actix_web::web::{self, Data, Path, Query};
use actix_web::{HttpRequest, HttpResponse, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::json;
use super::request::{Served, WholeBody, expect_json};
use super::responses::{LoadErrors, ModelErrors};
use super::routes::Routes;
use crate::engine::{Engine, ExtrasChange, HotText, MAX_HOT_TEXTS};
use crate::error::{Error, Kind};
use crate::models::{Change, ModelError, Models, Named, Versions};

/// Models on one page of the list.
const PAGE: usize = 100;

/// A model to load.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LoadRequest {
    /// The name that the model gets.
    #[schema(min_length = 1, max_length = 256, pattern = "^[^/\\u0000-\\u001f\\u007f-\\u009f]+$")]
    model_name: String,
    /// The folder of the bundle or checkpoint.
    #[schema(min_length = 1)]
    url: String,
}

/// A model that is loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct LoadedModel {
    /// The model's name.
    model_name: String,
    /// The folder that the model was loaded from.
    model_url: String,
}

impl LoadedModel {
    fn of(versions: &Versions) -> Self {
        Self { model_name: versions.name().to_owned(), model_url: versions.main().version().url.clone() }
    }
}

/// A version to load, or the shares of those that are loaded: one of both.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(min_properties = 1, max_properties = 1)]
pub(super) struct ChangeRequest {
    /// The folder of the bundle or checkpoint.
    #[schema(value_type = String, required = false, min_length = 1)]
    url: Option<String>,
    /// The weight of each version's share of the requests, by its number. Versions that aren't named get none.
    #[schema(value_type = BTreeMap<String, u32>, required = false)]
    shares: Option<BTreeMap<u64, u32>>,
}

impl ChangeRequest {
    fn change(self) -> Result<Change, Error> {
        match (self.url, self.shares) {
            (Some(url), None) => Ok(Change::Load(url)),
            (None, Some(shares)) => Ok(Change::Share(shares)),
            _ => {
                let message = "send either url, the folder of a version to load, or shares, the weights of those that \
                               are loaded, such as {\"1\": 9, \"2\": 1}";
                Err(Error::new(Kind::InvalidField, message))
            }
        }
    }
}

/// A model: the version that gets most requests, or the one that was named, and all versions.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ModelVersions {
    /// The model's name.
    model_name: String,
    #[serde(flatten)]
    main: ModelVersion,
    /// All of them, in the order of their numbers.
    versions: Vec<ModelVersion>,
}

/// A version of a model.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ModelVersion {
    /// The folder that the version was loaded from.
    model_url: String,
    /// Counted from 1, for as long as the server has a model of this name, or the number that it was loaded under.
    version: u64,
    /// Its share of the requests that name no version.
    #[schema(minimum = 0, maximum = 1)]
    share: f64,
    /// When the version began to answer, as RFC 3339 has it.
    since: String,
    /// SHA-256 of the bundle's manifest, which has those of all other files.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    checksum: Option<String>,
    /// When something was last put in the place of the bundle's extras.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    extras_since: Option<String>,
}

impl From<&Named> for ModelVersions {
    fn from(named: &Named) -> Self {
        let versions: Vec<_> =
            named.versions.shares().map(|(engine, share)| ModelVersion::new(engine, share)).collect();
        let number = named.engine().version().number;
        let main = versions.iter().find(|version| version.version == number);
        let main = main.cloned().unwrap_or_else(|| ModelVersion::new(named.engine(), 0.0));
        Self { model_name: named.versions.name().to_owned(), main, versions }
    }
}

impl ModelVersion {
    fn new(engine: &Engine, share: f64) -> Self {
        let version = engine.version();
        Self {
            share,
            model_url: version.url.clone(),
            version: version.number,
            since: told(version.since),
            checksum: version.checksum.clone(),
            extras_since: engine.extras_since().map(told),
        }
    }
}

fn told(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

/// What people type most, for another server to compute before it is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Prefixes {
    /// Hottest first.
    prefixes: Vec<HotText>,
}

/// What is to hold in the place of a bundle's extras. What is absent stays as it is, and `null` is the bundle's own.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExtrasRequest {
    /// Terms that are never suggested, one a line; the text of a `blocklist.txt`.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>)]
    blocklist: Option<Option<String>>,
    /// Queries with their counts, a tab between them, one a line; the text of a `popular.tsv`.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>)]
    popular: Option<Option<String>>,
    /// Probabilities of typing errors; the content of a `typing.json`.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<Object>)]
    typing: Option<Option<serde_json::Map<String, serde_json::Value>>>,
    /// The text around every input, with `{input}` where that stands; the text of a `template.txt`.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>)]
    template: Option<Option<String>>,
}

/// A field that is there, `null` or not.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(value: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(value).map(Some)
}

impl From<ExtrasRequest> for ExtrasChange {
    fn from(ExtrasRequest { blocklist, popular, typing, template }: ExtrasRequest) -> Self {
        let typing = typing.map(|typing| typing.map(|typing| serde_json::Value::from(typing).to_string()));
        Self { blocklist, popular, typing, template }
    }
}

/// A page of the models that are loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct LoadedModels {
    /// The models, in the order of their names.
    models: Vec<LoadedModel>,
    /// The `next_page_token` of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next_page_token: Option<String>,
}

/// The page of the list that is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct PageQuery {
    /// The `nextPageToken` of the page before.
    next_page_token: Option<String>,
}

/// Loads a model
///
/// Answers when the model can.
#[utoipa::path(post, path = "/models", request_body = LoadRequest, responses(
    (status = 200, description = "It is loaded", body = LoadedModel),
    LoadErrors,
    ModelErrors,
))]
pub(super) async fn load(request: HttpRequest, body: WholeBody, served: Data<Served>) -> Result<HttpResponse, Error> {
    served.models.registry()?;
    expect_json(&request)?;
    let LoadRequest { model_name, url } = json::parse(&body.0?)?;
    let model = LoadedModel { model_name: model_name.clone(), model_url: url.clone() };
    run_blocking(move || served.models.registry()?.load(&model_name, &url)).await??;
    Ok(HttpResponse::Ok().json(model))
}

/// The models that are loaded
#[utoipa::path(get, path = "/models", params(PageQuery), responses(
    (status = 200, description = "A page of them", body = LoadedModels),
    ModelErrors,
))]
pub(super) async fn list(query: Query<PageQuery>, served: Data<Served>) -> Result<HttpResponse, Error> {
    let mut models = served.models.registry()?.ready();
    // The token is the last name of the page before, so that models may come and go between pages.
    if let Some(last) = &query.next_page_token {
        models.retain(|versions| versions.name() > last.as_str());
    }
    let next_page_token = (models.len() > PAGE).then(|| models[PAGE - 1].name().to_owned());
    models.truncate(PAGE);
    let models = models.iter().map(LoadedModel::of).collect();
    Ok(HttpResponse::Ok().json(LoadedModels { models, next_page_token }))
}

/// A model that is loaded, with its versions and their shares, or one version by its name
#[utoipa::path(get, path = "/models/{name}", 
    params(("name" = String, Path, description = "The model's name", min_length = 1)),
    responses((status = 200, description = "The model", body = ModelVersions), ModelErrors)
)]
pub(super) async fn get(name: Path<String>, served: Data<Served>) -> Result<HttpResponse, Error> {
    let named = changeable(&served)?.find(Some(&name))?;
    Ok(HttpResponse::Ok().json(ModelVersions::from(&named)))
}

/// Loads a version of a model, or divides the requests among its versions
///
/// With `url` the version is loaded beside those that answer, and computes what was typed most. Under a name such as
/// `demo@2` it stays beside them, and gets the requests that name it. Otherwise it gets all requests, and those that
/// had them go once their last requests are answered. If the version can't be loaded, the old ones go on. `shares`
/// moves the requests at once.
#[utoipa::path(put, path = "/models/{name}", request_body = ChangeRequest,
    params(("name" = String, Path, description = "The model's name", min_length = 1)),
    responses((status = 200, description = "It is done", body = ModelVersions), LoadErrors, ModelErrors)
)]
pub(super) async fn put(
    request: HttpRequest,
    name: Path<String>,
    body: WholeBody,
    served: Data<Served>,
) -> Result<HttpResponse, Error> {
    let put = move |models: &Models, asked: ChangeRequest| Ok(models.change(&name, &asked.change()?)?);
    change(&request, body, served, put).await
}

/// Unloads a model, or a version without a share
///
/// Requests that run are answered.
#[utoipa::path(delete, path = "/models/{name}", 
    params(("name" = String, Path, description = "The model's name", min_length = 1)),
    responses(
        (status = 200, description = "It is gone"),
        (status = 409, description = "It is being loaded, or the version has a share", body = super::errors::ErrorBody),
        ModelErrors,
    )
)]
pub(super) async fn unload(name: Path<String>, served: Data<Served>) -> Result<HttpResponse, Error> {
    // The last holder waits for the model's threads to end.
    match changeable(&served)?.model_of(&name) {
        (model, Some(number)) => {
            let engine = served.models.remove_version(model, number)?;
            run_blocking(move || drop(engine)).await?;
        }
        (model, None) => {
            let versions = served.models.registry()?.unload(model)?;
            run_blocking(move || drop(versions)).await?;
        }
    }
    Ok(HttpResponse::Ok().finish())
}

/// Changes a model's blocklist, popular queries, typing parameters and template
///
/// The model stays as it is, and all requests from now on are answered with them, by all of its versions and later
/// ones. The name of a version changes that one only. If one of them is wrong, none is changed.
#[utoipa::path(put, path = "/models/{name}/extras", request_body = ExtrasRequest,
    params(("name" = String, Path, description = "The model's name", min_length = 1)),
    responses((status = 200, description = "They hold", body = ModelVersions), LoadErrors, ModelErrors)
)]
pub(super) async fn extras(
    request: HttpRequest,
    name: Path<String>,
    body: WholeBody,
    served: Data<Served>,
) -> Result<HttpResponse, Error> {
    // A long list takes a while, too.
    let extras = move |models: &Models, extras: ExtrasRequest| Ok(models.change_extras(&name, &extras.into())?);
    change(&request, body, served, extras).await
}

/// What people type most
///
/// On the operators' listener only. Texts of clients with a salt aren't among them, nor those typed only once.
#[utoipa::path(get, path = "/models/{name}/prefixes",
    params(("name" = String, Path, description = "The model's name", min_length = 1)),
    responses((status = 200, description = "The texts, hottest first", body = Prefixes), ModelErrors)
)]
pub(super) async fn prefixes(name: Path<String>, served: Data<Served>) -> Result<HttpResponse, Error> {
    if served.routes != Routes::Admin {
        return Err(ModelError::ForOperators.into());
    }
    let prefixes = served.models.find(Some(&name))?.engine().hottest(MAX_HOT_TEXTS);
    Ok(HttpResponse::Ok().json(Prefixes { prefixes }))
}

/// The models, where a client may change them: models by name, and the one model of a server for its operators.
fn changeable(served: &Served) -> Result<&Models, ModelError> {
    match &served.models {
        Models::Single(_) if served.routes != Routes::Admin => Err(ModelError::OneModel),
        models => Ok(models),
    }
}

/// Changes a model as a body says, off the HTTP threads.
async fn change<B: DeserializeOwned + Send + 'static>(
    request: &HttpRequest,
    body: WholeBody,
    served: Data<Served>,
    change: impl FnOnce(&Models, B) -> Result<Named, Error> + Send + 'static,
) -> Result<HttpResponse, Error> {
    changeable(&served)?;
    expect_json(request)?;
    let wanted = json::parse(&body.0?)?;
    let named = run_blocking(move || change(&served.models, wanted)).await??;
    Ok(HttpResponse::Ok().json(ModelVersions::from(&named)))
}

/// Runs blocking work off the HTTP threads.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    web::block(work).await.map_err(|error| {
        tracing::error!(%error, "work off the HTTP threads ended in a panic");
        Error::new(Kind::Internal, "the server failed on this request")
    })
}
