//! Rewrites a finished ONNX graph into the operators of the domain `foretype`, which foretype's own CPU runtime
//! implements.
//!
//! The rewrite is one pass over the nodes, for graphs of all families. Recognised patterns become `Embedding`,
//! `Linear`, `Attention` or `Head` (or their int8 forms) over packed weights. All other nodes stay unchanged. The
//! rewritten graph has the same inputs and outputs, except for its KV caches once its attention is rewritten (see
//! `attention`).
//!
//! Of the operators that follow each other, `chain` makes one node.
//!
//! - `rewriter`: the index of the nodes; parameters and their packed forms; removal of unused nodes.
//! - `forms`: which values are rows of the residual stream, and how wide. `step`: positions and the mask.
//! - `embedding`, `linear`, `attention`, `head`: one pattern each. `norm`: the normalizations that `Linear` and `Head`
//!   include.
//!
//! A value is fused into an operator only if nothing else uses it. Deliberately absent: f16 graphs, which are for
//! TensorRT.

mod attention;
mod chain;
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

use crate::Activations;
use crate::onnx::Graph;
use bundle::manifest::Quantization;
use forms::Forms;
use rewriter::Rewriter;

/// Rewrites a graph in f32 whose token ids are below `vocab`.
///
/// Weights in int8 are rounded for what their maps read; `read` is of the same graph, rewritten in f32.
pub(crate) fn fuse(graph: Graph, vocab: u32, quantization: Quantization, read: Activations) -> Graph {
    let mut graph = rewrite(graph, vocab, quantization, read);
    chain::chain(&mut graph);
    graph
}

/// As [`fuse`], with a node for each operator.
fn rewrite(graph: Graph, vocab: u32, quantization: Quantization, read: Activations) -> Graph {
    let mut rewriter = Rewriter::new(graph, quantization, read);
    let forms = Forms::infer(&rewriter);
    // The order does not matter to what is found: values keep their names.
    head::fuse(&mut rewriter, u64::from(vocab));
    embedding::fuse(&mut rewriter, u64::from(vocab));
    attention::fuse(&mut rewriter, &forms);
    linear::fuse(&mut rewriter, &forms);
    rewriter.finish()
}
