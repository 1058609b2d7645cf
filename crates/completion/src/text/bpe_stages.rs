//! The normalizer, the added tokens and the pre-tokenizer of a `tokenizer.json`: what is done with a text before its
//! pairs are merged.

use regex_syntax::hir::ClassUnicode;
use serde_json::Value;
use unicode_normalization_alignments::UnicodeNormalization;

use super::bpe_file::{AddedToken, BpeFileError};
use super::normal_form::{AddedSpace, META_SPACE, NormalForm};
use super::pattern::{Program, set_of};
use super::pre_tokenizer::PreTokenizer;
use super::vocabulary::TokenId;

/// The pattern of `ByteLevel`.
const BYTE_LEVEL: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The pieces of `Metaspace`, which begin with a space but for the first.
const META_SPACE_PIECES: &str = " [^ ]*";

/// What is done with a text before its pairs are merged.
#[derive(Default)]
pub(super) struct Stages {
    pub(super) pre_tokenizer: PreTokenizer,
    pub(super) normal_form: NormalForm,
    /// Whether bytes are merged, and not characters.
    pub(super) byte_level: bool,
    /// The added tokens that aren't special, with their texts.
    pub(super) added: Vec<(TokenId, String)>,
    /// Whether a space is put before the text behind an added token, too.
    every_piece: bool,
}

/// Reads the three of them.
pub(super) fn read_stages(
    normalizer: Option<&Value>,
    pre_tokenizer: Option<&Value>,
    added: &[AddedToken],
) -> Result<Stages, BpeFileError> {
    let mut stages = Stages::default();
    normalizer.map_or(Ok(()), |normalizer| stages.read_normalizer(normalizer))?;
    pre_tokenizer.map_or(Ok(()), |pre_tokenizer| stages.read_pre_tokenizer(pre_tokenizer))?;
    if !stages.byte_level && !stages.normal_form.meta_space {
        return Err(refused("pre_tokenizer", "is neither ByteLevel nor Metaspace"));
    }
    stages.read_added(added)?;
    stages.pre_tokenizer.begins_with_space = stages.normal_form.space != AddedSpace::Never;
    Ok(stages)
}

fn refused(setting: &'static str, reason: impl Into<String>) -> BpeFileError {
    BpeFileError::Refused { setting, reason: reason.into() }
}

fn is_true(value: &Value, field: &str, default: bool) -> bool {
    value[field].as_bool().unwrap_or(default)
}

impl Stages {
    fn read_normalizer(&mut self, normalizer: &Value) -> Result<(), BpeFileError> {
        let space = || normalizer["pattern"]["String"] == " " && normalizer["content"] == META_SPACE.to_string();
        match normalizer["type"].as_str() {
            _ if normalizer.is_null() => Ok(()),
            Some("Sequence") => each(&normalizer["normalizers"], |inner| self.read_normalizer(inner)),
            Some("NFC") => {
                self.normal_form.nfc = true;
                Ok(())
            }
            Some("Prepend") if normalizer["prepend"] == META_SPACE.to_string() => {
                self.normal_form.space = AddedSpace::Always;
                self.every_piece = true;
                Ok(())
            }
            Some("Replace") if space() => {
                self.normal_form.meta_space = true;
                Ok(())
            }
            kind => Err(refused("normalizer", format!("{} isn't followed", kind.unwrap_or("without a type")))),
        }
    }

    fn read_pre_tokenizer(&mut self, value: &Value) -> Result<(), BpeFileError> {
        if self.byte_level && value["type"] != "Sequence" {
            return Err(refused("pre_tokenizer", "has a part behind ByteLevel"));
        }
        match value["type"].as_str() {
            _ if value.is_null() => Ok(()),
            Some("Sequence") => each(&value["pretokenizers"], |inner| self.read_pre_tokenizer(inner)),
            Some("ByteLevel") => self.read_byte_level(value),
            Some("Metaspace") => self.read_meta_space(value),
            Some("Digits") => {
                let program = Program::characters(numeric(), !is_true(value, "individual_digits", false));
                self.split(program)
            }
            Some("Split") => self.read_split(value),
            kind => Err(refused("pre_tokenizer", format!("{} isn't followed", kind.unwrap_or("without a type")))),
        }
    }

    fn split(&mut self, program: Result<Program, String>) -> Result<(), BpeFileError> {
        let program = program.map_err(|reason| refused("pre_tokenizer", reason))?;
        self.pre_tokenizer.stages.push((program, false));
        Ok(())
    }

