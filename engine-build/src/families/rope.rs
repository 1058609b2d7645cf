//! The settings of rotary embeddings, in all formats that versions of transformers write, and the angles that follow
//! from them.
//!
//! Supported are the types `default`, `linear` and `llama3`. The others change with the length of the text (`dynamic`)
//! or scale attention, too (`yarn`, `longrope`).

use std::f64::consts::TAU;

use crate::checkpoint::Config;
use crate::error::ConfigError;

/// No model's heads come near it, and the tables of a broken configuration should not fill the memory.
const ROTATED_LIMIT: u32 = 4096;

/// A family's defaults.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults {
    /// The slowest pair's angle per position is about one by this.
    pub(super) theta: f64,
    /// Share of a head's elements that are turned.
    pub(super) fraction: f64,
}

/// The angle per position of each pair of a head's elements, in radians.
pub(super) fn frequencies(config: &Config, head_dim: u32, defaults: Defaults) -> Result<Vec<f64>, ConfigError> {
    // Version 5 of transformers writes `rope_parameters`; before, there was `rope_scaling` beside fields of other
    // names.
    let settings = match config.object_opt("rope_parameters")? {
        Some(settings) => settings,
        None => config.object_opt("rope_scaling")?.unwrap_or_default(),
    };
    let first_of = |names: &[&str], default: f64| {
        for from in [&settings, config] {
            for name in names {
                if let Some(value) = from.positive_opt(name)? {
                    return Ok(value);
                }
            }
        }
        Ok::<_, ConfigError>(default)
    };
    let theta = first_of(&["rope_theta", "rotary_emb_base"], defaults.theta)?;
    let fraction = first_of(&["partial_rotary_factor", "rotary_pct"], defaults.fraction)?;
    // Cut as transformers cuts it; too large a product is refused below.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float cast saturates")]
    let rotated = (f64::from(head_dim) * fraction) as u32;
    let plain = plain_frequencies(rotated, head_dim, theta)?;
    scaled(plain, &settings)
}

/// `theta^(-2 i / rotated)` for each pair `i`.
pub(super) fn plain_frequencies(rotated: u32, head_dim: u32, theta: f64) -> Result<Vec<f64>, ConfigError> {
    if rotated == 0 || !rotated.is_multiple_of(2) || rotated > head_dim.min(ROTATED_LIMIT) {
        return Err(ConfigError::RotarySize { rotated, head_dim });
    }
    Ok((0..rotated).step_by(2).map(|i| theta.powf(-f64::from(i) / f64::from(rotated))).collect())
}

fn scaled(plain: Vec<f64>, settings: &Config) -> Result<Vec<f64>, ConfigError> {
    let kind = match settings.text_opt("rope_type")? {
        Some(kind) => kind,
        None => settings.text_or("type", "default")?,
    };
    let required = |name: &'static str| settings.positive_opt(name)?.ok_or(ConfigError::FieldMissing(name));
    match kind {
        "default" => Ok(plain),
        "linear" => {
            let factor = required("factor")?;
            Ok(plain.into_iter().map(|frequency| frequency / factor).collect())
        }
        "llama3" => {
            let bands = Bands {
                factor: required("factor")?,
                low: required("low_freq_factor")?,
                high: required("high_freq_factor")?,
                original: required("original_max_position_embeddings")?,
            };
            if bands.high <= bands.low {
                let (found, supported) = (bands.high.to_string(), "a number above `low_freq_factor`");
                return Err(ConfigError::Unsupported { field: "high_freq_factor", found, supported });
            }
            Ok(plain.into_iter().map(|frequency| bands.scale(frequency)).collect())
        }
        other => Err(ConfigError::Unsupported {
            field: "rope_type",
            found: format!("`{other}`"),
            supported: "default, linear and llama3",
        }),
    }
}

/// Llama 3's scaling: slow pairs are slowed down, fast ones stay, and between them is a gradual change.
struct Bands {
    factor: f64,
    /// Pairs that turn less often than this over the original context are slow.
    low: f64,
    /// Pairs that turn more often than this over it are fast.
    high: f64,
    original: f64,
}

impl Bands {
    fn scale(&self, frequency: f64) -> f64 {
        let turns = self.original * frequency / TAU;
        if turns < self.low {
            frequency / self.factor
        } else if turns > self.high {
            frequency
        } else {
            let smooth = (turns - self.low) / (self.high - self.low);
            frequency * ((1.0 - smooth) / self.factor + smooth)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: Defaults = Defaults { theta: 10_000.0, fraction: 1.0 };

    fn of(json: &str, head_dim: u32) -> Result<Vec<f64>, String> {
        let config = Config::parse("config.json", json.as_bytes()).expect("an object");
        frequencies(&config, head_dim, LLAMA).map_err(|error| error.to_string())
    }

    #[test]
    fn old_and_new_places_mean_the_same() {
        let plain = of(r#"{"rope_theta": 100.0}"#, 4).expect("supported");
        assert_eq!(plain, [1.0, 0.1]);
        for same in [
            r#"{"rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}}"#,
            r#"{"rotary_emb_base": 100, "rope_scaling": null}"#,
        ] {
            assert_eq!(of(same, 4).expect("supported"), plain, "{same}");
        }
        let quarter = of(r#"{"rotary_pct": 0.5, "rope_theta": 100.0}"#, 8).expect("supported");
        assert_eq!(quarter, plain);
        let linear = of(r#"{"rope_theta": 100, "rope_scaling": {"type": "linear", "factor": 2.0}}"#, 4);
        assert_eq!(linear.expect("supported"), [0.5, 0.05]);
    }

    /// With the settings of Llama 3.1, a pair whose wavelength is 8192 / 2.5 positions lies half-way between the bands.
    /// Its frequency is multiplied by (1 / 8 + 1) / 2.
    #[test]
    fn llama3_slows_what_is_slow() {
        let bands = Bands { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };
        let at = |turns: f64| bands.scale(turns * TAU / 8192.0) / (turns * TAU / 8192.0);
        for (turns, expected) in [(0.5, 0.125), (1.0, 0.125), (2.5, 0.5625), (4.0, 1.0), (100.0, 1.0)] {
            assert!((at(turns) - expected).abs() < 1e-12, "{turns}: {}", at(turns));
        }
    }

    #[test]
    fn what_cannot_be_done_is_said() {
        for (json, fragments) in [
            (r#"{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}"#, ["`rope_type`", "`yarn`"]),
            (r#"{"rope_scaling": {"rope_type": "linear"}}"#, ["no `factor`", "config.json"]),
            (r#"{"rope_scaling": {"rope_type": "llama3", "factor": 8}}"#, ["no `low_freq_factor`", "config.json"]),
            (r#"{"rope_theta": 0}"#, ["`rope_theta`", "above 0"]),
            (r#"{"partial_rotary_factor": 0.4}"#, ["3 of a head's 8", "even"]),
            (r#"{"partial_rotary_factor": 2}"#, ["16 of a head's 8", "even"]),
            (r#"{"partial_rotary_factor": 0.01}"#, ["0 of a head's 8", "even"]),
        ] {
            let error = of(json, 8).expect_err(json);
            assert!(fragments.iter().all(|fragment| error.contains(fragment)), "{json}: {error}");
        }
    }
}
