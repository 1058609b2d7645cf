//! `manifest.json`: the description of a bundle, for the server that loads it.
//!
//! The manifest has no absolute path and nothing about the machine that built the bundle. Engines for a particular GPU
//! that are added to the folder later are not listed: they carry their own versions.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::limits::{self, MAX_MANIFEST_BYTES};

/// The manifest's file name.
pub const FILE: &str = "manifest.json";
/// The graph's file name.
pub const GRAPH_FILE: &str = "model.onnx";
/// The file name of the graph's external data.
pub const WEIGHTS_FILE: &str = "model.weights";
/// The file name of the encoder's graph, in bundles of encoder-decoders.
pub const ENCODER_FILE: &str = "encoder.onnx";
/// The file name of the encoder graph's external data.
pub const ENCODER_WEIGHTS_FILE: &str = "encoder.weights";
/// The tokenizer's file name.
pub const TOKENIZER_FILE: &str = "tokenizer.json";
/// The format that this version reads and writes.
pub const FORMAT: u32 = 9;
/// Stands for a manifest's own checksum while that is computed.
pub(crate) const NO_CHECKSUM: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Precision of a graph's matrices, attention and KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// Everything in 32 bits: for CPUs.
    #[default]
    F32,
    /// Matrices, attention and KV cache in 16 bits; residual stream, LayerNorm and logits in 32: for TensorRT.
    F16,
}

/// The operators that a graph is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operators {
    /// ONNX's own: any runtime loads it.
    #[default]
    Onnx,
    /// Fused operators of the domain `foretype` where the graph allows it: foretype's own kernels for CPUs.
    Foretype,
}

/// How a graph's matrices are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Quantization {
    /// In the graph's precision.
    #[default]
    None,
    /// In 8 bits, with a scale for each output.
    Int8,
    /// In 4 bits, with a scale for each output and block of inputs: in ONNX's operators.
    Int4,
}

impl Quantization {
    /// The name, as in a manifest.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }
}

/// A bundle's description.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of this format; see [`FORMAT`].
    pub format: u32,
    /// SHA-256 of the manifest itself, with 64 zeros in its place; see [`seal`].
    pub checksum: String,
    /// The model's name, for people and for requests that name a model.
    pub name: String,
    /// The model's family, as transformers' `model_type`: `gpt2`, `gptj`, `llama` and so on.
    pub family: String,
    /// The program that wrote the bundle, with its version.
    pub tool: String,
    /// Sizes of the graph.
    pub model: ModelInfo,
    /// Ids of special tokens.
    pub tokens: Tokens,
    /// The tokenizer and its kind.
    pub tokenizer: TokenizerInfo,
    /// Every other file of the bundle.
    pub files: Vec<FileEntry>,
    /// The checkpoint that the bundle was made from.
    pub source: SourceInfo,
    /// How near a quantized model is to the one it was made from, where that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<Quality>,
}

/// Sizes of the graph, which are also those of its inputs and outputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelInfo {
    /// Layers; the graph has a pair of KV caches for each.
    pub layers: u32,
    /// Attention heads: of queries.
    pub heads: u32,
    /// Heads of keys and values, and so of a KV cache. Each serves `heads / kv_heads` heads of queries.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Size of the hidden state.
    pub hidden: u32,
    /// Positions of a KV cache: the longest sequence, static in the graph.
    pub context: u32,
    /// Positions that the model was made for; `context` is at most this.
    pub positions: u32,
    /// Token ids are below this.
    pub vocab: u32,
    /// Width of `logits`: `vocab` rounded up to a multiple of 8. Ids from `vocab` on have the logit -1e30.
    pub vocab_padded: u32,
    /// Width of `topv` and `topi`.
    pub top_k: u32,
    /// Precision of the graph.
    pub dtype: Dtype,
    /// Operators of the graph.
    #[serde(default)]
    pub operators: Operators,
    /// How the graph's matrices are stored.
    #[serde(default)]
    pub quantization: Quantization,
    /// Tokens of a source, in models that read one with an encoder and answer it; all other sizes are then the
    /// decoder's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<u32>,
}

/// The fewest positions that attention reads in a graph that reads a part of its KV cache.
const LEAST_ATTENDED: u32 = 64;

/// The numbers of positions that attention reads, in a graph that reads a part of a cache of `context` positions: few,
/// because an engine on a GPU prepares each of them. A graph reads the whole cache where there is one number.
pub fn attended_lengths(context: u32) -> impl Iterator<Item = u32> {
    let shorter = std::iter::successors(Some(LEAST_ATTENDED), |length| length.checked_mul(4));
    shorter.take_while(move |length| *length < context / 2).chain([context])
}

