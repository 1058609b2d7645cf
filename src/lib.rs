//! foretype completes search queries as people type them, with a GPT-style language model.
//!
//! # The path of a request
//!
//! ```text
//! http           routes, handlers, wire types, errors                 async, knows no tensors
//!  engine        one loaded model: checks a request, makes its task
//!   scheduler    prefix cache, plan, queue; model threads            a crate; answers don't depend on its state
//!    completion  search and sampling as state machines, tokenizer     a crate; no threads, clocks or I/O
//!    backends    ONNX Runtime, CUDA, TensorRT                         a crate; knows no HTTP
//! ```
//!
//! A handler turns the body into an [`engine::Completion`] or an [`engine::Generation`]. The [`engine::Engine`] checks
//! it, makes a [`completion::Task`] and queues it. A model thread steps all tasks together: each task asks for
//! next-token distributions until it is done. The answer returns through a `oneshot` channel, and its parts, where they
//! are streamed, through a second one. In a model with an encoder, the encoder reads a request's text once, before the
//! first decoder step.
//!
//! Beside that path: [`metrics`] is everything that is counted, [`models`] what a server holds and how `--model`
//! becomes a bundle. [`access`] has the keys that clients need, [`follow`] looks whether files have changed, [`error`]
//! has what clients see, [`cli`] the commands, [`popular`] the most frequent queries and [`query_log`] how they are
//! counted. [`evaluate`] types queries at a model and measures, [`quality`] compares an int8 model with the f32 one,
//! [`local_endpoint`] stands in for SageMaker.
//!
//! # Invariants
//!
//! * Only its model thread computes with a [`scheduler::backend::Backend`].
//! * Every queue is bounded, and a full one is an ordinary error.
//! * The prefix cache and the sharing of steps never change an answer, only its cost.
//! * Every accepted request is answered, also when its engine fails.
//! * Nothing here is `unsafe`: the crates `backends`, `kernels` and `tensorrt-rs` are where memory meets native code.
//!
//! # Deliberately absent
//!
//! Python, a database, distributed state: more traffic than one instance holds is for the platform to spread.

pub mod access;
pub mod cli;
pub mod engine;
pub mod error;
#[cfg(feature = "workbench")]
pub mod evaluate;
pub mod follow;
pub mod http;
#[cfg(feature = "workbench")]
pub mod local_endpoint;
pub mod metrics;
pub mod models;
pub mod popular;
pub mod quality;
pub mod query_log;
