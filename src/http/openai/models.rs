//! The list of models.

use serde::Serialize;
use utoipa::ToSchema;

/// A model that can be named in requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ModelCard {
    /// The model's name.
    pub id: String,
    /// Type of the object.
    pub object: ModelObject,
    /// When this server was started, in Unix time.
    pub created: u64,
    /// Owner of the model: always `foretype`.
    pub owned_by: &'static str,
}

/// The only value of a model's `object`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ModelObject {
    /// A model.
    Model,
}

/// The models that can be named in requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ModelCards {
    /// Type of the object.
    pub object: ListObject,
    /// The models.
    pub data: Vec<ModelCard>,
}

/// The only value of a list's `object`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ListObject {
    /// A list.
    List,
}

impl ModelCard {
    /// The card of a model.
    pub fn new(id: &str, created: u64) -> Self {
        Self { id: id.to_owned(), object: ModelObject::Model, created, owned_by: "foretype" }
    }
}
