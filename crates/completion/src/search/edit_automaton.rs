//! How many edits turn the beginning of what was typed behind a place into the characters of a token: at least so
//! many.
//!
//! An automaton whose states are numbers of typed characters, held as the bits of a word, one word for each number of
//! edits (Wu and Manber 1992, with swaps after Hyyrö 2003). It knows classes of characters only, and the places at
//! which the typed text has no errors: what it rules out has no alignment, and what it doesn't rule out has to be
//! aligned.

use crate::text::folded_tokens::{CLASSES, class_of};
use crate::typing::alignment::{Alignment, MOST_EDITS, Ways};
use crate::typing::{Line, Typed};

/// Typed characters that the automaton sees.
const WINDOW: usize = 60;
/// Characters of the longest token that can't reach beyond the window.
pub(super) const LONGEST: usize = WINDOW - 2 * MOST_EDITS - 2;

/// Kinds of ways to have typed a text, told apart by what they cost at least: without an edit, with a character left
/// out, with another edit, with two edits.
pub(super) const KINDS: usize = 4;
/// By kind: edits that its ways have at least.
const EDITS: [usize; KINDS] = [0, 1, 1, 2];

/// Groups of classes that may have different errors: letters, digits, and all others, of which some have spaces.
const GROUPS: usize = 3;
/// By class: its group.
const GROUP_OF: [u8; CLASSES] = {
    let mut groups = [2; CLASSES];
    let mut class = class_of('a');
    while class <= class_of('9') {
        groups[class as usize] = if class <= class_of('z') { 0 } else { 1 };
        class += 1;
    }
    groups
};

/// Some classes: bit `i` stands for class `i`.
pub(super) type Classes = u64;
/// By group: its classes.
const CLASSES_OF: [Classes; GROUPS] = {
    let mut classes = [0; GROUPS];
    let mut class = 0;
    while class < CLASSES {
        classes[GROUP_OF[class] as usize] |= 1 << class;
        class += 1;
    }
    classes
};

/// States by kind: bit `i` of `[kind]` says that `i` typed characters behind the base may be used up.
pub(super) type States = [u64; KINDS];

/// The states behind a text.
#[derive(Clone, Copy, Default)]
pub(super) struct Run {
    pub(super) states: States,
    /// States before the last character of the text, for a swap with the next one. By the kind that they have then.
    swappable: States,
}

impl Run {
    /// Whether a way is left.
    fn goes_on(&self) -> bool {
        self.states.iter().chain(&self.swappable).any(|&states| states != 0)
    }

    /// The states of two runs.
    pub(super) fn or(&self, other: &Self) -> Self {
        Self {
            states: std::array::from_fn(|kind| self.states[kind] | other.states[kind]),
            swappable: std::array::from_fn(|kind| self.swappable[kind] | other.swappable[kind]),
        }
    }
}

/// The levels that some ways have reached.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) nearest: usize,
    pub(super) furthest: usize,
}

impl Span {
    /// The levels of both.
    fn join(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        a.into_iter()
            .chain(b)
            .reduce(|a, b| Self { nearest: a.nearest.min(b.nearest), furthest: a.furthest.max(b.furthest) })
    }
}

/// Typed characters, as bits, at which there may be an error with a character of the text.
#[derive(Clone, Copy, Default)]
struct ErrorPlaces {
    /// Before which it may have been left out.
    omitted: u64,
    /// Which may have been typed instead of it.
    replaced: u64,
}

/// The errors that `count` typed characters from `base` on may be, by group, and which of them may be too many.
fn errors(typed: &Line, base: usize, count: usize) -> ([ErrorPlaces; GROUPS], u64) {
    let bits = |is_possible: &dyn Fn(usize) -> bool| {
        (0..count).fold(0, |bits, place| bits | u64::from(is_possible(base + place)) << place)
    };
    let extra = bits(&|at| typed.extra(at).is_some());
    let letter = ErrorPlaces {
        omitted: bits(&|at| typed.may_lack_before(at, 'x')),
        replaced: bits(&|at| typed.substitute(at, 'x').is_some()),
    };
    let space = ErrorPlaces { omitted: (1 << count) - 1, replaced: extra };
    ([letter, ErrorPlaces::default(), space], extra)
}

/// The automaton. See the module's documentation.
pub(super) struct EditAutomaton {
    /// By class: the places of the typed characters of this class.
    places: [u64; CLASSES],
    /// The classes of the typed characters. `[seen]`
    classes: [u8; WINDOW],
    /// All places of typed characters that the automaton sees.
    seen: u64,
    /// By group of the text's character.
    errors: [ErrorPlaces; GROUPS],
    /// The typed characters that may be too many.
    extra: u64,
    /// All states if a way may have one more edit than the cheapest one.
    first: u64,
    /// All states if a way may have two.
    second: u64,
    /// The state in which all that was typed is used up: what follows is new.
    end: u64,
    /// Typed characters before the first state.
    base: usize,
    start: Run,
    /// What each kind costs at least, in nats.
    costs: [f32; KINDS],
}

