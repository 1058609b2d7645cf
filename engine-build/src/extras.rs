//! What goes into a bundle beside the model: blocklist, popular queries, template and typing channel, all checked.

use bundle::extras::{self, PopularFiles};
use completion::text::codec::Codec;
use completion::typing::channel::Channel;
use completion::typing::learning::{Learnt, learn};

use crate::build::BuildOptions;
use crate::error::BuildError;

/// The files that go into the bundle beside the model.
pub(crate) fn read_extras(options: &BuildOptions) -> Result<Vec<(&'static str, Vec<u8>)>, BuildError> {
    let mut files = Vec::new();
    if let Some(path) = &options.blocklist {
        let mut text = extras::read_blocklist(path)?.join("\n");
        text.push('\n');
        files.push((extras::BLOCKLIST_FILE, text.into_bytes()));
    }
    if let Some(path) = &options.popular {
        let popular = PopularFiles::new(&extras::read_popular(path)?)?;
        files.push((extras::POPULAR_FILE, popular.map));
        files.push((extras::POPULAR_COUNTS_FILE, popular.counts));
    }
    if let Some(path) = &options.template {
        extras::read_template(path)?;
        files.push((extras::TEMPLATE_FILE, extras::read_text(path)?.into_bytes()));
    }
    if let Some(channel) = read_channel(options)? {
        let json = serde_json::to_vec_pretty(&channel);
        let wrong =
            |error: serde_json::Error| BuildError::Typing { path: options.out.clone(), reason: error.to_string() };
        files.push((extras::TYPING_FILE, json.map_err(wrong)?));
    }
    Ok(files)
}

/// The channel of typing that was asked for, if any: as it was written, or learnt from pairs.
fn read_channel(options: &BuildOptions) -> Result<Option<Channel>, BuildError> {
    let written = options.typing.as_ref().map(|path| {
        let wrong = |reason: String| BuildError::Typing { path: path.clone(), reason };
        let json = extras::read_text(path)?;
        Channel::from_json(&json).map_err(|error| wrong(error.to_string()))
    });
    let written = written.transpose()?;
    let Some(path) = &options.typing_pairs else { return Ok(written) };
    let pairs = extras::read_typing_pairs(path)?;
    let pairs = pairs.iter().map(|(typed, accepted)| (typed.as_str(), accepted.as_str()));
    let Learnt { channel, used, skipped } = learn(pairs, &written.unwrap_or_default());
    tracing::info!(used, skipped, "learnt the typing errors");
    if used == 0 {
        let reason = "no typed text is like the query beside it; at most two typing errors are counted".to_owned();
        return Err(BuildError::Typing { path: path.clone(), reason });
    }
    Ok(Some(channel))
}

/// Checks that a model has room for the text around every input.
///
/// # Errors
/// [`BuildError::Template`].
pub(crate) fn check_template(options: &BuildOptions, tokenizer: &[u8], room: Room) -> Result<(), BuildError> {
    let Some(path) = &options.template else { return Ok(()) };
    let template = extras::read_template(path)?;
    let wrong = |reason: String| BuildError::Template { path: path.clone(), reason };
    let codec = std::str::from_utf8(tokenizer).map_err(|error| wrong(error.to_string()));
    let codec = Codec::from_json(codec?).map_err(wrong)?;
    let (text, most) = match room {
        Room::Context(positions) => (template.before().to_owned(), positions),
        Room::Source(tokens) => (template.around(""), tokens),
    };
    // The start token, or the end of the source, takes a place and the input at least one.
    let tokens = codec.encode_part(&text).map_or(0, |tokens| tokens.len()) + 1;
    if tokens < most as usize {
        return Ok(());
    }
    let right = match room {
        Room::Context(_) => "shorten it, or build with a larger --context",
        Room::Source(_) => "shorten it",
    };
    Err(wrong(format!("the template takes {tokens} of the {most} tokens that the model reads: {right}")))
}

/// The place that a model has for an input and its template.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Room {
    /// Positions of a decoder, of which the text before an input takes some.
    Context(u32),
    /// Tokens that an encoder reads.
    Source(u32),
}
