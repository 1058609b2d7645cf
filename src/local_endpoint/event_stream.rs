//! The framing of `application/vnd.amazon.eventstream`: length, headers and payload, with checksums. Plain functions of
//! bytes.

/// The content type.
pub const CONTENT_TYPE: &str = "application/vnd.amazon.eventstream";

/// The type of a header whose value is text, the only one used here.
const TEXT: u8 = 7;
/// Lengths and checksums around headers and payload.
const OVERHEAD: usize = 16;

/// A piece of a model's answer.
pub fn payload_part(payload: &[u8]) -> Vec<u8> {
    message(
        &[(":event-type", "PayloadPart"), (":content-type", "application/octet-stream"), (":message-type", "event")],
        payload,
    )
}

/// The event that ends a stream whose server broke off: `ModelStreamError` with the reason.
pub fn model_stream_error(reason: &str) -> Vec<u8> {
    let payload = serde_json::json!({"Message": reason, "ErrorCode": "ModelInvocationTimeExceeded"});
    message(
        &[
            (":exception-type", "ModelStreamError"),
            (":content-type", "application/json"),
            (":message-type", "exception"),
        ],
        payload.to_string().as_bytes(),
    )
}

/// One message. Names are below 256 bytes and values below 64 KiB, as all of this module's are.
fn message(headers: &[(&str, &str)], payload: &[u8]) -> Vec<u8> {
    let mut head = Vec::new();
    for (name, value) in headers {
        head.push(name.len() as u8);
        head.extend_from_slice(name.as_bytes());
        head.push(TEXT);
        head.extend_from_slice(&(value.len() as u16).to_be_bytes());
        head.extend_from_slice(value.as_bytes());
    }
    let total = OVERHEAD + head.len() + payload.len();
    let mut out = Vec::with_capacity(total);
    out.extend_from_slice(&(total as u32).to_be_bytes());
    out.extend_from_slice(&(head.len() as u32).to_be_bytes());
    out.extend_from_slice(&crc32fast::hash(&out).to_be_bytes());
    out.extend_from_slice(&head);
    out.extend_from_slice(payload);
    out.extend_from_slice(&crc32fast::hash(&out).to_be_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    // The vectors that AWS's own SDKs are tested with.
    #[test]
    fn messages_are_those_of_the_published_vectors() {
        assert_eq!(message(&[], b""), b"\x00\x00\x00\x10\x00\x00\x00\x00\x05\xc2\x48\xeb\x7d\x98\xc8\xff");
        assert_eq!(message(&[], b"{'foo':'bar'}"), b"\x00\x00\x00\x1d\x00\x00\x00\x00\xfdR\x8cZ{'foo':'bar'}\xc3e96");
        assert_eq!(
            message(&[("content-type", "application/json")], b"{'foo':'bar'}"),
            b"\x00\x00\x00=\x00\x00\x00 \x07\xfd\x83\x96\x0ccontent-type\x07\x00\x10\
              application/json{'foo':'bar'}\x8d\x9c\x08\xb1"
        );
    }

    #[test]
    fn lengths_count_everything() {
        for payload in [&b""[..], b"x", &[0; 100_000]] {
            let part = payload_part(payload);
            assert_eq!(part[..4], (part.len() as u32).to_be_bytes());
            assert!(part[..part.len() - 4].ends_with(payload));
        }
    }
}
