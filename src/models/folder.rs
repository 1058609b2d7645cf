//! The folder that `--model` names: a bundle, a Hugging Face checkpoint, or a folder with one of them in it. A
//! checkpoint is built into a cache on first use.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bundle::extras::{BLOCKLIST_FILE, POPULAR_SOURCE, TEMPLATE_FILE, TYPING_FILE};
use bundle::manifest::{Manifest, ManifestError};
use bundle::{Dtype, Operators, Quantization, is_bundle, is_checkpoint};
use engine_build::{BuildError, BuildOptions, Progress};

use crate::quality::{self, Gate};

/// The content of a model folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelFolder {
    /// A bundle, ready to load.
    Bundle(PathBuf),
    /// A checkpoint, to be built.
    Checkpoint(PathBuf),
}

/// How checkpoints are built on first use. The bundle's own manifest says it for bundles.
#[derive(Clone, Debug)]
pub struct IntakeOptions {
    /// The folder in which built bundles are kept.
    pub cache: PathBuf,
    /// Positions of a lane; the builder's default if absent.
    pub context: Option<u32>,
    /// Whether the graph is for a GPU: in f16, of ONNX's operators only.
    pub for_gpu: bool,
    /// The graph's operators; the builder's default if absent.
    pub operators: Option<Operators>,
    /// How the graph's matrices are stored.
    pub quantization: Quantization,
    /// How a quantized bundle is compared with the model.
    pub gate: Gate,
}

impl IntakeOptions {
    /// The defaults, with bundles kept in a folder.
    pub fn new(cache: PathBuf) -> Self {
        Self {
            cache,
            context: None,
            for_gpu: false,
            operators: None,
            quantization: Quantization::None,
            gate: Gate::default(),
        }
    }
}

/// Why there is no bundle.
#[derive(Debug, thiserror::Error)]
pub enum IntakeError {
    /// The folder doesn't exist.
    #[error(
        "there is no folder {}; --model names a bundle made by `foretype build`, a Hugging Face checkpoint folder, or \
         a model elsewhere, such as ORG/NAME of the Hugging Face Hub",
        .0.display()
    )]
    NoFolder(PathBuf),
    /// The folder holds neither a bundle nor a checkpoint.
    #[error(
        "{} holds neither a foretype bundle (manifest.json) nor a Hugging Face checkpoint (config.json), and no folder \
         in it does; found: {found}",
        path.display()
    )]
    Neither {
        /// The folder.
        path: PathBuf,
        /// What the folder holds instead.
        found: String,
    },
    /// The bundle is damaged or of another version.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The checkpoint can't be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The model lies elsewhere, and can't be downloaded.
    #[cfg(feature = "remote")]
    #[error(transparent)]
    Source(#[from] sources::SourceError),
    /// The text may name a folder or a model of the Hub, and is neither.
    #[cfg(feature = "remote")]
    #[error("{error}. There is no folder {id} on this machine either")]
    NeitherFolderNorHub {
        /// The name of both.
        id: String,
        /// What the Hub says.
        error: sources::SourceError,
    },
    /// The text may name a model elsewhere, and this build has no downloads.
    #[cfg(not(feature = "remote"))]
    #[error(
        "there is no folder {0}, and this build can't download models: name a folder, or build foretype with the \
         feature `remote`, which is on by default"
    )]
    NoDownloads(String),
    /// The cache can't be written.
    #[error("the cache folder {} can't be written: {source}; name another one with --cache", path.display())]
    Cache {
        /// The cache folder.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
}

/// Says what a folder is, without reading more than its listing.
///
/// # Errors
/// [`IntakeError::NoFolder`] or [`IntakeError::Neither`].
pub fn identify(folder: &Path) -> Result<ModelFolder, IntakeError> {
    if !folder.is_dir() {
        return Err(IntakeError::NoFolder(folder.to_owned()));
    }
    let source = |path: &Path| match () {
        () if is_bundle(path) => Some(ModelFolder::Bundle(path.to_owned())),
        () if is_checkpoint(path) => Some(ModelFolder::Checkpoint(path.to_owned())),
        () => None,
    };
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    entries.sort();
    // An archive of a folder unpacks to that folder: look one down.
    source(folder).or_else(|| entries.iter().find_map(|entry| source(entry))).ok_or_else(|| {
        let names: Vec<_> =
            entries.iter().filter_map(|e| Some(e.file_name()?.to_string_lossy().into_owned())).collect();
        let found = if names.is_empty() { "nothing".into() } else { names.join(", ") };
        IntakeError::Neither { path: folder.to_owned(), found }
    })
}

