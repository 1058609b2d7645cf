//! Tiny vocabularies against all texts there are, up to a length.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Value, json};

use super::super::bpe_file::byte_alphabet;
use super::super::canonical::PathState;
use super::super::vocabulary::TokenId;
use super::samples::Random;
use super::{Oracle, tokenizer_json};

/// An alphabet and the length in characters of the longest texts over it. Of those with several bytes a character, all
/// but the last have every character that their bytes can spell.
const ALPHABETS: &[(&[&str], usize)] = &[
    (&["a", "b", "c"], 8),
    (&[" ", "a", "b"], 8),
    (&[" ", "\n", "a"], 8),
    (&[" ", "\n", "a", "1"], 6),
    (&["'", "s", "a", " "], 6),
    (&["'", "r", "e", " "], 6),
    (&["'", "l", "e", "!"], 6),
    (&["'", "v", "e", "\n"], 6),
    (&[" ", "!", "1", "a"], 6),
    (&["é", "a", " "], 7),
    (&["à", "é", "\u{a0}", "©", " "], 5),
    (&["\u{3000}", "、", "\u{3040}", "ぁ", " "], 5),
    (&["😀", "𝒳", "'", "s"], 6),
];

/// The longest token, in bytes.
const LONGEST_TOKEN: usize = 5;

/// How many characters beyond a path decide whether it goes on: those of a token after a lone space.
const HORIZON: usize = 2;

type Path = Vec<TokenId>;

/// Tokens as bytes, and the merges as pairs of them.
#[derive(Default)]
struct Tiny {
    tokens: Vec<Vec<u8>>,
    merges: Vec<(Vec<u8>, Vec<u8>)>,
    /// The pre-tokenizer, if it isn't GPT-2's.
    pre_tokenizer: Option<Value>,
    /// Texts of added tokens that aren't special.
    added: Vec<String>,
}

impl Tiny {
    fn of_bytes(alphabet: &[&str]) -> Self {
        let bytes: BTreeSet<u8> = alphabet.iter().flat_map(|text| text.bytes()).collect();
        Self { tokens: bytes.into_iter().map(|byte| vec![byte]).collect(), ..Self::default() }
    }

    /// Any merges, in an order that training could have given. Some are forestalled by others.
    fn random(alphabet: &[&str], random: &mut Random) -> Self {
        let mut tiny = Self::of_bytes(alphabet);
        for _ in 0..random.below(14) {
            let (left, right) = (random.pick(&tiny.tokens).clone(), random.pick(&tiny.tokens).clone());
            let merged = [left.as_slice(), &right].concat();
            if merged.len() <= LONGEST_TOKEN && !tiny.tokens.contains(&merged) {
                tiny.tokens.push(merged);
                tiny.merges.push((left, right));
            }
        }
        tiny
    }

    /// [`BpeMerges`] learned from random text: always the most frequent pair of neighbours within the reference's
    /// pre-tokens.
    fn trained(alphabet: &[&str], random: &mut Random) -> Self {
        let mut tiny = Self::of_bytes(alphabet);
        let text: String = (0..200).map(|_| *random.pick(alphabet)).collect();
        for _ in 0..random.below(12) {
            let oracle = tiny.oracle();
            let encoding = oracle.reference.encode(text.as_str(), false).unwrap();
            let mut counts = BTreeMap::<(Vec<u8>, Vec<u8>), usize>::new();
            let parts: Vec<_> = encoding.get_ids().iter().zip(encoding.get_word_ids()).collect();
            for pair in parts.windows(2).filter(|pair| pair[0].1 == pair[1].1) {
                let bytes = |id: u32| oracle.spell(&[TokenId(id)]);
                *counts.entry((bytes(*pair[0].0), bytes(*pair[1].0))).or_default() += 1;
            }
            counts.retain(|(left, right), _| left.len() + right.len() <= LONGEST_TOKEN);
            let Some((pair, _)) = counts.into_iter().max_by_key(|(_, count)| *count) else { break };
            tiny.tokens.push([pair.0.as_slice(), &pair.1].concat());
            tiny.merges.push(pair);
        }
        tiny
    }

