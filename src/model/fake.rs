//! A deterministic engine without weights, for tests and for measuring everything around an engine.
//!
//! Its "keys and values" are the tokens themselves, and its logits are a hash of what the lane holds. So a scheduler that loads
//! the wrong page, keeps a stale position or mixes up lanes gets other logits, and the test that compares them fails.

use super::{Backend, BackendError, Batch, KvCopy, Limits, Outputs, check_numbers};

/// Computes a next-token logit from the tokens up to a position (inclusive) and the candidate.
pub type LogitFn = Box<dyn Fn(&[u32], u32) -> f32 + Send>;

/// What can be made to go wrong in a forward.
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

/// The engine. See the module's documentation.
pub struct FakeBackend {
    limits: Limits,
    /// `[lanes, context]`; `None` where nothing was ever written.
    lanes: Vec<Vec<Option<u32>>>,
    /// `[pages]`
    pages: Vec<Option<u32>>,
    logit: LogitFn,
    fault: Option<FaultFn>,
    /// Positions computed so far, padding not counted.
    pub positions: u64,
    /// Forwards so far.
    pub forwards: u64,
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
        Self { limits, lanes, pages, logit, fault: None, positions: 0, forwards: 0 }
    }

    /// The same engine, with faults.
    pub fn with_faults(self, fault: FaultFn) -> Self {
        Self { fault: Some(fault), ..self }
    }

    /// The logits of all tokens behind `path`, for comparisons.
    pub fn logits(&self, path: &[u32]) -> Vec<f32> {
        (0..self.limits.vocab as u32).map(|next| (self.logit)(path, next)).collect()
    }

    fn select(&self, lane: usize, position: usize, full: bool, out: &mut Outputs) -> Result<(), BackendError> {
        let unwritten = || BackendError::Contract(format!("lane {lane} has an unwritten position before {position}"));
        let path: Option<Vec<u32>> = self.lanes[lane][..=position].iter().copied().collect();
        let logits = self.logits(&path.ok_or_else(unwritten)?);
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
        Ok(())
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
        for (lane, row) in self.lanes.iter_mut().zip(&batch.rows) {
            for offset in 0..longest {
                // Padding spoils the positions behind the row, as in a real engine.
                lane[row.past_len + offset] = (offset < row.len).then(|| batch.tokens[row.start + offset].0);
            }
        }
        for selected in &batch.selected {
            let position = batch.rows[selected.row].past_len + selected.offset;
            self.select(selected.row, position, selected.full, out)?;
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
    use super::super::{Lane, Page, Selected};
    use super::*;
    use crate::text::TokenId;

    #[test]
    fn logits_follow_the_kv_through_pages() {
        let limits =
            Limits { lanes: 2, context: 8, chunk: 8, selected: 2, vocab: 5, top_k: 5, pages: 2, page_bytes: 4 };
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
