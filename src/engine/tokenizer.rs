//! Reads the tokenizer of a bundle.

use std::path::{Path, PathBuf};

use bundle::Template;
use bundle::extras::{self, ExtrasError, TEMPLATE_FILE};
use bundle::manifest::{Manifest, TOKENIZER_FILE};
use bundle::template::PLACEHOLDER;
use completion::text::{Text, TokenId};

/// Why a bundle's tokenizer can't be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct TokenizerError {
    path: PathBuf,
    reason: String,
}

/// Reads the tokenizer in the folder `bundle`, the start and end tokens that the manifest names, and the template's
/// text before every query.
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
    let wrong = |reason: String| TokenizerError { path: path.clone(), reason };
    let template = template(bundle).map_err(|error| wrong(error.to_string()))?;
    let before = template.as_ref().map_or("", Template::before);
    let text = match manifest.model.source {
        Some(_) => Text::of_encoder_decoder(&json, start, &ends),
        None => Text::from_json(&json, start, &ends, before),
    };
    let text = text.map_err(|error| wrong(error.to_string()))?;
    let (found, vocab) = (text.vocab(), manifest.model.vocab as usize);
    if found > vocab {
        let reason = format!("it has {found} tokens, but the manifest's `vocab` is {vocab}; build the bundle again");
        return Err(TokenizerError { path, reason });
    }
    match no_room(&text, manifest.model.context as usize) {
        Some(reason) => Err(TokenizerError { path: bundle.join(TEMPLATE_FILE), reason }),
        None => Ok(text),
    }
}

/// The bundle's template, if there is one.
pub(super) fn template(bundle: &Path) -> Result<Option<Template>, ExtrasError> {
    let path = bundle.join(TEMPLATE_FILE);
    if path.exists() { extras::read_template(&path).map(Some) } else { Ok(None) }
}

/// What is wrong with the text before every query if it leaves no room for one.
pub(super) fn no_room(text: &Text, context: usize) -> Option<String> {
    let found = text.prompt().len();
    (found >= context).then(|| {
        format!(
            "the text before {PLACEHOLDER} is {found} tokens with the start token, and the model's context is \
             {context}: shorten it, or build the bundle with a larger --context"
        )
    })
}
