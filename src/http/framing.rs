//! How one JSON value after another is written into a stream: as JSON Lines or as server-sent events.

use serde::Serialize;
use utoipa::ToSchema;

use super::lines;

/// The content type of server-sent events.
pub const EVENT_STREAM: &str = "text/event-stream";

/// The form of a streamed answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// JSON Lines: one value a line.
    Lines,
    /// Server-sent events: one value an event.
    Events,
}

/// A server-sent event.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what `Framing::write` writes")]
pub(super) struct ServerEvent {
    /// A line of the answer as JSON, or `[DONE]` at the end on OpenAI's routes.
    data: String,
}

impl Framing {
    /// What a client accepts; `otherwise` if it asks for neither events nor lines.
    pub fn accepted(accept: Option<&[u8]>, otherwise: Self) -> Self {
        let accept = String::from_utf8_lossy(accept.unwrap_or_default());
        let essence = |range: &str| range.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if accept.split(',').any(|range| essence(range) == EVENT_STREAM) {
            Self::Events
        } else if accept.split(',').any(|range| lines::CONTENT_TYPES.contains(&essence(range).as_str())) {
            Self::Lines
        } else {
            otherwise
        }
    }

    /// The answer's content type.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Lines => lines::CONTENT_TYPE,
            Self::Events => EVENT_STREAM,
        }
    }

    /// Writes one value.
    pub fn write(self, out: &mut Vec<u8>, value: &impl Serialize) {
        let start = out.len();
        if self == Self::Events {
            out.extend_from_slice(b"data: ");
        }
        // Only maps with keys that are no strings can fail; the wire types have none.
        if serde_json::to_writer(&mut *out, value).is_err() {
            return out.truncate(start);
        }
        out.extend_from_slice(if self == Self::Events { b"\n\n" } else { b"\n" });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn events_are_sent_to_those_who_ask() {
        for accept in ["text/event-stream", "application/json, Text/Event-Stream;q=0.9"] {
            assert_eq!(Framing::accepted(Some(accept.as_bytes()), Framing::Lines), Framing::Events);
        }
        for accept in ["", "*/*", "application/jsonlines", "text/event-streams"] {
            assert_eq!(Framing::accepted(Some(accept.as_bytes()), Framing::Lines), Framing::Lines);
        }
        assert_eq!(Framing::accepted(None, Framing::Events), Framing::Events);
        assert_eq!(Framing::accepted(Some(b"application/jsonlines"), Framing::Events), Framing::Lines);
    }

    proptest! {
        #[test]
        fn no_text_breaks_a_frame(text in any::<String>()) {
            let mut lines = Vec::new();
            Framing::Lines.write(&mut lines, &text);
            prop_assert_eq!(lines.iter().filter(|&&b| b == b'\n').count(), 1);
            let mut events = Vec::new();
            Framing::Events.write(&mut events, &text);
            let expected = [b"data: ", lines.as_slice(), b"\n"].concat();
            prop_assert_eq!(events, expected);
        }
    }
}
