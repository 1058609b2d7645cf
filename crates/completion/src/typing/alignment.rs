//! The cheapest way in which the beginning of a text became the typed text, followed one character at a time.
//!
//! A *way* is a sequence of edits. It turns a prefix of the text into a prefix of the typed text, at a cost in nats:
//! the negative logarithm of its probability. Ways whose cost is above a budget are dropped.
//!
//! Damerau and Levenshtein's alignment with at most two edits. There are three rows: one compares characters with the
//! typed ones as they are, one with the plain form of these, and one compares folded forms. The second and the third
//! have paid for a style from the start: see [`Typed`].

use std::ops::RangeInclusive;

use super::channel::Costs;
use super::fold::{folded, is_folded};
use super::words::may_be_edited;
use super::{Line, Typed};

/// Most edits that a typed text may have.
pub const MOST_EDITS: usize = 2;
/// Cells of a row: by edits `e` and by how many characters more were typed than meant, from `-e` to `e`.
const CELLS: usize = (MOST_EDITS + 1) * (MOST_EDITS + 1);

/// The cell of so many edits and so many characters more typed than meant.
fn cell(edits: usize, offset: isize) -> usize {
    (edits * (edits + 1)).saturating_add_signed(offset)
}

/// By cell: its edits and its offset. Those of fewer edits come first.
const OFFSETS: [(usize, isize); CELLS] = {
    let mut offsets = [(0, 0); CELLS];
    let (mut edits, mut cell) = (0, 0);
    while edits <= MOST_EDITS {
        let mut offset = -(edits as isize);
        while offset <= edits as isize {
            offsets[cell] = (edits, offset);
            (cell, offset) = (cell + 1, offset + 1);
        }
        edits += 1;
    }
    offsets
};

/// Everything typed was used up: what that cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Finished {
    /// Negative logarithm of the probability of the edits, in nats.
    pub cost: f32,
    /// Edits, of which the style of the whole text is one.
    pub edits: u8,
    /// Bytes of the text that the typed text stands for.
    pub meant: usize,
}

/// The ways that go on from a number of typed characters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ways {
    /// Typed characters that are used up.
    pub level: usize,
    /// What the cheapest way costs, in nats.
    pub cost: f32,
    /// The fewest edits of a way.
    pub edits: usize,
}

/// Costs of having used up so many typed characters with so many edits.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Row {
    /// Characters of the text so far.
    read: usize,
    /// The cost of each cell; infinite where there is no way. See [`cell`].
    cells: [f32; CELLS],
    /// The cells one character before, for characters that were swapped.
    before: [f32; CELLS],
    /// The last character of the text.
    last: Read,
}

/// A character of the text, in the form that a row compares, and as it is.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Read {
    c: char,
    raw: char,
}

/// Limits of an alignment.
#[derive(Clone, Copy)]
struct Limits<'a> {
    max_edits: usize,
    /// The highest cost, in nats.
    budget: f32,
    costs: &'a Costs,
}

/// An alignment. See the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alignment {
    raw: Row,
    /// None if the typed text is its own plain form.
    plain: Option<Row>,
    /// None while it is the row of the plain form with the cost of a style: that form and the text so far have folded
    /// characters only.
    folded: Option<Row>,
    /// Bytes of the text so far.
    bytes: usize,
    finished: Option<Finished>,
}

impl Row {
    fn start(typed: &Line, cost: f32, max_edits: usize, costs: &Costs) -> Self {
        let last = Read { c: '\0', raw: '\0' };
        let mut row = Self { read: 0, cells: [f32::INFINITY; CELLS], before: [f32::INFINITY; CELLS], last };
        row.cells[0] = cost;
        row.add_extras(typed, Limits { max_edits, budget: f32::INFINITY, costs });
        row
    }

    /// The same ways at `cost` more, without those above `budget`.
    fn raised(mut self, cost: f32, budget: f32) -> Self {
        for cell in self.cells.iter_mut().chain(&mut self.before) {
            *cell += cost;
            if *cell > budget {
                *cell = f32::INFINITY;
            }
        }
        self
    }

    /// Whether every way of this row was dropped.
    fn is_dead(&self) -> bool {
        self.cells.iter().chain(&self.before).all(|cost| cost.is_infinite())
    }

