//! Where a server listens: a port or a socket file, for clients and, apart from them, for operators.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::http::Listener;

/// Listens on a port. Returns the URL that people use, too.
pub(super) fn port(host: IpAddr, port: u16, flag: &str) -> Result<(Listener, String), String> {
    let address = SocketAddr::new(host, port);
    let listener =
        TcpListener::bind(address).map_err(|e| format!("can't listen on {address}: {e}; name another {flag}"))?;
    let address = listener.local_addr().map_err(|e| e.to_string())?;
    Ok((listener.into(), format!("http://{address}")))
}

/// Listens on a socket file.
pub(super) fn socket(path: &Path) -> Result<Listener, String> {
    // One that a dead server left behind is in nobody's way.
    if UnixStream::connect(path).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused) {
        let _ = std::fs::remove_file(path);
    }
    let listener = UnixListener::bind(path).map_err(|e| format!("can't listen on {}: {e}", path.display()))?;
    Ok(listener.into())
}
