//! Sessions as Amazon SageMaker defines them: headers that open, name and close a session. The server keeps no state of
//! a session: its name tells the engine that a newer request supersedes an older one.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::{Error, Kind};

/// Names the session of a request, or asks for a new one.
pub const SESSION_HEADER: &str = "X-Amzn-SageMaker-Session-Id";
/// Names a session that was opened, and when it expires.
pub const NEW_SESSION_HEADER: &str = "X-Amzn-SageMaker-New-Session-Id";
/// Response header with the name of the session that a request closed.
pub const CLOSED_SESSION_HEADER: &str = "X-Amzn-SageMaker-Closed-Session-Id";
/// The value of [`SESSION_HEADER`] that asks for a new session.
const NEW_SESSION: &str = "NEW_SESSION";
/// What the platform assumes where nothing is said.
const SESSION_TTL: Duration = Duration::from_secs(1200);
/// The platform's limit.
const MAX_SESSION_CHARACTERS: usize = 256;

/// Opens or closes a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionRequest {
    /// Whether a session is opened or closed.
    #[serde(rename = "requestType")]
    pub request_type: RequestType,
}

/// What to do with a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum RequestType {
    /// Open one.
    NewSession,
    /// Close the one that the header names.
    CloseSession,
    /// Another name for the same.
    Close,
}

/// The answer to a request about sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct SessionAnswer {
    /// The session that was opened or closed.
    pub session: String,
}

/// A session that was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSession {
    /// The session's name.
    pub id: String,
    /// The value of [`NEW_SESSION_HEADER`].
    pub header: String,
}

/// What the session header of a request says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SessionHeader {
    /// Nothing.
    #[default]
    Absent,
    /// A new session is wanted.
    New,
    /// The request belongs to this session.
    Id(String),
}

/// Reads the value of [`SESSION_HEADER`].
///
/// # Errors
/// If it can't be a session's name.
pub fn read_header(value: Option<&[u8]>) -> Result<SessionHeader, Error> {
    let Some(value) = value else { return Ok(SessionHeader::Absent) };
    let value = String::from_utf8_lossy(value);
    if value == NEW_SESSION {
        return Ok(SessionHeader::New);
    }
    check(SESSION_HEADER, &value)?;
    Ok(SessionHeader::Id(value.into_owned()))
}

/// Checks a session's name in a header: letters and digits with hyphens inside.
fn check(field: &str, id: &str) -> Result<(), Error> {
    let outer = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let inner = id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if inner && outer(id.chars().next()) && outer(id.chars().last()) && id.len() <= MAX_SESSION_CHARACTERS {
        return Ok(());
    }
    let message = format!(
        "{field} is no session's name; it must be 1 to {MAX_SESSION_CHARACTERS} letters, digits and inner hyphens"
    );
    Err(Error::new(Kind::InvalidValue, message))
}

/// Checks a session's name in a body, which may be any that fits a header.
///
/// # Errors
/// If it has other characters than printable ASCII, or is too long.
pub fn check_in_body(id: &str) -> Result<(), Error> {
    if (1..=MAX_SESSION_CHARACTERS).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    let message = format!(
        "session is no session's name; it must be 1 to {MAX_SESSION_CHARACTERS} printable ASCII characters without \
         spaces"
    );
    Err(Error::new(Kind::InvalidValue, message))
}

/// Checks the salt of a request.
///
/// # Errors
/// If it is empty or too long.
pub fn check_salt(salt: Option<&str>) -> Result<(), Error> {
    match salt.map(|salt| salt.chars().count()) {
        Some(found) if !(1..=MAX_SESSION_CHARACTERS).contains(&found) => {
            let message = format!("salt has {found} characters; it must have 1 to {MAX_SESSION_CHARACTERS}");
            Err(Error::new(Kind::InvalidValue, message))
        }
        _ => Ok(()),
    }
}

/// Opens a session.
pub fn open(now: SystemTime) -> NewSession {
    let id = uuid::Uuid::new_v4().to_string();
    let header = format!("{id}; Expires={}", humantime::format_rfc3339_seconds(now + SESSION_TTL));
    NewSession { id, header }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_as_the_platform_wants_them() {
        let opened = open(SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000));
        assert_eq!(opened.header, format!("{}; Expires=2027-01-15T08:20:00Z", opened.id));
        assert_eq!(read_header(Some(opened.id.as_bytes())), Ok(SessionHeader::Id(opened.id)));
        assert_eq!(read_header(Some(b"NEW_SESSION")), Ok(SessionHeader::New));
        assert_eq!(read_header(None), Ok(SessionHeader::Absent));
        let long = "x".repeat(257);
        for bad in ["", "-a", "a-", "a b", "a_b", "\u{e4}", long.as_str()] {
            let error = read_header(Some(bad.as_bytes())).unwrap_err();
            assert!(error.kind == Kind::InvalidValue && error.message.contains(SESSION_HEADER), "{bad}: {error:?}");
        }
    }
}
