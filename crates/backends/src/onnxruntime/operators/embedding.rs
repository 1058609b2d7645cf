//! `Embedding` and `EmbeddingInt8`: `(ids, table, scale?, positions?, past_len?) -> y`.

use kernels::Kernels;
use kernels::embedding;

use super::constants::Weights;
use super::context::{Call, Constant, Dims, Info};
use super::{Compute, Form};

impl Prepared {
    pub(super) fn read(info: &Info, form: Form) -> Result<Self, ort::Error> {
        let positions = 1 + form.inputs();
        let prepared = Self {
            table: Weights::read(info, 1, form)?,
            hidden: info.extent("inputs")?,
            vocab: info.extent("outputs")?,
            positions: info.constant(positions)?,
            past_len: positions + 1,
        };
        let Prepared { hidden, vocab, .. } = prepared;
        prepared.table.check(hidden, vocab)?;
        let rows = prepared.positions.as_ref().map_or(hidden, |positions| positions.get().len());
        if rows == 0 || !rows.is_multiple_of(hidden) {
            return Err(ort::Error::new(format!("the positions' {rows} elements are no rows of {hidden}")));
        }
        Ok(prepared)
    }
}

pub(super) struct Prepared {
    table: Weights,
    hidden: usize,
    vocab: usize,
    positions: Option<Constant<f32>>,
    /// Index of the node's input `past_len`.
    past_len: usize,
}

impl Compute for Prepared {
    fn compute(&mut self, _: &mut Kernels, call: &Call) -> Result<(), ort::Error> {
        let ids = call.input::<i64>(0)?; // [B, S]
        let past_len = match self.positions {
            Some(_) => call.input::<i64>(self.past_len)?.elements, // [B]
            None => &[],
        };
        let sizes: Vec<usize> = ids.dims.as_slice().iter().map(|size| *size as usize).chain([self.hidden]).collect();
        let y = call.output::<f32>(0, &Dims::new(&sizes))?;
        let embedding = embedding::Embedding {
            table: self.table.matrix(),
            hidden: self.hidden,
            vocab: self.vocab,
            positions: self.positions.as_ref().map(Constant::get),
        };
        let unknown = |id| ort::Error::new(format!("the token id {id} is not in the vocabulary of {}", self.vocab));
        embedding.run(ids.elements, past_len, y).map_err(unknown)
    }
}
