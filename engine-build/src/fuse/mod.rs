//! Rewrites a finished ONNX graph into the operators of the domain `foretype`, which foretype's own CPU runtime
//! implements.
//!
//! One pass over the nodes, whatever family made them: what is recognised becomes `Embedding`, `Linear`, `Attention` or
//! `Head` (or their int8 forms) over packed weights, and what isn't stays as it is and stays right. The rewritten graph
//! has the same inputs and outputs, but for its KV caches once its attention is rewritten (see `attention`).
//!
//! - `rewriter`: the nodes by what they produce and use; parameters and their packed forms; what is unused is dropped.
//! - `forms`: which values are rows of the residual stream, and how wide. `step`: positions and the mask.
//! - `embedding`, `linear`, `attention`, `head`: one pattern each; `norm`: what `Linear` and `Head` take in.
//!
//! A value is taken into an operator only if nobody else uses it. Deliberately absent: f16 graphs, which are
//! TensorRT's.

mod attention;
mod embedding;
mod forms;
mod head;
mod linear;
mod norm;
mod rewriter;
mod step;
#[cfg(test)]
mod tests;
mod view;

use crate::onnx::Graph;
use bundle::manifest::Quantization;
use forms::Forms;
use rewriter::Rewriter;

/// Rewrites a graph in f32 whose token ids are below `vocab`.
pub(crate) fn fuse(graph: Graph, vocab: u32, quantization: Quantization) -> Graph {
    let mut rewriter = Rewriter::new(graph, quantization);
    let forms = Forms::infer(&rewriter);
    // The order does not matter to what is found: values keep their names.
    head::fuse(&mut rewriter, u64::from(vocab));
    embedding::fuse(&mut rewriter, u64::from(vocab));
    attention::fuse(&mut rewriter, &forms);
    linear::fuse(&mut rewriter, &forms);
    rewriter.finish()
}
