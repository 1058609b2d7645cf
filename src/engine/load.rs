//! Reads the parts of an engine from a bundle.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use backends::onnxruntime::CpuLevel;
use backends::options;
use bundle::Template;
use bundle::extras::{self, BLOCKLIST_FILE, ExtrasError, TEMPLATE_FILE, TYPING_FILE, read_text as read_text_file};
use bundle::manifest::Manifest;
use completion::popular::PopularQueries;
use completion::text::Text;
use completion::text::blocklist::Blocklist;
use completion::typing::channel::Channel;
use scheduler::backend::Limits;
use scheduler::{Loader, PoolError};

use super::estimate;
use super::options::EngineOptions;
use super::tokenizer::{TokenizerError, read_text, template};
use crate::popular::{self, PopularFileError};

/// Why a bundle can't be served.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The tokenizer can't be read.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The popular queries can't be read.
    #[error(transparent)]
    Popular(#[from] PopularFileError),
    /// The blocklist or the template can't be read.
    #[error(transparent)]
    Extras(#[from] ExtrasError),
    /// The blocklist has too many terms.
    #[error("{}: {reason}", path.display())]
    Blocklist {
        /// The file.
        path: PathBuf,
        /// The matcher's words.
        reason: String,
    },
    /// The typing channel can't be read.
    #[error("{}: {reason}", path.display())]
    Typing {
        /// The file.
        path: PathBuf,
        /// What is wrong with the file.
        reason: String,
    },
    /// The template leaves no room for an input, or can't be read by the tokenizer.
    #[error("{TEMPLATE_FILE}: {0}")]
    Template(String),
    /// The caches don't fit into the machine's memory.
    #[error(
        "the model's caches need {needed} MiB, and there are {machine} MiB of memory: lower --lanes, --kv-pool-mib or \
         --replicas, or build the bundle with a smaller --context"
    )]
    Memory {
        /// MiB of all caches.
        needed: u64,
        /// MiB of the machine, or of this process's control group.
        machine: u64,
    },
    /// The model can't be loaded.
    #[error(transparent)]
    Model(#[from] PoolError),
}

/// The parts that an engine is put together from.
pub struct EngineParts {
    /// The model's name.
    pub name: String,
    /// Tokenizer and blocklist.
    pub text: Text,
    /// Popular queries, if the bundle has any.
    pub popular: Option<PopularQueries>,
    /// The text around every input, if the bundle has one. `text` begins with what stands before the input.
    pub template: Option<Template>,
    /// The sizes that the backend was made for.
    pub limits: Limits,
    /// SHA-256 of the bundle's manifest, if there is a bundle.
    pub checksum: Option<String>,
    /// Loads the backend; each model thread calls it.
    pub load: Loader,
    /// The CPU level of its kernels, if foretype's kernels compute it.
    pub cpu_level: Option<CpuLevel>,
}

impl EngineParts {
    /// The parts for backends that come from no bundle: for tests, and for measuring without a real model.
    ///
    /// # Errors
    /// The loader's.
    pub fn new(name: &str, text: Text, load: Loader) -> Result<Self, EngineError> {
        let limits = load(0).map_err(PoolError::from)?.limits().clone();
        Ok(Self {
            name: name.to_owned(),
            text,
            popular: None,
            template: None,
            limits,
            checksum: None,
            load,
            cpu_level: None,
        })
    }

    /// Reads a bundle. No model is loaded yet.
    ///
    /// # Errors
    /// A file can't be used, or the caches don't fit into the machine's memory.
    pub fn read(bundle: &Path, manifest: &Manifest, options: &EngineOptions) -> Result<Self, EngineError> {
        estimate::check(manifest, options)?;
        let text = with_channel(read_text(bundle, manifest)?, bundle)?.with_blocklist(blocklist(bundle)?);
        if let Some(reason) = text.inexact_because().filter(|_| manifest.model.source.is_none()) {
            tracing::warn!(reason, "half-typed tokens are healed, not treated exactly");
        }
        let (folder, owned, backend) = (bundle.to_owned(), manifest.clone(), options.backend.clone());
        let load: Loader = Arc::new(move |replica| options::load(&folder, &owned, &backend.for_replica(replica)));
        let limits = options::limits(manifest, &options.backend);
        let (name, popular, template) = (manifest.name.clone(), popular::open(bundle)?, template(bundle)?);
        let (cpu_level, checksum) = (options.backend.cpu_level(manifest), Some(manifest.checksum.clone()));
        Ok(Self { name, text, popular, template, limits, checksum, load, cpu_level })
    }
}

/// Adds the bundle's typing channel, if there is one.
pub fn with_channel(text: Text, bundle: &Path) -> Result<Text, EngineError> {
    let path = bundle.join(TYPING_FILE);
    if !path.exists() {
        return Ok(text);
    }
    Ok(text.with_channel(parse_channel(&path, &read_text_file(&path)?)?))
}

/// The typing channel of a text such as `typing.json` has; errors name `path`.
pub(super) fn parse_channel(path: &Path, json: &str) -> Result<Channel, EngineError> {
    Channel::from_json(json).map_err(|error| EngineError::Typing { path: path.to_owned(), reason: error.to_string() })
}

/// The bundle's blocklist, if there is one.
fn blocklist(bundle: &Path) -> Result<Option<Arc<Blocklist>>, EngineError> {
    let path = bundle.join(BLOCKLIST_FILE);
    if path.exists() { parse_blocklist(&path, &read_text_file(&path)?).map(Some) } else { Ok(None) }
}

/// The blocklist of a text such as `blocklist.txt` has; errors name `path`.
pub(super) fn parse_blocklist(path: &Path, text: &str) -> Result<Arc<Blocklist>, EngineError> {
    let terms = extras::parse_blocklist(path, text)?;
    let list = Blocklist::new(terms.iter().map(String::as_str));
    list.map(Arc::new).map_err(|error| EngineError::Blocklist { path: path.to_owned(), reason: error.to_string() })
}
