//! The matrix with a row per token id: the token embedding at the start of the graph, and the head at its end.

use super::Builder;
use crate::checkpoint::{Tensor, Weights};
use crate::error::WeightsError;
use crate::onnx::{Attribute, Element, Source, Value};

/// A vocabulary matrix `[V, E]` in the computing precision.
#[derive(Clone, Debug)]
pub(crate) struct Vocabulary {
    matrix: Value,
    /// f32 `[E]`: the mean of all rows, where the matrix is stored without it.
    mean: Option<Value>,
}

impl Builder<'_> {
    /// Stores the matrix, with zero rows from `vocab` to `vocab_padded`.
    ///
    /// An f16 graph stores it without its mean row, which is added back in f32 wherever the matrix is used. The logits
    /// of GPT-2 are a large common offset (often around -100) plus the small differences that ranking is made of, and
    /// f16 has steps of 0.06 there. The offset is the product with the mean row; without it, f16 logits lie around 0.
    pub(crate) fn vocabulary_matrix(
        &mut self,
        name: &str,
        (vocab, vocab_padded): (u64, u64),
        hidden: u64,
    ) -> Result<Vocabulary, WeightsError> {
        let shape = [vocab_padded, hidden];
        if self.compute() == Element::F32 {
            let matrix = self.parameter(name, &[vocab, hidden], &shape, Element::F32)?;
            return Ok(Vocabulary { matrix, mean: None });
        }
        let tensor = self.tensor(name, &[vocab, hidden])?;
        let mean = mean_row(self.weights, &tensor, hidden)?;
        let source = Source::Centred { tensor, mean: mean.clone() };
        let matrix = self.graph.parameter(name, &shape, Element::F16, source);
        let mean = self.graph.parameter(&format!("{name}.mean"), &[hidden], Element::F32, Source::Computed(mean));
        Ok(Vocabulary { matrix, mean: Some(mean) })
    }

    /// The rows of the ids `[B, S]`, f32 `[B, S, E]`.
    pub(crate) fn token_rows(&mut self, vocabulary: &Vocabulary, ids: &Value) -> Value {
        let rows = self.graph.node("Gather", &[&vocabulary.matrix, ids], &[Attribute::Int("axis", 0)]);
        let rows = self.widen(rows);
        match &vocabulary.mean {
            Some(mean) => self.graph.node("Add", &[&rows, mean], &[]),
            None => rows,
        }
    }

    /// The graph value `logits`: the products of f32 `x` `[R, E]` with every row, plus `bias` `[V]`; f32 `[R, V]`.
    ///
    /// The matrix is used as it is stored, so that a tied one exists once.
    pub(crate) fn token_products(&mut self, vocabulary: &Vocabulary, x: &Value, bias: Option<&Value>) -> Value {
        let transposed = [Attribute::Int("transB", 1)];
        let Some(mean) = &vocabulary.mean else {
            let inputs: Vec<&Value> = [x, &vocabulary.matrix].into_iter().chain(bias).collect();
            let [logits] = self.graph.named("Gemm", &inputs, &transposed, ["logits"]);
            return logits;
        };
        let narrow = self.narrow(x.clone());
        let differences = self.graph.node("Gemm", &[&narrow, &vocabulary.matrix], &transposed);
        let mut differences = self.widen(differences); // [R, V]
        if let Some(bias) = bias {
            // After the cast, because the bias of padding is beyond f16's range.
            differences = self.graph.node("Add", &[&differences, bias], &[]);
        }
        let axis = self.graph.integers(&[1], &[1]);
        let offset = self.graph.node("Mul", &[x, mean], &[]); // [R, E]
        let offset = self.graph.node("ReduceSum", &[&offset, &axis], &[Attribute::Int("keepdims", 1)]); // [R, 1]
        let [logits] = self.graph.named("Add", &[&differences, &offset], &[], ["logits"]);
        logits
    }
}

/// The mean of all rows of a matrix with this many columns.
fn mean_row(weights: &Weights, tensor: &Tensor, columns: u64) -> Result<Vec<f32>, WeightsError> {
    let rows = (tensor.elements / columns) as f64;
    let mut sums = vec![0.0_f64; columns as usize];
    weights.read(tensor, tensor.elements, |start, values| {
        let mut column = (start % columns) as usize;
        for value in values {
            sums[column] += f64::from(*value);
            column = if column + 1 == sums.len() { 0 } else { column + 1 };
        }
        Ok::<_, WeightsError>(())
    })?;
    Ok(sums.into_iter().map(|sum| (sum / rows) as f32).collect())
}