impl EditAutomaton {
    /// Goes on from an alignment whose ways have reached no level below `base`, and to which one more edit adds
    /// `least_edit` nats. Ways that cost more than the cheapest one, pending swaps included, count as if they had edits
    /// more.
    pub(super) fn new(typed: &Typed, alignment: &Alignment, base: usize, least_edit: f32) -> Self {
        let cheapest = alignment.cheapest(typed).0 + least_edit.min(0.0);
        let costs = [0.0, typed.costs.omitted(), typed.costs.least_but_omitted(), 2.0 * typed.costs.least_edit()];
        let mut edits = 0;
        let mut states = |ways: &mut dyn Iterator<Item = Ways>| {
            let mut states = States::default();
            for Ways { level, cost, edits: before } in ways {
                let kind = costs.iter().rposition(|&least| least <= cost - cheapest).unwrap_or(0);
                states[kind] |= 1 << (level - base);
                edits = edits.max(EDITS[kind] + typed.max_edits - before);
            }
            states
        };
        let start =
            Run { states: states(&mut alignment.reached(typed)), swappable: states(&mut alignment.swaps(typed)) };
        let characters = &typed.folded.characters[base..];
        let window = &characters[..characters.len().min(WINDOW)];
        let (mut places, mut classes) = ([0; CLASSES], [0; WINDOW]);
        for (place, (class, &character)) in classes.iter_mut().zip(window).enumerate() {
            *class = class_of(character);
            places[usize::from(*class)] |= 1 << place;
        }
        let seen = (1 << window.len()) - 1;
        let end = if window.len() == characters.len() { 1 << window.len() } else { 0 };
        let (errors, extra) = if edits > 0 { errors(&typed.folded, base, window.len()) } else { Default::default() };
        let [first, second] = [1, 2].map(|least| if edits >= least { u64::MAX } else { 0 });
        Self { places, classes, seen, errors, extra, first, second, end, base, start, costs }
    }

    /// The states before a token's first character.
    pub(super) fn start(&self) -> &Run {
        &self.start
    }

    /// The levels that ways of each kind may reach behind a token's first character, if any can. Each character more
    /// leads one level further.
    pub(super) fn begun(&self) -> [Option<Span>; KINDS] {
        let span = |states: u64, more: usize| {
            let [nearest, furthest] = [states.trailing_zeros(), states.checked_ilog2()?].map(|state| self.level(state));
            Some(Span { nearest: nearest + more, furthest: furthest + more })
        };
        // A pending swap uses two typed characters up.
        let begun = |kind: usize| Span::join(span(self.start.states[kind], 1), span(self.start.swappable[kind], 2));
        let edited = |before: Option<Span>, allowed: u64, nearer: isize, further: isize| {
            let Span { nearest, furthest } = before.filter(|_| allowed != 0)?;
            let nearest = nearest.saturating_add_signed(nearer);
            Some(Span { nearest, furthest: furthest.saturating_add_signed(further) })
        };
        let none = begun(0);
        let left_out = Span::join(begun(1), edited(none, self.first, -1, -1));
        let other = Span::join(begun(2), edited(none, self.first, 0, 1));
        let two = Span::join(begun(3), edited(Span::join(left_out, other), self.second, -1, 1));
        [none, left_out, other, two]
    }

    /// The states behind one more character, of those that are `affordable`; `None` if none is left. The states without
    /// an edit are those that may have one later.
    #[inline]
    pub(super) fn push(&self, run: &Run, class: u8, affordable: &States) -> Option<Run> {
        let [none_before, left_out, other, two] = run.states;
        let places = self.places[usize::from(class)];
        let ErrorPlaces { omitted, replaced } = self.errors[usize::from(GROUP_OF[usize::from(class)])];
        let swapped = run.swappable.map(|states| (states & places) << 2);
        let matched = |states: u64| ((states & places) << 1) | (states & self.end);
        let one_before = (left_out | other) & self.second;
        let none = (matched(none_before) | swapped[0]) & affordable[0];
        let left_out = (matched(left_out) | (none_before & omitted) | swapped[1]) & affordable[1];
        // The character was replaced, or swapped with the one before it, or another one was typed behind it.
        let other = matched(other) | (((none_before & replaced) | (none & self.extra)) << 1) | swapped[2];
        let other = other & affordable[2];
        let one = (left_out | other) & self.second;
        let two = matched(two) | (one_before & omitted) | (((one_before & replaced) | (one & self.extra)) << 1);
        let states = [none, left_out, other, (two | swapped[3]) & affordable[3]];
        let none_before = none_before & self.first & affordable[2];
        let swappable = [0, 0, none_before & (places >> 1), one_before & affordable[3] & (places >> 1)];
        let run = Run { states, swappable };
        run.goes_on().then_some(run)
    }

