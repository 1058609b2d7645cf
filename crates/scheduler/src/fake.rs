//! A deterministic engine without weights, for tests and for measuring everything around an engine.
//!
//! Its "keys and values" are the tokens themselves, and its logits are a hash of the lane's contents. A scheduler that
//! loads the wrong page, keeps a stale position or mixes up lanes gets other logits, and the test that compares them
//! fails. With an encoder, the contents of a lane include a hash of the source. A row whose keys and values belong to
//! another source is refused.

use crate::backend::{Backend, BackendError, Batch, KvCopy, Limits, Outputs, SourceSlot, check_numbers, check_source};
use completion::text::TokenId;

/// Computes a next-token logit from the tokens up to a position (inclusive) and the candidate.
pub type LogitFn = Box<dyn Fn(&[u32], u32) -> f32 + Send>;

/// A fault that tests can cause in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The engine reports an error.
    Error,
    /// The engine panics.
    Panic,
    /// The forward takes so long.
    Hang(std::time::Duration),
    /// Every number is NaN.
    NotANumber,
}

/// Says before each forward what is to go wrong with it.
pub type FaultFn = Box<dyn FnMut(&Batch) -> Option<Fault> + Send>;

/// Keys and values of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kv {
    token: u32,
    /// Hash of the source that the decoder was reading.
    source: u32,
}

/// The engine. See the module's documentation.
pub struct FakeBackend {
    limits: Limits,
    /// `[lanes, context]`; `None` where nothing was ever written.
    lanes: Vec<Vec<Option<Kv>>>,
    /// `[pages]`
    pages: Vec<Option<Kv>>,
    /// Hash of the source in each slot. `[slots]`
    sources: Vec<Option<u32>>,
    logit: LogitFn,
    fault: Option<FaultFn>,
    /// Positions computed so far, padding not counted.
    pub positions: u64,
    /// Number of forwards so far.
    pub forwards: u64,
    /// Sources read so far.
    pub encoded: u64,
}

impl FakeBackend {
    /// An engine whose logits are spread over about +-`scale` by a hash seeded with `seed`.
    pub fn hashed(limits: Limits, seed: u64, scale: f32) -> Self {
        Self::with_logits(
            limits,
            Box::new(move |path, next| (hash(seed, path, next) as f32 / u32::MAX as f32 - 0.5) * 2.0 * scale),
        )
    }

    /// An engine with the given logits.
    pub fn with_logits(limits: Limits, logit: LogitFn) -> Self {
        let lanes = vec![vec![None; limits.context]; limits.lanes];
        let pages = vec![None; limits.pages];
        let sources = vec![None; limits.source.map_or(0, |source| source.slots)];
        Self { limits, lanes, pages, sources, logit, fault: None, positions: 0, forwards: 0, encoded: 0 }
    }

    /// The same engine, with faults.
    pub fn with_faults(self, fault: FaultFn) -> Self {
        Self { fault: Some(fault), ..self }
    }

    /// The logits of all tokens behind `path`, for comparisons.
    pub fn logits(&self, path: &[u32]) -> Vec<f32> {
        (0..self.limits.vocab as u32).map(|next| (self.logit)(path, next)).collect()
    }

    /// The source that a row reads, as a hash; 0 where there is no encoder.
    fn source(&self, slot: Option<SourceSlot>) -> Result<u32, BackendError> {
        let Some(slot) = slot else { return Ok(0) };
        self.sources[slot.0].ok_or_else(|| BackendError::Contract(format!("{slot:?} was never filled")))
    }

    /// The path up to a position of a lane, behind the source if there is one.
    fn path(&self, lane: usize, position: usize, source: Option<SourceSlot>) -> Result<Vec<u32>, BackendError> {
        let unwritten = || BackendError::Contract(format!("lane {lane} has an unwritten position before {position}"));
        let path: Option<Vec<Kv>> = self.lanes[lane][..=position].iter().copied().collect();
        let path = path.ok_or_else(unwritten)?;
        let read = self.source(source)?;
        if path.iter().any(|kv| kv.source != read) {
            return Err(BackendError::Contract(format!("lane {lane} has a position of another source")));
        }
        Ok(source.map(|_| read).into_iter().chain(path.iter().map(|kv| kv.token)).collect())
    }

    fn select(&self, path: &[u32], full: bool, out: &mut Outputs) {
        let logits = self.logits(path);
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        ids.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
        ids.truncate(self.limits.top_k);
        out.top_logits.extend(ids.iter().map(|&id| logits[id as usize]));
        out.top_ids.extend(ids);
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        out.logsumexp.push(max + logits.iter().map(|x| (x - max).exp()).sum::<f32>().ln());
        if full {
            out.logits.extend(logits);
        }
    }
}

