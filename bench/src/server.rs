//! A server of its own for each measurement: started, waited for, looked at, and ended when dropped.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::client::{Connection, Invocation};
use crate::model::{Model, Setting};

/// How long a model may take to load.
const LOADING: Duration = Duration::from_secs(300);

/// A running server.
pub struct Server {
    /// Address that the server listens on.
    pub address: SocketAddr,
    child: Child,
}

/// How to start servers.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    logs: PathBuf,
}

impl Program {
    /// The server named by the flags, or the one beside this program.
    pub fn find(setting: &Setting) -> Result<Self> {
        let logs = setting.results.join("tmp");
        fs::create_dir_all(&logs)?;
        Self::at(setting.server.as_deref(), &logs)
    }

    /// The named server, or the one beside this program; its logs go into a folder that is there.
    pub fn at(named: Option<&Path>, logs: &Path) -> Result<Self> {
        let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("foretype"));
        let path = named.map(Path::to_owned).map_or_else(beside, Ok)?;
        ensure!(path.is_file(), "there is no server at {}; build it, or name one with --server", path.display());
        Ok(Self { path, logs: logs.to_owned() })
    }

    /// The folder that the server's program is in.
    pub fn folder(&self) -> Result<PathBuf> {
        Ok(self.path.canonicalize()?.parent().context("a program is in a folder")?.to_owned())
    }

    /// The flag that lets requests share model steps, or not.
    pub fn batch_flag(&self) -> Result<&'static str> {
        let help = Command::new(&self.path).args(["serve", "--help"]).output()?;
        let help = String::from_utf8_lossy(&help.stdout).into_owned();
        let known = ["--max-batch", "--max-active"].into_iter().find(|flag| help.contains(flag));
        known.context("this server has no flag for the number of requests that share model steps")
    }

    /// Starts a server for a model and waits until it is healthy.
    pub async fn start(&self, model: &Model, arguments: &[&str]) -> Result<Server> {
        // Free a moment ago; that someone else takes it in between is an error like any other.
        let port = free_port()?;
        let log = self.logs.join(format!("server-{}-{port}.log", model.name.text()));
        let mut command = vec!["--model".as_ref(), model.bundle.as_os_str()];
        command.extend(model.server_args.iter().map(OsStr::new));
        command.extend(arguments.iter().map(OsStr::new));
        self.serve(port, &command, &log).await
    }

    /// Starts a server with these arguments of `serve`, logging into a file, and waits until it is healthy.
    pub async fn serve(&self, port: u16, arguments: &[&OsStr], log: &Path) -> Result<Server> {
        let mut command = Command::new(&self.path);
        command.arg("serve").args(["--port", &port.to_string()]).args(arguments).stdin(Stdio::null());
        let log_file = File::options().create(true).append(true).open(log)?;
        command.stdout(log_file.try_clone()?).stderr(log_file);
        let child = command.spawn().with_context(|| self.path.display().to_string())?;
        let mut server = Server { address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)), child };
        server.wait(log).await?;
        Ok(server)
    }
}

/// A port that nobody uses at the moment.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

impl Server {
    async fn wait(&mut self, log: &Path) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < LOADING {
            if let Some(status) = self.child.try_wait()? {
                bail!("the server ended ({status}): {}", fs::read_to_string(log).unwrap_or_default());
            }
            if let Ok(mut connection) = Connection::open(self.address).await
                && matches!(connection.get("/ping").await, Ok((200, _)))
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("the server was not healthy within {} s; see {}", LOADING.as_secs(), log.display())
    }

    /// Waits until a small request is answered: what was sent before, and then left, is over.
    pub async fn settle(&self) -> Result<()> {
        let small =
            Invocation { input: "a".into(), suggestions: Some(1), max_new_tokens: Some(1), ..Invocation::default() };
        let mut connection = Connection::open(self.address).await?;
        connection.complete(&small).await?;
        Ok(())
    }

    /// Stops its clock, so that nothing it does while idle takes time from another.
    pub fn pause(&self) -> Result<()> {
        self.signal("-STOP")
    }

    /// Continues the server after [`Self::pause`].
    pub fn resume(&self) -> Result<()> {
        self.signal("-CONT")
    }

    fn signal(&self, name: &str) -> Result<()> {
        signal(self.child.id().cast_signed(), name)
    }

    /// Memory that it has in use, in MiB, mapped files included.
    pub fn resident_mib(&self) -> Option<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS"))?;
        Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
    }
}

/// Sends a signal, such as `-STOP`, to a process, or to a group of them by its negated id.
pub fn signal(process: i32, name: &str) -> Result<()> {
    // The shell has `kill` built in; a bare machine may have no other.
    let status = Command::new("sh").args(["-c", &format!("kill {name} {process}")]).status()?;
    ensure!(status.success(), "kill {name}: {status}");
    Ok(())
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its work is thrown away; there is nothing to wait for.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
