//! foretype completes search queries as people type them, with a GPT-style language model.
//!
//! # The way of a request
//!
//! ```text
//! http      routes, wire types, errors                          async, knows no tensors
//!  engine   one loaded model: checks a request, makes its task
//!   text      tokenizer, half-typed tokens                      pure
//!   complete  the tasks: search and sampling, state machines    pure
//!   schedule  tree, lanes, plan, scheduler, who waits           pure
//!             pool, worker: queue, deadlines, who went away     one OS thread owns each engine
//!             parked: searches that the tree has all of         on the HTTP thread, while that one waits
//!    model    the `Backend` trait; ONNX Runtime, a fake         knows no HTTP
//! ```
//!
//! In a model with an encoder, the scheduler has the encoder read a request's source into a slot before its first row; rows name the slot.
//!
//! An HTTP handler turns the body into an [`engine::Completion`] or an [`engine::Generation`]; the [`engine::Engine`] checks it,
//! makes a [`complete::Task`] and queues it; a model thread steps all tasks together, each asking for next-token distributions
//! until it is done; the answer goes back through a oneshot channel, and its parts, if someone wants them early, through another.
//! A search that an idle engine's tree has all of is done before it would be queued, on the HTTP thread: that wakes nobody.
//!
//! Beside that path: [`metrics`] is everything that is counted, [`models`] is what a server holds, [`bundle`] finds or builds what
//! `--model` names, [`error`] is what clients get to see, [`cli`] the commands, [`popular`] the most frequent queries, [`evaluate`]
//! types queries at a model and measures, [`quality`] compares an int8 model with the f32 one when it is built,
//! [`local_endpoint`] stands in for SageMaker.
//! The bundle's format and its builder are the crate `engine-build`; the arithmetic of a step on a CPU is the crate `kernels`.
//!
//! # Invariants
//!
//! * `text`, `complete` and what `schedule` calls pure have no async, threads, clocks or I/O.
//! * Only its model thread computes with a [`model::Backend`]. While that thread waits, one that brings a search may use its loop and
//!   the tree, never the engine.
//! * Every queue is bounded, and a full one is an ordinary error.
//! * What the tree holds, and what shares a forward, never changes an answer, only its price.
//! * Every request that was accepted is answered, whatever becomes of the engine.
//! * `unsafe` is where memory meets native code: `model/onnxruntime/raw.rs` and `operators/context.rs` beside it, and where devices
//!   are driven: `model/cuda`, `model/tensorrt` and `model/onnxruntime/cuda.rs`.
//!
//! # Deliberately absent
//!
//! Python, a database, distributed state: more traffic than one instance holds is for the platform to spread.

pub mod cli;
pub mod engine;
pub mod error;
#[cfg(feature = "workbench")]
pub mod evaluate;
pub mod http;
#[cfg(feature = "workbench")]
pub mod local_endpoint;
pub mod metrics;
pub mod models;
pub mod popular;
pub mod quality;
