//! `foretype swap`: asks a running server to put another version in a model's place or beside it, or to divide the
//! requests among its versions.

use std::collections::BTreeMap;
use std::error::Error;

use clap::Args;
use serde_json::{Value, json};

use super::client::ServerArgs;

/// Arguments of `swap`.
#[derive(Clone, Debug, Args)]
pub struct SwapArgs {
    /// The model's name, as the server has it. NAME@VERSION loads a version of that number beside the others, which
    /// gets only the requests that name it.
    name: String,
    /// The folder of the new version, as the server sees it: a bundle or a checkpoint.
    #[arg(required_unless_present = "shares")]
    url: Option<String>,
    /// Divide the requests among versions that are loaded, by weight: `2=1` gives version 2 all, `1=9,2=1` a tenth.
    #[arg(long, value_name = "VERSION=WEIGHT,...", value_delimiter = ',', value_parser = share, conflicts_with = "url")]
    shares: Vec<(u64, u32)>,
    #[command(flatten)]
    server: ServerArgs,
}

impl SwapArgs {
    pub(super) fn run(self) -> Result<(), Box<dyn Error>> {
        let address = self.server.of_model(&self.name, "");
        let shares: BTreeMap<u64, u32> = self.shares.into_iter().collect();
        let body = self.url.map_or_else(|| json!({ "shares": shares }), |url| json!({ "url": url }));
        // A checkpoint is built first, which may take minutes.
        let answer = self.server.key.send("PUT", &address, Some(&body), None)?;
        let new: Value = serde_json::from_str(&answer)?;
        let text = |field: &str| new[field].as_str().unwrap_or("unknown").to_owned();
        println!("{} has version {} since {}", self.name, new["version"], text("since"));
        println!("from {}, checksum {}", text("modelUrl"), text("checksum"));
        for version in new["versions"].as_array().into_iter().flatten().filter(|_| several(&new)) {
            println!("version {}: {} of the requests", version["version"], version["share"]);
        }
        Ok(())
    }
}

/// Whether the model has several versions.
fn several(model: &Value) -> bool {
    model["versions"].as_array().is_some_and(|versions| versions.len() > 1)
}

/// A version and its weight.
fn share(text: &str) -> Result<(u64, u32), String> {
    let parsed = text.split_once('=').and_then(|(version, weight)| Some((version.parse().ok()?, weight.parse().ok()?)));
    parsed.ok_or_else(|| "it should be VERSION=WEIGHT, two whole numbers".to_owned())
}
