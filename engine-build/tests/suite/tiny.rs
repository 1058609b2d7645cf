//! Checkpoints on disk as `save_pretrained` writes them, and ways to change them: a GPT-2 of 2 layers and 8 numbers
//! wide, and copies of the goldens.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bundle::Manifest;
use engine_build::{BuildError, BuildOptions, build};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use tempfile::TempDir;

pub const LAYERS: usize = 2;
pub const HIDDEN: usize = 8;
pub const POSITIONS: usize = 16;
/// 256 bytes and the end of text: not a multiple of 8, so that padding is in play.
pub const VOCAB: usize = 257;
pub const END_OF_TEXT: &str = "<|endoftext|>";

/// A tensor as a safetensors file holds it.
#[derive(Clone)]
pub struct Stored {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

pub type Tensors = BTreeMap<String, Stored>;

/// A temporary folder with a checkpoint in it and room for a bundle beside it.
pub struct Tiny {
    root: TempDir,
}

impl Tiny {
    /// Writes a whole, valid checkpoint.
    pub fn new() -> Self {
        let tiny = Self { root: TempDir::new().expect("a temporary folder") };
        fs::create_dir(tiny.checkpoint()).expect("a folder");
        tiny.write_json("config.json", &config());
        tiny.write_tensors("model.safetensors", &tensors("transformer."));
        tiny.write_json("tokenizer.json", &tokenizer());
        tiny
    }

    /// Copies a golden checkpoint.
    pub fn golden(name: &str) -> Self {
        let golden = Self { root: TempDir::new().expect("a temporary folder") };
        fs::create_dir(golden.checkpoint()).expect("a folder");
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/goldens").join(name);
        for entry in fs::read_dir(from).expect("the golden") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name");
            if name != "expected.safetensors" {
                fs::copy(&path, golden.checkpoint().join(name)).expect("copied");
            }
        }
        golden
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn checkpoint(&self) -> PathBuf {
        self.root().join("checkpoint")
    }

    pub fn out(&self) -> PathBuf {
        self.root().join("bundle")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.checkpoint().join(name)
    }

    pub fn options(&self) -> BuildOptions {
        BuildOptions::new(self.checkpoint(), self.out())
    }

    pub fn build(&self) -> Result<Manifest, BuildError> {
        build(&self.options(), &())
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path(name), bytes).expect("the file can be written");
    }

    pub fn write_json(&self, name: &str, value: &Value) {
        self.write(name, value.to_string());
    }

    pub fn write_tensors(&self, name: &str, tensors: &Tensors) {
        self.write(name, serialize(tensors));
    }

    pub fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).expect("the file was there");
    }

    /// Changes a field of `config.json`, by its name or JSON pointer; null removes it.
    pub fn set(&self, field: &str, value: Value) {
        let bytes = fs::read(self.path("config.json")).expect("a config");
        let mut config: Value = serde_json::from_slice(&bytes).expect("JSON");
        let (parent, field) = field.rsplit_once('/').unwrap_or(("", field));
        let parent = config.pointer_mut(parent).and_then(Value::as_object_mut).expect("the parent");
        if value.is_null() {
            parent.remove(field);
        } else {
            parent.insert(field.to_owned(), value);
        }
        self.write_json("config.json", &config);
    }

    /// Overwrites one 16-bit element of a tensor in the single weights file.
    pub fn poke_half(&self, tensor: &str, index: usize, bytes: [u8; 2]) {
        let mut file = fs::read(self.path("model.safetensors")).expect("the weights");
        let header = u64::from_le_bytes(file[..8].try_into().expect("a prefix")) as usize;
        let entries: Value = serde_json::from_slice(&file[8..8 + header]).expect("a header");
        let start = entries[tensor]["data_offsets"][0].as_u64().expect("the tensor") as usize;
        file[8 + header + start + 2 * index..][..2].copy_from_slice(&bytes);
        self.write("model.safetensors", file);
    }

    /// Changes the tensors of the single weights file.
    pub fn edit(&self, change: impl FnOnce(&mut Tensors)) {
        let mut tensors = tensors("transformer.");
        change(&mut tensors);
        self.write_tensors("model.safetensors", &tensors);
    }

    /// Replaces the single weights file by two shards and an index.
    pub fn shard(&self) {
        let mut first = tensors("transformer.");
        let second = first.split_off("transformer.h.1");
        let names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        let mut map = BTreeMap::new();
        for (name, tensors) in names.iter().zip([&first, &second]) {
            self.write_tensors(name, tensors);
            map.extend(tensors.keys().map(|tensor| (tensor.clone(), *name)));
        }
        self.write_json("model.safetensors.index.json", &json!({"metadata": {}, "weight_map": map}));
        self.remove("model.safetensors");
    }
}

