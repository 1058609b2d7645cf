//! The versions of a model that stand side by side, and each one's share of the requests. Pure: no loading, no locks.
//!
//! A model is an alias of its versions: `demo` is whichever its shares say, `demo@2` is version 2. A value of
//! [`Versions`] never changes. Each change makes a new one, which whoever holds the model puts in the old one's place.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::error::ModelError;
use crate::engine::Engine;

/// Most versions of a model at once.
pub const MAX_VERSIONS: usize = 8;
/// Most that a version's weight may be.
pub const MAX_WEIGHT: u32 = 1_000_000;

/// The model and the version that a name means: `demo@2` is version 2 of `demo`, and `demo` whichever its shares say.
pub fn split(name: &str) -> (&str, Option<u64>) {
    let version = |(model, number): (_, &str)| Some((model, number.parse().ok().filter(|number| *number > 0)?));
    match name.rsplit_once('@').filter(|(_, digits)| !digits.starts_with(['+', '0'])).and_then(version) {
        Some((model, number)) => (model, Some(number)),
        None => (name, None),
    }
}

/// What `PUT /models/{name}` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Load this folder: in the place of what answers, or under a version's own name beside it.
    Load(String),
    /// Divide the requests among versions, by weight.
    Share(BTreeMap<u64, u32>),
}

/// What a name means: a model, or one version of it.
#[derive(Clone)]
pub struct Named {
    /// The model.
    pub versions: Versions,
    /// The version, if the name has one. It is there.
    pub number: Option<u64>,
}

impl Named {
    /// The version that is named, or the model's main one.
    pub fn engine(&self) -> &Arc<Engine> {
        self.versions.get(self.number).unwrap_or(self.versions.main())
    }

    /// The version that is named, or the one that somebody's requests get ([`Versions::of`]).
    pub fn of(&self, hash: u64) -> Arc<Engine> {
        if self.number.is_some() { Arc::clone(self.engine()) } else { self.versions.of(hash) }
    }
}

/// The versions of a model. See the module's documentation.
#[derive(Clone)]
pub struct Versions {
    name: String,
    /// In the order of their numbers; at least one has a weight.
    list: Vec<Weighted>,
    /// The highest number until now.
    last: u64,
}

/// A version and its weight against the others.
#[derive(Clone)]
struct Weighted {
    engine: Arc<Engine>,
    weight: u32,
}

impl Weighted {
    fn number(&self) -> u64 {
        self.engine.version().number
    }
}

impl From<Arc<Engine>> for Versions {
    /// One version, which gets all requests, of a model with the engine's name.
    fn from(engine: Arc<Engine>) -> Self {
        Self::of_model(engine.name().to_owned(), engine)
    }
}

