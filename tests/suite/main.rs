//! The integration tests, one binary. They need ONNX Runtime beside the test binary (`tools/setup.sh` puts it there) and nothing
//! else: no network, no fixed port, no sleep.

mod cli;
mod demo;
mod goldens;
mod http;
mod parity;
mod support;