    /// Adds a character of the text. Ways that cost more than `budget` are dropped.
    fn push(&mut self, typed: &Line, read: Read, limits: Limits<'_>) {
        let Limits { max_edits, budget, costs } = limits;
        let (Read { c, raw }, last) = (read, self.last);
        let is_editable = may_be_edited(raw);
        let mut next = [f32::INFINITY; CELLS];
        let mut keep = |edits: usize, offset: isize, cost: f32| {
            let cell = &mut next[cell(edits, offset)];
            if cost < *cell && cost <= budget {
                *cell = cost;
            }
        };
        for edits in 0..=max_edits {
            for offset in -(edits as isize)..=edits as isize {
                let index = cell(edits, offset);
                if self.cells[index].is_infinite() && self.before[index].is_infinite() {
                    continue;
                }
                let Some(at) = self.read.checked_add_signed(offset) else { continue };
                let cost = self.cells[index];
                if cost.is_finite() {
                    let matches = typed.matches(at, c, raw);
                    if matches {
                        keep(edits, offset, cost);
                    }
                    if edits < max_edits && is_editable && cost + costs.least_edit <= budget {
                        if typed.may_lack_before(at, raw) {
                            keep(edits + 1, offset - 1, cost + costs.omitted);
                        }
                        if let Some(key) = typed.substitute(at, raw).filter(|_| !matches) {
                            keep(edits + 1, offset, cost + costs.substitution(c, key));
                        }
                    }
                }
                let cost = self.before[index];
                let is_pair = |first| typed.matches(first, c, raw) && typed.matches(first + 1, last.c, last.raw);
                if cost + costs.swapped <= budget
                    && edits < max_edits
                    && last.c != c
                    && let Some(first) = at.checked_sub(1).filter(|&first| is_pair(first))
                    && typed.may_be_swapped(first, [last.raw, raw])
                {
                    keep(edits + 1, offset, cost + costs.swapped);
                }
            }
        }
        self.before = self.cells;
        self.cells = next;
        self.last = read;
        self.read += 1;
        self.add_extras(typed, limits);
    }

    /// Adds the ways in which more was typed than the text has here.
    fn add_extras(&mut self, typed: &Line, Limits { max_edits, budget, costs }: Limits<'_>) {
        for edits in 0..max_edits {
            for offset in -(edits as isize)..=edits as isize {
                let cost = self.cells[cell(edits, offset)];
                let is_possible = cost + costs.least_edit <= budget && cost.is_finite();
                let at = self.read.checked_add_signed(offset).filter(|_| is_possible);
                let Some((at, key)) = at.and_then(|at| Some((at, typed.extra(at)?))) else { continue };
                let doubled = at > 0 && typed.characters[at - 1] == key;
                let cost = cost + if doubled { costs.doubled } else { costs.extra };
                let cell = &mut self.cells[cell(edits + 1, offset + 1)];
                if cost < *cell && cost <= budget {
                    *cell = cost;
                }
            }
        }
    }

    /// Adds a character of the text, and takes out the cheapest way that has used up all that was typed.
    fn push_and_finish(&mut self, typed: &Line, read: Read, limits: Limits<'_>) -> Option<(f32, u8)> {
        if self.is_dead() {
            return None;
        }
        self.push(typed, read, limits);
        self.take_finished(typed.len(), limits.max_edits)
    }

    /// Takes out the cheapest way that has used up all that was typed, with its edits.
    fn take_finished(&mut self, typed: usize, max_edits: usize) -> Option<(f32, u8)> {
        let mut cheapest = None;
        for edits in 0..=max_edits {
            let offset = typed as isize - self.read as isize;
            if offset.unsigned_abs() > edits {
                continue;
            }
            let cell = &mut self.cells[cell(edits, offset)];
            let cost = std::mem::replace(cell, f32::INFINITY);
            if cost.is_finite() && cheapest.is_none_or(|(least, _)| cost < least) {
                cheapest = Some((cost, edits as u8));
            }
        }
        cheapest
    }

    /// The ways that go on, each with the characters of the row's line that it has used up.
    fn reached(&self) -> impl Iterator<Item = Ways> + '_ {
        OFFSETS.iter().zip(&self.cells).filter(|(_, cost)| cost.is_finite()).map(|(&(edits, offset), &cost)| {
            let level = self.read.saturating_add_signed(offset);
            Ways { level, cost, edits }
        })
    }

    /// The ways that end before the last character and go on if that was swapped with the next one. Each has the
    /// characters of the row's line that it has used up, and the swap in its cost and edits.
    fn swaps(&self, typed: &Line, max_edits: usize, costs: &Costs) -> impl Iterator<Item = Ways> {
        let fewer = OFFSETS.iter().zip(&self.before).take(max_edits * max_edits);
        let ways = fewer.filter(|(_, cost)| cost.is_finite()).filter_map(|(&(edits, offset), &cost)| {
            let level = self.read.checked_sub(1)?.checked_add_signed(offset)?;
            Some(Ways { level, cost: cost + costs.swapped, edits: edits + 1 })
        });
        ways.filter(|ways| typed.characters.get(ways.level + 1) == Some(&self.last.c))
    }

    /// The cheapest way that goes on, with the typed characters it has used up.
    fn cheapest(&self) -> (f32, usize) {
        let (mut least, mut at) = (f32::INFINITY, 0);
        for (&(_, offset), &cost) in OFFSETS.iter().zip(&self.cells) {
            if cost < least {
                (least, at) = (cost, offset);
            }
        }
        (least, if least.is_finite() { self.read.saturating_add_signed(at) } else { 0 })
    }
}

