//! What `adapter_config.json` says, as far as it changes the merged weights.
//!
//! PEFT adds fields for new mathematics with each version. A field that isn't known here may only have a value that
//! means "no": then nothing that changes the weights is overlooked.

use serde_json::{Map, Value};

use super::error::AdapterError;
use crate::checkpoint::config::{Config, ConfigError};
use crate::error::BuildError;

/// Fields that are read here, or that only matter in training.
const KNOWN: [&str; 23] = [
    "alpha_pattern",
    "auto_mapping",
    "base_model_name_or_path",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "lora_alpha",
    "lora_dropout",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_rslora",
    "bias",
];

/// Ways to begin that leave the checkpoint's own weights alone. Others move a part of them into the adapter.
const PLAIN_STARTS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// How the product of an adapter's matrices is scaled and stored.
#[derive(Debug)]
pub(super) struct Settings {
    alpha: f64,
    /// Values of `lora_alpha` for single modules, by the end of a module's name.
    alphas: Vec<(String, f64)>,
    /// Divide by the root of the rank, not the rank.
    by_root: bool,
    /// Whether the model's matrices are stored as `[in, out]`.
    pub(super) fan_in_fan_out: bool,
}

impl Settings {
    /// Reads the fields of `config`, which was parsed from `json`.
    pub(super) fn read(config: &Config, json: &[u8]) -> Result<Self, BuildError> {
        let fields: Map<String, Value> =
            serde_json::from_slice(json).map_err(|source| ConfigError::Json { file: super::CONFIG, source })?;
        if let Some((field, value)) = fields.iter().find(|(field, value)| !is_understood(field, value)) {
            let found = value.to_string().chars().take(40).collect();
            return Err(AdapterError::Setting { field: field.clone(), found }.into());
        }
        let alphas = fields.get("alpha_pattern").and_then(Value::as_object).into_iter().flatten();
        let alphas = alphas.filter_map(|(module, alpha)| Some((module.clone(), alpha.as_f64()?))).collect();
        Ok(Self {
            alpha: config.positive_opt("lora_alpha")?.unwrap_or(8.0),
            alphas,
            by_root: config.flag_or("use_rslora", false)?,
            fan_in_fan_out: config.flag_or("fan_in_fan_out", false)?,
        })
    }

    /// The factor of a module's product.
    pub(super) fn scale(&self, module: &str, rank: u64) -> f32 {
        let is_of = |end: &str| module.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        let alpha = self.alphas.iter().find(|(end, _)| is_of(end)).map_or(self.alpha, |(_, alpha)| *alpha);
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "ranks are small")]
        let scale = (alpha / if self.by_root { (rank as f64).sqrt() } else { rank as f64 }) as f32;
        scale
    }
}

/// Whether a field has no meaning that is missing here.
fn is_understood(field: &str, value: &Value) -> bool {
    match field {
        "peft_type" => value == "LORA",
        "bias" => value.is_null() || value == "none",
        "init_lora_weights" => value.as_str().is_none_or(|start| PLAIN_STARTS.contains(&start)),
        // Names of modules are patterns to PEFT, and nearly always plain.
        "alpha_pattern" | "rank_pattern" => value.as_object().is_none_or(|patterns| {
            let plain = |name: &String| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.".contains(&byte));
            patterns.iter().all(|(name, value)| plain(name) && value.as_f64().is_some_and(|value| value > 0.0))
        }),
        _ => KNOWN.contains(&field) || is_no(value),
    }
}

/// Whether a value means that something isn't wanted.
fn is_no(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(json: &str) -> Result<Settings, String> {
        let json = json.as_bytes();
        let config = Config::parse(super::super::CONFIG, json).map_err(|error| error.to_string())?;
        Settings::read(&config, json).map_err(|error| error.to_string())
    }

    #[test]
    fn scales_are_alpha_by_the_rank_or_its_root() {
        let plain = settings(r#"{"peft_type": "LORA", "lora_alpha": 32}"#).expect("plain");
        assert_eq!(plain.scale("h.0.attn.c_attn", 8), 4.0);
        let rooted = settings(r#"{"peft_type": "LORA", "lora_alpha": 32, "use_rslora": true}"#).expect("rooted");
        assert_eq!(rooted.scale("h.0.attn.c_attn", 16), 8.0);
        let own = r#"{"peft_type": "LORA", "lora_alpha": 8, "alpha_pattern": {"attn.c_attn": 2, "h.1.c_fc": 4}}"#;
        let own = settings(own).expect("patterns");
        let scales = ["h.0.attn.c_attn", "h.0.xattn.c_attn", "h.11.c_fc", "h.1.c_fc"].map(|name| own.scale(name, 2));
        assert_eq!(scales, [1.0, 4.0, 4.0, 2.0]);
    }

    #[test]
    fn settings_of_other_mathematics_are_named() {
        for (field, value) in [
            ("use_dora", "true"),
            ("use_qalora", "true"),
            ("lora_bias", "true"),
            ("bias", "\"all\""),
            ("peft_type", "\"LOHA\""),
            ("init_lora_weights", "\"pissa\""),
            ("init_lora_weights", "\"olora\""),
            ("modules_to_save", "[\"lm_head\"]"),
            ("layer_replication", "[[0, 4], [2, 5]]"),
            ("trainable_token_indices", "[1]"),
            ("target_parameters", "[\"experts\"]"),
            ("alpha_pattern", "{\"h.[0-3].c_fc\": 4}"),
            ("something_of_next_year", "3"),
        ] {
            let error = settings(&format!(r#"{{"{field}": {value}}}"#)).expect_err(field);
            assert!(error.contains(&format!("`{field}`")) && error.contains("merge_and_unload"), "{error}");
        }
    }
}
