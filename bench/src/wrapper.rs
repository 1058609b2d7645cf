//! Servers to compare with foretype's: an engine of someone else behind `bench/peers/app.py`,
//! gunicorn with one worker and nginx, as such services are put together; and foretype behind the same nginx.

use std::fs::{self, File};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::client::Connection;
use crate::peers::worker::{Installed, Peer};
use crate::server::{Program, Server, signal};

/// How long a model may take to load.
const LOADING: Duration = Duration::from_secs(180);

/// A group of processes, ended when dropped.
struct Group(Child);

impl Group {
    /// Starts a program as the head of its own group, so that its workers get its signals.
    fn start(command: &mut Command, log: &Path) -> Result<Self> {
        let output = File::create(log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0);
        Ok(Self(command.spawn().with_context(|| format!("{command:?}"))?))
    }

    /// Waits until it is healthy.
    async fn wait(&mut self, address: SocketAddr, log: &Path) -> Result<()> {
        let started = Instant::now();
        while !is_healthy(address).await {
            if let Some(status) = self.0.try_wait()? {
                bail!("the server ended ({status}); see {}", log.display());
            }
            if started.elapsed() > LOADING {
                bail!("not healthy within {} s; see {}", LOADING.as_secs(), log.display());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    fn signal(&self, name: &str) -> Result<()> {
        signal(-self.0.id().cast_signed(), name)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(self.signal("-KILL"));
        drop(self.0.wait());
    }
}

/// What answers behind the proxy.
enum Behind {
    Peer(Group),
    Foretype(Server),
    /// foretype and its own nginx, in one group.
    Container(Group),
}

/// A running service.
pub struct Service {
    /// Where clients connect.
    pub address: SocketAddr,
    behind: Behind,
    proxy: Option<Group>,
}

impl Service {
    /// A peer's wrapper. Without nginx on this machine clients connect to gunicorn.
    pub async fn peer(peer: &Peer, installed: &Installed, threads: usize, logs: &Path) -> Result<Self> {
        let python = installed.python(peer)?;
        let port = free_port()?;
        let log = logs.join(format!("wrapper-{}-{}.log", peer.family, peer.variant));
        let mut command = Command::new(python);
        command.args(["-m", "gunicorn", "--workers", "1", "--timeout", "300", "--bind", &format!("127.0.0.1:{port}")]);
        command.arg("--chdir").arg(&installed.scripts).arg(format!("{}:app", peer.wrapper));
        command.env("PEER_FAMILY", peer.family).env("PEER_VARIANT", peer.variant);
        command.env("PEER_MODELS", &installed.models).env("PEER_THREADS", threads.to_string());
        command.env("OMP_NUM_THREADS", threads.to_string()).env("PYTHONDONTWRITEBYTECODE", "1");
        let mut group = Group::start(&mut command, &log)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        group.wait(address, &log).await?;
        Self::behind(Behind::Peer(group), address, logs).await
    }

    /// foretype as its container starts it: `entry` is `nginx/serve`, which puts the container's nginx in front.
    pub async fn container(
        program: &Program,
        entry: &Path,
        environment: &[(String, String)],
        logs: &Path,
    ) -> Result<Self> {
        let nginx = nginx().context("nginx is not installed; bench/setup.sh installs it")?;
        let port = free_port()?;
        let log = logs.join(format!("container-{port}.log"));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = [Some(program.folder()?), nginx.parent().map(Path::to_owned)].into_iter().flatten();
        let mut command = Command::new("bash");
        command.arg(entry).arg("serve").envs(environment.iter().cloned());
        command.env("PATH", std::env::join_paths(folders.chain(std::env::split_paths(&path)))?);
        command.env("SAGEMAKER_BIND_TO_PORT", port.to_string()).env("TMPDIR", logs.canonicalize()?);
        let mut group = Group::start(&mut command, &log)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        group.wait(address, &log).await?;
        Ok(Self { address, behind: Behind::Container(group), proxy: None })
    }

    /// foretype behind the same proxy.
    pub async fn foretype(server: Server, logs: &Path) -> Result<Self> {
        let address = server.address;
        Self::behind(Behind::Foretype(server), address, logs).await
    }

    async fn behind(behind: Behind, upstream: SocketAddr, logs: &Path) -> Result<Self> {
        let Some(nginx) = nginx() else {
            return Ok(Self { address: upstream, behind, proxy: None });
        };
        let port = free_port()?;
        let folder = logs.join(format!("nginx-{port}")).clone();
        fs::create_dir_all(&folder)?;
        let folder = folder.canonicalize()?;
        let config = folder.join("nginx.conf");
        File::create(&config)?.write_all(configuration(port, upstream).as_bytes())?;
        let mut command = Command::new(nginx);
        command.arg("-p").arg(&folder).arg("-c").arg(&config).args(["-e", "error.log", "-g", "daemon off;"]);
        let proxy = Group::start(&mut command, &folder.join("output.log"))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let started = Instant::now();
        while !is_healthy(address).await {
            if started.elapsed() > Duration::from_secs(10) {
                bail!("nginx is not there after 10 s; see {}", folder.display());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(Self { address, behind, proxy: Some(proxy) })
    }

    /// Whether nginx is in front.
    pub fn is_proxied(&self) -> bool {
        self.proxy.is_some() || matches!(self.behind, Behind::Container(_))
    }

    /// Stops its clock while another is measured.
    pub fn pause(&self) -> Result<()> {
        match &self.behind {
            Behind::Peer(group) | Behind::Container(group) => group.signal("-STOP"),
            Behind::Foretype(server) => server.pause(),
        }
    }

    /// Continues the server after [`Self::pause`].
    pub fn resume(&self) -> Result<()> {
        match &self.behind {
            Behind::Peer(group) | Behind::Container(group) => group.signal("-CONT"),
            Behind::Foretype(server) => server.resume(),
        }
    }

    /// Waits until it answers again: what was sent before, and then left, is over.
    pub async fn settle(&self) -> Result<()> {
        let started = Instant::now();
        while !is_healthy(self.address).await {
            if started.elapsed() > LOADING {
                bail!("{} does not answer any more", self.address);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

async fn is_healthy(address: SocketAddr) -> bool {
    match Connection::open(address).await {
        Ok(mut connection) => matches!(connection.get("/ping").await, Ok((200, _))),
        Err(_) => false,
    }
}

/// A port that was free a moment ago; that someone else takes it in between is an error like any other.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// nginx, where it is installed. Debian has it in a folder that is not on everyone's path.
fn nginx() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join("nginx")).find(|file| file.is_file())
}

fn configuration(port: u16, upstream: SocketAddr) -> String {
    format!(
        "worker_processes 1;\npid nginx.pid;\nevents {{ worker_connections 1024; }}\nhttp {{\n    access_log off;\n    \
         client_body_temp_path body;\n    proxy_temp_path proxy;\n    fastcgi_temp_path fastcgi;\n    \
         uwsgi_temp_path uwsgi;\n    scgi_temp_path scgi;\n    \
         upstream model {{ server {upstream}; keepalive 16; }}\n    server {{\n        \
         listen 127.0.0.1:{port};\n        client_max_body_size 5m;\n        location / {{\n            \
         proxy_pass http://model;\n            proxy_http_version 1.1;\n            \
         proxy_set_header Connection \"\";\n            proxy_read_timeout 120s;\n        }}\n    }}\n}}\n"
    )
}