impl Alignment {
    /// Before the text's first character.
    pub fn start(typed: &Typed) -> Self {
        let Typed { raw, folded, max_edits, costs, .. } = typed;
        let row = |line: &Line, is_used: bool, cost: f32| {
            Row::start(line, if is_used { cost } else { f32::INFINITY }, *max_edits, costs)
        };
        let plain = typed.plain.as_ref().map(|plain| row(plain, true, costs.style));
        let style = if plain.is_some() { 2.0 * costs.style } else { costs.style };
        let is_same = typed.has_style && typed.is_folded;
        let folded = (!is_same).then(|| row(folded, typed.has_style, style));
        Self { raw: row(raw, typed.raw_has_edits, 0.0), plain, folded, bytes: 0, finished: None }
    }

    /// Adds a character of the text. Ways that cost more than `budget` nats are dropped.
    pub fn push(&mut self, typed: &Typed, c: char, budget: f32) {
        let Typed { max_edits, costs, .. } = typed;
        let limits = Limits { max_edits: *max_edits, budget, costs };
        self.bytes += c.len_utf8();
        if self.folded.is_none() && !is_folded(c) {
            self.folded = Some(self.plain.unwrap_or(self.raw).raised(costs.style, budget));
        }
        let as_it_is = Read { c, raw: c };
        let finished = self.raw.push_and_finish(&typed.raw, as_it_is, limits);
        self.finish(finished, 0);
        if let (Some(row), Some(line)) = (&mut self.plain, &typed.plain) {
            let finished = row.push_and_finish(line, as_it_is, limits);
            self.finish(finished, 1);
        }
        if self.folded.as_ref().is_none_or(Row::is_dead) {
            return;
        }
        for form in folded(c) {
            let read = Read { c: form, raw: c };
            let finished = self.folded.as_mut().and_then(|row| row.push_and_finish(&typed.folded, read, limits));
            self.finish(finished, 1);
        }
    }

    /// Adds the characters of `bytes`, which follow the bytes `pending` of an unfinished character. Returns the bytes
    /// of
    /// `pending` and `bytes` that made whole characters. Stops where no way is left.
    pub fn push_bytes(&mut self, typed: &Typed, pending: &[u8], bytes: &[u8], budget: f32) -> usize {
        let joined;
        let bytes = match pending {
            [] => bytes,
            _ => {
                joined = [pending, bytes].concat();
                &joined
            }
        };
        let whole = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
        for c in whole.chars() {
            self.push(typed, c, budget);
            if self.is_dead() {
                break;
            }
        }
        whole.len()
    }

    fn finish(&mut self, finished: Option<(f32, u8)>, style: u8) {
        if let Some((cost, edits)) = finished
            && self.finished.is_none_or(|known| cost < known.cost)
        {
            self.finished = Some(Finished { cost, edits: edits + style, meant: self.bytes });
        }
    }

    /// The cheapest way that used up all that was typed.
    pub fn finished(&self) -> Option<Finished> {
        self.finished
    }

    /// Whether the text so far is the beginning of what was typed, character by character.
    pub fn is_as_typed(&self) -> bool {
        self.raw.cells[0].is_finite()
    }

    /// Whether the text begins with what was typed, character by character.
    pub fn is_whole(&self) -> bool {
        self.finished.is_some_and(|finished| finished.edits == 0)
    }

    /// Whether the text so far is the beginning of the plain form of what was typed, if that is another text.
    pub fn is_plain(&self) -> bool {
        self.plain.is_some_and(|plain| plain.cells[0].is_finite())
    }

    /// The rows that compare characters as they are.
    fn unfolded(&self) -> impl Iterator<Item = &Row> {
        std::iter::once(&self.raw).chain(&self.plain)
    }