    /// Just these merges.
    fn fixed(merges: &[(&str, &str)], alphabet: &[&str]) -> Self {
        let mut tiny = Self::of_bytes(alphabet);
        for (left, right) in merges {
            tiny.tokens.push([left.as_bytes(), right.as_bytes()].concat());
            tiny.merges.push((left.as_bytes().to_vec(), right.as_bytes().to_vec()));
        }
        tiny
    }

    fn oracle(&self) -> Oracle {
        let alphabet: HashMap<u8, char> = byte_alphabet().into_iter().map(|(c, byte)| (byte, c)).collect();
        let written = |bytes: &[u8]| bytes.iter().map(|byte| alphabet[byte]).collect::<String>();
        let vocab: HashMap<String, usize> = self.tokens.iter().map(|token| written(token)).zip(0..).collect();
        let merges: Vec<_> = self.merges.iter().map(|(left, right)| [written(left), written(right)]).collect();
        // A token of the vocabulary that is added keeps its id.
        let flags = json!({ "special": false, "single_word": false, "lstrip": false, "rstrip": false });
        let mut next = self.tokens.len();
        let added = self.added.iter().map(|content| {
            let id = vocab.get(content).copied().unwrap_or(next);
            next += usize::from(id == next);
            let mut token = flags.clone();
            (token["id"], token["content"], token["normalized"]) = (json!(id), json!(content), json!(false));
            token
        });
        let added: Vec<Value> = added.collect();
        let mut json: Value =
            serde_json::from_str(&tokenizer_json(&json!(vocab), &json!(merges), &json!(added))).unwrap();
        if let Some(pre_tokenizer) = &self.pre_tokenizer {
            json["pre_tokenizer"] = pre_tokenizer.clone();
        }
        Oracle::new(&json.to_string())
    }
}

/// All texts over an alphabet up to a length in characters, with their encodings.
fn all_texts(oracle: &Oracle, alphabet: &[&str], longest: usize) -> Vec<(String, Path)> {
    let mut texts = vec![String::new()];
    let mut start = 0;
    for _ in 0..longest {
        let end = texts.len();
        for index in start..end {
            let longer: Vec<_> = alphabet.iter().map(|c| format!("{}{c}", texts[index])).collect();
            texts.extend(longer);
        }
        start = end;
    }
    texts.into_iter().map(|text| (text.clone(), oracle.encode(&text))).collect()
}

/// The number of characters, if the bytes end with a whole one.
fn characters(bytes: &[u8]) -> Option<usize> {
    std::str::from_utf8(bytes).ok().map(|text| text.chars().count())
}

/// Every path that `may_follow` accepts and that is at most so long, unfinished characters included.
fn accepted(oracle: &Oracle, longest: usize) -> Vec<(Path, PathState)> {
    let mut paths = vec![(Vec::new(), oracle.canon.start())];
    let mut next = 0;
    while let Some((path, state)) = paths.get(next).cloned() {
        next += 1;
        for token in (0..oracle.canon.vocabulary().len() as u32).map(TokenId) {
            let Some(after) = oracle.canon.may_follow(&state, token) else { continue };
            let longer = [path.as_slice(), &[token]].concat();
            if String::from_utf8_lossy(&oracle.spell(&longer)).chars().count() <= longest {
                paths.push((longer, after));
            }
        }
    }
    paths
}

/// `may_follow` accepts the prefixes of encodings and nothing else, and `may_end` whole encodings.
fn check_paths(oracle: &Oracle, texts: &[(String, Path)], longest: usize) {
    let prefixes: BTreeSet<&[TokenId]> =
        texts.iter().flat_map(|(_, tokens)| (0..=tokens.len()).map(|n| &tokens[..n])).collect();
    let whole: BTreeSet<&[TokenId]> = texts.iter().map(|(_, tokens)| tokens.as_slice()).collect();
    for (path, state) in accepted(oracle, longest - HORIZON - 1) {
        let is_cut = characters(&oracle.spell(&path)).is_none();
        assert!(is_cut || prefixes.contains(path.as_slice()), "{} is no prefix", oracle.show(&path));
        assert_eq!(oracle.canon.may_end(&state), whole.contains(path.as_slice()), "{}", oracle.show(&path));
    }
}

