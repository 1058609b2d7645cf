//! Where the positions of rows are in a cache, and which tables of it can be.

/// A table of places that can't be: why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceError {
    /// A position is nowhere.
    Outside {
        /// The row.
        row: usize,
        /// The position.
        position: usize,
        /// What the table says.
        place: i64,
        /// Places that there are.
        places: usize,
    },
    /// The place of a new position is another position's, too.
    Shared {
        /// The other's row.
        row: usize,
        /// The other position.
        position: usize,
        /// What the table says.
        place: i64,
    },
}

impl std::fmt::Display for PlaceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PlaceError::Outside { row, position, place, places } => {
                write!(f, "position {position} of row {row} is in place {place} of {places}")
            }
            PlaceError::Shared { row, position, place } => {
                write!(f, "position {position} of row {row} is in place {place}, to which another position is written")
            }
        }
    }
}

impl std::error::Error for PlaceError {}

/// Says whether every position is in one of the `count` places, and those of new positions are nobody else's: what lets threads
/// write to them while others read.
///
/// `tables`: `[rows, context]`. `past_len`: `[rows]`. `tokens`: new positions of each row. `written`: all false, and so again
/// afterwards.
pub(crate) fn check(
    tables: &[i64],
    past_len: &[i64],
    tokens: usize,
    count: usize,
    written: &mut Vec<bool>,
) -> Result<(), PlaceError> {
    let context = tables.len() / past_len.len();
    if written.len() < count {
        written.resize(count, false);
    }
    let rows = || tables.chunks_exact(context).zip(past_len).enumerate();
    let new = |past: i64| {
        let past = usize::try_from(past).unwrap_or(0);
        past.min(context)..(past + tokens).min(context)
    };
    let outside = |row, position, place| PlaceError::Outside { row, position, place, places: count };
    let mut result = Ok(());
    let mut marked = 0;
    'rows: for (row, (table, &past)) in rows() {
        for position in new(past) {
            let place = table[position];
            result = match usize::try_from(place).ok().filter(|place| *place < count) {
                None => Err(outside(row, position, place)),
                Some(at) if std::mem::replace(&mut written[at], true) => {
                    Err(PlaceError::Shared { row, position, place })
                }
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
            table[..new(past).start].iter().enumerate().try_for_each(|(position, &place)| {
                match usize::try_from(place).ok().and_then(|at| written[..count].get(at)) {
                    None => Err(outside(row, position, place)),
                    Some(true) => Err(PlaceError::Shared { row, position, place }),
                    Some(false) => Ok(()),
                }
            })
        });
    }
    let places = rows().flat_map(|(_, (table, &past))| &table[new(past)]);
    for place in places.take(marked) {
        written[*place as usize] = false;
    }
    result
}