/// The bundle of a source: itself, or built into the cache.
///
/// # Errors
/// See [`IntakeError`].
pub fn open(
    source: &ModelFolder,
    options: &IntakeOptions,
    progress: &dyn Progress,
) -> Result<(PathBuf, Manifest), IntakeError> {
    match source {
        ModelFolder::Bundle(path) => load(path),
        ModelFolder::Checkpoint(path) => {
            let built = options.cache.join(cache_name(path, options)?);
            match cached(&built) {
                Some(found) => Ok(found),
                None => build(path, &built, options, progress),
            }
        }
    }
}

/// The bundle in the cache, if it is there and as it was built.
fn cached(built: &Path) -> Option<(PathBuf, Manifest)> {
    if !is_bundle(built) {
        return None;
    }
    let warn = |error: &IntakeError| tracing::warn!(%error, "the bundle in the cache is damaged and is built again");
    load(built).inspect_err(warn).ok()
}

/// Held while a bundle is built into the cache: whoever waits for the same one finds it then.
static BUILDING: Mutex<()> = Mutex::new(());

/// Builds a checkpoint into the cache.
fn build(
    checkpoint: &Path,
    built: &Path,
    options: &IntakeOptions,
    progress: &dyn Progress,
) -> Result<(PathBuf, Manifest), IntakeError> {
    let _alone = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = cached(built) {
        return Ok(found);
    }
    let cache = |source| IntakeError::Cache { path: options.cache.clone(), source };
    std::fs::create_dir_all(&options.cache).map_err(cache)?;
    if built.exists() {
        // A damaged bundle may lack what tells the builder that it is one.
        std::fs::remove_dir_all(built).map_err(cache)?;
    }
    tracing::info!(checkpoint = %checkpoint.display(), bundle = %built.display(), "building the bundle");
    let manifest = quality::build(&build_options(checkpoint, built.to_owned(), options), &options.gate, progress)?;
    if let Some(measured) = &manifest.quality {
        tracing::info!("{}", quality::describe(measured));
    }
    load(built)
}

/// The options with which a checkpoint is built on its first use.
fn build_options(checkpoint: &Path, out: PathBuf, options: &IntakeOptions) -> BuildOptions {
    let mut build = BuildOptions::new(checkpoint, out);
    build.name = Some(model_name(checkpoint));
    build.context = options.context;
    build.dtype = if options.for_gpu { Dtype::F16 } else { Dtype::F32 };
    build.operators = options.operators;
    build.quantization = options.quantization;
    let beside = |name: &str| Some(checkpoint.join(name)).filter(|file| file.exists());
    build.template = beside(TEMPLATE_FILE);
    build.blocklist = beside(BLOCKLIST_FILE);
    build.popular = beside(POPULAR_SOURCE);
    build.typing = beside(TYPING_FILE);
    build
}

/// Reads a manifest, and every byte of the files that it lists: a disk, or whoever copied them, may have changed one.
/// That also reads the files into the page cache, where the engine finds them.
fn load(bundle: &Path) -> Result<(PathBuf, Manifest), IntakeError> {
    let manifest = Manifest::load(bundle)?;
    manifest.verify_checksums(bundle)?;
    Ok((bundle.to_owned(), manifest))
}

/// The checkpoint folder's own name; for a snapshot in the layout of the Hub's cache, the model's.
pub fn model_name(checkpoint: &Path) -> String {
    let path = checkpoint.canonicalize().unwrap_or_else(|_| checkpoint.to_owned());
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    snapshot_name(&path).or_else(|| name(&path)).unwrap_or_else(|| "model".into())
}

/// `NAME` of `models--ORG--NAME/snapshots/REVISION`.
fn snapshot_name(path: &Path) -> Option<String> {
    let snapshots = path.parent().filter(|folder| folder.ends_with("snapshots"))?;
    let full = snapshots.parent()?.file_name()?.to_str()?.strip_prefix("models--")?;
    let name = full.split_once("--").map_or(full, |(_, name)| name);
    (!name.is_empty()).then(|| name.to_owned())
}

