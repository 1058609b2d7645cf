//! What two threads take to pass a few bytes to and fro over a connection: the machine's part of every request, which is waking a
//! thread twice and the network's code in the kernel.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// About as long as a small request, or its answer.
const BYTES: usize = 256;

/// How long each way there and back took.
pub fn round_trips(time: Duration) -> Result<Vec<Duration>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (mut server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    std::thread::scope(|scope| {
        // It ends when the client hangs up.
        scope.spawn(move || while pass(&mut server).is_ok() {});
        let (mut trips, started) = (Vec::new(), Instant::now());
        while started.elapsed() < time {
            let sent = Instant::now();
            client.write_all(&[0; BYTES])?;
            client.read_exact(&mut [0; BYTES]).context("the other side of the connection")?;
            trips.push(sent.elapsed());
        }
        drop(client);
        Ok(trips)
    })
}

fn pass(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut bytes = [0; BYTES];
    stream.read_exact(&mut bytes)?;
    stream.write_all(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back() {
        assert!(!round_trips(Duration::from_millis(20)).expect("a connection").is_empty());
    }
}
