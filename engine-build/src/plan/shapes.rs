//! The batches and lengths that a plan accepts, and those that it is optimized for.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Index of the profile for batches of any length.
pub const PREFILL_PROFILE: usize = 0;
/// Index of the profile for one token per row.
pub const DECODE_PROFILE: usize = 1;

/// The length of a source that plans are optimized for, in tokens.
const USUAL_SOURCE: u32 = 64;

/// The smallest number, the one to be quick at, and the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "[u32; 3]", into = "[u32; 3]")]
pub struct Range {
    /// The smallest size that the plan takes.
    pub min: u32,
    /// The size that the plan is optimized for.
    pub opt: u32,
    /// The largest size that the plan takes.
    pub max: u32,
}

impl Range {
    /// A range of sizes from `min` to `max`, optimized for `opt`.
    pub const fn new(min: u32, opt: u32, max: u32) -> Self {
        Self { min, opt, max }
    }

    /// A range that holds one size only.
    pub(super) const fn exactly(size: u32) -> Self {
        Self::new(size, size, size)
    }

    fn is_ordered(self) -> bool {
        1 <= self.min && self.min <= self.opt && self.opt <= self.max
    }
}

impl From<[u32; 3]> for Range {
    fn from([min, opt, max]: [u32; 3]) -> Self {
        Self { min, opt, max }
    }
}

impl From<Range> for [u32; 3] {
    fn from(range: Range) -> Self {
        [range.min, range.opt, range.max]
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{}", self.min, self.opt, self.max)
    }
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Option<Vec<u32>> = text.split(',').map(|part| part.trim().parse().ok()).collect();
        match numbers.as_deref() {
            Some(&[min, opt, max]) if Self::new(min, opt, max).is_ordered() => Ok(Self::new(min, opt, max)),
            _ => Err(format!("`{text}` is not MIN,OPT,MAX: three numbers from 1 on, none below the one before it")),
        }
    }
}

/// The sizes of one optimization profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileShapes {
    /// Range of rows.
    pub batch: Range,
    /// Range of tokens per row.
    pub tokens: Range,
    /// Selected positions of a batch.
    pub select: Range,
}

/// Both profiles of a plan, and the sources that its model reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanShapes {
    /// Shapes of steps with any number of tokens per row.
    pub prefill: ProfileShapes,
    /// Shapes of steps with one token per row.
    pub decode: ProfileShapes,
    /// Tokens of a source, in models that read one with an encoder: of the only one in a run of the encoder, and of the
    /// longest of all rows in a run of the decoder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Range>,
}

/// The paper case: ten beams, at most 42 tokens; cold queries come one at a time.
impl Default for PlanShapes {
    fn default() -> Self {
        Self::new(Range::new(1, 1, 10), Range::new(1, 16, 42), Range::new(1, 4, 10))
    }
}

impl PlanShapes {
    /// From the rows and lengths of prefill and the rows of decode.
    ///
    /// One cold query may select all its positions, so prefill takes as many as a row has tokens, and at least one for
    /// each row.
    pub fn new(prefill_batch: Range, prefill_tokens: Range, decode_batch: Range) -> Self {
        let select = Range::new(1, prefill_batch.opt.max(2), prefill_batch.max.max(prefill_tokens.max).max(2));
        let tokens = Range::new(1, 1, 1);
        Self {
            prefill: ProfileShapes { batch: prefill_batch, tokens: prefill_tokens, select },
            decode: ProfileShapes {
                batch: decode_batch,
                tokens,
                select: Range::new(1, decode_batch.opt, decode_batch.max),
            },
            source: None,
        }
    }

    /// For a server of this many lanes and tokens per row and step, in proportion to the defaults.
    pub fn for_server(lanes: u32, chunk: u32) -> Self {
        let (lanes, chunk) = (lanes.max(1), chunk.max(1));
        Self::new(Range::new(1, 1, lanes), Range::new(1, chunk.min(16), chunk), Range::new(1, lanes.min(4), lanes))
    }

    /// The same for a model that reads sources of up to this many tokens, or none.
    #[must_use]
    pub fn reading(self, tokens: Option<u32>) -> Self {
        Self { source: tokens.map(|tokens| Range::new(1, tokens.min(USUAL_SOURCE), tokens)), ..self }
    }

    /// The most rows that both profiles take.
    pub fn lanes(&self) -> u32 {
        self.prefill.batch.max.min(self.decode.batch.max)
    }

    /// The most tokens of a row.
    pub fn chunk(&self) -> u32 {
        self.prefill.tokens.max
    }

    /// The most selected positions of a batch.
    pub fn selected(&self) -> u32 {
        self.prefill.select.max
    }

    /// The same with rows of no more tokens than the KV cache has positions.
    #[must_use]
    pub fn within(mut self, context: u32) -> Self {
        let tokens = &mut self.prefill.tokens;
        *tokens = Range::new(tokens.min.min(context), tokens.opt.min(context), tokens.max.min(context));
        self
    }

    pub(super) fn is_ordered(&self) -> bool {
        let of_profile = |profile: &ProfileShapes| [profile.batch, profile.tokens, profile.select];
        let profiles = [self.prefill, self.decode];
        profiles.iter().flat_map(of_profile).chain(self.source).all(Range::is_ordered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_written() {
        assert_eq!("1, 16,42".parse(), Ok(Range::new(1, 16, 42)));
        assert_eq!(Range::new(1, 16, 42).to_string(), "1,16,42");
        for wrong in ["", "1,2", "1,2,3,4", "0,1,2", "2,1,3", "1,3,2", "a,b,c", "-1,1,1"] {
            assert!(wrong.parse::<Range>().unwrap_err().contains("MIN,OPT,MAX"), "{wrong}");
        }
    }

    #[test]
    fn every_position_of_a_cold_query_can_be_selected() {
        let shapes = PlanShapes::default();
        assert_eq!((shapes.lanes(), shapes.chunk(), shapes.selected()), (10, 42, 42));
        for (lanes, chunk) in [(1, 1), (1, 64), (32, 64), (64, 8)] {
            let shapes = PlanShapes::for_server(lanes, chunk);
            assert!(shapes.is_ordered(), "{shapes:?}");
            assert_eq!((shapes.lanes(), shapes.chunk()), (lanes, chunk));
            assert!(shapes.selected() >= lanes.max(chunk));
        }
    }

    #[test]
    fn sources_are_as_long_as_the_model_reads() {
        let plain = serde_json::to_string(&PlanShapes::default()).expect("JSON");
        assert!(!plain.contains("source"), "records of other models are as they were: {plain}");
        let shapes = PlanShapes::default().reading(Some(512));
        assert_eq!(shapes.source, Some(Range::new(1, 64, 512)));
        let read: PlanShapes = serde_json::from_str(&serde_json::to_string(&shapes).expect("JSON")).expect("shapes");
        assert_eq!(read, shapes);
        assert!(!PlanShapes { source: Some(Range::new(1, 9, 8)), ..shapes }.is_ordered());
        assert_eq!(PlanShapes::default().reading(Some(48)).source, Some(Range::new(1, 48, 48)));
    }

    #[test]
    fn rows_are_cut_to_the_context() {
        let tokens = PlanShapes::default().within(24).prefill.tokens;
        assert_eq!(tokens, Range::new(1, 16, 24));
        assert!(PlanShapes::default().within(8).is_ordered());
    }
}
