//! Whether a thread that runs out of work stays awake for a moment. A pure policy: what came of it is told.
//!
//! It stays awake as long as that pays. When nothing came in time (the client thinks, or its thread needs this very core), the
//! next occasions are let pass: one, three, seven, and so on up to a limit.

/// Most occasions in a row that are let pass.
const MOST_PASSED: u32 = 63;

/// The policy. See the module's documentation.
#[derive(Debug, Default)]
pub struct Backoff {
    /// Occasions let pass after the last time awake.
    passed: u32,
    /// Those of them that are still to come.
    left: u32,
}

impl Backoff {
    /// Whether to stay awake on this occasion.
    pub fn is_due(&mut self) -> bool {
        let is_due = self.left == 0;
        self.left = self.left.saturating_sub(1);
        is_due
    }

    /// Says whether something came while the thread was awake.
    pub fn learn(&mut self, paid: bool) {
        self.passed = if paid { 0 } else { (2 * self.passed + 1).min(MOST_PASSED) };
        self.left = self.passed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On which of the next occasions it stays awake.
    fn due(backoff: &mut Backoff, occasions: usize, paid: bool) -> Vec<usize> {
        let is_awake = |_: &usize| {
            let is_due = backoff.is_due();
            if is_due {
                backoff.learn(paid);
            }
            is_due
        };
        (0..occasions).filter(is_awake).collect()
    }

    #[test]
    fn always_while_it_pays_and_ever_more_seldom_while_it_does_not() {
        let mut backoff = Backoff::default();
        assert_eq!(due(&mut backoff, 3, true), [0, 1, 2]);
        assert_eq!(due(&mut backoff, 300, false), [0, 2, 6, 14, 30, 62, 126, 190, 254]);
        let until_tried_again = 254 + 1 + MOST_PASSED as usize - 300;
        assert_eq!(due(&mut backoff, until_tried_again + 3, true).first(), Some(&until_tried_again));
        assert_eq!(due(&mut backoff, 3, true), [0, 1, 2]);
    }
}
