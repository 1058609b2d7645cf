//! Reads `tokenizer.json`, broken files included.

use base64::Engine;
use tokenizers::Tokenizer;

/// Reads a `tokenizer.json` with the `tokenizers` crate. That crate panics on some broken files, such as one cut short
/// inside the decoder, and takes gigabytes for others; here that is an error like any other.
///
/// # Errors
/// What is wrong with the file, in words.
pub fn read_tokenizer(json: &[u8]) -> Result<Tokenizer, String> {
    let value: serde_json::Value = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    check_charsmaps(&value)?;
    match std::panic::catch_unwind(|| Tokenizer::from_bytes(json)) {
        Ok(read) => read.map_err(|error| error.to_string()),
        Err(_) => Err("a part of it has not the fields that its type needs".to_owned()),
    }
}

/// A SentencePiece table begins with the size of its trie, for which memory is taken before anything is read.
fn check_charsmaps(value: &serde_json::Value) -> Result<(), String> {
    use serde_json::Value;
    match value {
        Value::Object(fields) => {
            // Only its beginning is decoded: the crate's own reader is more lenient at the end.
            if let Some(table) = fields.get("precompiled_charsmap").and_then(Value::as_str)
                && let Some(beginning) = table.get(..8)
                && let Ok(beginning) = base64::prelude::BASE64_STANDARD.decode(beginning)
                && let Some(size) = beginning.first_chunk()
                && u32::from_le_bytes(*size) as usize > table.len()
            {
                return Err(format!("a precompiled_charsmap of {} characters says that it has more", table.len()));
            }
            fields.values().try_for_each(check_charsmaps)
        }
        Value::Array(items) => items.iter().try_for_each(check_charsmaps),
        _ => Ok(()),
    }
}
