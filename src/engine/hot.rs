//! The texts that people type most, so that another engine can compute them before it is asked. Pure.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;

/// Most texts that are counted.
pub const MAX_HOT_TEXTS: usize = 2048;
/// A longer text isn't counted: hardly anybody else types it.
const MAX_BYTES: usize = 128;
/// A text that was typed less often isn't hot, and may tell who typed it.
const LEAST_TYPED: u64 = 2;

/// A text, and how often it was typed of late.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
pub struct HotText {
    /// What was typed.
    pub text: String,
    /// Older keystrokes count less.
    pub typed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    typed: u64,
    /// The number of the last keystroke that had the text.
    last: u64,
}

/// Counts of typed texts, in bounded memory.
#[derive(Debug, Default)]
pub(super) struct Hot {
    counts: FxHashMap<Box<str>, Count>,
    keystrokes: u64,
}

impl Hot {
    /// A text was typed.
    pub(super) fn typed(&mut self, text: &str) {
        if text.len() > MAX_BYTES {
            return;
        }
        self.keystrokes += 1;
        let last = self.keystrokes;
        if let Some(count) = self.counts.get_mut(text) {
            *count = Count { typed: count.typed + 1, last };
            return;
        }
        if self.counts.len() == MAX_HOT_TEXTS {
            self.forget_half();
        }
        self.counts.insert(text.into(), Count { typed: 1, last });
    }

    /// The texts that were typed most, hottest first.
    pub(super) fn hottest(&self, most: usize) -> Vec<HotText> {
        self.first(most, LEAST_TYPED, |count| (count.typed, count.last))
    }

    /// The texts that were typed last, the latest first, also those typed once.
    pub(super) fn latest(&self, most: usize) -> Vec<HotText> {
        self.first(most, 1, |count| count.last)
    }

    /// The texts with the largest keys among those typed so often.
    fn first<K: Ord>(&self, most: usize, least_typed: u64, key: impl Fn(Count) -> K) -> Vec<HotText> {
        let texts = self.counts.iter().map(|(text, &count)| (&**text, count));
        let mut texts: Vec<(&str, Count)> = texts.filter(|(_, count)| count.typed >= least_typed).collect();
        texts.sort_unstable_by_key(|&(_, count)| Reverse(key(count)));
        texts.truncate(most);
        texts.into_iter().map(|(text, count)| HotText { text: text.to_owned(), typed: count.typed }).collect()
    }

    /// Keeps the hotter half, of which each count is halved: what was typed long ago gives way to what is typed now.
    fn forget_half(&mut self) {
        let mut heat: Vec<(u64, u64)> = self.counts.values().map(|count| (count.typed, count.last)).collect();
        let (_, &mut coldest, _) = heat.select_nth_unstable(MAX_HOT_TEXTS / 2);
        self.counts.retain(|_, count| (count.typed, count.last) >= coldest);
        self.counts.values_mut().for_each(|count| count.typed = count.typed.div_ceil(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_typed_once_or_at_length_is_not_hot() {
        let mut hot = Hot::default();
        let long = "x".repeat(MAX_BYTES + 1);
        for text in ["h", "he", "h", "he", "h", "once", &long, &long] {
            hot.typed(text);
        }
        let texts = |most| hot.hottest(most).into_iter().map(|hot| (hot.text, hot.typed)).collect::<Vec<_>>();
        assert_eq!(texts(9), [("h".to_owned(), 3), ("he".to_owned(), 2)]);
        assert_eq!(texts(1).len(), 1);
        assert_eq!(hot.latest(2).into_iter().map(|hot| hot.text).collect::<Vec<_>>(), ["once", "h"]);
    }

    #[test]
    fn memory_is_bounded_and_the_hot_ones_survive_those_typed_once() {
        let mut hot = Hot::default();
        for round in 0..10_000 {
            hot.typed("heat pump");
            hot.typed(&format!("once {round}"));
            assert!(hot.counts.len() <= MAX_HOT_TEXTS);
        }
        let hottest = hot.hottest(MAX_HOT_TEXTS);
        assert_eq!(hottest.iter().map(|hot| hot.text.as_str()).collect::<Vec<_>>(), ["heat pump"]);
    }

    #[test]
    fn what_is_typed_now_overtakes_what_was_typed_long_ago() {
        let mut hot = Hot::default();
        (0..100).for_each(|_| hot.typed("old"));
        for round in 0..40_000 {
            hot.typed(&format!("other {round}"));
            if round % 1000 == 0 {
                hot.typed("new");
            }
        }
        assert_eq!(hot.hottest(1)[0].text, "new");
    }
}
