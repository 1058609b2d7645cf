//! Makes a `tokenizer.json` of GPT-2's kind from the older files: `vocab.json`, `merges.txt` and those of added tokens.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

use super::{END_OF_TEXT, TokenizerError, TokenizerFiles};
use crate::checkpoint::{Config, Folder};

const VOCAB: &str = "vocab.json";
const MERGES: &str = "merges.txt";
const FILES: &str = "vocab.json with merges.txt";

/// What tokenizers that only run in Python are stored in: SentencePiece models, and a plain vocabulary.
const SLOW_FILES: [&str; 4] = ["tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.txt"];

/// Reads the older files of a checkpoint that has no `tokenizer.json`.
pub(super) fn read(folder: &Folder) -> Result<TokenizerFiles, TokenizerError> {
    let (Some(vocab), Some(merges)) = (folder.read(VOCAB)?, folder.read(MERGES)?) else {
        return Err(missing(folder)?);
    };
    let bpe = bpe(&vocab, &merges)?;
    let settings = folder.read("tokenizer_config.json")?.unwrap_or_else(|| b"{}".to_vec());
    let add_prefix_space = Config::parse("tokenizer_config.json", &settings)?.flag_or("add_prefix_space", false)?;
    let mut tokenizer = Tokenizer::new(bpe);
    tokenizer
        .with_pre_tokenizer(Some(ByteLevel::new(add_prefix_space, true, true)))
        .with_post_processor(Some(ByteLevel::new(true, false, true)))
        .with_decoder(Some(ByteLevel::new(true, true, true)));
    add_tokens(&mut tokenizer, &added_tokens(folder, &settings)?)?;
    let json = tokenizer.to_string(false).map_err(|error| invalid(FILES, error))?.into_bytes();
    Ok(TokenizerFiles { tokenizer, json })
}

/// Why there is no tokenizer: the folder may have one of another kind.
fn missing(folder: &Folder) -> Result<TokenizerError, TokenizerError> {
    for file in SLOW_FILES {
        if folder.file(file)?.is_some() {
            return Ok(TokenizerError::SlowOnly { file });
        }
    }
    Ok(TokenizerError::Missing(folder.path().to_owned()))
}

fn bpe(vocab: &[u8], merges: &[u8]) -> Result<BPE, TokenizerError> {
    let vocab: std::collections::HashMap<String, u32> =
        serde_json::from_slice(vocab).map_err(|error| invalid(VOCAB, error))?;
    let merges = std::str::from_utf8(merges).map_err(|error| invalid(MERGES, error))?;
    let pair = |(number, line): (usize, &str)| {
        let (left, right) = line
            .split_once(' ')
            .filter(|(left, right)| !left.is_empty() && !right.is_empty() && !right.contains(' '))
            .ok_or_else(|| invalid(MERGES, format!("line {} is not two tokens", number + 1)))?;
        Ok((left.to_owned(), right.to_owned()))
    };
    let lines = merges.lines().enumerate().filter(|(_, line)| !line.starts_with("#version") && !line.is_empty());
    let merges = lines.map(pair).collect::<Result<Vec<_>, TokenizerError>>()?;
    BPE::builder()
        .vocab_and_merges(vocab.into_iter().collect::<tokenizers::models::bpe::Vocab>(), merges)
        .build()
        .map_err(|error| invalid(FILES, error))
}

/// Added tokens by id, and whether each is special, from whichever of the files are there.
fn added_tokens(folder: &Folder, settings: &[u8]) -> Result<BTreeMap<u32, (String, bool)>, TokenizerError> {
    #[derive(Deserialize)]
    struct Settings {
        #[serde(default)]
        added_tokens_decoder: BTreeMap<u32, Added>,
    }
    #[derive(Deserialize)]
    struct Added {
        content: String,
        #[serde(default)]
        special: bool,
    }
    let mut tokens = BTreeMap::new();
    if let Some(json) = folder.read("added_tokens.json")? {
        let ids: BTreeMap<String, Value> =
            serde_json::from_slice(&json).map_err(|error| invalid("added_tokens.json", error))?;
        for (token, id) in ids {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
            let id = id.ok_or_else(|| invalid("added_tokens.json", format!("{token:?} has no id")))?;
            tokens.insert(id, (token, true));
        }
    }
    let settings: Settings =
        serde_json::from_slice(settings).map_err(|error| invalid("tokenizer_config.json", error))?;
    for (id, Added { content, special }) in settings.added_tokens_decoder {
        tokens.insert(id, (content, special));
    }
    Ok(tokens)
}

/// Adds `tokens` (id to text and whether it is special) to the tokenizer, in the order of their ids. Marks
/// `<|endoftext|>` as special where only the vocabulary has it.
///
/// # Errors
/// The tokenizer refuses a token, or gives it another id than the file.
fn add_tokens(tokenizer: &mut Tokenizer, tokens: &BTreeMap<u32, (String, bool)>) -> Result<(), TokenizerError> {
    for (&expected, (token, special)) in tokens {
        let added = AddedToken::from(token.clone(), *special).normalized(!special);
        tokenizer.add_tokens([added]).map_err(|error| invalid("tokenizer_config.json", error))?;
        let found = tokenizer.token_to_id(token);
        if found != Some(expected) {
            return Err(TokenizerError::AddedToken { token: token.clone(), expected, found });
        }
    }
    let listed = tokens.values().any(|(token, _)| token == END_OF_TEXT);
    if !listed && tokenizer.token_to_id(END_OF_TEXT).is_some() {
        let added = AddedToken::from(END_OF_TEXT, true).normalized(false);
        tokenizer.add_special_tokens([added]).map_err(|error| invalid(FILES, error))?;
    }
    Ok(())
}

fn invalid(file: &'static str, reason: impl std::fmt::Display) -> TokenizerError {
    TokenizerError::Invalid { file, reason: reason.to_string() }
}
