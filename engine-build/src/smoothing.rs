//! Makes a model easier to round to 8 bits without changing what it computes (SmoothQuant).
//!
//! A few channels of the activations are much larger than the others, and set the scale with which their neighbours are
//! rounded. Each channel is divided by a factor where it is made, and the weights that read it are multiplied with the
//! same factor. The division is free: it goes into the normalization before the map, into the rows of `up` before
//! `down`, or into the rows of the values before the attention's output.
//!
//! Deliberately absent: `down` behind an activation that is not linear in its input's scale (GELU without a gate), and
//! the head, which shares its matrix with the embedding.

use std::collections::BTreeMap;

use crate::blocks::{Activation, Attention, Gate, LayerPlan, Linear, Mlp, Order};
use crate::checkpoint::{Axis, Weights};
use crate::error::WeightsError;
use crate::families::Model;

/// The largest magnitude of each input of the graph's linear maps on some texts, by the name of the map's node.
pub type Activations = BTreeMap<String, Vec<f32>>;

/// Magnitudes below this count as this.
const SMALLEST: f32 = 1e-5;

/// The largest factor, and the reciprocal of the smallest.
const LARGEST_FACTOR: f32 = 1e3;

/// Gives a model's weights factors that bring activations and weights to like magnitudes.
pub(crate) fn smooth(model: &Model, weights: &mut Weights, activations: &Activations) -> Result<(), WeightsError> {
    if !model.normalizes_first() {
        return Ok(());
    }
    let prefix = model.prefix(weights);
    for index in 0..model.shape().layers {
        let plan = model.plan(index);
        let mut smoother = Smoother { weights: &mut *weights, prefix };
        let [attention, mlp] = ["attention", "mlp"].map(|part| ends(activations, &format!("{}{part}/", plan.scope)));
        if let Some([input, mixed]) = attention {
            smoother.values(&plan.attention, mixed)?;
            smoother.first_norm(&plan, input)?;
        }
        if let Some([input, wide]) = mlp {
            smoother.inner(&plan.mlp, wide)?;
            smoother.second_norm(&plan, input)?;
        }
    }
    Ok(())
}

/// The inputs of the first and of the last linear map of a part of the graph.
fn ends<'a>(activations: &'a Activations, scope: &str) -> Option<[&'a [f32]; 2]> {
    let number = |name: &str| name.rsplit_once('_').and_then(|(_, number)| number.parse::<u32>().ok());
    let inside = activations.range(scope.to_owned()..).take_while(|(name, _)| name.starts_with(scope));
    let mut maps: Vec<_> = inside.filter_map(|(name, largest)| Some((number(name)?, largest.as_slice()))).collect();
    maps.sort_by_key(|(number, _)| *number);
    let [(_, first), .., (_, last)] = maps.as_slice() else { return None };
    Some([first, last])
}

/// The factors that bring both sides to the same magnitude, one on average: the roots of `activation / weight`.
fn factors(activations: &[f32], weights: &[f32]) -> Vec<f32> {
    let root = |(activation, weight): (&f32, &f32)| (activation.max(SMALLEST) / weight.max(SMALLEST)).sqrt();
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
}

