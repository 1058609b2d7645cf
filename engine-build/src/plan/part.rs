//! Which of a bundle's graphs a plan is of: the decoder's or the encoder's.

use serde::{Deserialize, Serialize};

use bundle::manifest::{ENCODER_FILE, ENCODER_WEIGHTS_FILE, FileEntry, GRAPH_FILE, Manifest, ModelInfo, WEIGHTS_FILE};

/// A graph of a bundle. Each has a plan of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// The one that writes: all there is of most models.
    #[default]
    Decoder,
    /// The one that reads a source for it.
    Encoder,
}

impl Part {
    /// The parts that a model has.
    pub fn of(model: &ModelInfo) -> &'static [Self] {
        if model.source.is_some() { &[Self::Encoder, Self::Decoder] } else { &[Self::Decoder] }
    }

    /// The graph's file name.
    pub(super) fn graph(self) -> &'static str {
        match self {
            Self::Decoder => GRAPH_FILE,
            Self::Encoder => ENCODER_FILE,
        }
    }

    /// The files that a plan is built from.
    pub(super) fn files(self, manifest: &Manifest) -> Vec<FileEntry> {
        let weights = match self {
            Self::Decoder => WEIGHTS_FILE,
            Self::Encoder => ENCODER_WEIGHTS_FILE,
        };
        [self.graph(), weights].iter().filter_map(|name| manifest.file(name)).cloned().collect()
    }

    /// The ending of the names of its plans.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::Decoder => "",
            Self::Encoder => "-encoder",
        }
    }

    pub(super) fn is_decoder(&self) -> bool {
        *self == Self::Decoder
    }

    /// The name of this part's plans in messages, to follow "no".
    pub(super) fn plan(self) -> &'static str {
        match self {
            Self::Decoder => "plan",
            Self::Encoder => "plan of the encoder",
        }
    }
}