/// Special tokens, as ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tokens {
    /// Id of the token that begins every sequence.
    pub start: u32,
    /// Ids of the tokens that end a text; may be empty.
    pub end_of_text: Vec<u32>,
}

/// The tokenizer's file and what kind it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerInfo {
    /// File name in the bundle.
    pub file: String,
    /// Whether completion can rely on GPT-2's rules.
    pub kind: TokenizerKind,
    /// Why the kind is [`TokenizerKind::Other`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The pre-tokenizer puts a space before a text that does not begin with one.
    pub add_prefix_space: bool,
}

/// Kinds of tokenizers that matter to completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerKind {
    /// GPT-2's: BPE over bytes, split by GPT-2's pattern, no normalization, nothing random.
    ByteLevelBpe,
    /// Any other tokenizer.
    Other,
}

/// A file of the bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Path inside the bundle.
    pub path: String,
    /// Size of the file, in bytes.
    pub bytes: u64,
    /// SHA-256, as 64 lowercase hexadecimal digits.
    pub sha256: String,
}

/// The checkpoint that the bundle was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceInfo {
    /// Weights of the model, a tied head counted once.
    pub parameters: u64,
    /// Type of the checkpoint's matrices: `F32`, `F16` or `BF16`.
    pub dtype: String,
}

/// A quantized model's next-token distributions against those of the model in f32, over texts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quality {
    /// Number of texts compared.
    pub texts: u64,
    /// Distributions that were compared: one for each token, and one behind each text.
    pub positions: u64,
    /// Share of positions at which both put the same token first.
    pub top1_agreement: f64,
    /// Mean Kullback-Leibler divergence from the f32 model, in nats per position.
    pub kl_nats: f64,
    /// Perplexity of the texts' tokens.
    pub perplexity: f64,
    /// The f32 model's perplexity of the same tokens.
    pub reference_perplexity: f64,
}

/// Why a bundle cannot be used.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// The manifest, or a file it lists, cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The manifest is not what this version writes.
    #[error("{path} is not a manifest that this version reads: {source}; build the bundle again")]
    Json {
        /// The manifest.
        path: PathBuf,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// Another format version.
    #[error("the bundle has format {found}, and this version reads format {FORMAT}: build the bundle again")]
    Format {
        /// The format that the manifest names.
        found: u64,
    },
    /// The manifest's sizes contradict each other.
    #[error("the manifest contradicts itself: {0}; build the bundle again")]
    Inconsistent(&'static str),
    /// Weights that are a link.
    #[error("{0} is a link, which ONNX Runtime doesn't follow: put the file itself there, as `cp -L` does")]
    Link(PathBuf),
    /// The manifest was changed.
    #[error("{0} is not the manifest that was built (its SHA-256 differs): copy the bundle again, or build it again")]
    Changed(PathBuf),
    /// A number that no bundle of this version has.
    #[error("the manifest's `{field}` is {found}; it must be from {least} to {most}: build the bundle again")]
    Limit {
        /// The field, or the list whose length is meant.
        field: &'static str,
        /// The number.
        found: u64,
        /// The least that is allowed.
        least: u64,
        /// The most that is allowed.
        most: u64,
    },
    /// Sizes for which the weights are too small.
    #[error(
        "{WEIGHTS_FILE} has {found} bytes, but the manifest's sizes need at least {needed}: build the bundle again"
    )]
    Weights {
        /// Bytes of the file.
        found: u64,
        /// Bytes that the sizes need.
        needed: u128,
    },
    /// A listed file outside the bundle.
    #[error("the manifest lists `{0}`, which lies outside the bundle")]
    Path(String),
    /// A file of another size.
    #[error("{path} has {found} bytes, but the manifest says {expected}: copy the bundle again, or build it again")]
    Size {
        /// The file.
        path: PathBuf,
        /// Size of the file that was found, in bytes.
        found: u64,
        /// The manifest's size.
        expected: u64,
    },
    /// A file of other content.
    #[error("{0} is not the file that was built (its SHA-256 differs): copy the bundle again, or build it again")]
    Checksum(PathBuf),
}

impl Manifest {
    /// Reads and checks the manifest of a bundle; of the other files nothing is read.
    pub fn load(bundle_dir: &Path) -> Result<Self, ManifestError> {
        let path = bundle_dir.join(FILE);
        let mut bytes = Vec::new();
        // One byte more than allowed tells a file that is too large.
        let read = File::open(&path).and_then(|file| file.take(MAX_MANIFEST_BYTES + 1).read_to_end(&mut bytes));
        read.map_err(|source| ManifestError::Io { path: path.clone(), source })?;
        Self::parse(&path, &bytes)
    }

