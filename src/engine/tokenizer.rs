//! Reads the tokenizer of a bundle.

use std::path::{Path, PathBuf};

use bundle::manifest::{Manifest, TOKENIZER_FILE};
use completion::text::{Text, TokenId};

/// Why a bundle's tokenizer can't be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct TokenizerError {
    path: PathBuf,
    reason: String,
}

/// Reads the tokenizer in the folder `bundle`, and the prompt and end tokens that the manifest names.
///
/// # Errors
/// The file, and what is wrong with it.
pub fn read_text(bundle: &Path, manifest: &Manifest) -> Result<Text, TokenizerError> {
    let path = bundle.join(TOKENIZER_FILE);
    let json = match std::fs::read_to_string(&path) {
        Ok(json) => json,
        Err(error) => return Err(TokenizerError { path, reason: error.to_string() }),
    };
    let start = TokenId(manifest.tokens.start);
    let ends: Vec<TokenId> = manifest.tokens.end_of_text.iter().copied().map(TokenId).collect();
    let text = match manifest.model.source {
        Some(_) => Text::of_encoder_decoder(&json, start, &ends),
        None => Text::from_json(&json, start, &ends, &manifest.prompt_prefix),
    };
    let text = text.map_err(|error| TokenizerError { path: path.clone(), reason: error.to_string() })?;
    let (found, vocab) = (text.vocab(), manifest.model.vocab as usize);
    if found > vocab {
        let reason = format!("it has {found} tokens, but the manifest's `vocab` is {vocab}; build the bundle again");
        return Err(TokenizerError { path, reason });
    }
    let (prompt, context) = (text.prompt().len(), manifest.model.context as usize);
    if prompt >= context {
        let reason = format!(
            "the text before every query has {prompt} tokens with the start token, and the context is {context}; build \
             the bundle with a shorter --prompt-prefix or a larger --context"
        );
        return Err(TokenizerError { path, reason });
    }
    Ok(text)
}
