//! Values that only rearrange the rows of another value: where each of their elements lies in those rows.

use super::forms::{Forms, Rows};
use super::rewriter::{Rewriter, attribute, input, int};
use crate::onnx::proto::NodeProto;

/// A dimension of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    Batch,
    Tokens,
    /// Elements of a row, so far apart.
    Row {
        size: u64,
        stride: u64,
    },
}

/// A value described as a strided view of rows `[B, S, width]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) source: String,
    /// Element of the row that the first element is.
    pub(crate) offset: u64,
    pub(crate) axes: Vec<Axis>,
}

impl View {
    /// Follows a value back through reshapes, transpositions and splits to rows.
    pub(crate) fn trace(r: &Rewriter, forms: &Forms, value: &str) -> Option<Self> {
        let stepped =
            r.producer(value).and_then(|slot| r.node(slot)).and_then(|node| Self::step(r, forms, node, value));
        stepped.or_else(|| {
            let form = forms.get(value).filter(|form| form.rows == Rows::Tokens)?;
            let axes = vec![Axis::Batch, Axis::Tokens, Axis::Row { size: form.width, stride: 1 }];
            Some(Self { source: value.to_owned(), offset: 0, axes })
        })
    }

    fn step(r: &Rewriter, forms: &Forms, node: &NodeProto, value: &str) -> Option<Self> {
        let traced = || Self::trace(r, forms, input(node, 0)?);
        let second = || r.integers(input(node, 1)?);
        match node.op_type.as_str() {
            "Reshape" if int(node, "allowzero", 0) == 0 => traced()?.reshaped(&second()?),
            "Transpose" => traced()?.transposed(&attribute(node, "perm")?.ints),
            "Split" => {
                let part = node.output.iter().position(|output| output == value)?;
                traced()?.part(int(node, "axis", 0), &second()?, part)
            }
            "Squeeze" => traced()?.squeezed(&second()?),
            _ => None,
        }
    }

    /// Rows cut into several dimensions.
    fn reshaped(mut self, shape: &[i64]) -> Option<Self> {
        let ([Axis::Batch, Axis::Tokens, Axis::Row { size, stride }], [0, 0, sizes @ ..]) =
            (self.axes.as_slice(), shape)
        else {
            return None;
        };
        let (size, mut stride) = (*size, *stride);
        let sizes: Vec<u64> = sizes.iter().map(|&size| u64::try_from(size).ok()).collect::<Option<_>>()?;
        if sizes.iter().product::<u64>() != size {
            return None;
        }
        let mut cut = Vec::new();
        for size in sizes.into_iter().rev() {
            cut.push(Axis::Row { size, stride });
            stride *= size;
        }
        self.axes.truncate(2);
        self.axes.extend(cut.into_iter().rev());
        Some(self)
    }

    fn transposed(mut self, perm: &[i64]) -> Option<Self> {
        let axes = perm.iter().map(|&from| self.axes.get(usize::try_from(from).ok()?).copied());
        self.axes = axes.collect::<Option<_>>()?;
        Some(self)
    }

    fn part(mut self, axis: i64, sizes: &[i64], part: usize) -> Option<Self> {
        let axis = if axis < 0 { axis + self.axes.len() as i64 } else { axis };
        let Axis::Row { size, stride } = self.axes.get_mut(usize::try_from(axis).ok()?)? else { return None };
        let sizes: Vec<u64> = sizes.iter().map(|&size| u64::try_from(size).ok()).collect::<Option<_>>()?;
        if sizes.iter().sum::<u64>() != *size {
            return None;
        }
        self.offset += *stride * sizes[..part].iter().sum::<u64>();
        *size = *sizes.get(part)?;
        Some(self)
    }

    fn squeezed(mut self, dims: &[i64]) -> Option<Self> {
        let gone = |at: usize| dims.contains(&(at as i64)) || dims.contains(&(at as i64 - self.axes.len() as i64));
        let (gone, kept): (Vec<_>, Vec<_>) = self.axes.iter().enumerate().partition(|(at, _)| gone(*at));
        let empty = gone.iter().all(|(_, axis)| matches!(axis, Axis::Row { size: 1, .. }));
        let kept = kept.into_iter().map(|(_, axis)| *axis).collect();
        self.axes = kept;
        empty.then_some(self)
    }
}
