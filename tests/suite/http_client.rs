//! What the HTTP tests share: requests with headers, servers of models by name, answers made of lines.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;

use foretype::engine::Engine;
use foretype::http::{self, ServerOptions};
use foretype::models::{FolderLoader, LoadError, Models, Opened, Registry, RegistryLimits, Start};
use serde_json::Value;

use crate::support::Answer;

pub const JSON: (&str, &str) = ("Content-Type", "application/json");

/// Sends a request; any status is an answer.
pub fn send(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let mut request = ureq::http::Request::builder().method(method).uri(format!("http://{address}{path}"));
    for &(name, value) in headers {
        request = request.header(name, value);
    }
    let mut response = agent.run(request.body(body).unwrap()).unwrap();
    let headers = response.headers().clone();
    let text = response.body_mut().read_to_string().unwrap();
    Answer { status: response.status().as_u16(), headers, text }
}

/// Posts JSON.
pub fn post(address: SocketAddr, path: &str, body: &str) -> Answer {
    send(address, "POST", path, &[JSON], body)
}

/// The values of an answer of JSON Lines.
pub fn json_lines(answer: &Answer) -> Vec<Value> {
    answer.text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line:?}"))).collect()
}

/// The data of an answer of server-sent events.
pub fn events(answer: &Answer) -> Vec<String> {
    let events = answer.text.strip_suffix("\n\n").unwrap_or_else(|| panic!("{answer:?}"));
    events.split("\n\n").map(|event| event.strip_prefix("data: ").unwrap().to_owned()).collect()
}

/// An answer that is an error: its status, kind and message.
pub fn error(answer: &Answer) -> (u16, String, String) {
    let json = answer.json();
    let text = |field: &str| json["error"][field].as_str().unwrap_or_default().to_owned();
    (answer.status, text("kind"), text("message"))
}

/// Makes the engine of a folder.
pub type EngineLoader = Box<dyn Fn(&Path) -> Result<Engine, LoadError> + Send + Sync>;

/// A server of models by name, until dropped.
pub struct RegistryServer {
    pub address: SocketAddr,
    pub registry: Arc<Registry>,
    handle: actix_web::dev::ServerHandle,
}

impl RegistryServer {
    /// `load` makes the engine of a folder, which takes no memory of the budget.
    pub fn start(load: EngineLoader, limits: RegistryLimits) -> Self {
        let load = Arc::new(load);
        let open = move |_: &str, folder: &Path| {
            let (load, folder) = (Arc::clone(&load), folder.to_owned());
            Ok(Opened {
                memory: foretype::engine::Memory::default(),
                read: Box::new(move || Ok(Box::new(move || load(&folder)) as Start)),
            })
        };
        Self::with_opener(Box::new(open), limits)
    }

    pub fn with_opener(open: FolderLoader, limits: RegistryLimits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let registry = Arc::new(Registry::new(open, limits));
        let models = Models::from(Arc::clone(&registry));
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            actix_web::rt::System::new().block_on(async move {
                let options = ServerOptions { max_body_bytes: 10_000, page: true, ..ServerOptions::default() };
                let server = http::start(listener, models, &options).unwrap();
                sender.send(server.handle()).unwrap();
                server.await.unwrap();
            });
        });
        Self { address, registry, handle: receiver.recv().unwrap() }
    }

    pub fn post(&self, path: &str, body: &str) -> Answer {
        post(self.address, path, body)
    }

    pub fn call(&self, method: &str, path: &str) -> Answer {
        send(self.address, method, path, &[], "")
    }
}

impl Drop for RegistryServer {
    fn drop(&mut self) {
        drop(self.handle.stop(false));
    }
}
