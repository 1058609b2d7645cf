//! The filter against the alignments of all tokens.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::*;
use crate::text::Vocabulary;
use crate::typing::Tolerance;
use crate::typing::channel::Channel;

/// Letters of several kinds: two cases, accents, one that folds to two characters and one to eighteen, signs, digits,
/// another script.
const CHARACTERS: [char; 18] =
    ['a', 'b', 'c', 'd', 'A', 'B', 'é', 'e', 'ß', ' ', '-', '7', '日', 'ｂ', 'ﷺ', ':', '(', '\t'];

fn text(rng: &mut StdRng, most: usize) -> String {
    // Few kinds of letters, so that texts are often near each other.
    let kinds = rng.random_range(2..=CHARACTERS.len());
    (0..rng.random_range(1..=most)).map(|_| *CHARACTERS[..kinds].choose(rng).unwrap()).collect()
}

/// A text that was typed for another one, with a few errors.
fn mistyped(rng: &mut StdRng, text: &str) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    for _ in 0..rng.random_range(0..=2) {
        let at = rng.random_range(0..characters.len());
        match rng.random_range(0..4) {
            0 if characters.len() > 1 => drop(characters.remove(at)),
            1 => characters.insert(at, *CHARACTERS.choose(rng).unwrap()),
            2 if at > 0 => characters.swap(at - 1, at),
            _ => characters[at] = *CHARACTERS.choose(rng).unwrap(),
        }
    }
    characters.into_iter().collect()
}

/// Every token whose alignment leads to a step that reaches its floor passes the filter, and most others don't. The
/// walk through the tree finds it, too.
#[test]
fn tokens_that_lead_to_a_step_are_never_left_out() {
    let (mut needed, mut idle, mut all) = (0, 0, 0);
    for seed in 0..12000 {
        let mut rng = StdRng::seed_from_u64(seed);
        let meant = text(&mut rng, 12);
        let channel = if seed % 2 == 0 {
            Channel::default()
        } else {
            Channel { swapped: 0.01, extra: 0.004, ..Channel::default() }
        };
        let typed = mistyped(&mut rng, &meant);
        let typed = Typed::new(&typed, Tolerance::Auto, &Arc::new(channel.costs()));
        // A path spells the beginning of what was meant; tokens are parts of it, with errors of their own.
        let begun: String = meant.chars().take(rng.random_range(0..=6)).collect();
        let rest: String = meant.chars().skip(begun.chars().count()).collect();
        let mut alignment = Alignment::start(&typed);
        begun.chars().for_each(|character| alignment.push(&typed, character, f32::INFINITY));
        let (cost, level) = alignment.cheapest(&typed);
        if typed.is_empty() || cost.is_infinite() || alignment.finished().is_some() {
            continue;
        }
        let skips_space = begun.is_empty() && rng.random_range(0..3) == 0;
        let tokens: Vec<String> = (0..rng.random_range(20..120))
            .map(|_| {
                let part: String = rest.chars().take(rng.random_range(1..=6)).collect();
                let token = if part.is_empty() || rng.random_range(0..4) == 0 {
                    text(&mut rng, 6)
                } else {
                    mistyped(&mut rng, &part)
                };
                if skips_space { format!(" {token}") } else { token }
            })
            .collect();
        let bytes = tokens.iter().map(|token| Some(token.as_bytes().to_vec()));
        let folded = FoldedTokens::new(&Vocabulary::from_tokens((0..).map(TokenId).zip(bytes)));
        let best = (0..=typed.len()).map(|_| rng.random_range(-30.0..-10.0)).collect();
        let levels = Levels::new(best, 8, 7.0);
        let reach = alignment.reach(&typed).unwrap();
        let floor = Floor::new(&levels, level);
        let score = rng.random_range(-20.0..-5.0) - f64::from(cost);
        let is_exact = alignment.is_as_typed() || alignment.is_plain();
        let least_edit = alignment.least_edit(&typed);
        let from = From { alignment: &alignment, level, reach: &reach, score, least_edit, skips_space, is_exact };
        let filter = TokenFilter::new(&folded, &typed, &from);
        let row: Vec<f32> = tokens.iter().map(|_| rng.random_range(-12.0..0.0)).collect();
        let probable = -10.0..=-1.0;
        let filter = filter.at(&floor);
        let found = filter.find(&row, probable.clone());
        for ((token, id), &log_prob) in tokens.iter().zip((0..).map(TokenId)).zip(&row) {
            let mut longer = alignment;
            token.chars().skip(usize::from(skips_space)).for_each(|c| longer.push(&typed, c, f32::INFINITY));
            let (longer_cost, reached) = longer.cheapest(&typed);
            // What fits without one more edit is found by the typed text.
            let fits = alignment.reached(&typed).filter(|ways| ways.cost <= longer_cost).any(|ways| {
                let rest = typed.folded.characters[ways.level..].iter().copied();
                folded.fitting(skips_space.then_some(' ').into_iter().chain(rest)).any(|fitting| fitting == id)
            });
            let needs_edit = longer_cost >= cost + alignment.least_edit(&typed) && !fits;
            let reaches = score + f64::from(cost - longer_cost + log_prob) >= levels.floor(reached.max(level));
            let passes = filter.may_reach(id, log_prob);
            let leads_on = reaches && !longer.is_dead();
            if needs_edit && leads_on {
                needed += 1;
                assert!(passes, "{seed}: {begun:?} {token:?} {:?}", typed.folded.characters);
                let is_found = found.contains(&(id, log_prob));
                assert_eq!(is_found, probable.contains(&log_prob), "{seed}: {begun:?} {token:?}");
            }
            if typed.is_simple && folded.classes(id).is_some() {
                (idle, all) = (idle + usize::from(passes && !leads_on), all + 1);
            }
        }
    }
    assert!(needed > 4000 && idle * 5 < all, "{needed} needed; {idle} of {all} passed and lead nowhere");
}