/// `cover` is the set of the shortest prefixes of encodings that spell the typed text.
fn check_covers(oracle: &Oracle, texts: &[(String, Path)], longest: usize, is_closed: bool) {
    let mut covers = HashMap::<&str, BTreeSet<&[TokenId]>>::new();
    for (text, tokens) in texts {
        let mut end = 0;
        let mut count = 0;
        for (at, _) in text.char_indices().chain([(text.len(), ' ')]) {
            while end < at {
                end += oracle.canon.vocabulary().bytes(tokens[count]).unwrap().len();
                count += 1;
            }
            covers.entry(&text[..at]).or_default().insert(&tokens[..count]);
        }
    }
    // What is so short that all that decides it is among the texts.
    let is_decided = |path: &[TokenId]| {
        let bytes = oracle.spell(path);
        String::from_utf8_lossy(&bytes).chars().count() + HORIZON < longest
    };
    for (typed, expected) in covers {
        let cover = oracle.canon.covering_set(typed);
        let mut found = vec![cover.canonical.clone()];
        for context in &cover.contexts {
            let extensions = oracle.canon.extensions(typed, context);
            let before = found.len();
            found.extend(extensions.into_iter().map(|token| [context.tokens.as_slice(), &[token]].concat()));
            assert!(found.len() > before && oracle.spell(&context.tokens) == typed.as_bytes()[..context.at]);
        }
        assert!(cover.contexts.is_sorted_by_key(|context| std::cmp::Reverse(context.at)));
        let set: BTreeSet<&[TokenId]> = found.iter().map(Vec::as_slice).collect();
        assert_eq!(set.len(), found.len(), "{typed:?}: a path comes twice");
        for path in &expected {
            assert!(set.contains(path), "{typed:?}: {} is missing", oracle.show(path));
        }
        for path in set
            .into_iter()
            .filter(|_| is_closed)
            .filter(|path| is_decided(path) && characters(&oracle.spell(path)).is_some())
        {
            assert!(expected.contains(path), "{typed:?}: {} is too much", oracle.show(path));
        }
    }
}

fn check_tiny(tiny: &Tiny, alphabet: &[&str], longest: usize) {
    let oracle = tiny.oracle();
    let merges = tiny.merges.iter().map(|(l, r)| format!("{} {}", l.escape_ascii(), r.escape_ascii()));
    println!("alphabet {alphabet:?}, merges {:?}", merges.collect::<Vec<_>>()); // seen when something fails
    let texts = all_texts(&oracle, alphabet, longest);
    for (text, tokens) in &texts {
        assert_eq!(&oracle.canon.encode(text), tokens, "{text:?}");
        assert!(oracle.follow(tokens).is_some_and(|state| oracle.canon.may_end(&state)), "{text:?}");
    }
    let spelled = (' '..=char::MAX).filter(|c| oracle.canon.is_encodable(&c.to_string())).count();
    let is_closed = spelled + usize::from(alphabet.contains(&"\n")) == alphabet.len();
    if is_closed {
        check_paths(&oracle, &texts, longest);
    }
    check_covers(&oracle, &texts, longest, is_closed);
}

