//! Why there is no plan, or none that fits: one sentence with what is needed and what was found.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use bundle::manifest::ManifestError;

/// Why a plan can't be built or used.
#[derive(Debug, Error)]
pub enum PlanError {
    /// The bundle is broken.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// TensorRT is missing, or refused.
    #[error(transparent)]
    TensorRt(#[from] tensorrt::Error),
    /// The graph is in a precision that TensorRT has no use for.
    #[error(
        "the bundle's graph is {0}, and TensorRT plans are built from f16: build the bundle again with --dtype f16"
    )]
    Dtype(String),
    /// The plan of an encoder of a model that has none.
    #[error("the bundle's model reads no source, so there is no encoder to build a plan of")]
    NoEncoder,
    /// The numbers of a profile are out of order.
    #[error("the profiles have a minimum above an optimum, or an optimum above a maximum: each has to be MIN,OPT,MAX")]
    Shapes,
    /// Architectures were named that the library can't build for here.
    #[error("TensorRT builds for the GPU that it runs on, {here}, and not for {asked}: leave out --sm, or build there")]
    OtherGpu {
        /// The architecture of this machine's GPU.
        here: String,
        /// The architectures that were asked for.
        asked: String,
    },
    /// A name that is no GPU's.
    #[error(
        "`{name}` is no instance type with a GPU and no architecture such as 86: name one of {known}, with a size such \
         as xlarge"
    )]
    Target {
        /// The name.
        name: String,
        /// The families that there are.
        known: String,
    },
    /// A GPU that no plan can be built for.
    #[error("{name} has a {gpu} of {sm}, and TensorRT needs SM75 or later: choose a newer GPU, or a CPU")]
    OldGpu {
        /// The instance type or architecture that was named.
        name: String,
        /// The GPU's name.
        gpu: &'static str,
        /// The GPU's architecture.
        sm: String,
    },
    /// A model that is known to crash the builder.
    #[error(
        "TensorRT-RTX crashes on models whose hidden size is below 32, and this one's is {0}: run it with ONNX Runtime"
    )]
    TooSmall(u32),
    /// A model with products that TensorRT-RTX can't compute on a GPU.
    #[error(
        "TensorRT-RTX multiplies no f32 matrices on SM75, and an encoder-decoder has some even in f16, because their \
         products are beyond it: leave out 75, or run it with ONNX Runtime"
    )]
    F32OnTuring,
    /// Weights of a type that the GPU lacks.
    #[error("TensorRT-RTX has no int4 on SM75: leave out 75, or build the bundle with int8")]
    Int4OnTuring,
    /// TensorRT read the graph otherwise than it is meant.
    #[error("TensorRT misread the graph: {0}; this is a defect of the graph's builder, please report it")]
    Misread(String),
    /// The caller cancelled the build.
    #[error("the build was cancelled: start it again for a plan")]
    Cancelled,
    /// A plan, or the folder of plans, can't be read or written.
    #[error("cannot read or write {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A record is broken.
    #[error("{} is no record of a plan: {reason}; build the plan again", path.display())]
    Record {
        /// The record.
        path: PathBuf,
        /// The error in the record.
        reason: String,
    },
    /// A plan does not fit.
    #[error("{} {misfit}: build it again here", path.display())]
    Misfit {
        /// The plan.
        path: PathBuf,
        /// Why the plan does not fit.
        misfit: Misfit,
    },
    /// There is none at all.
    #[error("there is no {plan} in {}, and this machine needs one by {builder} for {gpu}: build it", engines.display())]
    None {
        /// The plan that is missing.
        plan: &'static str,
        /// The folder of plans.
        engines: PathBuf,
        /// The flavour and version of this machine's library.
        builder: String,
        /// The architecture of this machine's GPU.
        gpu: String,
    },
}

/// A property of a plan that differs from what is needed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Misfit {
    /// The plan was built by another version of the library.
    #[error("was built by {built_by}, and this machine has {here}")]
    Builder {
        /// The library that built the plan.
        built_by: String,
        /// The library of this machine.
        here: String,
    },
    /// The plan was built for another GPU.
    #[error("is for {built_for}, and this machine's GPU is {here}")]
    Gpu {
        /// The architectures that the plan was built for.
        built_for: String,
        /// The architecture of this machine's GPU.
        here: String,
    },
    /// The plan's profiles are too small for the steps that are asked for.
    #[error("takes up to {has_lanes} rows of {has_chunk} tokens, and {lanes} of {chunk} are asked for")]
    Shapes {
        /// Most rows of the plan.
        has_lanes: u32,
        /// The plan's tokens per row.
        has_chunk: u32,
        /// Rows that were asked for.
        lanes: u32,
        /// Tokens per row asked for.
        chunk: u32,
    },
    /// The plan takes sources of another length.
    #[error("reads sources of up to {has} tokens, and the model's have up to {model}")]
    Source {
        /// The plan's longest.
        has: u32,
        /// The model's value.
        model: u32,
    },
    /// Another model, or the same one built otherwise.
    #[error("was built from {file} with the SHA-256 {built_from}, and the bundle's has {here}")]
    Graph {
        /// The file.
        file: String,
        /// The file's checksum when the plan was built.
        built_from: String,
        /// The file's checksum now.
        here: String,
    },
    /// Cut off, or written over.
    #[error("has {found} bytes, and its record says {expected}")]
    Size {
        /// Size of the plan's file, in bytes.
        found: u64,
        /// Size in the plan's record, in bytes.
        expected: u64,
    },
    /// The plan's file differs from its record.
    #[error("has the SHA-256 {found}, and its record says {expected}")]
    Checksum {
        /// Checksum of the plan's file.
        found: String,
        /// Checksum in the plan's record.
        expected: String,
    },
}
