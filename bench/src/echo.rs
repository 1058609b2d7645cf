//! What two threads take to pass a few bytes to and fro over a connection: the machine's part of every request, which
//! is waking a thread twice and the network's code in the kernel. And what a server takes to answer a request that is
//! sent in the same way.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

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

/// Bytes that an answer may have.
const ANSWER_BYTES: usize = 16 * 1024;

/// How long each of the same request took, one after the other on one connection. Every answer must be 200.
pub fn requests(address: SocketAddr, request: &[u8], time: Duration) -> Result<Vec<Duration>> {
    let mut client = TcpStream::connect(address)?;
    client.set_nodelay(true)?;
    let mut answer = [0; ANSWER_BYTES];
    let (mut latencies, started) = (Vec::new(), Instant::now());
    while started.elapsed() < time {
        let sent = Instant::now();
        client.write_all(request)?;
        let answer = whole_answer(&mut client, &mut answer)?;
        latencies.push(sent.elapsed());
        ensure!(answer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(answer));
    }
    Ok(latencies)
}

/// Reads an answer whose length its header says.
fn whole_answer<'a>(from: &mut impl Read, into: &'a mut [u8]) -> Result<&'a [u8]> {
    let mut read = 0;
    loop {
        match from.read(&mut into[read..])? {
            0 => bail!("the answer ends after {read} bytes"),
            more => read += more,
        }
        if whole_length(&into[..read])?.is_some_and(|whole| read >= whole) {
            return Ok(&into[..read]);
        }
    }
}

/// Bytes of an answer with its body, once its header is there.
fn whole_length(beginning: &[u8]) -> Result<Option<usize>> {
    let Some(header) = beginning.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    let text = std::str::from_utf8(&beginning[..header])?.to_ascii_lowercase();
    let length =
        text.lines().find_map(|line| line.strip_prefix("content-length:")).context("an answer without a length")?;
    Ok(Some(header + 4 + length.trim().parse::<usize>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back() {
        assert!(!round_trips(Duration::from_millis(20)).expect("a connection").is_empty());
    }

    #[test]
    fn an_answer_is_read_to_its_end_and_no_further() {
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nserver: x\r\n\r\nabcde";
        let mut room = [0; 100];
        let mut in_pieces =
            (&answer.as_bytes()[..30]).chain(&answer.as_bytes()[30..50]).chain(&answer.as_bytes()[50..]);
        assert_eq!(whole_answer(&mut in_pieces, &mut room).expect("an answer"), answer.as_bytes());
        let error = whole_answer(&mut &answer.as_bytes()[..50], &mut room).expect_err("no end").to_string();
        assert_eq!(error, "the answer ends after 50 bytes");
    }
}