    fn read_byte_level(&mut self, value: &Value) -> Result<(), BpeFileError> {
        if self.normal_form.meta_space {
            return Err(refused("pre_tokenizer", "is both ByteLevel and Metaspace"));
        }
        if is_true(value, "add_prefix_space", true) {
            if !self.pre_tokenizer.stages.is_empty() {
                return Err(refused("pre_tokenizer.add_prefix_space", "adds a space to every piece of a split text"));
            }
            self.normal_form.space = AddedSpace::IfMissing;
            self.every_piece = true;
        }
        self.byte_level = true;
        if is_true(value, "use_regex", true) { self.split(Program::regex(BYTE_LEVEL)) } else { Ok(()) }
    }

    fn read_meta_space(&mut self, value: &Value) -> Result<(), BpeFileError> {
        if value["replacement"] != META_SPACE.to_string() || self.normal_form.meta_space {
            return Err(refused("pre_tokenizer", "is a Metaspace with another character than ▁, or a second one"));
        }
        let old = if is_true(value, "add_prefix_space", true) { "always" } else { "never" };
        self.normal_form.space = match value["prepend_scheme"].as_str().unwrap_or(old) {
            "never" => AddedSpace::Never,
            _ if !self.pre_tokenizer.stages.is_empty() => {
                return Err(refused("pre_tokenizer.prepend_scheme", "adds a space to a piece of a split text"));
            }
            "first" => AddedSpace::IfMissing,
            _ => {
                self.every_piece = true;
                AddedSpace::IfMissing
            }
        };
        self.normal_form.meta_space = true;
        if is_true(value, "split", true) { self.split(Program::regex(META_SPACE_PIECES)) } else { Ok(()) }
    }

    fn read_split(&mut self, value: &Value) -> Result<(), BpeFileError> {
        let pattern = &value["pattern"];
        if self.normal_form.meta_space {
            // A space that the normalizer replaced is never found.
            let nothing = pattern["String"] == " ";
            let reason = "splits a text whose spaces were replaced";
            return if nothing { Ok(()) } else { Err(refused("pre_tokenizer", reason)) };
        }
        if value["behavior"] != "Isolated" || is_true(value, "invert", false) {
            return Err(refused("pre_tokenizer", "splits otherwise than by isolating what its pattern matches"));
        }
        match (pattern["Regex"].as_str(), pattern["String"].as_str()) {
            (Some(regex), _) => self.split(Program::regex(regex)),
            (_, Some(text)) if !text.is_empty() => self.split(Program::longest_of(&[text])),
            _ => Err(refused("pre_tokenizer", "splits by no pattern")),
        }
    }

    /// Adds the tokens that aren't special, and the stages that find them before all others.
    fn read_added(&mut self, tokens: &[AddedToken]) -> Result<(), BpeFileError> {
        let form = &self.normal_form;
        let (mut raw, mut normalized) = (Vec::new(), Vec::new());
        for token in tokens.iter().filter(|token| !token.special && !token.content.is_empty()) {
            let has_space = token.content.contains([' ', META_SPACE]);
            if form.meta_space && token.content.contains(META_SPACE) && !token.normalized() {
                continue; // no text has this character: where it stands for spaces, they aren't found
            }
            let refusals = [
                (token.single_word, "is only found as a whole word"),
                (token.lstrip || token.rstrip, "takes the white space beside it"),
                (self.every_piece, "is followed by a space that the tokenizer adds"),
                (form.meta_space && has_space && token.normalized(), "has a space that the normalizer replaces"),
            ];
            if let Some((_, reason)) = refusals.into_iter().find(|(refused, _)| *refused) {
                return Err(BpeFileError::AddedText { id: token.id, content: token.content.clone(), reason });
            }
            let content = match token.normalized() && form.nfc {
                true => token.content.nfc().map(|(character, _)| character).collect(),
                false => token.content.clone(),
            };
            if token.normalized() { &mut normalized } else { &mut raw }.push(content.clone());
            self.added.push((TokenId(token.id), content));
        }
        let mut stages = Vec::new();
        for texts in [&raw, &normalized].into_iter().filter(|texts| !texts.is_empty()) {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let program = Program::longest_of(&texts).map_err(|reason| refused("added_tokens", reason))?;
            stages.push((program, true));
        }
        self.pre_tokenizer.stages.splice(0..0, stages);
        self.normal_form.added = raw.iter().chain(&normalized).cloned().collect();
        self.normal_form.kept = raw;
        Ok(())
    }
}

fn each(list: &Value, read: impl FnMut(&Value) -> Result<(), BpeFileError>) -> Result<(), BpeFileError> {
    list.as_array().into_iter().flatten().try_for_each(read)
}

/// The characters that `Digits` splits.
fn numeric() -> ClassUnicode {
    set_of(char::is_numeric)
}
