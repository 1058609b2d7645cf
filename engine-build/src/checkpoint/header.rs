//! The header of one safetensors file: its tensors with their types, shapes and offsets.
//!
//! Hugging Face's `safetensors` crate checks the JSON and its offsets. This file checks what that crate only checks on
//! a whole file in memory: the length prefix and the size of the file. No tensor data is read.

use std::fs::File;
use std::io::Read;

use safetensors::tensor::Metadata;

use super::error::WeightsError;
use super::folder::FileError;

/// The length prefix: a little-endian u64.
const PREFIX_BYTES: u64 = 8;

/// The limit that the safetensors format itself sets.
const HEADER_LIMIT_BYTES: u64 = 100_000_000;

/// A parsed header and where the data behind it starts.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) metadata: Metadata,
    /// Offset of the first tensor's bytes in the file.
    pub(crate) data_start: u64,
}

/// Reads and checks the header of `file`, which has `file_bytes` bytes; `name` is for errors.
pub(crate) fn read_header(name: &str, file: &mut File, file_bytes: u64) -> Result<Header, WeightsError> {
    let io_error = |source| WeightsError::File(FileError::Io { path: name.into(), source });
    if file_bytes < PREFIX_BYTES {
        return Err(WeightsError::Truncated { file: name.into(), bytes: file_bytes, expected: PREFIX_BYTES });
    }
    let mut prefix = [0; PREFIX_BYTES as usize];
    file.read_exact(&mut prefix).map_err(io_error)?;
    let header_bytes = header_length(name, prefix, file_bytes)?;
    let mut json = vec![0; usize::try_from(header_bytes).unwrap_or(usize::MAX)];
    file.read_exact(&mut json).map_err(io_error)?;
    parse_header(name, &json, file_bytes)
}

/// The header's length, if the file can hold it.
fn header_length(name: &str, prefix: [u8; 8], file_bytes: u64) -> Result<u64, WeightsError> {
    let length = u64::from_le_bytes(prefix);
    if length > HEADER_LIMIT_BYTES {
        return Err(WeightsError::HeaderLength { file: name.into(), length, limit: HEADER_LIMIT_BYTES });
    }
    let expected = PREFIX_BYTES + length;
    if expected > file_bytes {
        return Err(WeightsError::Truncated { file: name.into(), bytes: file_bytes, expected });
    }
    Ok(length)
}

/// Parses the header's JSON and checks that the tensors fill the file exactly.
pub(crate) fn parse_header(name: &str, json: &[u8], file_bytes: u64) -> Result<Header, WeightsError> {
    let metadata: Metadata =
        serde_json::from_slice(json).map_err(|source| WeightsError::HeaderJson { file: name.into(), source })?;
    let data_start = PREFIX_BYTES + json.len() as u64;
    let expected = data_start.saturating_add(metadata.data_len() as u64);
    match file_bytes.cmp(&expected) {
        std::cmp::Ordering::Less => Err(WeightsError::Truncated { file: name.into(), bytes: file_bytes, expected }),
        std::cmp::Ordering::Greater => {
            Err(WeightsError::TrailingBytes { file: name.into(), bytes: file_bytes - expected })
        }
        std::cmp::Ordering::Equal => Ok(Header { metadata, data_start }),
    }
}
