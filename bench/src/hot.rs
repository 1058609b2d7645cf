//! `hot`: the hot paths, repeated, for `bench/check.sh` to count their instructions. Prints nothing and measures
//! no time.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use clap::{Args, ValueEnum};
use completion::text::Text;
use completion::{Search, SearchOptions};
use scheduler::scheduler::Scheduler;

use crate::client::Invocation;
use crate::fake_server::{self, FakeServer};

/// What someone types.
const TYPED: &str = "wireless charging";

/// A hot path of the server, for counting its instructions.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum HotPath {
    /// A request over HTTP whose answer is in memory: both sides of the connection, JSON, queue, search.
    Http,
    /// Searches whose nodes are all in the prefix cache: the replay that a keystroke is.
    Replay,
}

/// Arguments of `hot`.
#[derive(Clone, Debug, Args)]
pub struct HotArgs {
    /// The path to run.
    path: HotPath,
    /// The number of repetitions.
    #[arg(long, default_value_t = 100)]
    times: usize,
    /// The tokenizer of the fake model.
    #[arg(long, value_name = "FILE", default_value = "tests/goldens/plain/tokenizer.json")]
    tokenizer: PathBuf,
}

impl HotArgs {
    /// Runs the path as often as the arguments say.
    pub fn run(self) -> Result<()> {
        match self.path {
            HotPath::Http => http(&self.tokenizer, self.times),
            HotPath::Replay => replay(&self.tokenizer, self.times),
        }
    }
}

/// The client blocks on its connection: a runtime's threads that wake each other take another number of instructions in
/// each run.
fn http(tokenizer: &Path, times: usize) -> Result<()> {
    let server = FakeServer::start(tokenizer)?;
    let mut connection = TcpStream::connect(server.address)?;
    connection.set_nodelay(true)?;
    let mut answers = BufReader::new(connection.try_clone()?);
    let body = serde_json::to_string(&Invocation {
        input: "wire".into(),
        suggestions: Some(1),
        max_new_tokens: Some(1),
        ..Invocation::default()
    })?;
    let request = format!(
        "POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    for _ in 0..times {
        connection.write_all(request.as_bytes())?;
        let answer = read_answer(&mut answers)?;
        ensure!(answer.contains("suggestions"), "{answer}");
    }
    Ok(())
}

/// The body of an answer with status 200.
fn read_answer(answers: &mut impl BufRead) -> Result<String> {
    let mut length = 0;
    for number in 0.. {
        let mut line = String::new();
        answers.read_line(&mut line)?;
        ensure!(number > 0 || line.starts_with("HTTP/1.1 200 "), "{line}");
        let line = line.trim_end().to_ascii_lowercase();
        match line.strip_prefix("content-length: ") {
            Some(value) => length = value.parse()?,
            None if line.is_empty() => break,
            None => {}
        }
    }
    let mut body = vec![0; length];
    answers.read_exact(&mut body)?;
    Ok(String::from_utf8(body)?)
}

/// Types the text `times` times, key by key; the engine computes in the first round only.
fn replay(tokenizer: &Path, times: usize) -> Result<()> {
    let text = Arc::new(fake_server::text(tokenizer)?);
    let mut scheduler = Scheduler::new(Box::new(fake_server::backend(text.vocab())), 64 << 20);
    let mut after_first = 0;
    for round in 0..times {
        for end in 1..=TYPED.len() {
            search(&mut scheduler, &text, &TYPED[..end])?;
        }
        if round == 0 {
            after_first = scheduler.positions_computed();
        }
    }
    ensure!(scheduler.positions_computed() == after_first, "a replay computed positions: the prefix cache forgot some");
    Ok(())
}

fn search(scheduler: &mut Scheduler, text: &Arc<Text>, typed: &str) -> Result<()> {
    let options =
        SearchOptions { suggestions: 10, beams: 10, max_new_tokens: 4, context: 64, ..SearchOptions::default() };
    let job = scheduler.add(Search::new(Arc::clone(text), typed.to_owned(), options));
    for _ in 0..1000 {
        if scheduler.step()?.done.contains(&job) {
            scheduler.remove(job);
            return Ok(());
        }
    }
    bail!("the search did not end")
}
