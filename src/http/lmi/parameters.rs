//! How a prompt is to be continued: the parameters under all names that they have in these servers.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::engine::{check_choice, check_length_penalty};
use crate::error::{Error, Kind};
use crate::http::json::{OneOrMany, refused, single};
use completion::{Beams, EarlyStopping, TokenChoice};

/// Tokens added where nothing is said.
pub const DEFAULT_MAX_NEW_TOKENS: usize = 30;

/// Parameters of a generation.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, ToSchema)]
pub struct Parameters {
    /// Tokens that may be added; 30 if absent.
    #[schema(minimum = 1)]
    #[serde(default, deserialize_with = "crate::http::json::whole_number")]
    pub max_new_tokens: Option<usize>,
    /// The same as `max_new_tokens`, or the model's context if that is less: FasterTransformer's name.
    #[schema(minimum = 1)]
    #[serde(default, deserialize_with = "crate::http::json::whole_number")]
    pub max_seq_len: Option<usize>,
    /// Tokens of the prompt and the answer together at most.
    #[schema(minimum = 1)]
    #[serde(default, deserialize_with = "crate::http::json::whole_number")]
    pub max_length: Option<usize>,
    /// The answer does not end before so many tokens.
    #[schema(minimum = 0)]
    #[serde(default, deserialize_with = "crate::http::json::whole_number")]
    pub min_new_tokens: Option<usize>,
    /// The same as `min_new_tokens`.
    #[schema(minimum = 0)]
    #[serde(default, deserialize_with = "crate::http::json::whole_number")]
    pub min_tokens: Option<usize>,
    /// Only so many of the prompt's last tokens are read.
    #[schema(minimum = 1)]
    #[serde(default, deserialize_with = "crate::http::json::whole_number")]
    pub truncate: Option<usize>,
    /// Draw tokens at random; if false, the most probable one is taken and `temperature`, `top_k` and `top_p` mean
    /// nothing.
    pub do_sample: Option<bool>,
    /// Below 1 prefers probable tokens more; 1 if absent.
    #[schema(minimum = 0, maximum = 100)]
    pub temperature: Option<f64>,
    /// Draw from so many of the most probable tokens; 0 or -1, from all, if absent.
    #[schema(minimum = -1, maximum = 9223372036854775807_isize)]
    #[serde(default, deserialize_with = "crate::http::json::whole_number")]
    pub top_k: Option<i64>,
    /// Draw from the most probable tokens that have this probability together; 1 if absent.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub top_p: Option<f64>,
    /// Draw from the tokens whose information is nearest to the distribution's entropy, until they have this
    /// probability together; 1 if absent.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub typical_p: Option<f64>,
    /// Subtracted from a token's logit as often as it was generated; 0 if absent.
    #[schema(minimum = -2, maximum = 2)]
    pub frequency_penalty: Option<f64>,
    /// Subtracted from a token's logit if it was generated; 0 if absent.
    #[schema(minimum = -2, maximum = 2)]
    pub presence_penalty: Option<f64>,
    /// No sequence of so many tokens comes twice; 0, any may, if absent.
    #[schema(minimum = 0)]
    #[serde(default, deserialize_with = "crate::http::json::whole_number")]
    pub no_repeat_ngram_size: Option<usize>,
    /// Above 1 makes tokens less probable that are there already; 1 if absent.
    #[schema(exclusive_minimum = 0, maximum = 100)]
    pub repetition_penalty: Option<f64>,
    /// Seed of the random numbers; one is drawn, and told in `details`, if absent.
    #[schema(minimum = 0, maximum = 18446744073709551615_usize)]
    #[serde(default, deserialize_with = "crate::http::json::whole_number")]
    pub seed: Option<u64>,
    /// Texts before which a sequence ends.
    #[schema(value_type = Option<crate::http::schemas::StopShape>)]
    pub stop_sequences: Option<OneOrMany>,
    /// The same as `stop_sequences`.
    #[schema(value_type = Option<crate::http::schemas::StopShape>)]
    pub stop: Option<OneOrMany>,
    /// Sequences wanted for a prompt; those behind the first are in `details.best_of_sequences`.
    #[schema(minimum = 1, maximum = 100)]
    #[serde(default, deserialize_with = "crate::http::json::whole_number")]
    pub num_return_sequences: Option<usize>,
    /// The same as `num_return_sequences`.
    #[schema(minimum = 1, maximum = 100)]
    #[serde(default, deserialize_with = "crate::http::json::whole_number")]
    pub n: Option<usize>,
    /// The same as `num_return_sequences`.
    #[schema(minimum = 1, maximum = 100)]
    #[serde(default, deserialize_with = "crate::http::json::whole_number")]
    pub best_of: Option<usize>,
    /// Search with so many beams, as transformers does; 1, no search, if absent.
    #[schema(minimum = 1, maximum = 100)]
    #[serde(default, deserialize_with = "crate::http::json::whole_number")]
    pub num_beams: Option<usize>,
    /// With beams: a sequence's log-probability is divided by its length to this power, so above 0 prefers long
    /// sequences; 1 if absent.
    #[schema(minimum = -10, maximum = 10)]
    pub length_penalty: Option<f64>,
    /// With beams: end the search as soon as there are as many sequences as beams (true), when better ones are unlikely
    /// (false), or when there can be none ("never"); false if absent.
    #[schema(value_type = Option<crate::http::schemas::EarlyStoppingShape>)]
    pub early_stopping: Option<Stopping>,
    /// Put the prompt in front of `generated_text`.
    pub return_full_text: Option<bool>,
    /// Say how each sequence ended, and its tokens.
    pub details: Option<bool>,
    /// With `details`, say the prompt's tokens; their log-probabilities are `null`.
    pub decoder_input_details: Option<bool>,
    /// With `details`, say so many of the best tokens in the place of each.
    #[schema(minimum = 0, maximum = 20)]
    #[serde(default, deserialize_with = "crate::http::json::whole_number")]
    pub top_n_tokens: Option<usize>,
    /// Only false.
    pub watermark: Option<bool>,
}

