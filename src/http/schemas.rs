//! Schemas that `ToSchema` can't derive: limits inside a choice of types, and values of fixed shape.

use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, OneOfBuilder, SchemaFormat, SchemaType, Type};
use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// A string or a list of 1 to 32.
pub struct PromptsShape;

impl PartialSchema for PromptsShape {
    fn schema() -> RefOr<Schema> {
        let text = || ObjectBuilder::new().schema_type(Type::String).max_length(Some(1000)).format(Some(prompt()));
        let prompt_list = ArrayBuilder::new().items(text()).min_items(Some(1)).max_items(Some(32));
        OneOfBuilder::new().item(text()).item(prompt_list).into()
    }
}

/// A string or a list of 1 to 32, or token ids or a list of 1 to 32 of such lists.
pub struct PromptsOrTokensShape;

impl PartialSchema for PromptsOrTokensShape {
    fn schema() -> RefOr<Schema> {
        let id = || ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0_usize)).format(Some(token()));
        let ids = || ArrayBuilder::new().items(id()).min_items(Some(1));
        let lists = ArrayBuilder::new().items(ids()).min_items(Some(1)).max_items(Some(32));
        OneOfBuilder::new().item(PromptsShape::schema()).item(ids()).item(lists).into()
    }
}

fn token() -> SchemaFormat {
    SchemaFormat::Custom("token-id".to_owned())
}

impl ToSchema for PromptsOrTokensShape {}

fn prompt() -> SchemaFormat {
    SchemaFormat::Custom("prompt-text".to_owned())
}

impl ToSchema for PromptsShape {}

/// A string or a list of at most 16.
pub struct StopShape;

impl PartialSchema for StopShape {
    fn schema() -> RefOr<Schema> {
        let text = || ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).max_length(Some(256));
        OneOfBuilder::new().item(text()).item(ArrayBuilder::new().items(text()).max_items(Some(16))).into()
    }
}

impl ToSchema for StopShape {}

/// True, false or "never".
pub struct EarlyStoppingShape;

impl PartialSchema for EarlyStoppingShape {
    fn schema() -> RefOr<Schema> {
        let word = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["never"]));
        OneOfBuilder::new().item(ObjectBuilder::new().schema_type(Type::Boolean)).item(word).into()
    }
}

impl ToSchema for EarlyStoppingShape {}

/// The continuation of a prompt, or a list of those of several.
pub struct RepliesShape;

impl PartialSchema for RepliesShape {
    fn schema() -> RefOr<Schema> {
        let reply = || Ref::from_schema_name("Reply");
        OneOfBuilder::new().item(reply()).item(ArrayBuilder::new().items(reply())).into()
    }
}

impl ToSchema for RepliesShape {}

/// An object without fields.
pub struct EmptyShape;

impl PartialSchema for EmptyShape {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new().max_properties(Some(0)).into()
    }
}

impl ToSchema for EmptyShape {}

/// An object with any fields.
pub struct AnyObject;

impl PartialSchema for AnyObject {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new().into()
    }
}

impl ToSchema for AnyObject {}

/// Nothing.
pub struct NullShape;

impl PartialSchema for NullShape {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new().schema_type(SchemaType::Type(Type::Null)).into()
    }
}

impl ToSchema for NullShape {}
