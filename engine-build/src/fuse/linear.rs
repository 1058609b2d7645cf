//! `Linear`: a product with a stored matrix, together with the operations on its input and its results.
//!
//! `y = activation(norm(x) W + b) * factor + residual`, each part only where the graph has it, and in this order. A
//! factor is another value, or a gate: `activation(norm(x) G)`.

use super::forms::Forms;
use super::norm::Norm;
use super::rewriter::{Fused, Rewriter, input, other_input, text};
use crate::onnx::{Attribute, Element};
use crate::packing::Panels;

/// An activation that follows a value and is its only use.
struct Activated {
    activation: &'static str,
    slots: Vec<usize>,
    output: String,
}

/// The half of a product that is a factor of the other half.
#[derive(Clone, Copy)]
struct Gate {
    panels: Panels,
    activation: &'static str,
}

/// An operator in the making.
struct Linear {
    x: String,
    matrix: String,
    panels: Panels,
    norm: Option<Norm>,
    bias: Option<String>,
    activation: Option<&'static str>,
    factor: Option<String>,
    gate: Option<Gate>,
    residual: Option<String>,
    /// Name of the value that the operator computes so far.
    output: String,
    /// The nodes that it stands for so far.
    slots: Vec<usize>,
}

pub(crate) fn fuse(r: &mut Rewriter, forms: &Forms) {
    for slot in 0..r.len() {
        let Some(mut linear) = Linear::find(r, forms, slot) else { continue };
        linear.take_gate(r);
        while linear.take_next(r, forms) {}
        linear.replace(r);
    }
}

/// Whether the node is a product of `x` with a stored matrix.
fn is_product(r: &Rewriter, slot: usize, x: &str) -> bool {
    r.operator(slot, "MatMul").is_some_and(|node| {
        let matrix = input(node, 1).and_then(|matrix| r.parameter(matrix));
        node.input[0] == x && matrix.is_some_and(|matrix| matrix.element == Element::F32 && matrix.shape.len() == 2)
    })
}

impl Linear {
    fn find(r: &Rewriter, forms: &Forms, slot: usize) -> Option<Self> {
        let node = r.operator(slot, "MatMul")?;
        let (x, matrix) = (input(node, 0)?, input(node, 1)?);
        let form = forms.get(x).filter(|_| is_product(r, slot, x))?;
        let [inputs, outputs] = *r.parameter(matrix)?.shape.as_slice() else { return None };
        if inputs != form.width {
            return None;
        }
        let norm = Norm::of(r, x, inputs, |user| is_product(r, user, x));
        Some(Self {
            x: norm.as_ref().map_or(x, |norm| &norm.x).to_owned(),
            matrix: matrix.to_owned(),
            panels: Panels { inputs, outputs, first: 0, stored_outputs: outputs, output_rows: false },
            norm,
            bias: None,
            activation: None,
            factor: None,
            gate: None,
            residual: None,
            output: node.output.first()?.clone(),
            slots: vec![slot],
        })
    }

    /// Takes in a gate that shares the product: `activation(x W1) * (x W2)`.
    fn take_gate(&mut self, r: &Rewriter) -> Option<()> {
        let split_slot = r.only_user(&self.output)?;
        let split = r.operator(split_slot, "Split")?;
        let half = self.panels.outputs / 2;
        let sizes = r.integers(input(split, 1)?)?;
        let [gate, wide] = split.output.as_slice() else { return None };
        if sizes.iter().any(|size| size.unsigned_abs() != half) || 2 * half != self.panels.outputs {
            return None;
        }
        let Activated { activation, slots, output } = activation(r, gate)?;
        let product = r.only_user(&output)?;
        if r.only_user(wide)? != product {
            return None;
        }
        self.output.clone_from(r.operator(product, "Mul")?.output.first()?);
        self.gate = Some(Gate { panels: Panels { outputs: half, ..self.panels }, activation });
        self.panels = Panels { outputs: half, first: half, ..self.panels };
        self.slots.extend(slots.into_iter().chain([split_slot, product]));
        Some(())
    }