impl Smoother<'_> {
    /// From the values to the attention's output: `mixed` is what the output's map reads.
    fn values(&mut self, attention: &Attention, mixed: &[f32]) -> Result<(), WeightsError> {
        let largest = attention.out.largest_by_input(self.weights, self.prefix)?;
        if largest.len() != mixed.len() {
            return Ok(());
        }
        let factors = factors(&shared(mixed, attention), &shared(&largest, attention));
        let first = (attention.heads + attention.kv_heads) * attention.head_dim;
        attention.qkv.scale_outputs(self.weights, self.prefix, first as usize, &reciprocals(&factors));
        attention.out.scale_inputs(self.weights, self.prefix, &repeated(&factors, attention));
        Ok(())
    }

    /// From `up` to `down`, where what lies between only passes the factor on: `wide` is what `down` reads.
    fn inner(&mut self, mlp: &Mlp, wide: &[f32]) -> Result<(), WeightsError> {
        let first = match mlp.gate {
            Gate::First { inner } => inner as usize,
            Gate::Own(_) => 0,
            Gate::None if mlp.activation == Activation::Relu => 0,
            Gate::None => return Ok(()),
        };
        let largest = mlp.down.largest_by_input(self.weights, self.prefix)?;
        if largest.len() == wide.len() {
            let factors = factors(wide, &largest);
            mlp.up.scale_outputs(self.weights, self.prefix, first, &reciprocals(&factors));
            mlp.down.scale_inputs(self.weights, self.prefix, &factors);
        }
        Ok(())
    }

    fn first_norm(&mut self, plan: &LayerPlan, input: &[f32]) -> Result<(), WeightsError> {
        let mut maps = vec![&plan.attention.qkv];
        if plan.order == Order::ParallelShared {
            maps.extend(inputs(&plan.mlp));
        }
        self.norm(&format!("{}{}", plan.scope, plan.first_norm), &maps, input)
    }

    fn second_norm(&mut self, plan: &LayerPlan, input: &[f32]) -> Result<(), WeightsError> {
        match plan.order {
            Order::Sequential(name) | Order::Parallel(name) => {
                self.norm(&format!("{}{name}", plan.scope), &inputs(&plan.mlp), input)
            }
            Order::ParallelShared => Ok(()),
        }
    }

    /// From a normalization to the maps that read it, all of them.
    fn norm(&mut self, name: &str, maps: &[&Linear], input: &[f32]) -> Result<(), WeightsError> {
        let mut largest = vec![0.0_f32; input.len()];
        for map in maps {
            let of_map = map.largest_by_input(self.weights, self.prefix)?;
            if of_map.len() != input.len() {
                return Ok(());
            }
            largest.iter_mut().zip(of_map).for_each(|(largest, of_map)| *largest = largest.max(of_map));
        }
        let factors = factors(input, &largest);
        for part in ["weight", "bias"] {
            self.weights.scale(&format!("{}{name}.{part}", self.prefix), Axis::Columns, &reciprocals(&factors));
        }
        maps.iter().for_each(|map| map.scale_inputs(self.weights, self.prefix, &factors));
        Ok(())
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
        let found = factors(&[100.0, 1.0, 4.0], &[1.0, 1.0, 4.0]);
        assert_eq!(found, [2.5, 0.25, 0.25]);
        // 100 / 2.5 = 40 and 1 * 2.5: their ratio is that of the other channels, 4 and 0.25.
        let found = factors(&[0.0, 1e9], &[1e9, 0.0]);
        assert!(found[0] == LARGEST_FACTOR.recip() && found[1] <= LARGEST_FACTOR, "{found:?}");
    }

    #[test]
    fn query_heads_that_share_values_share_their_factors() {
        let qkv = Linear::new("qkv", 1, 1);
        let attention = Attention { heads: 4, kv_heads: 2, head_dim: 2, scale: 1.0, out: qkv.clone(), qkv };
        assert_eq!(shared(&[1.0, 8.0, 3.0, 4.0, 5.0, 6.0, 7.0, 2.0], &attention), [3.0, 8.0, 7.0, 6.0]);
        assert_eq!(repeated(&[3.0, 8.0, 7.0, 6.0], &attention), [3.0, 8.0, 3.0, 8.0, 7.0, 6.0, 7.0, 6.0]);
    }

    #[test]
    fn maps_are_ordered_by_the_numbers_of_their_nodes() {
        let named = |name: &str, value: f32| (name.to_owned(), vec![value]);
        let activations = Activations::from([
            named("h.1.mlp/Linear_10", 2.0),
            named("h.1.mlp/Linear_9", 1.0),
            named("h.1.mlp/Linear_101", 3.0),
            named("h.10.mlp/Linear_1", 4.0),
        ]);
        assert_eq!(ends(&activations, "h.1.mlp/"), Some([&[1.0][..], &[3.0]]));
        assert_eq!(ends(&activations, "h.10.mlp/"), None, "one map is no pair");
    }
}
