//! The integration tests, one binary. They need ONNX Runtime beside the test binary (`tools/setup.sh` puts it there)
//! and nothing else: no network and no fixed port. Tests wait for conditions, with limits that a busy machine doesn't
//! reach. What needs more is named as skipped (the crate `require`).

#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod access;
mod adapters;
mod cli;
mod clients_page;
mod connections;
mod cuda;
mod cuda_order;
mod dashboard;
mod demo;
mod drain;
mod encoder_decoder;
mod engine;
mod extras;
mod fairness;
mod fuzz;
mod generation;
mod goldens;
mod gpu_graphs;
#[cfg(feature = "tensorrt")]
mod gpu_unused;
#[cfg(feature = "tensorrt")]
mod gpus;
mod http;
mod http_batch;
mod http_bodies;
mod http_client;
mod http_clients;
mod http_models;
mod http_openai;
mod http_page;
mod http_schemas;
mod http_traces;
#[cfg(feature = "remote")]
#[path = "../../crates/sources/tests/standin/server.rs"]
#[expect(dead_code, reason = "the tests beside it need more of it")]
mod hub_standin;
mod keys;
mod kill;
#[cfg(feature = "tensorrt")]
mod on_gpu;
mod onnx_edit;
mod parity;
mod plans;
mod quality;
#[cfg(feature = "remote")]
mod remote;
mod replay;
mod salts;
mod scaling;
mod served_demo;
mod simulator;
mod stop;
mod support;
mod swap;
mod templates;
#[cfg(feature = "tensorrt")]
mod tensorrt;
#[cfg(feature = "tensorrt")]
mod tensorrt_refusals;
#[cfg(feature = "tensorrt")]
mod tensorrt_sources;
#[cfg(feature = "tensorrt")]
mod tensorrt_steps;
mod tokenizers;
mod tuning;
mod versions;
mod warm_start;
mod wrong_bundles;

#[cfg(not(feature = "tensorrt"))]
#[test]
fn tensorrt_is_in_this_build() {
    require::skip("tests of TensorRT", "the suite is built without the feature `tensorrt`; `make test` has it");
}