    /// The cheapest way of all: its cost in nats, infinite if there is none, and the level that it has reached.
    pub fn cheapest(&self, typed: &Typed) -> (f32, usize) {
        let unfolded = self.unfolded().map(Row::cheapest);
        let unfolded = unfolded.reduce(|least, row| if row.0 < least.0 { row } else { least });
        let (cost, read) = unfolded.unwrap_or((f32::INFINITY, 0));
        let folded = self.folded.as_ref().map_or((f32::INFINITY, 0), Row::cheapest);
        let going_on = if cost <= folded.0 { (cost, typed.level(read)) } else { folded };
        match self.finished {
            Some(finished) if finished.cost <= going_on.0 => (finished.cost, typed.len()),
            _ => going_on,
        }
    }

    /// Visits the ways that go on, with levels in folded characters.
    fn each(&self, typed: &Typed, mut visit: impl FnMut(Ways)) {
        for row in self.unfolded() {
            row.reached().for_each(|ways| visit(Ways { level: typed.level(ways.level), ..ways }));
        }
        self.folded.iter().for_each(|row| row.reached().for_each(&mut visit));
    }

    /// The ways that go on from each number of folded characters, each number once.
    pub fn reached(&self, typed: &Typed) -> impl Iterator<Item = Ways> {
        let mut reached = [Ways { level: 0, cost: f32::INFINITY, edits: MOST_EDITS }; 3 * CELLS];
        let mut count = 0;
        self.each(typed, |ways| match reached[..count].iter_mut().find(|known| known.level == ways.level) {
            Some(known) => {
                known.cost = known.cost.min(ways.cost);
                known.edits = known.edits.min(ways.edits);
            }
            None => {
                reached[count] = ways;
                count += 1;
            }
        });
        reached.into_iter().take(count)
    }

    /// What one more edit adds to the cheapest way's cost at least. That is below 0 if the text's last character seems
    /// to be an error, and may have been swapped with the next one instead.
    pub fn least_edit(&self, typed: &Typed) -> f32 {
        let cheapest = self.cheapest(typed).0;
        let swaps = self.swaps(typed).map(|ways| ways.cost - cheapest);
        swaps.fold(typed.costs.least_edit, f32::min)
    }

    /// The ways in which the text's last character may have been swapped with the next one: from the level before both,
    /// with the swap.
    pub fn swaps<'a>(&'a self, typed: &'a Typed) -> impl Iterator<Item = Ways> + 'a {
        let swaps = |row: &'a Row, line: &'a Line| row.swaps(line, typed.max_edits, &typed.costs);
        let plain = self.plain.iter().zip(&typed.plain).flat_map(move |(row, line)| swaps(row, line));
        let unfolded = swaps(&self.raw, &typed.raw).chain(plain);
        let unfolded = unfolded.map(|ways| Ways { level: typed.level(ways.level), ..ways });
        unfolded.chain(self.folded.iter().flat_map(move |row| swaps(row, &typed.folded)))
    }

    /// The lowest and the highest level of all ways that go on; none if every way was dropped or has finished.
    pub fn reach(&self, typed: &Typed) -> Option<RangeInclusive<usize>> {
        let (mut lowest, mut highest) = (usize::MAX, 0);
        let mut visit = |ways: Ways| (lowest, highest) = (lowest.min(ways.level), highest.max(ways.level));
        self.each(typed, &mut visit);
        self.swaps(typed).for_each(visit);
        (lowest <= highest).then_some(lowest..=highest)
    }

    /// Whether a way that goes on may have one more edit.
    pub fn may_be_edited(&self, typed: &Typed) -> bool {
        // The cells of fewer edits come first.
        let fewer = typed.max_edits * typed.max_edits;
        let mut rows = self.unfolded().chain(&self.folded);
        rows.any(|row| row.cells[..fewer].iter().any(|cost| cost.is_finite())) || self.swaps(typed).next().is_some()
    }

    /// Whether every way was dropped: no longer text can stand for the typed text.
    pub fn is_dead(&self) -> bool {
        self.finished.is_none() && self.unfolded().chain(&self.folded).all(Row::is_dead)
    }

    /// The cheapest way in which the beginning of a whole text became the typed text.
    pub fn of_text(typed: &Typed, text: &str) -> Option<Finished> {
        let mut alignment = Self::start(typed);
        for c in text.chars() {
            alignment.push(typed, c, f32::INFINITY);
        }
        alignment.finished()
    }
}

#[cfg(test)]
#[path = "alignment_tests.rs"]
mod tests;