    /// Takes in the one node that uses the result, if it is the next part.
    fn take_next(&mut self, r: &Rewriter, forms: &Forms) -> bool {
        if !self.has_factor()
            && self.residual.is_none()
            && self.activation.is_none()
            && let Some(Activated { activation, slots, output }) = activation(r, &self.output)
        {
            self.activation = Some(activation);
            self.slots.extend(slots);
            self.output = output;
            return true;
        }
        let Some(slot) = r.only_user(&self.output) else { return false };
        let Some(node) = r.node(slot) else { return false };
        let Some(other) = other_input(node, &self.output) else { return false };
        let same_form = forms.get(other).is_some_and(|form| Some(form) == forms.get(&self.output));
        let part = match node.op_type.as_str() {
            "Add" if self.is_bare() && r.is_vector(other, self.panels.outputs) => &mut self.bias,
            "Mul" if !self.has_factor() && self.residual.is_none() && same_form => &mut self.factor,
            "Add" if self.residual.is_none() && same_form => &mut self.residual,
            _ => return false,
        };
        *part = Some(other.to_owned());
        self.slots.push(slot);
        self.output.clone_from(&node.output[0]);
        true
    }

    fn has_factor(&self) -> bool {
        self.factor.is_some() || self.gate.is_some()
    }

    /// Whether it is a product and nothing else yet.
    fn is_bare(&self) -> bool {
        self.bias.is_none() && self.activation.is_none() && !self.has_factor() && self.residual.is_none()
    }

    fn replace(self, r: &mut Rewriter) {
        let reading = r.reading("Linear", &self.slots, self.panels.inputs);
        let gate = self.gate.and_then(|gate| r.pack(&self.matrix, gate.panels, reading.clone()));
        let Some(weight) = r.pack(&self.matrix, self.panels, reading) else { return };
        let mut attributes = vec![
            Attribute::Int("inputs", self.panels.inputs.cast_signed()),
            Attribute::Int("outputs", self.panels.outputs.cast_signed()),
            Attribute::Text("activation", self.activation.unwrap_or("none")),
        ];
        attributes.extend(self.gate.map(|gate| Attribute::Text("gate", gate.activation)));
        attributes.extend(Norm::attributes(self.norm.as_ref()));
        let (norm_scale, norm_bias) = self.norm.map(|norm| (norm.scale, norm.bias)).unzip();
        let mut inputs = vec![Some(self.x), Some(weight.matrix)];
        inputs.extend(weight.scale.iter().cloned().map(Some));
        inputs.extend([self.bias, norm_scale, norm_bias.flatten(), self.factor, self.residual]);
        inputs.extend(gate.into_iter().flat_map(|gate| [Some(gate.matrix), gate.scale]));
        let operator = if weight.scale.is_some() { "LinearInt8" } else { "Linear" };
        r.replace(&self.slots, &Fused { operator, inputs, outputs: vec![self.output], attributes });
    }
}

/// The activation of a value, if it is the only use.
fn activation(r: &Rewriter, value: &str) -> Option<Activated> {
    let one = |slot: usize, activation| {
        let output = r.node(slot)?.output.first()?.clone();
        Some(Activated { activation, slots: vec![slot], output })
    };
    match *r.inner_users(value) {
        [slot] => {
            let node = r.node(slot)?;
            match node.op_type.as_str() {
                "Relu" => one(slot, "relu"),
                "Tanh" => one(slot, "tanh"),
                "Gelu" if text(node, "approximate") == b"tanh" => one(slot, "gelu_tanh"),
                "Gelu" => one(slot, "gelu"),
                _ => None,
            }
        }
        [a, b] => gate(r, value, a, b).or_else(|| gate(r, value, b, a)),
        _ => None,
    }
}

/// `x * sigmoid(x)` and `x * sigmoid(1.702 x)`: `first` begins the sigmoid and `last` is the product.
fn gate(r: &Rewriter, value: &str, first: usize, last: usize) -> Option<Activated> {
    let product = r.operator(last, "Mul")?;
    let gate = other_input(product, value)?;
    let sigmoid = r.producer(gate).filter(|_| r.only_user(gate) == Some(last))?;
    let argument = input(r.operator(sigmoid, "Sigmoid")?, 0)?;
    let output = product.output.first()?.clone();
    if sigmoid == first && argument == value {
        return Some(Activated { activation: "silu", slots: vec![sigmoid, last], output });
    }
    let slope = other_input(r.operator(first, "Mul")?, value)?;
    let scaled = r.producer(argument) == Some(first) && r.only_user(argument) == Some(sigmoid);
    (scaled && r.scalar(slope) == Some(1.702)).then(|| Activated {
        activation: "quick_gelu",
        slots: vec![first, sigmoid, last],
        output,
    })
}
