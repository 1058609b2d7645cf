//! Shape inference for the values that fused operators can read: rows of the residual stream, and their widths.
//!
//! Computed once, on the graph before it is rewritten; values keep their names. A value without a form is not fused.

use std::collections::HashMap;

use super::embedding::offset_positions;
use super::rewriter::{Rewriter, attribute, input, int};
use super::step;
use crate::onnx::proto::NodeProto;

/// What a value's rows stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rows {
    /// `[B, S, width]`.
    Tokens,
    /// `[B * S, width]`.
    Flat,
    /// `[R, width]`.
    Selected,
}

/// The shape of an f32 value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) rows: Rows,
    pub(crate) width: u64,
}

/// The forms of all values that have one.
#[derive(Debug, Default)]
pub(crate) struct Forms(HashMap<String, Form>);

impl Forms {
    pub(crate) fn infer(rewriter: &Rewriter) -> Self {
        let mut forms = Self::default();
        for node in (0..rewriter.len()).filter_map(|slot| rewriter.node(slot)) {
            forms.add(rewriter, node);
        }
        forms
    }

    pub(crate) fn get(&self, value: &str) -> Option<Form> {
        self.0.get(value).copied()
    }

    /// The outputs' forms; inputs come before, so theirs are known.
    fn add(&mut self, r: &Rewriter, node: &NodeProto) {
        let form = match node.op_type.as_str() {
            "Gather" => self.gathered(r, node),
            "MatMul" => self.product(r, node),
            "Reshape" => self.reshaped(r, node),
            "Add" | "Sub" | "Mul" | "Div" => self.combined(r, node),
            "LayerNormalization" | "RMSNormalization" if int(node, "axis", -1) == -1 => self.of_input(node),
            "Gelu" | "Relu" | "Tanh" | "Sigmoid" | "Erf" => self.of_input(node),
            "Split" => return self.split(r, node),
            _ => None,
        };
        if let (Some(form), Some(output)) = (form, node.output.first()) {
            self.0.insert(output.clone(), form);
        }
    }

    fn of_input(&self, node: &NodeProto) -> Option<Form> {
        self.get(input(node, 0)?)
    }

    fn gathered(&self, r: &Rewriter, node: &NodeProto) -> Option<Form> {
        let (data, indices) = (input(node, 0)?, input(node, 1)?);
        if int(node, "axis", 0) != 0 {
            return None;
        }
        if let Some(table) = r.parameter(data) {
            let per_token = indices == step::INPUT_IDS || offset_positions(r, indices).is_some();
            return (per_token && table.shape.len() == 2).then(|| Form { rows: Rows::Tokens, width: table.shape[1] });
        }
        let flat = self.get(data).filter(|form| form.rows == Rows::Flat)?;
        (indices == step::SELECT).then_some(Form { rows: Rows::Selected, ..flat })
    }

    fn product(&self, r: &Rewriter, node: &NodeProto) -> Option<Form> {
        let (x, matrix) = (self.of_input(node)?, r.parameter(input(node, 1)?)?);
        (matrix.shape.len() == 2 && matrix.shape[0] == x.width).then(|| Form { width: matrix.shape[1], ..x })
    }

    fn reshaped(&self, r: &Rewriter, node: &NodeProto) -> Option<Form> {
        let (data, shape) = (input(node, 0)?, r.integers(input(node, 1)?)?);
        if int(node, "allowzero", 0) != 0 {
            return None;
        }
        match (self.get(data), shape.as_slice()) {
            (Some(Form { rows: Rows::Tokens, width }), [-1, to]) => {
                (to.unsigned_abs() == width && *to > 0).then_some(Form { rows: Rows::Flat, width })
            }
            (None, [0, 0, to]) if *to > 0 => {
                // The heads' results side by side: [B, S, H, D].
                let transpose = r.made_by(data, "Transpose")?;
                let perm = &attribute(transpose, "perm")?.ints;
                r.made_by(input(transpose, 0)?, "Attention")?;
                (perm == &[0, 2, 1, 3]).then_some(Form { rows: Rows::Tokens, width: to.unsigned_abs() })
            }
            _ => None,
        }
    }

    /// Form of an element-wise operation's output: that of its inputs, of which one may be a stored vector or scalar.
    fn combined(&self, r: &Rewriter, node: &NodeProto) -> Option<Form> {
        let (a, b) = (input(node, 0)?, input(node, 1)?);
        match (self.get(a), self.get(b)) {
            (Some(a), Some(b)) => (a == b).then_some(a),
            (Some(form), None) => self.spreads_over(r, b, form).then_some(form),
            (None, Some(form)) => self.spreads_over(r, a, form).then_some(form),
            (None, None) => None,
        }
    }

    fn spreads_over(&self, r: &Rewriter, stored: &str, form: Form) -> bool {
        r.is_vector(stored, form.width) || r.is_vector(stored, 1) || r.scalar(stored).is_some()
    }

    /// Parts of the rows, as from one map for queries, keys and values.
    fn split(&mut self, r: &Rewriter, node: &NodeProto) {
        let form = self.of_input(node);
        let sizes = input(node, 1).and_then(|sizes| r.integers(sizes));
        let (Some(form), Some(sizes)) = (form, sizes) else { return };
        let last = if form.rows == Rows::Tokens { 2 } else { 1 };
        if [-1, last].contains(&int(node, "axis", 0)) && sizes.iter().all(|size| *size > 0) {
            for (output, size) in node.output.iter().zip(sizes) {
                self.0.insert(output.clone(), Form { width: size.unsigned_abs(), ..form });
            }
        }
    }
}
