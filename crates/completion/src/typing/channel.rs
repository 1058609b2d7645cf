//! The channel of typing: how probable each edit is.

use super::keyboard::Layout;

/// The probabilities of edits. Each is relative to typing a character right.
///
/// A bundle may bring its own as `typing.json`, an object with any of these names.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Channel {
    /// A character is left out.
    pub omitted: f64,
    /// A particular other character is typed in addition.
    pub extra: f64,
    /// The character is typed twice.
    pub doubled: f64,
    /// Two neighbouring characters are typed in the wrong order.
    pub swapped: f64,
    /// A particular key beside the right one is typed instead.
    pub neighbour: f64,
    /// A particular key elsewhere is typed instead.
    pub substituted: f64,
    /// The whole text is typed in another case or width, or without accents.
    pub style: f64,
    /// A word is one that the model doesn't know.
    pub unknown: f64,
    /// The keyboard, which says which keys are neighbours.
    pub layout: Layout,
    /// How much less probable than the best reading of the text up to a character another one may be to be followed
    /// further, in nats.
    pub range_nats: f64,
    /// How much less probable than the best reading of the whole text another one may be to have suggestions, in nats.
    pub reading_nats: f64,
    /// Readings that are followed at each character.
    pub beams: usize,
}

impl Default for Channel {
    /// About 1 in 250 characters is wrong where a list is asked for. The shares of the edits follow Dhakal et al. 2018,
    /// "Observations on Typing from 136 Million Keystrokes": substitutions, omissions, insertions, then swaps.
    fn default() -> Self {
        Self {
            omitted: 0.001,
            extra: 0.00003,
            doubled: 0.00012,
            swapped: 0.00025,
            neighbour: 0.0002,
            substituted: 0.00003,
            style: 0.1,
            unknown: 0.02,
            layout: Layout::Qwerty,
            range_nats: 6.0,
            reading_nats: 5.0,
            beams: 8,
        }
    }
}

/// Why a channel can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// Not an object with the fields of [`Channel`].
    #[error("it must be a JSON object with fields of the typing channel: {0}")]
    Json(#[from] serde_json::Error),
    /// A number outside of its range.
    #[error("{name} is {value}; it must be {range}")]
    Range {
        /// The field's name.
        name: &'static str,
        /// The field's value.
        value: f64,
        /// The range that is accepted, in words.
        range: &'static str,
    },
}

impl Channel {
    /// Most readings that may be followed at each character.
    const MAX_BEAMS: usize = 64;

    /// Reads a `typing.json`; fields that it leaves out have their defaults.
    ///
    /// # Errors
    /// See [`ChannelError`].
    pub fn from_json(json: &str) -> Result<Self, ChannelError> {
        // Read as an object first: a struct may be read from an array, too.
        let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(json)?;
        let channel: Self = serde_json::from_value(fields.into())?;
        channel.check()?;
        Ok(channel)
    }

