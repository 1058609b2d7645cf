//! The names that a request has in logs, answers and spans: `X-Request-Id`, and `traceparent` as the W3C defines it.
//! Both are taken from the request if they are well formed, and made otherwise.

use std::fmt;

use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};

/// The header of a request's name.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The header of a trace.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Most characters of a request's name.
const MAX_ID_CHARACTERS: usize = 128;

/// A span of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace; never 0.
    pub trace_id: u128,
    /// The span; never 0.
    pub span_id: u64,
    /// Whether the trace is recorded, in the lowest bit.
    pub flags: u8,
}

/// What a request is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestNames {
    /// The request.
    pub id: String,
    /// The span that the request came from, if it said so.
    pub parent: Option<TraceParent>,
    /// The span of the request here.
    pub span: TraceParent,
}

impl RequestNames {
    /// The names of a request with these headers.
    pub fn of(headers: &HeaderMap) -> Self {
        let id = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()).filter(|id| is_sane(id));
        let id = id.map_or_else(|| uuid::Uuid::new_v4().to_string(), str::to_owned);
        let parent = headers.get(TRACEPARENT).and_then(|value| TraceParent::parse(value.as_bytes()));
        let (trace_id, flags) =
            parent.map_or_else(|| (uuid::Uuid::new_v4().as_u128(), 0), |parent| (parent.trace_id, parent.flags));
        let span_id = rand::random::<u64>().max(1);
        Self { id, parent, span: TraceParent { trace_id, span_id, flags } }
    }

    /// Says the names in an answer.
    pub fn tell(&self, headers: &mut HeaderMap) {
        for (name, value) in [(REQUEST_ID, self.id.clone()), (TRACEPARENT, self.span.to_string())] {
            // Sane names are header values.
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(name, value);
            }
        }
    }
}

/// Whether a name may stand in logs and headers.
fn is_sane(id: &str) -> bool {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "-_.:/+=@".contains(c);
    (1..=MAX_ID_CHARACTERS).contains(&id.len()) && id.chars().all(is_fine)
}

impl TraceParent {
    /// Reads a value of `traceparent`: version, trace, span and flags. A later version may have more behind them.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?;
        let mut parts = text.trim().splitn(5, '-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_hex = |part: &str, length| {
            part.len() == length && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let has_more = parts.next().is_some();
        if !is_hex(version, 2) || version == "ff" || (version == "00" && has_more) {
            return None;
        }
        if !is_hex(trace, 32) || !is_hex(span, 16) || !is_hex(flags, 2) {
            return None;
        }
        let trace_id = u128::from_str_radix(trace, 16).ok().filter(|&id| id != 0)?;
        let span_id = u64::from_str_radix(span, 16).ok().filter(|&id| id != 0)?;
        Some(Self { trace_id, span_id, flags: u8::from_str_radix(flags, 16).ok()? })
    }

    /// The trace, as it stands in logs.
    pub fn trace(&self) -> String {
        format!("{:032x}", self.trace_id)
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Of the flags only the one that this version knows.
        write!(formatter, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags & 1)
    }
}

/// Which requests have a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogRequests {
    /// All.
    #[default]
    All,
    /// Those that are answered with an error.
    Errors,
    /// One of so many, and all that are answered with an error.
    Sampled(u64),
}

impl LogRequests {
    /// Whether the request with this number, from 0, has one.
    pub fn has_line(self, number: u64, is_error: bool) -> bool {
        match self {
            Self::All => true,
            Self::Errors => is_error,
            Self::Sampled(of) => is_error || number.is_multiple_of(of),
        }
    }
}

impl std::str::FromStr for LogRequests {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let sampled = || text.strip_prefix("sampled:")?.parse().ok().filter(|&of| of > 0).map(Self::Sampled);
        match text {
            "all" => Ok(Self::All),
            "errors" => Ok(Self::Errors),
            _ => sampled().ok_or("say all, errors, or sampled:N for one of N"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read_as_the_w3c_says() {
        let parent = TraceParent::parse(PARENT.as_bytes()).unwrap();
        assert_eq!((parent.to_string().as_str(), parent.flags), (PARENT, 1));
        assert_eq!(TraceParent::parse(format!("01{}-more", &PARENT[2..]).as_bytes()), Some(parent));
        for wrong in [
            "".to_owned(),
            format!("{PARENT}-more"),
            format!("ff{}", &PARENT[2..]),
            PARENT.to_uppercase(),
            PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            PARENT.replace("00f067aa0ba902b7", &"0".repeat(16)),
            PARENT.replace("-01", "-1"),
            PARENT.replace("4bf9", "+bf9"),
        ] {
            assert_eq!(TraceParent::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn names_are_taken_if_they_are_sane() {
        let of = |id: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_static(id));
            headers.insert(TRACEPARENT, HeaderValue::from_static(PARENT));
            RequestNames::of(&headers)
        };
        let names = of("a-1/b:c");
        assert_eq!((names.id.as_str(), names.span.trace_id), ("a-1/b:c", names.parent.unwrap().trace_id));
        assert_ne!(names.span.span_id, names.parent.unwrap().span_id);
        for wrong in ["", "a b", "a\"b", "a\tb"] {
            assert_eq!(of(wrong).id.len(), 36, "{wrong}");
        }
        let made = RequestNames::of(&HeaderMap::new());
        assert!(made.parent.is_none() && TraceParent::parse(made.span.to_string().as_bytes()) == Some(made.span));
    }

    #[test]
    fn errors_always_have_a_line() {
        let lines = |text: &str| {
            let which: LogRequests = text.parse().unwrap();
            (0..100).filter(|&number| which.has_line(number, false)).count()
        };
        assert_eq!((lines("all"), lines("errors"), lines("sampled:10")), (100, 0, 10));
        assert!(LogRequests::Errors.has_line(1, true) && LogRequests::Sampled(10).has_line(1, true));
        for wrong in ["", "none", "sampled:0", "sampled:", "sampled:x"] {
            assert!(wrong.parse::<LogRequests>().is_err(), "{wrong}");
        }
    }
}