/// A name that changes with the checkpoint's files, the options and this program's version.
fn cache_name(checkpoint: &Path, options: &IntakeOptions) -> Result<String, BuildError> {
    let build = build_options(checkpoint, PathBuf::new(), options);
    let operators = build.operators()?;
    // Every field, by name: a new one doesn't compile until it is thought of here. The files are among the
    // checkpoint's.
    let BuildOptions {
        checkpoint: _,
        adapter: _,
        out: _,
        name,
        context,
        top_k,
        dtype,
        operators: _,
        quantization,
        block,
        f32_attention,
        template: _,
        blocklist: _,
        popular: _,
        typing: _,
        typing_pairs: _,
    } = build;
    let mut hasher = DefaultHasher::new();
    (env!("CARGO_PKG_VERSION"), bundle::manifest::FORMAT).hash(&mut hasher);
    (name, context, top_k, dtype, operators, quantization, block, f32_attention).hash(&mut hasher);
    checkpoint.canonicalize().unwrap_or_else(|_| checkpoint.to_owned()).hash(&mut hasher);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(checkpoint).into_iter().flatten().flatten().map(|e| e.path()).collect();
    files.sort();
    for file in files.iter().filter(|file| file.is_file()) {
        let about = std::fs::metadata(file).ok();
        (file.file_name(), about.as_ref().map(std::fs::Metadata::len), about.and_then(|a| a.modified().ok()))
            .hash(&mut hasher);
    }
    Ok(format!("{}-{:016x}", model_name(checkpoint), hasher.finish()))
}

/// The cache folder for people who name none: the desktop convention's, or a temporary one.
pub fn default_cache() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    base.unwrap_or_else(std::env::temp_dir).join("foretype")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_identified_one_level_down_and_misses_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let missing = identify(&folder.path().join("x")).unwrap_err().to_string();
        assert!(missing.contains("there is no folder"), "{missing}");
        let empty = identify(folder.path()).unwrap_err().to_string();
        assert!(empty.contains("found: nothing"), "{empty}");
        std::fs::write(folder.path().join("weights.bin"), "").unwrap();
        let neither = identify(folder.path()).unwrap_err().to_string();
        assert!(neither.contains("found: weights.bin"), "{neither}");
        let inner = folder.path().join("model");
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(inner.join("config.json"), "{}").unwrap();
        assert_eq!(identify(folder.path()).unwrap(), ModelFolder::Checkpoint(inner.clone()));
        let options = IntakeOptions::new(folder.path().into());
        let before = cache_name(&inner, &options).unwrap();
        assert_eq!(before, cache_name(&inner, &options).unwrap());
        std::fs::write(inner.join("config.json"), "{ }").unwrap();
        assert_ne!(before, cache_name(&inner, &options).unwrap());
    }

    #[test]
    fn a_snapshot_of_the_hub_has_the_models_name() {
        for (path, name) in [
            ("/hub/models--org--tiny/snapshots/abc", "tiny"),
            ("/hub/models--org--a--b/snapshots/abc", "a--b"),
            ("/hub/models--gpt2/snapshots/abc", "gpt2"),
            ("/hub/models--org--/snapshots/abc", "abc"),
            ("/models/snapshots/abc", "abc"),
            ("/models--org--tiny/abc", "abc"),
            ("/", "model"),
        ] {
            assert_eq!(model_name(Path::new(path)), name, "{path}");
        }
    }

    #[test]
    fn every_option_has_a_bundle_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let plain = IntakeOptions::new("cache".into());
        let options = [
            plain.clone(),
            IntakeOptions { context: Some(7), ..plain.clone() },
            IntakeOptions { for_gpu: true, ..plain.clone() },
            IntakeOptions { quantization: Quantization::Int8, ..plain.clone() },
            IntakeOptions { operators: Some(Operators::Onnx), ..plain.clone() },
            IntakeOptions { operators: Some(Operators::Foretype), ..plain.clone() },
        ];
        let names: std::collections::HashSet<_> =
            options.iter().map(|options| cache_name(folder.path(), options).unwrap()).collect();
        // One of the operators is the default.
        assert_eq!(names.len(), options.len() - 1);
        let wrong = IntakeOptions { operators: Some(Operators::Onnx), quantization: Quantization::Int8, ..plain };
        assert!(cache_name(folder.path(), &wrong).unwrap_err().to_string().contains("leave out the operators"));
    }
}