pub fn config() -> Value {
    json!({
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": HIDDEN, "n_head": 2, "n_layer": LAYERS,
        "n_positions": POSITIONS, "n_ctx": POSITIONS, "vocab_size": VOCAB, "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "bos_token_id": 256, "eos_token_id": 256, "attn_pdrop": 0.1
    })
}

/// All tensors of the model, with repeatable values, and the mask buffers that old checkpoints carry.
pub fn tensors(prefix: &str) -> Tensors {
    let mut shapes = vec![
        ("wte.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("wpe.weight".to_owned(), vec![POSITIONS, HIDDEN]),
        ("ln_f.weight".to_owned(), vec![HIDDEN]),
        ("ln_f.bias".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let maps = [("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)];
        for (name, from, to) in maps {
            shapes.push((format!("h.{layer}.{name}.weight"), vec![from * HIDDEN, to * HIDDEN]));
            shapes.push((format!("h.{layer}.{name}.bias"), vec![to * HIDDEN]));
        }
        for name in ["ln_1", "ln_2"] {
            shapes.push((format!("h.{layer}.{name}.weight"), vec![HIDDEN]));
            shapes.push((format!("h.{layer}.{name}.bias"), vec![HIDDEN]));
        }
        shapes.push((format!("h.{layer}.attn.bias"), vec![1, 1, POSITIONS, POSITIONS]));
    }
    shapes.into_iter().map(|(name, shape)| (format!("{prefix}{name}"), float_tensor(&shape))).collect()
}

/// Values between -0.5 and 0.5 that differ from their neighbours.
pub fn float_tensor(shape: &[usize]) -> Stored {
    let count: usize = shape.iter().product();
    let value = |i: usize| ((i * 37 + count * 11) % 101) as f32 / 101.0 - 0.5;
    let bytes = (0..count).flat_map(|i| value(i).to_le_bytes()).collect();
    Stored { dtype: Dtype::F32, shape: shape.to_vec(), bytes }
}

/// Little-endian f32 values.
pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// Overwrites one f32 of a tensor.
pub fn poke(tensors: &mut Tensors, name: &str, index: usize, value: f32) {
    let tensor = tensors.get_mut(name).expect("the tensor");
    tensor.bytes[4 * index..][..4].copy_from_slice(&value.to_le_bytes());
}

pub fn serialize(tensors: &Tensors) -> Vec<u8> {
    let views = tensors.iter().map(|(name, tensor)| {
        let view = TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes).expect("a consistent tensor");
        (name.clone(), view)
    });
    safetensors::serialize(views, None).expect("a safetensors file")
}

/// The 256 characters that GPT-2's tokenizer writes bytes as, in the order of their ids.
pub fn byte_characters() -> Vec<String> {
    let printable = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let direct = (0..256).filter(|byte| printable(*byte));
    let moved = 256..256 + (0..256).filter(|byte| !printable(*byte)).count() as u32;
    direct.chain(moved).filter_map(char::from_u32).map(String::from).collect()
}

/// The bytes as a vocabulary, and the end of text.
pub fn vocabulary() -> Value {
    let mut vocabulary: Value =
        byte_characters().into_iter().zip(0..).collect::<BTreeMap<_, u32>>().into_iter().collect();
    vocabulary[END_OF_TEXT] = json!(256);
    vocabulary
}

/// A tokenizer of GPT-2's kind without merges.
pub fn tokenizer() -> Value {
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": byte_level,
        "post_processor": null, "decoder": byte_level,
        "added_tokens": [{"id": 256, "content": END_OF_TEXT, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary(), "merges": []}
    })
}

/// The text of a manifest that was changed, with its checksum put right.
pub fn sealed(manifest: &Value) -> Vec<u8> {
    bundle::manifest::seal(manifest.to_string().as_bytes()).expect("a manifest with its checksum")
}
