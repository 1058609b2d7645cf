//! What an engine on the CPU is sized by, computed before anything of it is loaded, and the check that a graph has the
//! sizes of its manifest.

use bundle::manifest::{Dtype, Manifest};
use ort::session::Session;
use ort::value::{Outlet, ValueType};

use super::Options;
use super::kv::{KvShape, PLACE_BYTES, TABLE};
use crate::readings::SourceShape;
use scheduler::backend::Limits;

/// The extents of the caches, and the limits and abilities of a bundle's engine.
pub(super) fn dimensions(manifest: &Manifest, options: &Options) -> (KvShape, Limits) {
    let model = &manifest.model;
    let size = |n: u32| n as usize;
    let mut shape = KvShape {
        layers: size(model.layers),
        heads: size(model.kv_heads),
        context: size(model.context),
        head_dim: size(model.head_dim),
        lanes: options.lanes,
        pages: 0,
    };
    let element_bytes = match model.dtype {
        Dtype::F32 => size_of::<f32>(),
        Dtype::F16 => size_of::<u16>(),
    };
    let page_bytes = shape.page_elements() * element_bytes;
    // Below one full lane nothing longer than the pool could ever be kept.
    shape.pages = (options.pool_bytes / page_bytes).max(shape.context);
    let limits = Limits {
        lanes: options.lanes,
        context: shape.context,
        chunk: options.chunk.min(shape.context),
        selected: options.lanes.max(options.chunk.min(shape.context)),
        vocab: size(model.vocab),
        top_k: size(model.top_k),
        pages: shape.pages,
        page_bytes,
        source: SourceShape::of(manifest, options.lanes, element_bytes).map(|source| source.limits),
    };
    (shape, limits)
}

/// Bytes of everything but the weights that an engine takes when its caches are full. No number overflows.
pub fn memory_bytes(manifest: &Manifest, options: &Options) -> u64 {
    let (shape, limits) = dimensions(manifest, options);
    let product = |sizes: &[usize]| sizes.iter().fold(1_u64, |all, &size| all.saturating_mul(size as u64));
    let places = product(&[shape.lanes, shape.context]).saturating_add(shape.pages as u64);
    let kv = places.saturating_mul((limits.page_bytes + PLACE_BYTES) as u64);
    let row_bytes = manifest.model.vocab_padded as usize * 4 + limits.top_k * (4 + 8) + 8 + 4;
    let results = product(&[limits.selected, row_bytes]);
    let ids = product(&[limits.lanes, limits.chunk, 8]);
    let sources = limits.source.map_or(0, |source| product(&[source.slots + limits.lanes, source.slot_bytes]));
    let scratch = product(&[options.threads, kernels::attention::scratch_bytes(shape.context, shape.head_dim)]);
    [results, ids, sources, scratch].into_iter().fold(kv, u64::saturating_add)
}

/// Checks that the graph's inputs and outputs have the sizes that the manifest says.
///
/// # Errors
/// The first that hasn't, in a sentence.
pub(super) fn check_graph(session: &Session, manifest: &Manifest) -> Result<(), String> {
    let model = &manifest.model;
    let size = |n: u32| i64::from(n);
    let (heads, context, head_dim) = (size(model.kv_heads), size(model.context), size(model.head_dim));
    let by_places = has_input(session, TABLE);
    let cache = if by_places { vec![heads, head_dim] } else { vec![heads, context, head_dim] };
    for (kind, tensors) in [("past", session.inputs()), ("present", session.outputs())] {
        for kv in ['k', 'v'] {
            let prefix = format!("{kind}_{kv}_");
            let found = tensors.iter().filter(|tensor| tensor.name().starts_with(&prefix)).count();
            if found != model.layers as usize {
                return Err(format!("it has {found} tensors {prefix}..., and the manifest {} layers", model.layers));
            }
            (0..found).try_for_each(|layer| check_tensor(tensors, &format!("{prefix}{layer}"), &cache))?;
        }
    }
    if by_places {
        check_tensor(session.inputs(), TABLE, &[context])?;
    }
    check_tensor(session.outputs(), "logits", &[size(model.vocab_padded)])?;
    check_tensor(session.outputs(), "topv", &[size(model.top_k)])?;
    check_tensor(session.outputs(), "topi", &[size(model.top_k)])
}

/// Whether the graph has an input of that name.
pub(super) fn has_input(session: &Session, name: &str) -> bool {
    session.inputs().iter().any(|input| input.name() == name)
}

/// Checks the last dimensions of a tensor; one that the graph leaves open is right.
fn check_tensor(tensors: &[Outlet], name: &str, expected: &[i64]) -> Result<(), String> {
    let tensor = tensors.iter().find(|tensor| tensor.name() == name).ok_or_else(|| format!("it has no `{name}`"))?;
    let ValueType::Tensor { shape, .. } = tensor.dtype() else { return Err(format!("`{name}` is no tensor")) };
    // The first dimension counts rows, places or selected positions.
    let found = shape.get(1..).unwrap_or_default();
    let same = |(found, expected): (&i64, &i64)| *found < 0 || found == expected;
    if found.len() == expected.len() && found.iter().zip(expected).all(same) {
        return Ok(());
    }
    Err(format!("each row of `{name}` is {found:?}, but the manifest's sizes make it {expected:?}"))
}
