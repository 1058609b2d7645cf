//! A GPU that can't be used, in a server of its own process: `auto` serves on the CPU and says so. An engine that was
//! asked for by name leaves the server unhealthy, with the reason.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use tensorrt::Flavour;

use crate::simulator::Simulator;
use crate::support::backend_options;
use crate::tensorrt::{bundle, shapes};

/// Far longer than a busy machine takes to load a tiny model.
const PATIENCE: Duration = Duration::from_secs(120);

struct Server {
    process: Child,
    folder: tempfile::TempDir,
}

impl Server {
    fn start(bundle: &Path, simulator: &Simulator, backend: &str, (variable, value): (&str, &str)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_foretype"));
        command.args(["serve", "--threads", "1", "--kv-pool-mib", "16", "--backend", backend, "--model"]).arg(bundle);
        command.arg("--cuda-driver").arg(&simulator.stand_in.cuda).arg("--tensorrt").arg(&simulator.path);
        command.arg("--cache").arg(folder.path()).arg("--socket").arg(folder.path().join("socket"));
        command.arg("--cpu-level").arg(backend_options().cpu_level.name());
        command.env("FORETYPE_LOG", "info").env(variable, value);
        let log = File::create(folder.path().join("log")).unwrap();
        Self { process: command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap(), folder }
    }

    fn get(&self, path: &str) -> Option<String> {
        let mut stream = UnixStream::connect(self.folder.path().join("socket")).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// The answer to `/ping` once the model is loaded, or can't be.
    fn ping(&self) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.get("/ping") {
                Some(answer) if !answer.contains("is being loaded") => return answer,
                _ if Instant::now() > until => panic!("it is not loaded: {}", self.log()),
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

#[test]
fn a_gpu_that_cannot_be_used_is_never_passed_over_in_silence() {
    let (_folder, bundle, manifest) = bundle("tests/goldens/relu");
    let simulator = Simulator::new(Flavour::Enterprise);
    simulator.write_plan(&bundle, &manifest, shapes(&manifest));
    let old = (("STANDIN_CUDA_VERSION", "11040"), "driver", "supports CUDA 11.4, and CUDA 12.0 or later is needed");
    let broken = (("SIMULATOR_BROKEN", "1"), "library", "refused `createInferRuntime`: CUDA initialization failure");
    for (variable, label, words) in [old, broken] {
        let served = Server::start(&bundle, &simulator, "auto", variable);
        assert!(served.ping().starts_with("HTTP/1.1 200"), "{}", served.log());
        let metrics = served.get("/metrics").unwrap();
        assert!(metrics.contains(&format!("foretype_gpu_unused{{reason=\"{label}\"}} 1")), "{metrics}");
        let log = served.log();
        let warned = log.lines().find(|line| line.contains("WARN") && line.contains("GPU is not used"));
        assert!(warned.is_some_and(|line| line.contains(words)), "{log}");

        let refused = Server::start(&bundle, &simulator, "tensorrt", variable).ping();
        assert!(refused.starts_with("HTTP/1.1 503") && refused.contains(words), "{refused}");
    }
    // Where the GPU is used, or the CPU was asked for, there is nothing to say.
    for backend in ["auto", "onnxruntime"] {
        let served = Server::start(&bundle, &simulator, backend, ("UNUSED", ""));
        assert!(served.ping().starts_with("HTTP/1.1 200"), "{}", served.log());
        assert!(!served.get("/metrics").unwrap().contains("foretype_gpu_unused{"));
    }
}