    /// Reads and checks a manifest's bytes; `path` is for errors.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self, ManifestError> {
        #[derive(Deserialize)]
        struct Versioned {
            format: u64,
        }
        if bytes.len() as u64 > MAX_MANIFEST_BYTES {
            let (found, most) = (bytes.len() as u64, MAX_MANIFEST_BYTES);
            return Err(ManifestError::Limit { field: "size in bytes", found, least: 1, most });
        }
        let json_error = |source| ManifestError::Json { path: path.to_owned(), source };
        // The version first: a later format may have fields that this one would call unknown.
        let Versioned { format } = serde_json::from_slice(bytes).map_err(json_error)?;
        if format != u64::from(FORMAT) {
            return Err(ManifestError::Format { found: format });
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(json_error)?;
        if seal(bytes).is_none_or(|sealed| sealed != bytes) {
            return Err(ManifestError::Changed(path.to_owned()));
        }
        limits::check(&manifest)?;
        Ok(manifest)
    }

    /// Checks that every listed file is there, where it can be read, and has the size it had when it was written.
    pub fn verify(&self, bundle_dir: &Path) -> Result<(), ManifestError> {
        for entry in &self.files {
            let path = bundle_dir.join(&entry.path);
            let failed = |source| ManifestError::Io { path: path.clone(), source };
            let metadata = fs::metadata(&path).map_err(failed)?;
            // ONNX Runtime reads weights only where the graph is.
            let is_weights = [WEIGHTS_FILE, ENCODER_WEIGHTS_FILE].contains(&entry.path.as_str());
            if is_weights && fs::symlink_metadata(&path).map_err(failed)?.is_symlink() {
                return Err(ManifestError::Link(path));
            }
            if metadata.len() != entry.bytes {
                return Err(ManifestError::Size { path, found: metadata.len(), expected: entry.bytes });
            }
        }
        Ok(())
    }

    /// Like [`Manifest::verify`], and reads every file to compare its SHA-256.
    pub fn verify_checksums(&self, bundle_dir: &Path) -> Result<(), ManifestError> {
        self.verify(bundle_dir)?;
        for entry in &self.files {
            let path = bundle_dir.join(&entry.path);
            let found = sha256_of(&path).map_err(|source| ManifestError::Io { path: path.clone(), source })?;
            if found != entry.sha256 {
                return Err(ManifestError::Checksum(path));
            }
        }
        Ok(())
    }

    /// The manifest's text, as it is written, with its checksum, which this gets too.
    ///
    /// # Errors
    /// The serializer's: a number that JSON has no form for.
    pub fn to_json(&mut self) -> Result<Vec<u8>, serde_json::Error> {
        NO_CHECKSUM.clone_into(&mut self.checksum);
        let mut json = serde_json::to_vec_pretty(self)?;
        json.push(b'\n');
        let sealed = seal(&json).unwrap_or(json);
        *self = serde_json::from_slice(&sealed)?;
        Ok(sealed)
    }

    /// The listed file of that name.
    pub fn file(&self, path: &str) -> Option<&FileEntry> {
        self.files.iter().find(|entry| entry.path == path)
    }
}

/// A manifest's text with its checksum put right. `None` if the text has no place for one.
pub fn seal(json: &[u8]) -> Option<Vec<u8>> {
    #[derive(Deserialize)]
    struct Sealed<'a> {
        /// Borrowed, so that its place in the text is known.
        checksum: &'a str,
    }
    let Sealed { checksum } = serde_json::from_slice(json).ok()?;
    if !is_sha256(checksum) {
        return None;
    }
    let at = checksum.as_ptr().addr() - json.as_ptr().addr();
    let place = at..at + checksum.len();
    let mut sealed = json.to_vec();
    sealed[place.clone()].copy_from_slice(NO_CHECKSUM.as_bytes());
    let digest = hexadecimal(&Sha256::digest(&sealed));
    sealed[place].copy_from_slice(digest.as_bytes());
    Some(sealed)
}

/// Whether the folder is a bundle, broken or not: it has a manifest.
pub fn is_bundle(dir: &Path) -> bool {
    dir.join(FILE).is_file()
}

/// Whether the folder is a Hugging Face checkpoint, broken or not: it has a `config.json` and is no bundle.
pub fn is_checkpoint(dir: &Path) -> bool {
    dir.join("config.json").is_file() && !is_bundle(dir)
}

/// Whether a text is a SHA-256 as the manifest writes it.
pub(crate) fn is_sha256(text: &str) -> bool {
    text.len() == NO_CHECKSUM.len() && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// A SHA-256 as the manifest writes it.
pub fn hexadecimal(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sha256_of(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hexadecimal(&hasher.finalize())),
            read => hasher.update(&piece[..read]),
        }
    }
}