impl Backend for FakeBackend {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn forward(&mut self, batch: &Batch, out: &mut Outputs) -> Result<(), BackendError> {
        batch.check(&self.limits)?;
        out.clear();
        match self.fault.as_mut().and_then(|fault| fault(batch)) {
            Some(Fault::Error) => return Err(BackendError::Engine("injected".into())),
            Some(Fault::Panic) => panic!("injected"),
            Some(Fault::NotANumber) => return Err(BackendError::NotANumber(0)),
            Some(Fault::Hang(time)) => std::thread::sleep(time),
            None => {}
        }
        let longest = batch.longest();
        let sources = batch.rows.iter().map(|row| self.source(row.source)).collect::<Result<Vec<_>, _>>()?;
        for ((lane, row), source) in self.lanes.iter_mut().zip(&batch.rows).zip(sources) {
            for offset in 0..longest {
                // Padding spoils the positions behind the row, as in a real engine.
                let kv = |offset: usize| Kv { token: batch.tokens[row.start + offset].0, source };
                lane[row.past_len + offset] = (offset < row.len).then(|| kv(offset));
            }
        }
        for selected in &batch.selected {
            let row = batch.rows[selected.row];
            let path = self.path(selected.row, row.past_len + selected.offset, row.source)?;
            self.select(&path, selected.full, out);
        }
        self.forwards += 1;
        self.positions += batch.tokens.len() as u64;
        check_numbers(out)
    }

    fn copy_kv(&mut self, copies: &[KvCopy]) -> Result<(), BackendError> {
        let missing = |copy: &KvCopy| BackendError::Contract(format!("{copy:?} names something that does not exist"));
        for copy in copies {
            match *copy {
                KvCopy::Load { page, lane, position } => {
                    let from = *self.pages.get(page.0).ok_or_else(|| missing(copy))?;
                    *self.lanes.get_mut(lane.0).and_then(|l| l.get_mut(position)).ok_or_else(|| missing(copy))? = from;
                }
                KvCopy::Store { lane, position, page } => {
                    let from = *self.lanes.get(lane.0).and_then(|l| l.get(position)).ok_or_else(|| missing(copy))?;
                    *self.pages.get_mut(page.0).ok_or_else(|| missing(copy))? = from;
                }
            }
        }
        Ok(())
    }

    fn encode(&mut self, slot: SourceSlot, tokens: &[TokenId]) -> Result<(), BackendError> {
        check_source(slot, tokens, &self.limits)?;
        let tokens: Vec<u32> = tokens.iter().map(|token| token.0).collect();
        // The upper half of the numbers: no token is as large.
        self.sources[slot.0] = Some(hash(0, &tokens, 0) | 1 << 31);
        self.encoded += 1;
        Ok(())
    }
}

/// FNV-1a over the path with a final mix; good enough to tell paths apart, and the same on every machine.
fn hash(seed: u64, path: &[u32], next: u32) -> u32 {
    let mut h = 0xcbf2_9ce4_8422_2325 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for &x in path.iter().chain(std::iter::once(&next)) {
        h = (h ^ u64::from(x)).wrapping_mul(0x0100_0000_01b3);
        h ^= h >> 29;
    }
    h = (h ^ (h >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (h >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Lane, Page, Selected};
    use completion::text::TokenId;

    #[test]
    fn logits_follow_the_kv_through_pages() {
        let limits = Limits {
            lanes: 2,
            context: 8,
            chunk: 8,
            selected: 2,
            vocab: 5,
            top_k: 5,
            pages: 2,
            page_bytes: 4,
            source: None,
        };
        let mut fake = FakeBackend::hashed(limits, 7, 3.0);
        let (mut batch, mut cold, mut warm) = (Batch::default(), Outputs::default(), Outputs::default());
        batch.push_row(0, [1, 2, 3].map(TokenId));
        batch.selected.push(Selected { row: 0, offset: 2, full: true });
        fake.forward(&batch, &mut cold).unwrap();
        let store = |position, page| KvCopy::Store { lane: Lane(0), position, page: Page(page) };
        let load = |position, page| KvCopy::Load { page: Page(page), lane: Lane(0), position };
        fake.copy_kv(&[store(0, 0), store(1, 1)]).unwrap();
        batch.clear();
        batch.push_row(0, [4, 4, 4].map(TokenId));
        batch.selected.push(Selected { row: 0, offset: 2, full: true });
        fake.forward(&batch, &mut warm).unwrap();
        assert_ne!(cold, warm);
        fake.copy_kv(&[load(0, 0), load(1, 1)]).unwrap();
        batch.clear();
        batch.push_row(2, [TokenId(3)]);
        batch.selected.push(Selected { row: 0, offset: 0, full: true });
        fake.forward(&batch, &mut warm).unwrap();
        assert_eq!(cold, warm);
        fake.copy_kv(&[KvCopy::Load { page: Page(2), lane: Lane(0), position: 0 }]).unwrap_err();
    }
}
