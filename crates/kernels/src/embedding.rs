//! The embedding: rows of the vocabulary matrix, read from the packed order that the head uses. One copy serves both.

use crate::layout::{Matrix, PANEL, QUAD, index_f32, index_int8};

/// The embedding, without its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Embedding<'a> {
    /// Packed `[hidden, vocab]`.
    pub table: Matrix<'a>,
    /// Elements of a row.
    pub hidden: usize,
    /// Token ids are below this.
    pub vocab: usize,
    /// `[positions, hidden]`: added to the token's row.
    pub positions: Option<&'a [f32]>,
}

impl Embedding<'_> {
    /// Writes `y` `[rows, tokens, hidden]` for `ids` `[rows, tokens]`, whose first positions are `past_len` `[rows]`.
    ///
    /// Positions beyond the last count as the last: only right padding has such.
    ///
    /// # Errors
    /// An id that is not below `vocab`.
    ///
    /// # Panics
    /// If a slice has another length than its shape.
    pub fn run(&self, ids: &[i64], past_len: &[i64], y: &mut [f32]) -> Result<(), i64> {
        self.table.check(self.hidden, self.vocab);
        assert_eq!(y.len(), ids.len() * self.hidden, "y");
        let tokens = if past_len.is_empty() { ids.len().max(1) } else { ids.len() / past_len.len() };
        for (at, (id, y)) in ids.iter().zip(y.chunks_exact_mut(self.hidden)).enumerate() {
            let token = usize::try_from(*id).ok().filter(|&token| token < self.vocab).ok_or(*id)?;
            self.token(token, y);
            if let Some(positions) = self.positions {
                let last = positions.len() / self.hidden - 1;
                let position = past_len[at / tokens].max(0) as usize + at % tokens;
                let from = &positions[position.min(last) * self.hidden..][..self.hidden];
                y.iter_mut().zip(from).for_each(|(y, position)| *y += position);
            }
        }
        Ok(())
    }

    fn token(&self, token: usize, y: &mut [f32]) {
        match self.table {
            Matrix::F32(elements) => {
                let column = &elements[index_f32(self.hidden, 0, token)..];
                y.iter_mut().zip(column.iter().step_by(PANEL)).for_each(|(y, element)| *y = *element);
            }
            Matrix::Int8(bytes, scales) => {
                let column = &bytes[index_int8(self.hidden, 0, token)..];
                let quads = column.chunks(PANEL * QUAD);
                for (y, quad) in y.chunks_mut(QUAD).zip(quads) {
                    y.iter_mut().zip(quad).for_each(|(y, byte)| *y = (f32::from(*byte) - 128.0) * scales[token]);
                }
            }
        }
    }
}
