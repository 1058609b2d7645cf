//! Bodies that are compressed, slow, or made to forge log lines.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use foretype::http::ServerOptions;
use foretype::models::ModelState;

use crate::support::{TestServer, fake_engine};

/// Posts a body with more headers; any status is an answer.
fn post(address: SocketAddr, headers: &[(&str, &str)], body: &[u8]) -> (u16, String) {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let mut request = agent.post(format!("http://{address}/invocations")).header("Content-Type", "application/json");
    for &(name, value) in headers {
        request = request.header(name, value);
    }
    let mut response = request.send(body).unwrap();
    (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

fn deflate(body: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn compressed_bodies_are_decoded_within_the_limit_of_bodies() {
    let server = TestServer::with(fake_engine());
    let body = br#"{"input": "heat ex"}"#;
    let large = format!(r#"{{"input": "{}"}}"#, "x".repeat(1 << 20));
    let (zstd, large_zstd) = (zstd::encode_all(&body[..], 3).unwrap(), zstd::encode_all(large.as_bytes(), 3).unwrap());
    let plain = post(server.address, &[], body);
    assert_eq!(plain.0, 200, "{plain:?}");
    for (encoding, small, large) in [
        ("gzip", gzip(body), gzip(large.as_bytes())),
        ("deflate", deflate(body), deflate(large.as_bytes())),
        ("zstd", zstd, large_zstd),
    ] {
        let answer = post(server.address, &[("Content-Encoding", encoding)], &small);
        assert!(answer.0 == 200 && answer.1.contains("\"text\":\"heat ex"), "{encoding}: {answer:?}");
        let answer = post(server.address, &[("Content-Encoding", encoding)], &large);
        assert!(answer.0 == 413 && answer.1.contains("the decoded body is over 10000 bytes"), "{encoding}: {answer:?}");
        // A label that is wrong is an error of its own.
        let answer = post(server.address, &[("Content-Encoding", encoding)], &[0xff; 20]);
        assert!(answer.0 == 400 && answer.1.contains("can't be decoded"), "{encoding}: {answer:?}");
    }
    let answer = post(server.address, &[("Content-Encoding", "br")], body);
    assert!(answer.0 == 415 && answer.1.contains("the content encoding is br"), "{answer:?}");
}

#[test]
fn a_byte_order_mark_is_ignored() {
    let server = TestServer::with(fake_engine());
    let (status, text) = post(server.address, &[], "\u{feff}{\"input\": \"heat\"}".as_bytes());
    assert_eq!(status, 200, "{text}");
}

#[test]
fn a_huge_name_of_a_field_gives_a_short_answer_without_raw_control_characters() {
    let options = ServerOptions { max_body_bytes: 4 << 20, ..ServerOptions::default() };
    let server = TestServer::start_with_options(ModelState::Ready(Arc::new(fake_engine()).into()), options);
    for name in ["x".repeat(1 << 20), "\\n\\u001b".repeat(1 << 17)] {
        let (status, text) = post(server.address, &[], format!(r#"{{"input": "a", "{name}": 1}}"#).as_bytes());
        assert!(status == 400 && text.len() < 10_000, "{} bytes", text.len());
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let message = json["error"]["message"].as_str().unwrap();
        assert!(message.contains("unknown field") && !message.contains(char::is_control), "{message}");
    }
}

#[test]
fn a_body_that_comes_too_slowly_is_answered_408_and_its_connection_closed() {
    let options = ServerOptions { body_timeout: Duration::from_millis(300), ..ServerOptions::default() };
    let server = TestServer::start_with_options(ModelState::Ready(Arc::new(fake_engine()).into()), options);
    let mut half = TcpStream::connect(server.address).unwrap();
    half.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    half.write_all(b"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n{\"input\"").unwrap();
    let started = Instant::now();
    let mut answer = String::new();
    half.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("request_timeout"), "{answer}");
    assert!(answer.to_lowercase().contains("connection: close"), "{answer}");
    assert!((300..5000).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
}
