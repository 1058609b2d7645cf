//! Configuration fields that several families share, with their checks.

use crate::blocks::Activation;
use crate::checkpoint::Config;
use crate::error::ConfigError;

/// A size and the field that gave it.
#[derive(Clone, Copy)]
pub(super) struct Named {
    pub(super) field: &'static str,
    pub(super) size: u32,
}

pub(super) fn named(field: &'static str, size: u32) -> Named {
    Named { field, size }
}

/// The size of a head where the heads share the hidden size.
pub(super) fn head_dim(hidden: Named, heads: Named) -> Result<u32, ConfigError> {
    divide(hidden, heads, "every head needs the same whole size")
}

/// How many heads of queries share a head of keys and values; checked, and not needed otherwise.
pub(super) fn head_groups(heads: Named, kv_heads: Named) -> Result<u32, ConfigError> {
    divide(heads, kv_heads, "every head of keys and values serves the same number of heads of queries")
}

/// Checks the width of all heads together, which need not be the hidden size where the configuration gives a head's.
pub(super) fn heads_width(heads: u32, head_dim: u32) -> Result<(), ConfigError> {
    match heads.checked_mul(head_dim) {
        Some(width) if width <= 1 << 24 => Ok(()),
        _ => Err(ConfigError::HeadsWidth { heads, head_dim }),
    }
}

fn divide(whole: Named, part: Named, reason: &'static str) -> Result<u32, ConfigError> {
    let (Named { field: whole, size }, Named { field: part, size: by }) = (whole, part);
    if size % by == 0 { Ok(size / by) } else { Err(ConfigError::Indivisible { whole, size, part, by, reason }) }
}

/// The activation function that a field names.
pub(super) fn activation(config: &Config, field: &str, default: &str) -> Result<Activation, ConfigError> {
    let name = config.text_or(field, default)?;
    Activation::from_name(name)
        .ok_or_else(|| ConfigError::Activation { found: name.to_owned(), supported: Activation::names() })
}
