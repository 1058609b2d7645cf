//! `foretype swap`: asks a running server to put another version in a model's place.

use std::error::Error;

use clap::Args;
use serde_json::{Value, json};

use super::client::ServerArgs;

/// Arguments of `swap`.
#[derive(Clone, Debug, Args)]
pub struct SwapArgs {
    /// The model's name, as the server has it.
    name: String,
    /// The folder of the new version, as the server sees it: a bundle or a checkpoint.
    url: String,
    #[command(flatten)]
    server: ServerArgs,
}

impl SwapArgs {
    pub(super) fn run(self) -> Result<(), Box<dyn Error>> {
        let (address, body) = (self.server.of_model(&self.name, ""), json!({ "url": self.url }));
        // A checkpoint is built first, which may take minutes.
        let answer = self.server.key.send("PUT", &address, Some(&body), None)?;
        let new: Value = serde_json::from_str(&answer)?;
        let text = |field: &str| new[field].as_str().unwrap_or("unknown").to_owned();
        println!("{} has version {} since {}", self.name, new["version"], text("since"));
        println!("from {}, checksum {}", text("modelUrl"), text("checksum"));
        Ok(())
    }
}
