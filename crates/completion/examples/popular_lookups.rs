//! Time and memory of lookups in many popular queries: `cargo run --release -p foretype-completion --example
//! popular_lookups -- 5000000`. Queries are random words of a random vocabulary, with Zipf-like counts.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use completion::popular::{Lookup, PopularQueries};
use completion::typing::channel::Channel;
use completion::typing::{Tolerance, Typed};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Words of the vocabulary.
const WORDS: usize = 100_000;
/// Lookups that are timed for each tolerance.
const LOOKUPS: usize = 2_000;

fn main() -> Result<(), Box<dyn Error>> {
    let queries: usize = std::env::args().nth(1).map_or(Ok(1_000_000), |count| count.parse())?;
    let mut rng = StdRng::seed_from_u64(1);
    let words: Vec<String> = (0..WORDS).map(|_| word(&mut rng)).collect();
    let mut counts = BTreeMap::new();
    while counts.len() < queries {
        let query: Vec<&str> = (0..rng.random_range(1..5)).map(|_| zipf(&words, &mut rng)).collect();
        counts.insert(query.join(" "), 1 + (1.0 / rng.random_range(1e-7..1.0f64)) as u64);
    }
    let map = fst::Map::from_iter(counts.keys().zip(0..))?.into_fst().into_inner();
    let bytes: Vec<u8> = counts.values().flat_map(|count| count.to_le_bytes()).collect();
    let texts: Vec<&String> = counts.keys().step_by(counts.len() / LOOKUPS).collect();
    println!("{} queries: map {} MiB, counts {} MiB", counts.len(), map.len() >> 20, bytes.len() >> 20);
    let popular = PopularQueries::new(map, &bytes)?;
    let costs = Arc::new(Channel::default().costs());
    for (name, tolerance, spoilt) in [
        ("off", Tolerance::Off, false),
        ("case", Tolerance::Case, false),
        ("auto", Tolerance::Auto, false),
        ("auto, one error", Tolerance::Auto, true),
    ] {
        let mut millis = Vec::new();
        let mut found = 0;
        for text in &texts {
            let mut typed: Vec<char> = text.chars().collect();
            typed.truncate(rng.random_range(1..=typed.len()));
            if spoilt && typed.len() > 4 {
                let at = rng.random_range(1..typed.len() - 1);
                typed.swap(at, at + 1);
            }
            let typed: String = typed.into_iter().collect();
            let started = Instant::now();
            let typing = Typed::tolerant(&typed, tolerance, &costs);
            found += popular.find(Lookup::new(&typed, typing.as_ref(), 10)).hits.len();
            millis.push(started.elapsed().as_secs_f64() * 1e3);
        }
        millis.sort_by(f64::total_cmp);
        let at = |share: f64| millis[(share * (millis.len() - 1) as f64) as usize];
        let hits = found as f64 / millis.len() as f64;
        let (p50, p99, most) = (at(0.5), at(0.99), at(1.0));
        println!("{name}: p50 {p50:.4} ms, p99 {p99:.3} ms, at most {most:.3} ms, {hits:.1} hits");
    }
    Ok(())
}

fn word(rng: &mut StdRng) -> String {
    let syllables =
        ["ba", "ter", "con", "in", "al", "st", "er", "op", "tri", "lu", "men", "sor", "va", "qui", "ex", "ph"];
    (0..rng.random_range(1..5)).map(|_| syllables[rng.random_range(0..syllables.len())]).collect()
}

fn zipf<'a>(words: &'a [String], rng: &mut StdRng) -> &'a str {
    let place = (words.len() as f64).powf(rng.random_range(0.0..1.0)) as usize;
    &words[place.min(words.len() - 1)]
}
