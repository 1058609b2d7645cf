//! The text around what is asked: the model's template, or the request's own in its place.

use std::sync::Arc;

use bundle::Template;
use completion::text::{Text, TextError};

use super::model::Model;
use super::tokenizer::no_room;
use crate::error::{Error, Kind};

impl Model {
    /// The text side for typed texts, with a request's template in the place of the model's own.
    pub(super) fn text_around(&self, asked: Option<&str>) -> Result<Arc<Text>, Error> {
        let asked = asked.map(read).transpose()?;
        let after = asked.as_ref().or(self.template.as_deref()).and_then(Template::after_on_line);
        if let Some(after) = after {
            let message = format!(
                "the template has {after:?} behind {{input}}, and a typed text is completed at its end: end the line \
                 of {{input}} there, or send {{\"inputs\": TEXT}} to continue the whole"
            );
            return Err(Error::new(Kind::InvalidValue, message));
        }
        let Some(asked) = asked else { return Ok(Arc::clone(&self.text)) };
        let text = self.text.as_ref().clone().with_text_before(asked.before()).map_err(|error| unspelled(&error))?;
        match no_room(&text, self.context) {
            Some(reason) => Err(Error::new(Kind::InputTooLong, format!("template: {reason}"))),
            None => Ok(Arc::new(text)),
        }
    }

    /// A prompt within the request's template or the model's own.
    pub(super) fn prompt_around(&self, prompt: &str, asked: Option<&str>) -> Result<String, Error> {
        let asked = asked.map(read).transpose()?;
        let template = asked.as_ref().or(self.template.as_deref());
        Ok(template.map_or_else(|| prompt.to_owned(), |template| template.around(prompt)))
    }

    /// With another template in the place of its own.
    ///
    /// # Errors
    /// Why the model can't have it.
    pub(super) fn with_template(self, template: Arc<Template>) -> Result<Self, String> {
        if self.encoder_tokens.is_some() {
            return Ok(Self { template: Some(template), ..self });
        }
        let text = self.text.as_ref().clone().with_text_before(template.before()).map_err(|error| error.to_string())?;
        match no_room(&text, self.context) {
            Some(reason) => Err(reason),
            None => Ok(Self { text: Arc::new(text), template: Some(template), ..self }),
        }
    }
}

fn read(text: &str) -> Result<Template, Error> {
    Template::new(text).map_err(|error| Error::new(Kind::InvalidValue, format!("template: {error}")))
}

/// What the tokenizer lacks is the operator's to know; what the template has is the client's.
fn unspelled(error: &TextError) -> Error {
    match error {
        TextError::Prompt(_) => Error::new(Kind::InvalidValue, format!("template: {error}")),
        TextError::Tokenizer(_) => {
            tracing::error!(%error, "templates can't be read");
            Error::new(Kind::Internal, "the model's tokenizer can't be used for templates")
        }
    }
}
