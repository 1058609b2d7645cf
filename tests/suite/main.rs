//! The integration tests, one binary. They need ONNX Runtime beside the test binary (`tools/setup.sh` puts it there) and nothing
//! else: no network, no fixed port, no sleep.

#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod cli;
mod cuda;
mod dashboard;
mod demo;
mod encoder_decoder;
mod engine;
mod fuzz;
mod goldens;
mod http;
mod http_batch;
mod http_client;
mod http_models;
mod http_openai;
mod http_page;
mod http_schemas;
mod kill;
#[cfg(feature = "tensorrt")]
mod on_gpu;
mod parity;
mod plans;
mod quality;
mod replay;
mod simulator;
mod stop;
mod support;
#[cfg(feature = "tensorrt")]
mod tensorrt;
#[cfg(feature = "tensorrt")]
mod tensorrt_refusals;
#[cfg(feature = "tensorrt")]
mod tensorrt_sources;
mod tuning;
