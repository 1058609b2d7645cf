//! TensorRT and TensorRT-RTX as safe types, from libraries that are loaded at run time.
//!
//! ```text
//! Library           dlopen, version check; one for each flavour
//!  Builder           on one thread: Network (Parser), BuilderConfig (OptimizationProfile, Progress) -> HostMemory
//!  Runtime           Send + Sync
//!   Engine           Send + Sync: tensors, profiles
//!    Context         Send: shapes, addresses, enqueue
//!    RuntimeCache    TensorRT-RTX's compiled kernels
//! ```
//!
//! Below them is `shim/`: C++ that forwards to TensorRT's classes and is compiled once for each flavour (`build.rs`),
//! and `sys`, its table of functions as bindgen reads it.
//!
//! # Invariants
//!
//! * Every object holds its parent, so the order in which Rust drops them doesn't matter; libraries are never unloaded.
//! * A call that fails returns what TensorRT logged about it. The log itself goes to `tracing`, target `tensorrt`.
//! * No exception and no panic crosses the shim.
//! * The binary has no undefined symbol of TensorRT or CUDA: it starts where neither is installed.
//! * Device memory and streams are the caller's; calls that rely on them are `unsafe` and say on what.
//!
//! # Deliberately absent
//!
//! Layers added one by one, plugins, calibration, weak typing, refitting, weight streaming, DLA: networks come from
//! ONNX files. CUDA: the caller that runs engines provides streams and memory.
//!
//! # Example
//!
//! ```no_run
//! use tensorrt::{Builder, Flavour, Library, OptimizationProfile, Parser, ShapeRange, TensorName};
//!
//! # fn main() -> Result<(), tensorrt::Error> {
//! let library = Library::open(Flavour::Rtx, None)?;
//! let builder = Builder::new(&library)?;
//! let mut network = builder.network()?;
//! Parser::new(&mut network)?.parse_file("model.onnx".as_ref())?;
//! network.set_decomposable()?;
//! let mut profile = OptimizationProfile::new();
//! profile.set(TensorName::new("input_ids")?, ShapeRange::new(&[1, 1], &[1, 16], &[10, 42])?);
//! let mut config = builder.config()?;
//! config.add_profile(&profile)?;
//! let plan = builder.build(&mut network, &mut config)?;
//! std::fs::write("model.plan", &*plan).expect("written");
//! # Ok(())
//! # }
//! ```

mod builder;
mod cache;
mod context;
mod device;
mod engine;
mod error;
mod library;
mod logger;
mod network;
mod parser;
mod profile;
mod runtime;
mod sys;
mod types;

pub use builder::{Builder, BuilderConfig, HostMemory, Progress};
pub use cache::RuntimeCache;
pub use context::{Context, DevicePtr, Stream};
pub use device::{Gpu, gpu};
pub use engine::{ContextOptions, Engine, IoTensor, ScratchMemory, Specialization};
pub use error::{Error, LoadError};
pub use library::Library;
pub use network::{Layer, LayerKind, Network, TensorInfo};
pub use parser::Parser;
pub use profile::{OptimizationProfile, Selector, ShapeRange};
pub use runtime::{Invalidity, Runtime, Validity};
pub use types::{DataType, Flavour, Severity, Shape, Sm, TensorName, Version};
