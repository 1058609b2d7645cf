//! Stand-ins for AMX on other architectures.

use crate::tile::Int8Tile;
use crate::vector::Vector;

/// Never: see `amx.rs`.
pub(super) fn is_available() -> bool {
    false
}

/// As in `amx.rs`.
pub(crate) const MAX_TILES: usize = 1;

/// Always `None`: no tile on this architecture.
pub(crate) fn height(_rows: usize, _inputs: usize) -> Option<usize> {
    None
}

/// Has no values, because this architecture has no tiles.
pub(crate) enum Tiles {}

impl Tiles {
    /// # Safety
    /// As in `amx.rs`.
    pub(crate) unsafe fn new(_height: usize) -> Self {
        unreachable!("tiles without AMX")
    }

    /// # Safety
    /// As in `amx.rs`.
    pub(crate) unsafe fn multiply<S: Vector>(&self, _count: usize, _tile: &Int8Tile) {
        match *self {}
    }
}
