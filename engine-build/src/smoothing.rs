//! Makes a model easier to round to 8 bits without changing what it computes (SmoothQuant).
//!
//! A few channels of the activations are much larger than the others, and set the scale with which their neighbours are
//! rounded. Each channel is divided by a factor where it is made, and the weights that read it are multiplied with the
//! same factor. The division is free: it goes into the normalization before the map, into the rows of `up` before
//! `down`, or into the rows of the values before the attention's output.
//!
//! Where the head's matrix is the token embedding, too, it is stored twice then: rows of the embedding with the head's
//! factors would lose more in 8 bits than the head gains.
//!
//! Deliberately absent: `down` behind an activation that is not linear in its input's scale (GELU without a gate).

use std::collections::BTreeMap;

use kernels::observe::Seen;

use crate::blocks::{Activation, Attention, Gate, Linear, Mlp, Order};
use crate::checkpoint::{Axis, Weights};
use crate::error::WeightsError;
use crate::families::Model;

/// What the linear maps and the head of a graph read on some texts, by the name of the map's node.
pub type Activations = BTreeMap<String, Seen>;

/// Magnitudes below this count as this.
const SMALLEST: f32 = 1e-5;

/// The largest factor, and the reciprocal of the smallest.
const LARGEST_FACTOR: f32 = 1e3;

/// The part of the ratio of activations to weights that the factors of layers take over, as an exponent: half makes
/// both alike.
const HALF: f32 = 0.5;

/// That of the head. A half is worse on SmolLM2-135M.
const THIRD: f32 = 1.0 / 3.0;

/// Gives a model's weights factors that bring activations and weights to like magnitudes, and the head only if
/// `rounds_head`. Then `activations` are what the maps read with these factors.
pub(crate) fn smooth(
    model: &Model,
    weights: &mut Weights,
    activations: &mut Activations,
    rounds_head: bool,
) -> Result<(), WeightsError> {
    let prefix = model.prefix(weights);
    let mut smoother = Smoother { weights, prefix, activations };
    if rounds_head && let [reader] = smoother.maps("head/").as_slice() {
        let head = model.untie_head(smoother.weights);
        if let Some(norm) = model.end_norm() {
            let readers = Readers { maps: &[&head], prefix: "", nodes: std::slice::from_ref(reader) };
            smoother.norm(norm, &readers, THIRD)?;
        }
    }
    if !model.normalizes_first() {
        return Ok(());
    }
    for index in 0..model.shape().layers {
        let plan = model.plan(index);
        let [attention, mlp] = ["attention", "mlp"].map(|part| smoother.maps(&format!("{}{part}/", plan.scope)));
        let (Some((input, mixed)), Some((inner, wide))) = (split(&attention), split(&mlp)) else { continue };
        smoother.values(&plan.attention, mixed)?;
        smoother.inner(&plan.mlp, wide)?;
        let [first, second] = [&[&plan.attention.qkv][..], &inputs(&plan.mlp)];
        let norm = |name: &str| format!("{}{name}", plan.scope);
        match plan.order {
            Order::Sequential(name) | Order::Parallel(name) => {
                smoother.norm(&norm(name), &Readers { maps: second, prefix, nodes: inner }, HALF)?;
                smoother.norm(&norm(plan.first_norm), &Readers { maps: first, prefix, nodes: input }, HALF)?;
            }
            Order::ParallelShared => {
                let (maps, nodes) = ([first, second].concat(), [input, inner].concat());
                smoother.norm(&norm(plan.first_norm), &Readers { maps: &maps, prefix, nodes: &nodes }, HALF)?;
            }
        }
    }
    Ok(())
}

/// All maps that read what a normalization writes.
struct Readers<'a> {
    maps: &'a [&'a Linear],
    /// What stands before the maps' names in the checkpoint.
    prefix: &'a str,
    /// Their nodes.
    nodes: &'a [String],
}

/// The maps of a part of the graph that read its input, and the last one.
fn split(maps: &[String]) -> Option<(&[String], &str)> {
    let (last, first) = maps.split_last()?;
    (!first.is_empty()).then_some((first, last.as_str()))
}

/// The factors that bring both sides nearer to the same magnitude, one on average: powers of `activation / weight`.
fn factors(activations: &[f32], weights: &[f32], exponent: f32) -> Vec<f32> {
    let root = |(activation, weight): (&f32, &f32)| (activation.max(SMALLEST) / weight.max(SMALLEST)).powf(exponent);
    let mut factors: Vec<f32> = activations.iter().zip(weights).map(root).collect();
    let mean = factors.iter().sum::<f32>() / factors.len() as f32;
    factors.iter_mut().for_each(|factor| *factor = (*factor / mean).clamp(LARGEST_FACTOR.recip(), LARGEST_FACTOR));
    factors
}

fn reciprocals(factors: &[f32]) -> Vec<f32> {
    factors.iter().map(|factor| factor.recip()).collect()
}

/// The largest of what the query heads of a key-value head read: `[heads, head_dim]` to `[kv_heads, head_dim]`.
fn shared(largest: &[f32], attention: &Attention) -> Vec<f32> {
    let (head_dim, queries) = (attention.head_dim as usize, (attention.heads / attention.kv_heads) as usize);
    let of_group = |group: &[f32], at: usize| group[at..].iter().step_by(head_dim).copied().fold(0.0, f32::max);
    largest.chunks(queries * head_dim).flat_map(|group| (0..head_dim).map(move |at| of_group(group, at))).collect()
}

/// The reverse of [`shared`]: each key-value head's factors for all of its query heads.
fn repeated(factors: &[f32], attention: &Attention) -> Vec<f32> {
    let queries = (attention.heads / attention.kv_heads) as usize;
    factors.chunks(attention.head_dim as usize).flat_map(|head| head.repeat(queries)).collect()
}

