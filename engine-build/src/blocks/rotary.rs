//! Rotary position embeddings: pairs of a head's elements, rotated by angles that grow with the position.
//!
//! The cosines and sines of the angles are constants of the graph with a row per position. At run time the graph only
//! looks a position up. This file does not know where a family's configuration has its settings.

use super::{Builder, Step};
use crate::onnx::{Attribute, Source, Value};

/// Which elements are turned, and how fast.
#[derive(Clone, Debug)]
pub(crate) struct Rotary {
    /// Angle per position of each pair, in radians. So twice as many of a head's elements are turned: the first ones.
    pub(crate) frequencies: Vec<f64>,
    /// Pairs are neighbours (GPT-J), not an element of the first half and one of the second.
    pub(crate) interleaved: bool,
}

impl Rotary {
    /// Elements of a head that are turned.
    fn turned(&self) -> usize {
        2 * self.frequencies.len()
    }
}

/// Cosines and sines, `[C, turned / 2]` each, in the computing precision.
#[derive(Debug)]
pub(crate) struct RotaryTables {
    cosines: Value,
    sines: Value,
    turned: usize,
    interleaved: bool,
}

impl Builder<'_> {
    /// Stores the tables for the positions of a cache.
    pub(crate) fn rotary_tables(&mut self, rotary: &Rotary, context: u32) -> RotaryTables {
        let angles = || (0..context).flat_map(|at| rotary.frequencies.iter().map(move |f| f64::from(at) * f));
        #[expect(clippy::cast_possible_truncation, reason = "computed in f64, stored in f32")]
        let (cosines, sines) = (angles().map(|a| a.cos() as f32).collect(), angles().map(|a| a.sin() as f32).collect());
        let (element, shape) = (self.compute(), [u64::from(context), rotary.frequencies.len() as u64]);
        let cosines = self.graph.parameter("rotary.cosines", &shape, element, Source::Computed(cosines));
        let sines = self.graph.parameter("rotary.sines", &shape, element, Source::Computed(sines));
        RotaryTables { cosines, sines, turned: rotary.turned(), interleaved: rotary.interleaved }
    }

    /// Turns queries or keys `[B, heads, S, D]` by their positions.
    pub(crate) fn rotate(&mut self, x: &Value, tables: &RotaryTables, step: &Step, head_dim: u32) -> Value {
        let mut attributes = vec![Attribute::Int("interleaved", i64::from(tables.interleaved))];
        if tables.turned < head_dim as usize {
            attributes.push(Attribute::Int("rotary_embedding_dim", tables.turned as i64));
        }
        self.graph.node("RotaryEmbedding", &[x, &tables.cosines, &tables.sines, &step.positions], &attributes)
    }
}
