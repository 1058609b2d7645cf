//! A tokenizer of T5's kind that knows no language: a SentencePiece unigram model of all short runs of letters, so that
//! nothing has to be downloaded.

use serde_json::{Value, json};

/// Pieces, with padding, end and the unknown in front.
const PIECES: usize = 32_000;
/// Sentinels behind them, `<extra_id_99>` to `<extra_id_0>`.
const SENTINELS: usize = 100;
/// SentencePiece's space.
const SPACE: char = '\u{2581}';

/// `tokenizer.json`: words are cut into pieces of up to three letters, a few tokens a word as other languages than
/// English have them.
pub(super) fn tokenizer() -> Value {
    let special = ["<pad>", "</s>", "<unk>"].map(str::to_owned);
    let pieces: Vec<String> = special.iter().cloned().chain(runs()).take(PIECES).collect();
    let sentinels = (0..SENTINELS).rev().map(|number| format!("<extra_id_{number}>"));
    let added: Vec<Value> = (0..3)
        .chain(PIECES..)
        .zip(special.into_iter().chain(sentinels))
        .map(|(id, content)| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        })
        .collect();
    // The fewer pieces the better, and of as many the earlier ones: no two ways to cut a text score the same.
    let score = |id: usize| if id < 3 { 0.0 } else { -8.0 - id as f64 * 1e-4 };
    let vocabulary: Vec<Value> = pieces.iter().enumerate().map(|(id, piece)| json!([piece, score(id)])).collect();
    let space = json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": true});
    let end = json!({"SpecialToken": {"id": "</s>", "type_id": 0}});
    let sequence = |id: &str, kind: u32| json!({"Sequence": {"id": id, "type_id": kind}});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": space, "decoder": space,
        "post_processor": {
            "type": "TemplateProcessing", "single": [sequence("A", 0), end],
            "pair": [sequence("A", 0), sequence("B", 1)],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
        },
        "model": {"type": "Unigram", "unk_id": 2, "byte_fallback": false, "vocab": vocabulary},
    })
}

/// What is printed of ASCII, then two and three small letters, inside of a word and at its beginning.
fn runs() -> impl Iterator<Item = String> {
    let letters = || 'a'..='z';
    let pairs = letters().flat_map(move |a| letters().map(move |b| format!("{a}{b}")));
    let triples = pairs.clone().flat_map(move |pair| letters().map(move |c| format!("{pair}{c}")));
    let both = pairs.chain(triples).flat_map(|run| [format!("{SPACE}{run}"), run]);
    ('!'..='~').chain([SPACE]).map(String::from).chain(both)
}

#[cfg(test)]
mod tests {
    use completion::text::{Text, TokenId};

    use super::*;

    #[test]
    fn texts_are_cut_into_pieces_and_ended() {
        let text = Text::of_encoder_decoder(&tokenizer().to_string(), TokenId(0), &[TokenId(1)]).unwrap();
        assert_eq!(text.vocab(), PIECES + SENTINELS);
        let tokens = text.codec().unwrap().encode("battery cooling 7").unwrap();
        let written = |token: &TokenId| text.bytes(*token).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let pieces: Vec<Option<String>> = tokens.iter().map(written).collect();
        let some = |piece: &str| Some(piece.to_owned());
        assert_eq!(
            pieces,
            [some(" bat"), some("te"), some("ry"), some(" coo"), some("li"), some("ng"), some(" "), some("7"), None]
        );
        assert_eq!(tokens.last(), Some(&TokenId(1)));
    }
}