struct Smoother<'a> {
    weights: &'a mut Weights,
    prefix: &'a str,
    activations: &'a mut Activations,
}

impl Smoother<'_> {
    /// From the values to the attention's output, which the map `mixed` reads.
    fn values(&mut self, attention: &Attention, mixed: &str) -> Result<(), WeightsError> {
        let largest = attention.out.largest_by_input(self.weights, self.prefix)?;
        let seen = self.largest(mixed);
        if largest.len() != seen.len() {
            return Ok(());
        }
        let factors = factors(&shared(&seen, attention), &shared(&largest, attention), HALF);
        let first = (attention.heads + attention.kv_heads) * attention.head_dim;
        attention.qkv.scale_outputs(self.weights, self.prefix, first as usize, &reciprocals(&factors));
        let factors = repeated(&factors, attention);
        attention.out.scale_inputs(self.weights, self.prefix, &factors);
        self.divide(mixed, &factors);
        Ok(())
    }

    /// From `up` to `down`, where what lies between only passes the factor on: `wide` is the map `down`.
    fn inner(&mut self, mlp: &Mlp, wide: &str) -> Result<(), WeightsError> {
        let first = match mlp.gate {
            Gate::First { inner } => inner as usize,
            Gate::Own(_) => 0,
            Gate::None if mlp.activation == Activation::Relu => 0,
            Gate::None => return Ok(()),
        };
        let largest = mlp.down.largest_by_input(self.weights, self.prefix)?;
        let seen = self.largest(wide);
        if largest.len() == seen.len() {
            let factors = factors(&seen, &largest, HALF);
            mlp.up.scale_outputs(self.weights, self.prefix, first, &reciprocals(&factors));
            mlp.down.scale_inputs(self.weights, self.prefix, &factors);
            self.divide(wide, &factors);
        }
        Ok(())
    }

    /// From a normalization to the maps that read it.
    fn norm(&mut self, name: &str, readers: &Readers, exponent: f32) -> Result<(), WeightsError> {
        let Readers { maps, prefix, nodes } = *readers;
        let seen = self.largest(&nodes[0]);
        let mut largest = vec![0.0_f32; seen.len()];
        for map in maps {
            let of_map = map.largest_by_input(self.weights, prefix)?;
            if of_map.len() != seen.len() {
                return Ok(());
            }
            largest.iter_mut().zip(of_map).for_each(|(largest, of_map)| *largest = largest.max(of_map));
        }
        let factors = factors(&seen, &largest, exponent);
        for part in ["weight", "bias"] {
            self.weights.scale(&format!("{}{name}.{part}", self.prefix), Axis::Columns, &reciprocals(&factors));
        }
        maps.iter().for_each(|map| map.scale_inputs(self.weights, prefix, &factors));
        nodes.iter().for_each(|node| self.divide(node, &factors));
        Ok(())
    }

    /// The names of the maps in a part of the graph, in the order of the numbers at their ends.
    fn maps(&self, scope: &str) -> Vec<String> {
        let number = |name: &str| name.rsplit_once('_').and_then(|(_, number)| number.parse::<u32>().ok());
        let inside = self.activations.range(scope.to_owned()..).take_while(|(name, _)| name.starts_with(scope));
        let mut maps: Vec<_> = inside.filter_map(|(name, _)| Some((number(name)?, name.clone()))).collect();
        maps.sort_unstable();
        maps.into_iter().map(|(_, name)| name).collect()
    }

    /// The largest magnitude of each input of a map.
    fn largest(&self, map: &str) -> Vec<f32> {
        let Some(seen) = self.activations.get(map) else { return Vec::new() };
        let mut largest = vec![0.0_f32; seen.inputs];
        for row in seen.values.chunks(seen.inputs.max(1)) {
            largest.iter_mut().zip(row).for_each(|(largest, value)| *largest = largest.max(value.abs()));
        }
        largest
    }

    /// What a map reads is less by these factors.
    fn divide(&mut self, map: &str, factors: &[f32]) {
        let Some(seen) = self.activations.get_mut(map) else { return };
        for row in seen.values.chunks_mut(seen.inputs.max(1)) {
            row.iter_mut().zip(factors).for_each(|(value, factor)| *value /= factor);
        }
    }
}

/// The maps that read a network's input.
fn inputs(mlp: &Mlp) -> Vec<&Linear> {
    let gate = if let Gate::Own(gate) = &mlp.gate { Some(gate) } else { None };
    std::iter::once(&mlp.up).chain(gate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_make_activations_and_weights_alike_and_are_one_on_average() {
        let found = factors(&[100.0, 1.0, 4.0], &[1.0, 1.0, 4.0], HALF);
        assert_eq!(found, [2.5, 0.25, 0.25]);
        // 100 / 2.5 = 40 and 1 * 2.5: their ratio is that of the other channels, 4 and 0.25.
        let found = factors(&[0.0, 1e9], &[1e9, 0.0], HALF);
        assert!(found[0] == LARGEST_FACTOR.recip() && found[1] <= LARGEST_FACTOR, "{found:?}");
    }

    #[test]
    fn query_heads_that_share_values_share_their_factors() {
        let qkv = Linear::new("qkv", 1, 1);
        let attention = Attention { heads: 4, kv_heads: 2, head_dim: 2, scale: 1.0, out: qkv.clone(), qkv };
        assert_eq!(shared(&[1.0, 8.0, 3.0, 4.0, 5.0, 6.0, 7.0, 2.0], &attention), [3.0, 8.0, 7.0, 6.0]);
        assert_eq!(repeated(&[3.0, 8.0, 7.0, 6.0], &attention), [3.0, 8.0, 3.0, 8.0, 7.0, 6.0, 7.0, 6.0]);
    }
}
