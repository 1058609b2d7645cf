//! What can be changed without the model, while it answers: blocklist, popular queries, typing parameters, template.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::SystemTime;

use bundle::Template;
use bundle::extras::{
    BLOCKLIST_FILE, ExtrasError, POPULAR_SOURCE, TEMPLATE_FILE, TYPING_FILE, parse_template, read_text,
};
use completion::popular::PopularQueries;
use completion::text::blocklist::Blocklist;
use completion::typing::channel::Channel;

use super::Engine;
use super::load::{EngineError, parse_blocklist, parse_channel};
use super::model::Model;
use crate::popular;

/// What holds in place of the bundle's own; `None` leaves that.
#[derive(Clone, Default)]
pub struct Extras {
    blocklist: Option<Arc<Blocklist>>,
    popular: Option<Arc<PopularQueries>>,
    channel: Option<Channel>,
    template: Option<Arc<Template>>,
    /// When they were last changed.
    since: Option<SystemTime>,
}

/// The texts of the files that are to hold. Outside: whether anything changes; inside: the text, or the bundle's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtrasChange {
    /// As `blocklist.txt`.
    pub blocklist: Option<Option<String>>,
    /// As `popular.tsv`.
    pub popular: Option<Option<String>>,
    /// As `typing.json`.
    pub typing: Option<Option<String>>,
    /// As `template.txt`.
    pub template: Option<Option<String>>,
}

impl ExtrasChange {
    /// The files that [`ExtrasChange::read`] reads.
    pub fn files(folder: &Path) -> Vec<PathBuf> {
        [BLOCKLIST_FILE, POPULAR_SOURCE, TYPING_FILE, TEMPLATE_FILE].map(|name| folder.join(name)).into()
    }

    /// The files of a folder. Where one is absent, the bundle's own is to hold.
    ///
    /// # Errors
    /// A file that can't be read.
    pub fn read(folder: &Path) -> Result<Self, EngineError> {
        // A folder that isn't there is a mistake, and not one without files.
        std::fs::read_dir(folder).map_err(|source| ExtrasError::Read { path: folder.to_owned(), source })?;
        let read = |name: &str| -> Result<Option<Option<String>>, EngineError> {
            let path = folder.join(name);
            Ok(Some(if path.exists() { Some(read_text(&path)?) } else { None }))
        };
        let [blocklist, popular] = [read(BLOCKLIST_FILE)?, read(POPULAR_SOURCE)?];
        Ok(Self { blocklist, popular, typing: read(TYPING_FILE)?, template: read(TEMPLATE_FILE)? })
    }
}

impl Extras {
    /// These with a change. All of it is read before any of it holds.
    fn with(&self, change: &ExtrasChange) -> Result<Self, EngineError> {
        let mut new = self.clone();
        if let Some(text) = &change.blocklist {
            let parse = |text: &String| parse_blocklist(Path::new(BLOCKLIST_FILE), text);
            new.blocklist = text.as_ref().map(parse).transpose()?;
        }
        if let Some(text) = &change.popular {
            let parse = |text: &String| popular::parse(Path::new(POPULAR_SOURCE), text).map(Arc::new);
            new.popular = text.as_ref().map(parse).transpose()?;
        }
        if let Some(json) = &change.typing {
            let parse = |json: &String| parse_channel(Path::new(TYPING_FILE), json);
            new.channel = json.as_ref().map(parse).transpose()?;
        }
        if let Some(text) = &change.template {
            let parse = |text: &String| parse_template(Path::new(TEMPLATE_FILE), text).map(Arc::new);
            new.template = text.as_ref().map(parse).transpose()?;
        }
        new.since = Some(SystemTime::now());
        Ok(new)
    }

    /// The model as its bundle has it, with these in the place of its own.
    ///
    /// # Errors
    /// The model has no room for the template.
    fn over(&self, own: &Model) -> Result<Model, EngineError> {
        let mut text = own.text.as_ref().clone();
        if let Some(blocklist) = &self.blocklist {
            text = text.with_blocklist(Some(Arc::clone(blocklist)));
        }
        if let Some(channel) = &self.channel {
            text = text.with_channel(channel.clone());
        }
        let popular = self.popular.as_ref().or(own.popular.as_ref()).map(Arc::clone);
        let (text, template, options) = (Arc::new(text), own.template.clone(), own.options.clone());
        let model = Model { text, popular, template, options, ..*own };
        match &self.template {
            Some(template) => model.with_template(Arc::clone(template)).map_err(EngineError::Template),
            None => Ok(model),
        }
    }
}

impl Engine {
    /// Changes what holds in place of the bundle's own, for all requests from now on.
    ///
    /// # Errors
    /// What is wrong with a text, and in which line. Then nothing has changed.
    pub fn change_extras(&self, change: &ExtrasChange) -> Result<(), EngineError> {
        let mut extras = self.extras.lock().unwrap_or_else(PoisonError::into_inner);
        let new = extras.with(change)?;
        self.set_model(new.over(&self.own)?);
        *extras = new;
        Ok(())
    }

    /// When the extras were last changed; `None` while the bundle's own hold.
    pub fn extras_since(&self) -> Option<SystemTime> {
        self.extras.lock().unwrap_or_else(PoisonError::into_inner).since
    }

    /// Takes over what was changed on an older version while this one took its place.
    pub fn catch_up(&self, old: &Self) {
        if old.extras_since() > self.extras_since()
            && let Err(error) = self.inherit_extras(old)
        {
            tracing::error!(%error, "the new version has not the extras that came while it was loaded");
        }
    }

    /// Takes over what was put in place of an older version's own.
    ///
    /// # Errors
    /// This version has no room for the template.
    pub(super) fn inherit_extras(&self, old: &Self) -> Result<(), EngineError> {
        let inherited = old.extras.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.set_model(inherited.over(&self.own)?);
        *self.extras.lock().unwrap_or_else(PoisonError::into_inner) = inherited;
        Ok(())
    }

    /// What requests are checked against now.
    pub(super) fn model(&self) -> Arc<Model> {
        Arc::clone(&self.model.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_model(&self, model: Model) {
        *self.model.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(model);
    }
}