    /// The classes of the characters that leave an `affordable` state behind them.
    pub(super) fn next(&self, run: &Run, affordable: &States) -> Classes {
        let [none, left_out, other, two] = run.states;
        let one = (left_out | other) & affordable[3] & self.second;
        let kept =
            (none & affordable[0]) | (left_out & affordable[1]) | (other & affordable[2]) | (two & affordable[3]);
        if kept & self.end != 0 {
            return Classes::MAX;
        }
        let swappable = run.swappable.iter().zip(affordable);
        let swapped = swappable.fold(0, |all, (states, affordable)| all | (states & affordable));
        let to_swap = ((none & self.first & affordable[2]) | one) << 1;
        let mut classes = 0;
        for (&ErrorPlaces { omitted, replaced }, of_group) in self.errors.iter().zip(CLASSES_OF) {
            let omitted = omitted & ((none & affordable[1]) | one);
            let replaced = replaced & ((none & affordable[2]) | one);
            classes |= if omitted | replaced != 0 { of_group } else { 0 };
        }
        let mut places = (kept | swapped | to_swap) & self.seen;
        while places != 0 {
            classes |= 1 << self.classes[places.trailing_zeros() as usize];
            places &= places - 1;
        }
        classes
    }

    /// Whether all that was typed is used up, and no way that has not done so is cheaper: then no longer text has a
    /// cheaper way.
    pub(super) fn has_ended(&self, states: &States) -> bool {
        if states.iter().all(|states| states & self.end == 0) {
            return false;
        }
        let alive = states.iter().zip(&self.costs).filter(|(states, _)| **states != 0);
        alive.min_by(|a, b| a.1.total_cmp(b.1)).is_some_and(|(states, _)| states & self.end != 0)
    }

    /// What each kind of states costs at least, in nats. Infinite without an edit: tokens that need none are found
    /// otherwise. A pending swap is one.
    pub(super) fn costs(&self) -> [f32; KINDS] {
        let [_, left_out, other, two] = self.costs;
        let none = if self.start.swappable[0] == 0 { f32::INFINITY } else { 0.0 };
        [none, left_out, other, two]
    }

    /// The level of a state.
    pub(super) fn level(&self, state: u32) -> usize {
        self.base + state as usize
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::typing::Tolerance;
    use crate::typing::channel::Channel;

    #[test]
    fn the_next_characters_are_those_that_leave_a_state() {
        let costs = Arc::new(Channel::default().costs());
        let (mut some, mut all) = (0, 0);
        for typed in ["wirless char", "aab", "w", "7é日 z"] {
            let typed = Typed::new(typed, Tolerance::Auto, &costs);
            let automaton = EditAutomaton::new(&typed, &Alignment::start(&typed), 0, typed.costs.least_edit());
            for (token, kinds) in ["wireless char", "iwr", "wix", "aba", "ba", "7日é"]
                .iter()
                .flat_map(|t| (0..=KINDS).map(move |k| (t, k)))
            {
                let affordable = std::array::from_fn(|kind| if kind < kinds { u64::MAX } else { 0 });
                let mut run = *automaton.start();
                for character in token.chars() {
                    let next = automaton.next(&run, &affordable);
                    for class in 0..CLASSES as u8 {
                        let leaves = automaton.push(&run, class, &affordable).is_some();
                        assert_eq!(next >> class & 1 != 0, leaves, "{token} {kinds} {class}");
                    }
                    if next == Classes::MAX {
                        all += 1
                    } else {
                        some += 1
                    }
                    let Some(next) = automaton.push(&run, class_of(character), &affordable) else { break };
                    run = next;
                }
            }
        }
        assert!(some > 20 && all > 20, "{some} {all}");
    }

    #[test]
    fn tokens_need_as_many_edits_as_they_differ_by() {
        let typed = Typed::new("wirless char", Tolerance::Auto, &Arc::new(Channel::default().costs()));
        let automaton = EditAutomaton::new(&typed, &Alignment::start(&typed), 0, typed.costs.least_edit());
        let edits = |token: &str| {
            let push = |run, character| automaton.push(&run, class_of(character), &[u64::MAX; KINDS]);
            let run = token.chars().try_fold(*automaton.start(), push)?;
            run.states.iter().position(|&states| states != 0).map(|kind| [0, 1, 1, 2][kind])
        };
        for (token, expected) in [
            ("wir", Some(0)),
            ("wireless", Some(1)),
            ("iwr", Some(1)),
            ("wix", Some(1)),
            ("irless", Some(1)),
            ("iwrlses", Some(2)),
            ("xyless", None),
            ("wirless charger", Some(0)),
            ("wireless charger", Some(1)),
        ] {
            assert_eq!(edits(token), expected, "{token}");
        }
    }
}