/// Vocabularies per alphabet; `FORETYPE_TEST_ROUNDS` asks for more.
fn rounds() -> usize {
    std::env::var("FORETYPE_TEST_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(3)
}

#[test]
fn random_merges_agree_with_all_texts() {
    for (seed, (alphabet, longest)) in (0..).zip(ALPHABETS) {
        let mut random = Random::new(seed);
        for _ in 0..rounds() {
            check_tiny(&Tiny::random(alphabet, &mut random), alphabet, *longest);
        }
    }
}

/// Contractions in one token, in two and in three, and words that begin like one.
#[test]
fn contractions_agree_with_all_texts() {
    let halves: [(&[&str], [&str; 2]); 3] =
        [(&["'", "r", "e", " "], ["r", "e"]), (&["'", "v", "e", "!"], ["v", "e"]), (&["'", "l", "\n"], ["l", "l"])];
    for (alphabet, [first, second]) in halves {
        let both = format!("{first}{second}");
        let begun = format!("'{first}");
        for merges in [
            &[("'", first)][..],
            &[("'", first), (&begun, second)],
            &[(first, second)],
            &[(first, second), ("'", &both)],
            &[(first, second), ("'", first)],
            &[("'", first), (first, second)],
        ] {
            check_tiny(&Tiny::fixed(merges, alphabet), alphabet, 6);
        }
    }
    let alphabet = &["'", "s", "x", " "];
    check_tiny(&Tiny::fixed(&[("'", "s"), (" ", "'"), ("s", "x")], alphabet), alphabet, 6);
}

#[test]
fn trained_merges_agree_with_all_texts() {
    for (seed, (alphabet, longest)) in (100..).zip(ALPHABETS) {
        let mut random = Random::new(seed);
        for _ in 0..rounds() {
            check_tiny(&Tiny::trained(alphabet, &mut random), alphabet, *longest);
        }
    }
}

/// The pre-tokenizers of Llama 3, Qwen2 and SmolLM2, and GPT-2's with a space before each text.
fn other_pre_tokenizers() -> Vec<Value> {
    let split = |digits: &str| {
        let pattern = format!(
            "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{{L}}\\p{{N}}]?\\p{{L}}+|{digits}|\
             \x20?[^\\s\\p{{L}}\\p{{N}}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
        );
        json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false })
    };
    let bytes = |add_prefix_space, use_regex| {
        json!({
            "type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true, "use_regex": use_regex
        })
    };
    let sequence = |first, last| json!({ "type": "Sequence", "pretokenizers": [first, last] });
    vec![
        sequence(split("\\p{N}{1,3}"), bytes(false, false)),
        sequence(split("\\p{N}"), bytes(false, false)),
        sequence(json!({ "type": "Digits", "individual_digits": true }), bytes(false, true)),
        sequence(json!({ "type": "Digits", "individual_digits": false }), bytes(false, true)),
    ]
}

#[test]
fn other_pre_tokenizers_agree_with_all_texts() {
    let alphabets: &[(&[&str], usize)] = &[
        (&[" ", "1", "a"], 7),
        (&[" ", "\n", "a", "!"], 6),
        (&["'", "S", "l", " "], 6),
        (&[" ", "\n", "1", "!"], 6),
        (&["\t", " ", "a", "\r"], 6),
    ];
    let mut random = Random::new(300);
    for pre_tokenizer in other_pre_tokenizers() {
        for (alphabet, longest) in alphabets {
            let pre_tokenizer = Some(pre_tokenizer.clone());
            check_tiny(&Tiny { pre_tokenizer, ..Tiny::random(alphabet, &mut random) }, alphabet, *longest);
        }
    }
}

#[test]
fn added_tokens_agree_with_all_texts() {
    let mut random = Random::new(400);
    let sets: [&[&str]; 5] = [&["ab"], &["  "], &["a", "aba"], &["b a", "ab", "a"], &["bb", " b", "abb"]];
    for added in sets {
        let pre_tokenizers = std::iter::once(None).chain(other_pre_tokenizers().into_iter().map(Some).take(1));
        for pre_tokenizer in pre_tokenizers {
            let alphabet = &["a", "b", " "];
            let added = added.iter().map(|text| (*text).to_owned()).collect();
            check_tiny(&Tiny { pre_tokenizer, added, ..Tiny::random(alphabet, &mut random) }, alphabet, 7);
        }
    }
}
