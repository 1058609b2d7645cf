//! Checks the table that says which slot of a KV cache holds each position of each row.

use crate::kernels::grow;

/// Why a table of slots is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotError {
    /// A position's slot does not exist.
    Outside {
        /// Row of the position.
        row: usize,
        /// The position, from 0.
        position: usize,
        /// The slot that the table has for the position.
        slot: i64,
        /// Number of slots of the cache.
        slots: usize,
    },
    /// Another position has the slot of a new position.
    Shared {
        /// The row of the other position.
        row: usize,
        /// The other position.
        position: usize,
        /// The slot that the table has for the position.
        slot: i64,
    },
}

impl std::fmt::Display for SlotError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SlotError::Outside { row, position, slot, slots } => {
                write!(f, "position {position} of row {row} is in slot {slot} of {slots}")
            }
            SlotError::Shared { row, position, slot } => {
                write!(f, "position {position} of row {row} is in slot {slot}, to which another position is written")
            }
        }
    }
}

impl std::error::Error for SlotError {}

/// The slots of some rows.
#[derive(Clone, Copy)]
pub(crate) struct Table<'a> {
    /// `[rows, context]`
    pub(crate) slots: &'a [i64],
    /// `[rows]`
    pub(crate) past_len: &'a [i64],
    /// New positions of each row.
    pub(crate) tokens: usize,
}

/// Checks that every position is in one of `count` slots, and that no other position shares the slot of a new one:
/// threads write to those while others read.
///
/// `written` is all false, and so again afterwards.
pub(crate) fn check(table: Table, count: usize, written: &mut Vec<bool>) -> Result<(), SlotError> {
    let Table { slots, past_len, tokens } = table;
    let context = slots.len() / past_len.len();
    grow(written, count);
    let rows = || slots.chunks_exact(context).zip(past_len).enumerate();
    let new = |past: i64| {
        let past = usize::try_from(past).unwrap_or(0);
        past.min(context)..(past + tokens).min(context)
    };
    let outside = |row, position, slot| SlotError::Outside { row, position, slot, slots: count };
    let mut result = Ok(());
    let mut marked = 0;
    'rows: for (row, (table, &past)) in rows() {
        for position in new(past) {
            let slot = table[position];
            result = match usize::try_from(slot).ok().filter(|slot| *slot < count) {
                None => Err(outside(row, position, slot)),
                Some(at) if std::mem::replace(&mut written[at], true) => Err(SlotError::Shared { row, position, slot }),
                Some(_) => Ok(()),
            };
            if result.is_err() {
                break 'rows;
            }
            marked += 1;
        }
    }
    if result.is_ok() {
        result = rows().try_for_each(|(row, (table, &past))| {
            table[..new(past).start].iter().enumerate().try_for_each(|(position, &slot)| {
                match usize::try_from(slot).ok().and_then(|at| written[..count].get(at)) {
                    None => Err(outside(row, position, slot)),
                    Some(true) => Err(SlotError::Shared { row, position, slot }),
                    Some(false) => Ok(()),
                }
            })
        });
    }
    let slots = rows().flat_map(|(_, (table, &past))| &table[new(past)]);
    for slot in slots.take(marked) {
        written[*slot as usize] = false;
    }
    result
}
