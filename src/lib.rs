//! foretype completes search queries as people type them, with a GPT-style language model.
//!
//! # The way of a request
//!
//! ```text
//! http      routes, wire types, errors                          async, knows no tensors
//!  engine   one loaded model: checks a request, makes its search
//!   text      tokenizer, half-typed tokens                      pure
//!   complete  the search, a state machine                       pure
//!   schedule  tree, lanes, plan, scheduler                      pure
//!             thread: queue, deadlines, clients that went       one OS thread owns the engine
//!    model    the `Backend` trait; ONNX Runtime, a fake         knows no HTTP
//! ```
//!
//! An HTTP handler turns the body into an [`engine::Completion`]; [`engine::Engine::complete`] checks it, makes a
//! [`complete::Search`] and queues it; the model thread steps all searches together, each asking for next-token distributions
//! until it is done; the answer goes back through a oneshot channel.
//!
//! Beside that path: [`models`] is what a server holds, [`bundle`] finds or builds what `--model` names, [`error`] is what clients get to see, [`cli`] the commands,
//! [`popular`] the most frequent queries, [`evaluate`] types queries at a model and measures, [`local_endpoint`] stands in for
//! SageMaker.
//! The bundle's format and its builder are the crate `engine-build`.
//!
//! # Invariants
//!
//! * `text`, `complete` and everything in `schedule` but `thread` and `calibrate` have no async, threads, clocks or I/O.
//! * Only the model thread touches a [`model::Backend`]; there is no lock around it.
//! * Every queue is bounded, and a full one is an ordinary error.
//! * What the tree holds never changes an answer, only its price.
//! * `unsafe` is in one place: `model/onnxruntime/raw.rs`.
//!
//! # Deliberately absent
//!
//! Python, a database, distributed state: more traffic than one instance holds is for the platform to spread.

pub mod bundle;
pub mod cli;
pub mod complete;
pub mod engine;
pub mod error;
pub mod evaluate;
pub mod http;
pub mod local_endpoint;
pub mod metrics;
pub mod model;
pub mod models;
pub mod popular;
pub mod schedule;
pub mod text;
