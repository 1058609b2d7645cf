//! Rows of a log: a query, and how often it was used.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use serde_json::{Map, Value};

/// How a log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Fields between tabs, one row a line; quotes are characters like others.
    Tsv,
    /// Fields between commas; a field in double quotes may hold commas and line breaks.
    Csv,
    /// A JSON object on each line.
    Jsonl,
}

impl Format {
    /// By the end of the file's name, in front of `.gz`.
    pub fn of(name: &str) -> Option<Self> {
        let name = name.strip_suffix(".gz").unwrap_or(name);
        match name.rsplit_once('.')?.1 {
            "tsv" | "txt" => Some(Self::Tsv),
            "csv" => Some(Self::Csv),
            "jsonl" | "ndjson" | "json" => Some(Self::Jsonl),
            _ => None,
        }
    }
}

/// Why a row can't be read.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    /// The file can't be read.
    #[error("{path} can't be read: {source}")]
    Read {
        /// The file.
        path: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// A row isn't one of the format.
    #[error("{path}, line {line}: {what}")]
    Row {
        /// The file.
        path: String,
        /// The line, from 1.
        line: u64,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// The columns make no sense together.
    #[error("{0}")]
    Columns(String),
}

/// Where a row has its query and its count.
#[derive(Clone, Debug)]
pub struct Columns {
    format: Format,
    query: Column,
    uses: Option<Column>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Column {
    /// By the first line, or by the field of an object.
    Named(String),
    /// From 0.
    At(usize),
}

impl Columns {
    /// Columns by name, or by number from 1. Without names a file has no line of names.
    ///
    /// # Errors
    /// If one is a number and the other one a name.
    pub fn new(format: Format, query: Option<&str>, uses: Option<&str>) -> Result<Self, RowError> {
        let column = |text: &str| match text.parse::<usize>() {
            Ok(number) if format != Format::Jsonl => match number.checked_sub(1) {
                Some(index) => Ok(Column::At(index)),
                None => Err(RowError::Columns("columns are numbered from 1".into())),
            },
            _ => Ok(Column::Named(text.to_owned())),
        };
        let query = column(query.unwrap_or(if format == Format::Jsonl { "query" } else { "1" }))?;
        let uses = uses.map(column).transpose()?;
        if uses.as_ref().is_some_and(|uses| matches!(uses, Column::At(_)) != matches!(query, Column::At(_))) {
            let what = "name both columns of queries and counts, or give both as numbers".to_owned();
            return Err(RowError::Columns(what));
        }
        Ok(Self { format, query, uses })
    }
}

/// The rows of one log.
pub struct Rows {
    path: String,
    reader: Reader,
    /// The query of the last row.
    query: String,
}

enum Reader {
    Fields { reader: csv::Reader<Box<dyn Read>>, record: csv::ByteRecord, query: usize, uses: Option<usize> },
    Objects { reader: Box<dyn BufRead>, line: u64, bytes: Vec<u8>, query: String, uses: Option<String> },
}

impl Rows {
    /// Opens a file, compressed if its name ends in `.gz`; `-` is the standard input.
    ///
    /// # Errors
    /// See [`RowError`].
    pub fn open(path: &Path, columns: &Columns) -> Result<Self, RowError> {
        let name = path.display().to_string();
        if name == "-" {
            return Self::new("standard input".into(), Box::new(BufReader::new(io::stdin())), columns);
        }
        let file = File::open(path).map_err(|source| RowError::Read { path: name.clone(), source })?;
        let file = BufReader::with_capacity(1 << 18, file);
        if name.ends_with(".gz") {
            return Self::new(name, Box::new(BufReader::with_capacity(1 << 18, MultiGzDecoder::new(file))), columns);
        }
        Self::new(name, Box::new(file), columns)
    }

    /// From what a file has.
    ///
    /// # Errors
    /// If it can't be read, or has no such columns.
    pub fn new(path: String, input: Box<dyn BufRead>, columns: &Columns) -> Result<Self, RowError> {
        let reader = match (columns.format, &columns.query) {
            (Format::Jsonl, Column::Named(query)) => {
                let uses = columns.uses.as_ref().and_then(|uses| match uses {
                    Column::Named(name) => Some(name.clone()),
                    Column::At(_) => None,
                });
                Reader::Objects { reader: input, line: 0, bytes: Vec::new(), query: query.clone(), uses }
            }
            _ => Self::fields(&path, input, columns)?,
        };
        Ok(Self { path, reader, query: String::new() })
    }

    fn fields(path: &str, input: Box<dyn BufRead>, columns: &Columns) -> Result<Reader, RowError> {
        let is_tsv = columns.format == Format::Tsv;
        let mut reader = csv::ReaderBuilder::new()
            .delimiter(if is_tsv { b'\t' } else { b',' })
            .quoting(!is_tsv)
            .flexible(true)
            .has_headers(matches!(columns.query, Column::Named(_)))
            .from_reader(input as Box<dyn Read>);
        let names = match columns.query {
            Column::Named(_) => reader.byte_headers().map_err(|error| unreadable(path, &error))?.clone(),
            Column::At(_) => csv::ByteRecord::new(),
        };
        let find = |column: &Column| match column {
            Column::At(index) => Ok(*index),
            Column::Named(name) => names.iter().position(|found| found == name.as_bytes()).ok_or_else(|| {
                let found: Vec<_> = names.iter().map(String::from_utf8_lossy).collect();
                let what = format!("there is no column {name:?}; found {found:?}. Without names, give a number from 1");
                RowError::Row { path: path.to_owned(), line: 1, what }
            }),
        };
        let (query, uses) = (find(&columns.query)?, columns.uses.as_ref().map(find).transpose()?);
        Ok(Reader::Fields { reader, record: csv::ByteRecord::new(), query, uses })
    }

    /// The next row: its query, if it has one in UTF-8, and how often that was used. `None` at the end.
    ///
    /// # Errors
    /// See [`RowError`].
    pub fn next_row(&mut self) -> Result<Option<(Option<&str>, u64)>, RowError> {
        match &mut self.reader {
            Reader::Fields { reader, record, query, uses } => {
                if !reader.read_byte_record(record).map_err(|error| unreadable(&self.path, &error))? {
                    return Ok(None);
                }
                let uses = uses.map_or(Ok(1), |column| {
                    let field = record.get(column).unwrap_or_default();
                    count(&String::from_utf8_lossy(field)).map_err(|what| {
                        let line = record.position().map_or(0, csv::Position::line);
                        RowError::Row { path: self.path.clone(), line, what }
                    })
                })?;
                Ok(Some((record.get(*query).and_then(|field| std::str::from_utf8(field).ok()), uses)))
            }
            Reader::Objects { reader, line, bytes, query, uses } => loop {
                bytes.clear();
                let read = reader.read_until(b'\n', bytes);
                if read.map_err(|source| RowError::Read { path: self.path.clone(), source })? == 0 {
                    return Ok(None);
                }
                *line += 1;
                let text = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes).trim_ascii();
                if text.is_empty() {
                    continue;
                }
                let row = object(text, query, uses.as_deref());
                let (found, uses) = row.map_err(|what| RowError::Row { path: self.path.clone(), line: *line, what })?;
                self.query = found.unwrap_or_default();
                return Ok(Some((Some(&self.query), uses)));
            },
        }
    }
}

/// The query of an object and its count.
fn object(text: &[u8], query: &str, uses: Option<&str>) -> Result<(Option<String>, u64), String> {
    // What isn't UTF-8 has no query that anybody could type.
    let Ok(text) = std::str::from_utf8(text) else { return Ok((None, 0)) };
    let mut row: Map<String, Value> = serde_json::from_str(text)
        .map_err(|error| format!("expected a JSON object such as {{{query:?}: \"heat pump\"}}: {error}"))?;
    let found = match row.remove(query) {
        Some(Value::String(found)) => Some(found),
        Some(Value::Null) | None => None,
        Some(other) => return Err(format!("expected a text as {query:?}; found {other}")),
    };
    let uses = uses.map_or(Ok(1), |name| match row.get(name) {
        Some(Value::Number(number)) => count(&number.to_string()),
        other => Err(format!("expected a count as {name:?}; found {}", other.unwrap_or(&Value::Null))),
    });
    Ok((found, uses?))
}

fn count(text: &str) -> Result<u64, String> {
    text.trim().parse().map_err(|_| format!("expected a whole number from 0 as count; found {text:?}"))
}

fn unreadable(path: &str, error: &csv::Error) -> RowError {
    let line = error.position().map_or(0, csv::Position::line);
    RowError::Row { path: path.to_owned(), line, what: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(format: Format, columns: (Option<&str>, Option<&str>), log: &[u8]) -> Result<Vec<(String, u64)>, String> {
        let read = || {
            let columns = Columns::new(format, columns.0, columns.1)?;
            let mut rows = Rows::new("log".into(), Box::new(io::Cursor::new(log.to_vec())), &columns)?;
            let mut found = Vec::new();
            while let Some((query, uses)) = rows.next_row()? {
                found.push((query.unwrap_or("-").to_owned(), uses));
            }
            Ok(found)
        };
        read().map_err(|error: RowError| error.to_string())
    }

    fn read(format: Format, columns: (Option<&str>, Option<&str>), log: &[u8], expected: &[(&str, u64)]) {
        let found = rows(format, columns, log).unwrap();
        assert_eq!(found.iter().map(|(query, uses)| (query.as_str(), *uses)).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn rows_of_each_format_are_read() {
        read(Format::Tsv, (None, None), b"a \"b\" c\tx\nd\n\xff\n", &[("a \"b\" c", 1), ("d", 1), ("-", 1)]);
        read(Format::Tsv, (Some("2"), Some("1")), b"3\ta\n0\tb", &[("a", 3), ("b", 0)]);
        let csv = "\u{feff}when,query,uses\n1,\"a, \"\"b\"\"\nc\",7\n2,d,1\n";
        read(Format::Csv, (Some("query"), Some("uses")), csv.as_bytes(), &[("a, \"b\"\nc", 7), ("d", 1)]);
        let lines = b"{\"query\": \"a\\tb\", \"n\": 2}\n\n{\"query\": null, \"n\": 1}\n{\"n\": 1}\n\xff\n";
        read(Format::Jsonl, (None, Some("n")), lines, &[("a\tb", 2), ("", 1), ("", 1), ("", 0)]);
    }

    #[test]
    fn mistakes_name_the_line_and_what_would_be_right() {
        let csv = (Some("query"), Some("uses"));
        for (format, columns, log, words) in [
            (Format::Tsv, (None, Some("2")), "a\t1\nb\tmany\n", "log, line 2: expected a whole number from 0"),
            (Format::Tsv, (None, Some("uses")), "", "name both columns"),
            (Format::Tsv, (Some("0"), None), "", "numbered from 1"),
            (Format::Csv, csv, "search,uses\nb,1\n", "no column \"query\"; found [\"search\", \"uses\"]"),
            (Format::Jsonl, (None, None), "{\"query\": \"a\"}\nb\n", "log, line 2: expected a JSON object"),
            (Format::Jsonl, (None, None), "{\"query\": 7}\n", "expected a text as \"query\"; found 7"),
            (Format::Jsonl, (None, Some("n")), "{\"query\": \"a\"}\n", "expected a count as \"n\"; found null"),
        ] {
            let error = rows(format, columns, log.as_bytes()).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let columns = Columns::new(Format::Tsv, None, None).unwrap();
        let error = Rows::open(Path::new("/nowhere"), &columns).err().unwrap().to_string();
        assert!(error.contains("/nowhere can't be read"), "{error}");
    }

    #[test]
    fn the_name_of_a_file_says_its_format() {
        for (name, format) in [
            ("log.tsv", Some(Format::Tsv)),
            ("log.csv.gz", Some(Format::Csv)),
            ("day.1.ndjson", Some(Format::Jsonl)),
            ("log.parquet", None),
            ("log", None),
        ] {
            assert_eq!(Format::of(name), format, "{name}");
        }
    }
}