/// When a search with beams ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "expected true, false or \"never\"")]
pub enum Stopping {
    /// As soon as there are enough sequences, or when better ones are unlikely.
    When(bool),
    /// When there can be no better ones.
    Never(Never),
}

/// The word of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Never {
    /// `"never"`.
    Never,
}

impl From<Stopping> for EarlyStopping {
    fn from(stopping: Stopping) -> Self {
        match stopping {
            Stopping::When(true) => Self::Full,
            Stopping::When(false) => Self::Unlikely,
            Stopping::Never(Never::Never) => Self::Never,
        }
    }
}

impl Parameters {
    /// Refuses what is no part of a generation here.
    pub(super) fn refuse_what_is_not_done(&self) -> Result<(), Error> {
        if self.watermark == Some(true) {
            return Err(refused("watermark", true, "texts are not marked: leave it out or set it to false"));
        }
        Ok(())
    }

    /// The number of sequences, whatever it is called.
    pub(super) fn sequences(&self) -> Result<usize, Error> {
        let names = [("num_return_sequences", self.num_return_sequences), ("n", self.n), ("best_of", self.best_of)];
        let mut said = names.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let Some((first, count)) = said.next() else { return Ok(1) };
        if let Some((other, different)) = said.find(|&(_, value)| value != count) {
            return Err(refused(other, different, &format!("{first} means the same and is {count}: send one of them")));
        }
        Ok(count)
    }

    /// The beams, if there is more than one. Nonsense is refused also where it would be ignored.
    pub(super) fn beams(&self) -> Result<Option<Beams>, Error> {
        let length_penalty = self.length_penalty.map_or(1.0, single);
        check_length_penalty(length_penalty)?;
        let early_stopping = self.early_stopping.map_or_else(EarlyStopping::default, EarlyStopping::from);
        let beams = self.num_beams.filter(|&count| count != 1);
        Ok(beams.map(|count| Beams { count, length_penalty, early_stopping }))
    }

    /// The most new tokens, whatever they are called.
    pub(super) fn new_tokens(&self, context: usize) -> usize {
        let otherwise = if self.max_length.is_some() { context } else { DEFAULT_MAX_NEW_TOKENS.min(context) };
        self.max_new_tokens.or(self.max_seq_len.map(|most| most.min(context))).unwrap_or(otherwise)
    }

    /// The rule of tokens that are drawn. Nonsense is refused also where it would be ignored.
    pub(super) fn choice(&self) -> Result<TokenChoice, Error> {
        let top_k = self.top_k.unwrap_or(0);
        if top_k < -1 {
            return Err(refused("top_k", top_k, "it must be at least 1, or 0 or -1 for all tokens"));
        }
        let choice = TokenChoice {
            repetition_penalty: self.repetition_penalty.map_or(1.0, single),
            frequency_penalty: self.frequency_penalty.map_or(0.0, single),
            presence_penalty: self.presence_penalty.map_or(0.0, single),
            no_repeat_ngram: self.no_repeat_ngram_size.unwrap_or(0),
            min_new_tokens: self.min_new_tokens.or(self.min_tokens).unwrap_or(0),
            temperature: self.temperature.map_or(1.0, single),
            top_k: usize::try_from(top_k).unwrap_or(0),
            top_p: self.top_p.map_or(1.0, single),
            typical_p: self.typical_p.map_or(1.0, single),
        };
        check_choice(&choice)?;
        Ok(choice)
    }

    pub(super) fn stop_sequences(&self) -> Result<Vec<String>, Error> {
        match (&self.stop_sequences, &self.stop) {
            (Some(_), Some(_)) => Err(Error::new(
                Kind::InvalidValue,
                "stop and stop_sequences are both there; they mean the same: send one of them",
            )),
            (Some(stop), None) | (None, Some(stop)) => Ok(stop.clone().into_list()),
            (None, None) => Ok(Vec::new()),
        }
    }
}