impl Versions {
    /// One version of a model, which gets all requests.
    pub fn of_model(name: String, engine: Arc<Engine>) -> Self {
        let last = engine.version().number;
        Self { name, list: vec![Weighted { engine, weight: 1 }], last }
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version with the largest share, of equal ones the oldest.
    pub fn main(&self) -> &Arc<Engine> {
        let main = self.list.iter().rev().max_by_key(|one| one.weight);
        &main.expect("there is always a version with a weight").engine
    }

    /// The version of a number, or the main one.
    ///
    /// # Errors
    /// There is no such version.
    pub fn get(&self, number: Option<u64>) -> Result<&Arc<Engine>, ModelError> {
        let Some(number) = number else { return Ok(self.main()) };
        let found = self.list.iter().find(|one| one.number() == number);
        found.map(|one| &one.engine).ok_or_else(|| ModelError::NotLoaded(format!("{}@{number}", self.name)))
    }

    /// The version that somebody's requests get, by a hash of who that is. While the shares stay, it stays; when one
    /// grows, whoever is in it stays in it.
    pub fn of(&self, hash: u64) -> Arc<Engine> {
        let total: u64 = self.list.iter().map(|one| u64::from(one.weight)).sum();
        // The hash as a fraction of 2^64, of the total.
        let point = ((u128::from(hash) * u128::from(total)) >> 64) as u64;
        let mut below = 0;
        let chosen = self.list.iter().find(|one| {
            below += u64::from(one.weight);
            point < below
        });
        Arc::clone(chosen.map_or(self.main(), |one| &one.engine))
    }

    /// All versions with their shares of the requests, from 0 to 1.
    pub fn shares(&self) -> impl Iterator<Item = (&Arc<Engine>, f64)> {
        let total: f64 = self.list.iter().map(|one| f64::from(one.weight)).sum();
        self.list.iter().map(move |one| (&one.engine, f64::from(one.weight) / total))
    }

    /// All versions.
    pub fn engines(&self) -> impl Iterator<Item = &Arc<Engine>> {
        self.list.iter().map(|one| &one.engine)
    }

    /// The names that requests may use: the model's, and those of its versions if there are several.
    pub fn names(&self) -> Vec<String> {
        let each = self.list.iter().filter(|_| self.list.len() > 1);
        [self.name.clone()].into_iter().chain(each.map(|one| format!("{}@{}", self.name, one.number()))).collect()
    }

    /// The number that the next version gets, if `wanted` says no other.
    ///
    /// # Errors
    /// There is such a version, or there are as many as may be.
    pub(super) fn next(&self, wanted: Option<u64>) -> Result<u64, ModelError> {
        if self.list.len() >= MAX_VERSIONS {
            return Err(ModelError::TooManyVersions(self.name.clone()));
        }
        match wanted {
            Some(number) if self.get(wanted).is_ok() => {
                Err(ModelError::AlreadyLoaded(format!("{}@{number}", self.name)))
            }
            wanted => Ok(wanted.unwrap_or(self.last + 1)),
        }
    }

    /// With a version beside the others, which gets no requests but those that name it.
    pub(super) fn with(&self, engine: Arc<Engine>) -> Self {
        let mut new = self.clone();
        new.last = new.last.max(engine.version().number);
        new.list.push(Weighted { engine, weight: 0 });
        new.list.sort_by_key(Weighted::number);
        new
    }

    /// With a version that gets all requests, and those whose requests it gets, which are gone.
    pub(super) fn replaced(&self, engine: &Arc<Engine>) -> (Self, Vec<Arc<Engine>>) {
        let (gone, stay): (Vec<_>, _) = self.list.iter().cloned().partition(|one| one.weight > 0);
        let mut new = Self { list: stay, ..self.clone() }.with(Arc::clone(engine));
        for one in &mut new.list {
            one.weight = u32::from(Arc::ptr_eq(&one.engine, engine));
        }
        (new, gone.into_iter().map(|one| one.engine).collect())
    }

    /// With other shares. Versions that aren't named get none.
    ///
    /// # Errors
    /// A version isn't there, or the weights are none.
    pub(super) fn shared(&self, weights: &BTreeMap<u64, u32>) -> Result<Self, ModelError> {
        weights.keys().try_for_each(|&number| self.get(Some(number)).map(drop))?;
        let within = weights.values().all(|&weight| weight <= MAX_WEIGHT);
        if !within || weights.values().all(|&weight| weight == 0) {
            return Err(ModelError::Shares);
        }
        let mut new = self.clone();
        for one in &mut new.list {
            one.weight = weights.get(&one.number()).copied().unwrap_or(0);
        }
        Ok(new)
    }

    /// Without a version that has no share.
    ///
    /// # Errors
    /// It isn't there, or has a share.
    pub(super) fn without(&self, number: u64) -> Result<(Self, Arc<Engine>), ModelError> {
        let engine = Arc::clone(self.get(Some(number))?);
        if self.list.iter().any(|one| one.number() == number && one.weight > 0) {
            return Err(ModelError::HasShare(format!("{}@{number}", self.name)));
        }
        let mut new = self.clone();
        new.list.retain(|one| one.number() != number);
        Ok((new, engine))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_number_is_a_version() {
        assert_eq!(split("demo"), ("demo", None));
        assert_eq!(split("demo@2"), ("demo", Some(2)));
        assert_eq!(split("a@b@12"), ("a@b", Some(12)));
        for plain in
            ["demo@", "demo@0", "demo@02", "demo@+2", "demo@-2", "demo@v2", "demo@2 ", "demo@99999999999999999999"]
        {
            assert_eq!(split(plain), (plain, None));
        }
    }
}
