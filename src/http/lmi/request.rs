//! Prompts to continue as these servers ask for them, checked and translated.

use std::sync::Arc;

use serde::Deserialize;
use utoipa::ToSchema;

use crate::access::Key;
use crate::engine::{Caller, Generation, Work, check_choice, check_length_penalty, check_told};
use crate::error::{Error, Kind};
use crate::http::json::{OneOrMany, refused, single};
use completion::{Beams, EarlyStopping, TokenChoice};

/// Tokens added where nothing is said.
pub const DEFAULT_MAX_NEW_TOKENS: usize = 30;
/// Prompts of one request.
pub const MAX_INPUTS: usize = 32;

/// Prompts to continue.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
pub struct Request {
    /// One prompt, or up to 32 of them; a list is answered with a list.
    #[schema(value_type = crate::http::schemas::PromptsShape)]
    pub inputs: OneOrMany,
    /// How the prompts are continued.
    #[serde(default)]
    pub parameters: Option<Parameters>,
    /// Send each token as it is generated.
    #[serde(default)]
    pub stream: Option<bool>,
    /// Milliseconds after which what was generated until then is the answer.
    #[schema(minimum = 1, maximum = 60_000)]
    #[serde(default, deserialize_with = "crate::http::json::whole_number")]
    pub deadline_ms: Option<u64>,
    /// A text around each prompt, with `{input}` where that stands; the model's own if absent.
    #[schema(format = "template-text", min_length = 7, max_length = 65536)]
    pub template: Option<String>,
    /// Whose prompt this is: a newer request of a session takes the place of an older one that is still being worked
    /// on.
    #[schema(min_length = 1, max_length = 256, pattern = "^[!-~]+$")]
    pub session: Option<String>,
    /// Separates what is remembered of this request: only requests with the same salt share it.
    #[schema(min_length = 1, max_length = 256)]
    pub salt: Option<String>,
    /// The key that the request came with.
    #[serde(skip)]
    #[schema(ignore)]
    pub key: Option<Arc<Key>>,
    /// The fields that this schema does not have.
    #[serde(skip)]
    #[schema(ignore)]
    pub ignored: Vec<String>,
}

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

/// A checked request: one generation for each prompt, and the form of the answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The generations, one for each prompt.
    pub generations: Vec<Generation>,
    /// Whether the answer is a list.
    pub list: bool,
    /// The form of the answer.
    pub style: Style,
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Puts the prompt before the answer.
    pub full_text: bool,
    /// Adds tokens, log-probabilities and the reason of the end.
    pub details: bool,
    /// Adds the prompt's tokens to the details.
    pub prefill: bool,
}

impl Request {
    /// A request for the continuations of prompts that came without JSON.
    pub fn of(inputs: OneOrMany) -> Self {
        Self {
            inputs,
            parameters: None,
            stream: None,
            deadline_ms: None,
            template: None,
            session: None,
            salt: None,
            key: None,
            ignored: Vec::new(),
        }
    }

    /// What the request asks for of a model with room for `context` tokens. What is wrong with it is told by
    /// [`Request::plan`].
    pub fn work(&self, context: usize) -> Work {
        let prompts = if let OneOrMany::Many(prompts) = &self.inputs { prompts.len().min(MAX_INPUTS) } else { 1 };
        let parameters = self.parameters.as_ref();
        let sequences = parameters.and_then(|parameters| parameters.sequences().ok()).unwrap_or(1);
        let beams = parameters.and_then(|parameters| parameters.num_beams).unwrap_or(1);
        let new = parameters.map_or(DEFAULT_MAX_NEW_TOKENS, |parameters| parameters.new_tokens(context));
        Work::generations(prompts, sequences.max(beams), Some(new), context)
    }