    fn check(&self) -> Result<(), ChannelError> {
        let edits = [
            ("omitted", self.omitted),
            ("extra", self.extra),
            ("doubled", self.doubled),
            ("swapped", self.swapped),
            ("neighbour", self.neighbour),
            ("substituted", self.substituted),
            ("style", self.style),
        ];
        let in_range = |(name, value): (&'static str, f64), valid: bool, range: &'static str| {
            if valid { Ok(()) } else { Err(ChannelError::Range { name, value, range }) }
        };
        for edit in edits {
            in_range(edit, edit.1 > 0.0 && edit.1 < 1.0, "a probability above 0 and below 1")?;
        }
        in_range(
            ("unknown", self.unknown),
            (0.0..1.0).contains(&self.unknown),
            "a probability of at least 0 and below 1",
        )?;
        for nats in [("range_nats", self.range_nats), ("reading_nats", self.reading_nats)] {
            in_range(nats, nats.1 > 0.0 && nats.1 <= 1000.0, "a number of nats above 0 and at most 1000")?;
        }
        let beams = ("beams", self.beams as f64);
        in_range(beams, (1..=Self::MAX_BEAMS).contains(&self.beams), "a whole number from 1 to 64")
    }

    /// Converts the probabilities of edits into costs, in nats.
    pub fn costs(&self) -> Costs {
        let nats = |probability: f64| -(probability.ln() as f32);
        let most_probable = [self.doubled, self.swapped, self.neighbour, self.substituted];
        let most_probable = most_probable.into_iter().fold(self.extra, f64::max);
        Costs {
            omitted: nats(self.omitted),
            extra: nats(self.extra),
            doubled: nats(self.doubled),
            swapped: nats(self.swapped),
            neighbour: nats(self.neighbour),
            substituted: nats(self.substituted),
            style: nats(self.style),
            least_but_omitted: nats(most_probable),
            least_edit: nats(most_probable.max(self.omitted)),
            neighbours: Neighbours::new(self.layout),
        }
    }
}

/// What each edit costs, in nats: the negative logarithms of the channel's probabilities.
#[derive(Clone, Debug)]
pub struct Costs {
    pub(super) omitted: f32,
    pub(super) extra: f32,
    pub(super) doubled: f32,
    pub(super) swapped: f32,
    pub(super) neighbour: f32,
    pub(super) substituted: f32,
    pub(super) style: f32,
    pub(super) least_but_omitted: f32,
    pub(super) least_edit: f32,
    neighbours: Neighbours,
}

/// A table of which ASCII keys lie beside each other, and the layout for other ones.
#[derive(Clone, Debug)]
struct Neighbours {
    layout: Layout,
    /// A bit for each neighbour of each ASCII key.
    ascii: Box<[u128; 128]>,
}

impl Neighbours {
    fn new(layout: Layout) -> Self {
        let ascii = |key: u8| char::from(key);
        let row = |a: usize| {
            let near = (0..128u8).filter(|&b| layout.are_neighbours(ascii(a as u8), ascii(b)));
            near.fold(0, |row, b| row | 1u128 << b)
        };
        Self { layout, ascii: Box::new(std::array::from_fn(row)) }
    }

    fn are(&self, a: char, b: char) -> bool {
        match (self.ascii.get(a as usize), b.is_ascii()) {
            (Some(row), true) => row >> (b as u32) & 1 == 1,
            _ => self.layout.are_neighbours(a, b),
        }
    }
}

impl Costs {
    /// Typing one character instead of another.
    pub(super) fn substitution(&self, meant: char, typed: char) -> f32 {
        if self.neighbours.are(meant, typed) { self.neighbour } else { self.substituted }
    }

    /// Typing a whole text in another style.
    pub fn style(&self) -> f32 {
        self.style
    }

    /// Leaving a character out.
    pub fn omitted(&self) -> f32 {
        self.omitted
    }

    /// Two characters swapped.
    pub fn swapped(&self) -> f32 {
        self.swapped
    }

    /// The cheapest edit that leaves no character out.
    pub fn least_but_omitted(&self) -> f32 {
        self.least_but_omitted
    }

    /// The cheapest edit of a character.
    pub fn least_edit(&self) -> f32 {
        self.least_edit
    }

    /// The cheapest way to differ from the text that was meant.
    pub fn least(&self) -> f32 {
        self.least_edit.min(self.style)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_read_and_checked() {
        assert_eq!(Channel::from_json("{}").unwrap(), Channel::default());
        let read = Channel::from_json(r#"{"layout": "azerty", "omitted": 0.5}"#).unwrap();
        assert_eq!((read.layout, read.omitted, read.extra), (Layout::Azerty, 0.5, Channel::default().extra));
        for (json, reason) in [
            (r#"{"omitted": 0}"#, "omitted is 0; it must be a probability above 0 and below 1"),
            (r#"{"unknown": -1}"#, "unknown is -1"),
            (r#"{"beams": 0}"#, "beams is 0; it must be a whole number from 1 to 64"),
            (r#"{"range_nats": 1e9}"#, "range_nats is 1000000000"),
            (r#"{"omited": 0.1}"#, "unknown field `omited`"),
            ("[1]", "it must be a JSON object"),
        ] {
            let error = Channel::from_json(json).unwrap_err().to_string();
            assert!(error.contains(reason), "{json}: {error}");
        }
        let written = serde_json::to_string(&Channel::default()).unwrap();
        assert_eq!(Channel::from_json(&written).unwrap(), Channel::default());
    }
}
