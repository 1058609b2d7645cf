//! `foretype complete`: one text, on the command line, without a server.

use std::error::Error;

use clap::Args;
use comfy_table::{CellAlignment, Table, presets};

use super::choices::MethodChoice;
use super::model_args::{ModelArgs, Setup};
use super::progress::Bar;
use crate::engine::{Completion, Engine};
use crate::http::suggest::Suggestions;
use crate::metrics::Metrics;
use crate::models::folder;
use completion::Completions;
use scheduler::Answer;

/// Arguments of `complete`.
#[derive(Clone, Debug, Args)]
pub struct CompleteArgs {
    /// The typed text.
    text: String,
    /// Suggestions wanted. Default: 10.
    #[arg(long, env = "FORETYPE_SUGGESTIONS", value_name = "N")]
    suggestions: Option<usize>,
    /// Tokens that may reach beyond the typed text. Default: 16.
    #[arg(long, env = "FORETYPE_MAX_NEW_TOKENS", value_name = "TOKENS")]
    max_new_tokens: Option<usize>,
    /// How half-typed tokens are treated.
    #[arg(long, env = "FORETYPE_METHOD", value_enum, default_value = "exact")]
    method: MethodChoice,
    /// Print the answer as JSON, as the server would send it.
    #[arg(long, env = "FORETYPE_JSON")]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
}

impl CompleteArgs {
    pub(super) fn run(self) -> Result<(), Box<dyn Error>> {
        let folder = self.model.folder()?;
        let Setup { intake, engine: options, .. } = self.model.setup(&folder)?;
        let (path, manifest) = folder::open(&folder, &intake, &Bar::default())?;
        let engine = Engine::load(&path, &manifest, &options, &Metrics::new())?;
        let completion = Completion {
            input: self.text,
            suggestions: self.suggestions,
            max_new_tokens: self.max_new_tokens,
            method: self.method.into(),
            ..Completion::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let answer = runtime.block_on(engine.complete(&completion))?;
        if self.json {
            let method = engine.method(completion.method);
            println!("{}", serde_json::to_string_pretty(&Suggestions::new(engine.name(), method, &answer))?);
        } else {
            print_table(&answer);
        }
        Ok(())
    }
}

fn print_table(answer: &Answer<Completions>) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["", "suggestion", "probability", "log p"]);
    for (index, suggestion) in answer.result.suggestions.iter().enumerate() {
        let mut text = if suggestion.complete { suggestion.text.clone() } else { format!("{} …", suggestion.text) };
        if suggestion.meaning.edits > 0 {
            text.push_str(&format!(" (for {:?})", suggestion.meant()));
        }
        let probability = format!("{:.2} %", 100.0 * suggestion.probability);
        table.add_row([(index + 1).to_string(), text, probability, format!("{:.3}", suggestion.logprob)]);
    }
    for column in [0, 2, 3] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    println!("{table}");
    let usage = answer.usage;
    println!(
        "{:.1} ms, {} forwards, {} positions computed{}",
        answer.searched.as_secs_f64() * 1000.0,
        usage.forwards,
        usage.positions_computed,
        if answer.result.proven { "; proven: nothing unexplored is as probable as the last" } else { "" }
    );
}
