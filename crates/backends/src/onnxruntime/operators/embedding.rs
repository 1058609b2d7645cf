//! `Embedding` and `EmbeddingInt8`: `(ids, table, scale?, positions?, past_len?) -> y`.

use kernels::Kernels;
use kernels::embedding;
use ort::operator::{OperatorInput, OperatorOutput};

use super::context::{Call, Constant, Dims, Info, Weights};
use super::{Compute, Definition, F32, Form, I64, optional, required};

pub(super) struct EmbeddingOperator(pub(super) Form);

impl Definition for EmbeddingOperator {
    type Prepared = Prepared;

    fn name(&self) -> &'static str {
        self.0.name(["Embedding", "EmbeddingInt8"])
    }

    fn inputs(&self) -> Vec<OperatorInput> {
        let table = self.0.inputs();
        [required(I64)].into_iter().chain(table).chain([optional(F32), optional(I64)]).collect()
    }

    fn outputs(&self) -> Vec<OperatorOutput> {
        vec![OperatorOutput::required(F32)]
    }

    fn prepare(&self, info: &Info) -> Result<Prepared, ort::Error> {
        let positions = 1 + self.0.inputs().len();
        let prepared = Prepared {
            table: Weights::read(info, 1, self.0)?,
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
