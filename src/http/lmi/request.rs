//! Prompts to continue as these servers ask for them, checked and translated.

use std::sync::Arc;

use serde::Deserialize;
use utoipa::ToSchema;

use super::parameters::{DEFAULT_MAX_NEW_TOKENS, Parameters};
use crate::access::Key;
use crate::engine::{Caller, Generation, Work, check_told};
use crate::error::Error;
use crate::http::json::{OneOrMany, refused};
use completion::TokenChoice;

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
        parameters.refuse_what_is_not_done()?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::json;
    use completion::{Beams, EarlyStopping};

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
