//! The tokenizer's files: copied, or made from `vocab.json` and `merges.txt`; and the kind of the tokenizer.
//!
//! Nothing here encodes text. The manifest gets a flag that says whether GPT-2's rules hold; the server decides whether
//! completion is exact.

mod legacy;

use thiserror::Error;
use tokenizers::{ModelWrapper, PreTokenizerWrapper, Tokenizer};

use completion::text::tokenizer_json::read_tokenizer;

use crate::checkpoint::Folder;
use crate::checkpoint::config::ConfigError;
use crate::checkpoint::folder::FileError;
use bundle::manifest::{TOKENIZER_FILE, TokenizerInfo, TokenizerKind};

/// The token that GPT-2 both starts and ends with.
pub(crate) const END_OF_TEXT: &str = "<|endoftext|>";

/// An error in the tokenizer's files.
#[derive(Debug, Error)]
pub enum TokenizerError {
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A configuration file of the tokenizer is broken.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The folder has no tokenizer.
    #[error(
        "{0} has no tokenizer: it should have tokenizer.json, or vocab.json and merges.txt (save the tokenizer into \
         the same folder with `tokenizer.save_pretrained`)"
    )]
    Missing(std::path::PathBuf),
    /// Only the files of a tokenizer that runs in Python.
    #[error(
        "the tokenizer is only in {file}, which is not read here: load the folder with transformers' \
         `AutoTokenizer.from_pretrained` and write it back with `save_pretrained`, which makes a tokenizer.json"
    )]
    SlowOnly {
        /// The file.
        file: &'static str,
    },
    /// The file is no tokenizer.
    #[error("{file} is not a tokenizer that can be read: {reason}")]
    Invalid {
        /// The file or files.
        file: &'static str,
        /// The reader's error.
        reason: String,
    },
    /// The tokenizer has ids that the model has no embedding for.
    #[error(
        "the tokenizer has the id {id} (token {token:?}), but config.json gives a vocabulary of {vocab}: the two \
         belong to different models, or the embedding was not resized"
    )]
    Vocabulary {
        /// The largest id.
        id: u32,
        /// The token with the largest id.
        token: String,
        /// The size of the vocabulary, `vocab_size`.
        vocab: u32,
    },
    /// An added token's id does not follow from the vocabulary.
    #[error("the added token {token:?} should have the id {expected}, but would get {found:?}: save a tokenizer.json")]
    AddedToken {
        /// The token's text.
        token: String,
        /// The id that the checkpoint gives it.
        expected: u32,
        /// The id that it would get.
        found: Option<u32>,
    },
}

/// A tokenizer and its `tokenizer.json`.
#[derive(Debug)]
pub(crate) struct TokenizerFiles {
    tokenizer: Tokenizer,
    pub(crate) json: Vec<u8>,
}

impl TokenizerFiles {
    /// Reads the tokenizer of a checkpoint.
    pub(crate) fn read(folder: &Folder) -> Result<Self, TokenizerError> {
        let Some(json) = folder.read(TOKENIZER_FILE)? else {
            return legacy::read(folder);
        };
        let tokenizer =
            read_tokenizer(&json).map_err(|reason| TokenizerError::Invalid { file: TOKENIZER_FILE, reason })?;
        Ok(Self { tokenizer, json })
    }

    /// Checks that every id has an embedding among `vocab`.
    pub(crate) fn check_vocabulary(&self, vocab: u32) -> Result<(), TokenizerError> {
        let largest = self.tokenizer.get_vocab(true).into_iter().max_by_key(|(_, id)| *id);
        match largest {
            Some((token, id)) if id >= vocab => Err(TokenizerError::Vocabulary { id, token, vocab }),
            _ => Ok(()),
        }
    }

    /// The id of `<|endoftext|>`.
    pub(crate) fn end_of_text(&self) -> Option<u32> {
        self.tokenizer.token_to_id(END_OF_TEXT)
    }

    /// The tokenizer's entry in the manifest.
    pub(crate) fn info(&self) -> TokenizerInfo {
        let reason = self.difference_from_gpt2();
        let add_prefix_space = match self.tokenizer.get_pre_tokenizer() {
            Some(PreTokenizerWrapper::ByteLevel(byte_level)) => byte_level.add_prefix_space,
            _ => false,
        };
        let kind = if reason.is_none() { TokenizerKind::ByteLevelBpe } else { TokenizerKind::Other };
        TokenizerInfo { file: TOKENIZER_FILE.to_owned(), kind, reason, add_prefix_space }
    }

    /// The first rule of GPT-2's tokenizer that this one breaks.
    fn difference_from_gpt2(&self) -> Option<String> {
        let ModelWrapper::BPE(bpe) = self.tokenizer.get_model() else {
            return Some("the model is not BPE".to_owned());
        };
        let affix = |affix: &Option<String>| affix.as_ref().is_some_and(|affix| !affix.is_empty());
        let differences = [
            (bpe.dropout.is_some_and(|dropout| dropout > 0.0), "the merges have dropout"),
            (bpe.unk_token.is_some(), "there is an unknown token"),
            (affix(&bpe.continuing_subword_prefix), "words continue with a prefix"),
            (affix(&bpe.end_of_word_suffix), "words end with a suffix"),
            (bpe.byte_fallback, "bytes are a fallback, not the alphabet"),
            (bpe.ignore_merges, "whole words bypass the merges"),
            (self.tokenizer.get_normalizer().is_some(), "text is normalized first"),
        ];
        if let Some((_, difference)) = differences.iter().find(|(differs, _)| *differs) {
            return Some((*difference).to_owned());
        }
        match self.tokenizer.get_pre_tokenizer() {
            Some(PreTokenizerWrapper::ByteLevel(byte_level)) if byte_level.use_regex => None,
            Some(PreTokenizerWrapper::ByteLevel(_)) => Some("words are not split by GPT-2's pattern".to_owned()),
            _ => Some("the pre-tokenizer is not ByteLevel".to_owned()),
        }
    }
}
