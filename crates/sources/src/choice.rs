//! Which files of a repository a model needs: a bundle's, or a checkpoint's with the weights in one format.

use crate::source::is_name;

/// Files of a checkpoint beside the weights, as far as a build or a start reads them.
const TEXTS: [&str; 12] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "blocklist.txt",
    "popular.tsv",
    "typing.json",
    "serving.properties",
];

/// Weights, in the order in which transformers prefers them: a file, an index of shards, and how shards are named.
pub(crate) const WEIGHTS: [(&str, &str, &str, &str); 2] = [
    ("model.safetensors", "model.safetensors.index.json", "model-", ".safetensors"),
    ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-", ".bin"),
];

/// A bundle's list of files.
pub(crate) const MANIFEST: &str = "manifest.json";

/// The files that a model needs, of those that are in its folder. `None` if it has no model.
pub(crate) fn needed<'a>(names: &[&'a str]) -> Option<Vec<&'a str>> {
    let has = |name: &str| names.contains(&name);
    if has(MANIFEST) {
        return Some(names.iter().copied().filter(|name| is_name(name)).collect());
    }
    if !has("config.json") {
        return None;
    }
    let (single, index, first, last) = WEIGHTS.into_iter().find(|(single, index, ..)| has(single) || has(index))?;
    let is_weights = |name: &str| {
        let is_shard = name.starts_with(first) && name.contains("-of-") && name.ends_with(last);
        if has(single) { name == single } else { name == index || is_shard }
    };
    Some(names.iter().copied().filter(|name| is_name(name) && (TEXTS.contains(name) || is_weights(name))).collect())
}

/// Names that a checkpoint's texts may have, for servers that can't list a folder.
pub(crate) fn texts() -> impl Iterator<Item = &'static str> {
    TEXTS.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_comes_with_its_weights_in_one_format_and_nothing_else() {
        let names = [
            "config.json",
            "tokenizer.json",
            "README.md",
            "model.safetensors",
            "pytorch_model.bin",
            "tf_model.h5",
            "onnx",
            "model-00001-of-00002.safetensors",
            "../merges.txt",
        ];
        assert_eq!(needed(&names).expect("a model"), ["config.json", "tokenizer.json", "model.safetensors"]);
        let shards = [
            "config.json",
            "pytorch_model.bin.index.json",
            "pytorch_model-00001-of-00002.bin",
            "optimizer.bin",
            "pytorch_model-00002-of-00002.bin",
        ];
        assert_eq!(needed(&shards).expect("a model").len(), 4);
        assert_eq!(needed(&["config.json", "model.gguf"]), None);
        assert_eq!(needed(&["model.safetensors"]), None);
        assert_eq!(needed(&["manifest.json", "model.onnx", "x.plan"]).expect("a bundle").len(), 3);
    }
}