    /// What the request comes to for a model with room for `context` tokens. `draw_seed` gives a seed where one is
    /// wanted and none is said.
    ///
    /// # Errors
    /// Names the field that asks for what isn't done, or that contradicts another.
    pub fn plan(self, context: usize, draw_seed: impl Fn() -> u64) -> Result<Plan, Error> {
        let list = matches!(self.inputs, OneOrMany::Many(_));
        let prompts = self.inputs.into_list();
        let parameters = self.parameters.unwrap_or_default();
        refuse_what_is_not_done(&parameters)?;
        if prompts.is_empty() || prompts.len() > MAX_INPUTS {
            return Err(refused("inputs", format!("a list of {}", prompts.len()), "it must have 1 to 32 prompts"));
        }
        let stream = self.stream.unwrap_or(false);
        if list && stream {
            return Err(refused("stream", true, "send inputs as one string, or stream false"));
        }
        if list && self.session.is_some() {
            return Err(refused("inputs", "a list", "with a session it must be one string"));
        }
        let sequences = parameters.sequences()?;
        let sampled = parameters.do_sample.unwrap_or(false);
        let beams = parameters.beams()?;
        if beams.is_some() && (sampled || stream) {
            let field = if sampled { "do_sample" } else { "stream" };
            let right = "with num_beams nothing is drawn or final before the end: set it to false, or num_beams to 1";
            return Err(refused(field, true, right));
        }
        if sequences > 1 && !sampled && beams.is_none() {
            let right = "without do_sample or num_beams all would be the same: set do_sample to true, or ask for 1";
            return Err(refused("num_return_sequences", sequences, right));
        }
        if sequences > 1 && stream {
            return Err(refused("num_return_sequences", sequences, "a stream has one sequence: ask for 1"));
        }
        let stop = parameters.stop_sequences()?;
        let choice = parameters.choice()?;
        // Penalties hold for the best token, too.
        let (temperature, top_k, top_p, typical_p) = (0.0, 0, 1.0, 1.0);
        let choice = if sampled { choice } else { TokenChoice { temperature, top_k, top_p, typical_p, ..choice } };
        let told = parameters.top_n_tokens.unwrap_or(0);
        check_told("top_n_tokens", told)?;
        let max_new_tokens = Some(parameters.new_tokens(context));
        let generation = |prompt: String| Generation {
            prompt,
            template: self.template.clone(),
            max_new_tokens,
            max_length: parameters.max_length,
            truncate: parameters.truncate,
            choice,
            told,
            stop: stop.clone(),
            seed: sampled.then(|| parameters.seed.unwrap_or_else(&draw_seed)),
            sequences,
            beams,
            deadline_ms: self.deadline_ms,
            session: self.session.clone(),
            caller: Caller { key: self.key.clone(), salt: self.salt.clone() },
            ..Generation::default()
        };
        let style = Style {
            full_text: parameters.return_full_text.unwrap_or(false),
            // There is no other place for the sequences behind the first.
            details: parameters.details.unwrap_or(false) || sequences > 1,
            prefill: parameters.decoder_input_details.unwrap_or(false),
        };
        Ok(Plan { generations: prompts.into_iter().map(generation).collect(), list, style })
    }
}

fn refuse_what_is_not_done(parameters: &Parameters) -> Result<(), Error> {
    if parameters.watermark == Some(true) {
        return Err(refused("watermark", true, "texts are not marked: leave it out or set it to false"));
    }
    Ok(())
}

impl Parameters {
    /// The number of sequences, whatever it is called.
    fn sequences(&self) -> Result<usize, Error> {
        let names = [("num_return_sequences", self.num_return_sequences), ("n", self.n), ("best_of", self.best_of)];
        let mut said = names.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let Some((first, count)) = said.next() else { return Ok(1) };
        if let Some((other, different)) = said.find(|&(_, value)| value != count) {
            return Err(refused(other, different, &format!("{first} means the same and is {count}: send one of them")));
        }
        Ok(count)
    }

    /// The beams, if there is more than one. Nonsense is refused also where it would be ignored.
    fn beams(&self) -> Result<Option<Beams>, Error> {
        let length_penalty = self.length_penalty.map_or(1.0, single);
        check_length_penalty(length_penalty)?;
        let early_stopping = self.early_stopping.map_or_else(EarlyStopping::default, EarlyStopping::from);
        let beams = self.num_beams.filter(|&count| count != 1);
        Ok(beams.map(|count| Beams { count, length_penalty, early_stopping }))
    }

    /// The most new tokens, whatever they are called.
    fn new_tokens(&self, context: usize) -> usize {
        let otherwise = if self.max_length.is_some() { context } else { DEFAULT_MAX_NEW_TOKENS.min(context) };
        self.max_new_tokens.or(self.max_seq_len.map(|most| most.min(context))).unwrap_or(otherwise)
    }

