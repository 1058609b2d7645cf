//! How much device memory an engine takes, and whether it fits.

use crate::device::{Buckets, KvShape, Sizes};
use crate::readings::SourceShape;

/// Memory of everything but the weights, which TensorRT has taken already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Caches and pages.
    pub kv: KvShape,
    /// Shape of the encoder outputs, in models with an encoder.
    pub sources: Option<SourceShape>,
    /// Inputs and results.
    pub sizes: Sizes,
    /// Scratch memory, which the contexts share.
    pub scratch_bytes: usize,
    /// Memory that a context takes for itself.
    pub context_bytes: usize,
}

/// Why it doesn't fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} MiB of device memory are needed for {lanes} lanes and {} MiB of KV pages, and {} MiB are free{}",
    mib(.needed), mib(.pool), .free >> 20, advice(.fits))]
pub struct TooLarge {
    /// Bytes that are needed.
    pub needed: usize,
    /// Bytes of them for pages.
    pub pool: usize,
    /// Bytes that are free.
    pub free: usize,
    /// Rows of a step that were asked for.
    pub lanes: usize,
    /// The most that would fit, if any number does.
    pub fits: Option<usize>,
}

fn mib(bytes: &usize) -> usize {
    bytes.div_ceil(1 << 20)
}

fn advice(fits: &Option<usize>) -> String {
    match fits {
        Some(lanes) => format!("; --lanes {lanes} would fit"),
        None => "; not even one lane fits: choose a smaller --kv-pool-mib, or a larger GPU".into(),
    }
}

impl Needs {
    /// Bytes of device memory with `lanes` lanes.
    fn bytes(&self, lanes: usize) -> usize {
        let kv = KvShape { lanes, ..self.kv };
        let sizes = Sizes { lanes, selected: lanes.max(self.sizes.chunk), ..self.sizes };
        let sources = self.sources.map(|sources| sources.with_lanes(lanes));
        Self { kv, sources, sizes, ..*self }.total()
    }

    fn total(&self) -> usize {
        let sources = self.sources.map_or(0, |sources| sources.device_bytes());
        let contexts = self.context_bytes.saturating_mul(self.contexts());
        (self.kv.bytes() + sources + self.sizes.bytes() + self.scratch_bytes).saturating_add(contexts)
    }

    /// The shapes that are prepared.
    pub fn buckets(&self) -> Buckets {
        Buckets::new(&self.sizes, &self.sources.map_or_else(Vec::new, |shape| shape.widths()))
    }

    /// Contexts: one for each bucket, one for other steps, and the encoder's.
    fn contexts(&self) -> usize {
        self.buckets().all().len() + 1 + usize::from(self.sources.is_some())
    }

    /// Whether it fits into so many free bytes.
    ///
    /// # Errors
    /// How much it is, and what would fit.
    pub fn check(&self, free: usize) -> Result<(), TooLarge> {
        let needed = self.total();
        if needed <= free { Ok(()) } else { Err(self.too_large(needed, free)) }
    }

    /// The error for a driver that refused although it should have fitted: memory is fragmented, or others take it.
    pub fn refused(&self, free: usize) -> TooLarge {
        self.too_large(self.total(), free)
    }

    fn too_large(&self, needed: usize, free: usize) -> TooLarge {
        let fits = (1..self.kv.lanes).rev().find(|&lanes| self.bytes(lanes) <= free);
        TooLarge { needed, pool: self.kv.pages * self.kv.page_bytes(), free, lanes: self.kv.lanes, fits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scheduler::backend::SourceLimits;

    fn needs(lanes: usize) -> Needs {
        Needs {
            kv: KvShape { layers: 12, heads: 12, context: 128, head_dim: 64, element_bytes: 2, lanes, pages: 128 },
            sources: None,
            sizes: Sizes {
                lanes,
                chunk: 64,
                selected: lanes.max(64),
                top_k: 64,
                vocab: 50257,
                vocab_padded: 50264,
                slots: 0,
            },
            scratch_bytes: 10 << 20,
            context_bytes: 64 << 10,
        }
    }

    #[test]
    fn the_number_of_lanes_that_would_fit_fits() {
        let (mib, wanted) = (1 << 20, needs(64));
        wanted.check(400 * mib).unwrap();
        let error = wanted.check(200 * mib).unwrap_err();
        let fits = error.fits.unwrap();
        assert!((1..64).contains(&fits), "{error:?}");
        needs(fits).check(200 * mib).unwrap();
        needs(fits + 1).check(200 * mib).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("64 lanes") && said.contains("200 MiB are free"), "{said}");
        assert!(said.ends_with(&format!("--lanes {fits} would fit")), "{said}");
        assert!(wanted.check(mib).unwrap_err().to_string().contains("not even one lane"));
        // Sources take as much again, and fewer lanes have fewer of them.
        let limits = SourceLimits { slots: 0, tokens: 512, slot_bytes: 0 };
        let sources = SourceShape { layers: 12, heads: 12, head_dim: 64, element_bytes: 2, lanes: 0, limits };
        let reading = Needs { sources: Some(sources.with_lanes(16)), ..needs(16) };
        let contexts = |needs: &Needs| needs.contexts() * needs.context_bytes;
        let alone = needs(16).total();
        let more = reading.total() - contexts(&reading) - (alone - contexts(&needs(16)));
        assert_eq!((more - 512 * 8) / (24 * 12 * 64 * 2 * 512), 16 + 17);
        let fits = reading.check(alone).unwrap_err().fits.unwrap();
        assert!(reading.bytes(fits) <= alone && reading.bytes(fits + 1) > alone && fits < 8, "{fits}");
    }
}
