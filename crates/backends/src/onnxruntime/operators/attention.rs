//! `Attention`: `(q, k, v, past_k, past_v, past_len, kv_places, cos?, sin?, slopes?) -> y, present_k, present_v`.

use kernels::Kernels;
use kernels::attention::{self, Arguments, Heads, Rotary};

use super::Compute;
use super::context::{Call, Constant, Info};

pub(super) struct Prepared {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    scale: f32,
    offsets: [usize; 3],
    strides: [usize; 3],
    rotary_dim: usize,
    interleaved: bool,
    cos: Option<Constant<f32>>,
    sin: Option<Constant<f32>>,
    slopes: Option<Constant<f32>>,
}

impl Prepared {
    pub(super) fn read(info: &Info) -> Result<Self, ort::Error> {
        let prepared = Self {
            heads: info.extent("heads")?,
            kv_heads: info.extent("kv_heads")?,
            head_dim: info.extent("head_dim")?,
            scale: info.float("scale")?,
            offsets: info.sizes("offsets")?,
            strides: info.sizes("strides")?,
            rotary_dim: info.size("rotary_dim")?,
            interleaved: info.size("interleaved")? != 0,
            cos: info.constant(7)?,
            sin: info.constant(8)?,
            slopes: info.constant(9)?,
        };
        prepared.check()?;
        Ok(prepared)
    }

    /// Checks the attributes against each other.
    fn check(&self) -> Result<(), ort::Error> {
        let Self { heads, kv_heads, head_dim, strides, rotary_dim, .. } = *self;
        let table = |table: &Option<Constant<f32>>| table.as_ref().map_or(0, |table| table.get().len());
        let (cos, sin, slopes) = (table(&self.cos), table(&self.sin), table(&self.slopes));
        let apart = |(stride, count): (&usize, usize)| count == 1 || *stride >= head_dim;
        let rules = [
            (heads.is_multiple_of(kv_heads), "`heads` is no multiple of `kv_heads`"),
            (strides.iter().zip([heads, kv_heads, kv_heads]).all(apart), "`strides` are below `head_dim`"),
            (rotary_dim <= head_dim && rotary_dim.is_multiple_of(2), "`rotary_dim` is odd or above `head_dim`"),
            (
                rotary_dim == 0 || (cos == sin && cos > 0 && cos.is_multiple_of(rotary_dim / 2)),
                "the cosines and sines are no rows of half of `rotary_dim`",
            ),
            (
                self.slopes.is_none() || (slopes == heads && heads == kv_heads),
                "the slopes are no row of `heads`, or heads share keys and values",
            ),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, broken)) => Err(ort::Error::new(*broken)),
            None => Ok(()),
        }
    }

    /// Checks that a row of each projection has room for its heads, so that a result is no larger than its input.
    fn check_widths(&self, widths: [usize; 3]) -> Result<(), ort::Error> {
        let counts = [self.heads, self.kv_heads, self.kv_heads];
        for (part, (width, count)) in widths.into_iter().zip(counts).enumerate() {
            let end = self.offsets[part] + (count - 1) * self.strides[part] + self.head_dim;
            if end > width {
                return Err(ort::Error::new(format!("{count} heads end at {end} of a row of {width}")));
            }
        }
        Ok(())
    }

    fn rotary(&self) -> Option<Rotary<'_>> {
        match (&self.cos, &self.sin) {
            (Some(cos), Some(sin)) if self.rotary_dim > 0 => {
                Some(Rotary { cos: cos.get(), sin: sin.get(), dim: self.rotary_dim, interleaved: self.interleaved })
            }
            _ => None,
        }
    }
}

impl Compute for Prepared {
    fn compute(&mut self, kernels: &mut Kernels, call: &Call) -> Result<(), ort::Error> {
        let projections = [call.input::<f32>(0)?, call.input::<f32>(1)?, call.input::<f32>(2)?]; // [B, S, ..]
        let past_len = call.input::<i64>(5)?.elements; // [B]
        let slots = call.input::<i64>(6)?.elements; // [B, C]
        let (_, keys) = call.updated::<f32>(1, 3)?; // [slots, kv_heads, D]
        let (_, values) = call.updated::<f32>(2, 4)?;
        let widths = projections.map(|part| part.dims.width());
        self.check_widths(widths)?;
        let y = call.output::<f32>(0, &projections[0].dims.with_last(self.heads * self.head_dim))?;
        let heads = std::array::from_fn(|part| Heads {
            values: projections[part].elements,
            width: widths[part],
            offset: self.offsets[part],
            stride: self.strides[part],
        });
        let attention = attention::Attention {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            scale: self.scale,
            rotary: self.rotary(),
            slopes: self.slopes.as_ref().map(Constant::get),
        };
        let arguments = Arguments { heads, past_len, slots, keys, values };
        attention.run(kernels, arguments, y).map_err(|error| ort::Error::new(error.to_string()))
    }
}