    /// The rule of tokens that are drawn. Nonsense is refused also where it would be ignored.
    fn choice(&self) -> Result<TokenChoice, Error> {
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

    fn stop_sequences(&self) -> Result<Vec<String>, Error> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::json;

    fn plan(body: &str) -> Result<Plan, String> {
        let request: Request = json::parse(body.as_bytes()).map_err(|e| e.message)?;
        request.plan(48, || 7).map_err(|e| e.message)
    }

    #[test]
    fn defaults_are_greedy_and_sampling_is_asked_for() {
        let one = plan(r#"{"inputs":"a"}"#).unwrap();
        let expected = Generation { prompt: "a".into(), max_new_tokens: Some(30), ..Default::default() };
        assert_eq!((one.generations, one.list), (vec![expected], false));
        let ignored =
            plan(r#"{"inputs":["a"],"parameters":{"temperature":0.5,"top_k":3,"top_p":0.1,"seed":1}}"#).unwrap();
        let greedy = &ignored.generations[0];
        assert_eq!(
            (greedy.choice.temperature, greedy.choice.top_k, greedy.choice.top_p, greedy.seed),
            (0.0, 0, 1.0, None)
        );
        assert!(ignored.list);
        let sampled =
            plan(r#"{"inputs":"a","parameters":{"do_sample":true,"top_k":3,"best_of":2,"stop":"x"}}"#).unwrap();
        let sampled = (&sampled.generations[0], sampled.style.details);
        assert_eq!(
            (sampled.0.choice.temperature, sampled.0.choice.top_k, sampled.0.sequences, sampled.1),
            (1.0, 3, 2, true)
        );
        assert_eq!((sampled.0.seed, sampled.0.stop.as_slice()), (Some(7), ["x".to_owned()].as_slice()));
    }

    #[test]
    fn what_is_not_done_is_refused_by_name() {
        let refused = |parameters: &str, words: &str| {
            let error = plan(&format!(r#"{{"inputs":"a","parameters":{parameters}}}"#)).unwrap_err();
            assert!(error.contains(words), "{parameters}: {error}");
        };
        refused(r#"{"num_beams":4,"do_sample":true}"#, "do_sample is true; with num_beams");
        refused(r#"{"length_penalty":11}"#, "length_penalty is 11; it must be from -10 to 10");
        refused(r#"{"early_stopping":"often"}"#, "early_stopping");
        refused(r#"{"temperature":-1}"#, "temperature is -1");
        refused(r#"{"top_p":1.5}"#, "top_p is 1.5");
        refused(r#"{"typical_p":0}"#, "typical_p is 0");
        refused(r#"{"top_k":-2}"#, "top_k is -2");
        refused(r#"{"watermark":true}"#, "watermark is true");
        refused(r#"{"top_n_tokens":21}"#, "top_n_tokens is 21");
        refused(r#"{"n":2}"#, "num_return_sequences is 2; without do_sample");
        refused(r#"{"n":2,"best_of":3,"do_sample":true}"#, "best_of is 3; n means the same and is 2");
        refused(r#"{"stop":"a","stop_sequences":["b"]}"#, "stop and stop_sequences");
        assert!(plan(r#"{"inputs":[]}"#).unwrap_err().contains("inputs is a list of 0"));
        assert!(plan(r#"{"inputs":["a"],"stream":true}"#).unwrap_err().contains("stream is true"));
        assert!(plan(r#"{"inputs":"a","parameters":{"n":2,"do_sample":true},"stream":true}"#).is_err());
        let stream = plan(r#"{"inputs":"a","parameters":{"num_beams":2},"stream":true}"#).unwrap_err();
        assert!(stream.contains("stream is true; with num_beams"), "{stream}");
    }

    #[test]
    fn beams_are_those_of_transformers() {
        let one = |parameters: &str| plan(&format!(r#"{{"inputs":"a","parameters":{parameters}}}"#)).unwrap();
        for (said, early_stopping) in
            [("false", EarlyStopping::Unlikely), ("true", EarlyStopping::Full), (r#""never""#, EarlyStopping::Never)]
        {
            let body = format!(r#"{{"num_beams":4,"n":2,"length_penalty":0.5,"early_stopping":{said}}}"#);
            let found = one(&body).generations[0].clone();
            let beams = Beams { count: 4, length_penalty: 0.5, early_stopping };
            assert_eq!((found.beams, found.sequences, found.choice.temperature), (Some(beams), 2, 0.0));
        }
        // As in transformers, one beam is none, and then the others mean nothing.
        let none = one(r#"{"num_beams":1,"length_penalty":2,"early_stopping":true}"#);
        assert_eq!(none.generations[0].beams, None);
        let work = |parameters: &str| {
            let body = format!(r#"{{"inputs":["a","b"],"parameters":{parameters}}}"#);
            json::parse::<Request>(body.as_bytes()).unwrap().work(48)
        };
        // A beam costs as much as a sequence that is drawn.
        assert_eq!(work(r#"{"num_beams":5}"#), work(r#"{"n":5,"do_sample":true}"#));
        assert_ne!(work(r#"{"num_beams":5}"#), work(r#"{"num_beams":1}"#));
    }
}
