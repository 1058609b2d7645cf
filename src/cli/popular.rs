//! `foretype popular`: a log of queries becomes the file of popular queries for `foretype build --popular`.

use std::error::Error;
use std::fs::File;
use std::io::BufWriter;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::query_log::rows::{Columns, Format, Rows};
use crate::query_log::{Selection, fold};

/// Arguments of `popular`.
#[derive(Clone, Debug, Args)]
pub struct PopularArgs {
    /// Logs: TSV, CSV or JSON Lines, compressed if their names end in .gz; `-` is the standard input.
    #[arg(required = true, value_name = "FILE")]
    logs: Vec<PathBuf>,
    /// The file to write: lines of query, tab, count.
    #[arg(long, env = "FORETYPE_OUT", value_name = "FILE", default_value = "popular.tsv")]
    out: PathBuf,
    /// How the logs are written. Default: what the names of the files end in.
    #[arg(long, env = "FORETYPE_LOG_FILE_FORMAT", value_name = "FORMAT")]
    format: Option<Format>,
    /// The column or field of the query: a name, or the number of a column in files without a line of names.
    /// Default: 1, or `query` in JSON Lines.
    #[arg(long, env = "FORETYPE_QUERY_COLUMN", value_name = "COLUMN")]
    query: Option<String>,
    /// The column or field that says how often a row's query was used. Default: each row is one use.
    #[arg(long, env = "FORETYPE_COUNT_COLUMN", value_name = "COLUMN")]
    count: Option<String>,
    /// Leaves out queries that were used less often: rare ones may hold what is nobody else's business.
    #[arg(long, env = "FORETYPE_MIN_USES", value_name = "N", default_value = "5")]
    min_uses: NonZeroU64,
    /// Most queries that are written.
    #[arg(long, env = "FORETYPE_MAX_QUERIES", value_name = "N", default_value_t = 1_000_000)]
    max_queries: usize,
    /// Memory for counts, in MiB. More of them are kept in files in the folder that `TMPDIR` names.
    #[arg(long, env = "FORETYPE_COUNTS_MIB", value_name = "MIB", default_value_t = 128,
          value_parser = clap::value_parser!(u32).range(1..))]
    memory_mib: u32,
}

impl PopularArgs {
    pub(super) fn run(self) -> Result<(), Box<dyn Error>> {
        let logs = self.logs.iter().map(|log| self.rows(log)).collect::<Result<Vec<_>, _>>()?;
        let selection = Selection {
            min_uses: self.min_uses,
            max_queries: self.max_queries,
            memory_bytes: (self.memory_mib as usize) << 20,
        };
        let partial = self.out.with_extension("partial");
        let out = File::create(&partial).map_err(|e| format!("{} can't be written: {e}", partial.display()))?;
        let folded = fold(logs, selection, &mut BufWriter::new(out)).inspect_err(|_| {
            let _ = std::fs::remove_file(&partial);
        })?;
        std::fs::rename(&partial, &self.out)?;
        println!(
            "read {} rows, {} of them without a query; wrote {} of {} queries into {}",
            folded.rows,
            folded.without_query,
            folded.written,
            folded.queries,
            self.out.display()
        );
        Ok(())
    }

    fn rows(&self, log: &Path) -> Result<Rows, Box<dyn Error>> {
        let name = log.display().to_string();
        let format = self.format.or_else(|| Format::of(&name)).ok_or_else(|| {
            format!("the name {name} doesn't end in .tsv, .csv or .jsonl; say --format tsv, csv or jsonl")
        })?;
        let columns = Columns::new(format, self.query.as_deref(), self.count.as_deref())?;
        Ok(Rows::open(log, &columns)?)
    }
}
