//! Prompts that come without JSON: as plain text, or as CSV. Parses only.

use super::json::OneOrMany;
use crate::error::{Error, Kind};

/// The content type of a single prompt.
pub const TEXT: &str = "text/plain";
/// The content type of several.
pub const CSV: &str = "text/csv";

/// The prompt of a body of plain text.
///
/// # Errors
/// The body is not UTF-8.
pub fn text(body: &[u8]) -> Result<OneOrMany, Error> {
    Ok(OneOrMany::One(utf8(body)?.to_owned()))
}

/// The prompts of a body of CSV: the column `inputs` if the first line names one, else every cell.
///
/// # Errors
/// The body is not UTF-8, is no CSV, or has no prompts.
pub fn csv(body: &[u8]) -> Result<OneOrMany, Error> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(utf8(body)?.as_bytes());
    let rows: Result<Vec<csv::StringRecord>, csv::Error> = reader.records().collect();
    let rows = rows.map_err(|error| Error::new(Kind::InvalidField, format!("the body is no CSV: {error}")))?;
    let column = rows.first().and_then(|first| first.iter().position(|name| name == "inputs"));
    let prompts: Vec<String> = match column {
        Some(column) => rows.iter().skip(1).filter_map(|row| row.get(column)).map(str::to_owned).collect(),
        None => rows.iter().flatten().map(str::to_owned).collect(),
    };
    if prompts.is_empty() {
        let message = "the body has no prompts; send a line for each, or a column named inputs";
        return Err(Error::new(Kind::InvalidField, message));
    }
    Ok(OneOrMany::Many(prompts))
}

fn utf8(body: &[u8]) -> Result<&str, Error> {
    std::str::from_utf8(body).map_err(|error| {
        let message = format!("the body is not UTF-8 from byte {} on; send UTF-8 encoded text", error.valid_up_to());
        Error::new(Kind::InvalidUtf8, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_of_inputs_or_every_cell_is_a_prompt() {
        let prompts = |body: &str| csv(body.as_bytes()).map(OneOrMany::into_list).map_err(|error| error.message);
        assert_eq!(prompts("heat,\"a, b\"\npump\n").unwrap(), ["heat", "a, b", "pump"]);
        assert_eq!(prompts("id,inputs\r\n1,heat\r\n2,\"two\nlines\"\r\n").unwrap(), ["heat", "two\nlines"]);
        assert!(prompts("").unwrap_err().contains("no prompts") && prompts("inputs\n").is_err());
        assert_eq!(text("a\n\tb".as_bytes()).unwrap(), OneOrMany::One("a\n\tb".to_owned()));
        assert_eq!(csv(b"\xff").unwrap_err().kind, Kind::InvalidUtf8);
        assert_eq!(text(b"\xff").unwrap_err().kind, Kind::InvalidUtf8);
    }
}
