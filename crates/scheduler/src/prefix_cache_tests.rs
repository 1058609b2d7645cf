//! The prefix cache under random use over a vocabulary of two tokens: everything it says about itself is recounted
//! after every step.

use std::collections::HashSet;

use completion::Logits;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

fn distribution(full: bool) -> Arc<Distribution> {
    let row = [0.0f32, 1.0];
    let row = full.then_some(&row[..]);
    let logits = Logits { best_ids: &[1, 0], best: &[1.0, 0.0], row, logsumexp: 1.3, vocab: 2 };
    Arc::new(Distribution::from_logits(logits))
}

impl PrefixCache {
    /// Recounts everything and compares.
    pub(crate) fn check(&self) {
        let free: HashSet<NodeId> = self.free_nodes.iter().copied().collect();
        let live: Vec<NodeId> = (0..self.nodes.len() as u32).map(NodeId).filter(|id| !free.contains(id)).collect();
        let node = |id: NodeId| &self.nodes[id.0 as usize];
        let bytes: usize =
            live.iter().map(|&id| NODE_BYTES + node(id).next.as_ref().map_or(0, |next| next.bytes())).sum();
        assert_eq!(bytes, self.bytes);
        let mut pages: Vec<Page> =
            live.iter().filter_map(|&id| node(id).page).chain(self.free_pages.iter().copied()).collect();
        pages.sort();
        assert_eq!(pages, (0..self.pages).map(Page).collect::<Vec<_>>(), "every page is in one place");
        let mut children = vec![0; self.nodes.len()];
        for &id in &live {
            assert_eq!(self.children.get(&(node(id).above, node(id).token)), Some(&id));
            if let Some(parent) = node(id).above.node() {
                assert!(!free.contains(&parent), "a node outlives its children");
                children[parent.0 as usize] += 1;
                assert_eq!(node(id).depth, node(parent).depth + 1);
            }
        }
        assert!(live.iter().all(|&id| node(id).children == children[id.0 as usize]));
        assert_eq!(self.children.len(), live.len());
        assert_eq!(self.holds, live.iter().map(|&id| node(id).held as usize).sum::<usize>());
        assert!(live.iter().all(|&id| !node(id).is_filled() || self.filled.has(id, node(id).class)));
        assert!(live.iter().all(|&id| node(id).page.is_none() || self.paged.has(id, node(id).class)));
        assert!(live.iter().all(|&id| !node(id).has_row() || self.rows.has(id, node(id).class)));
        assert!(live.iter().all(|&id| !node(id).is_unused()), "a node stays that nothing refers to");
        for class in [Class::Interactive, Class::Bulk] {
            let nodes = || live.iter().map(|&id| node(id)).filter(|node| node.class == class);
            assert_eq!(self.paged.size_of(class), nodes().filter(|node| node.page.is_some()).count());
            let sum =
                |size: fn(&Distribution) -> usize| nodes().flat_map(|node| &node.next).map(|next| size(next)).sum();
            let sizes: (usize, usize) = (sum(Distribution::bytes), sum(Distribution::row_bytes));
            assert_eq!((self.filled.size_of(class), self.rows.size_of(class)), sizes);
        }
        let needed = |id: &&NodeId| node(**id).held > 0 || node(**id).children > 0;
        let unavoidable = live.iter().filter(needed).count() * NODE_BYTES;
        assert!(self.bytes <= self.max_bytes.max(unavoidable), "{} > {}", self.bytes, self.max_bytes);
    }
}

#[test]
fn random_use_keeps_every_invariant() {
    let mut rng = StdRng::seed_from_u64(7);
    let mut cache = PrefixCache::new(12, 100, 30 * NODE_BYTES);
    let mut held: Vec<NodeId> = Vec::new();
    let mut path = Vec::new();
    for _ in 0..100_000 {
        match rng.random_range(0..100) {
            0..40 => {
                let parent = (!held.is_empty() && rng.random_bool(0.8)).then(|| held[rng.random_range(0..held.len())]);
                if held.len() < 40 && parent.is_none_or(|parent| cache.depth(parent) < 8) {
                    held.push(cache.hold(parent, TokenId(rng.random_range(0..2))));
                }
            }
            40..65 if !held.is_empty() => {
                let node = held.swap_remove(rng.random_range(0..held.len()));
                cache.release(node);
            }
            65..80 if !held.is_empty() => {
                let node = held[rng.random_range(0..held.len())];
                cache.path(node, &mut path);
                cache.give_page(node, &path.iter().copied().collect());
            }
            80..95 if !held.is_empty() => {
                cache.give_next(held[rng.random_range(0..held.len())], distribution(rng.random_bool(0.3)));
            }
            _ if !held.is_empty() => {
                let class = if rng.random_bool(0.8) { Class::Bulk } else { Class::Interactive };
                cache.touch(held[rng.random_range(0..held.len())], class);
            }
            _ => {}
        }
        cache.check();
    }
    assert!(cache.stats().evicted > 1000, "the bounds were never reached: {:?}", cache.stats());
    held.into_iter().for_each(|node| cache.release(node));
    cache.check();
}

#[test]
fn the_least_recently_used_leaf_goes_first_and_a_kept_path_stays() {
    let mut cache = PrefixCache::new(3, 1, 1 << 20);
    let a = cache.hold(Above::Nothing(Partition::default()), TokenId(0));
    let b = cache.hold(Some(a), TokenId(0));
    let c = cache.hold(Some(a), TokenId(1));
    let pages = [a, b, c].map(|node| cache.give_page(node, &FxHashSet::default()).unwrap());
    cache.touch(b, Class::Interactive);
    let d = cache.hold(Some(b), TokenId(0));
    assert_eq!(cache.give_page(d, &[a, b, d].into_iter().collect()), Some(pages[2]), "c was used longest ago");
    assert_eq!(cache.page(c), None);
    assert_eq!(cache.give_page(c, &[a, b, c, d].into_iter().collect()), None, "everything is kept");
    assert_eq!(cache.give_page(d, &FxHashSet::default()), cache.page(d), "a page it has is given again");
}

#[test]
fn whole_rows_go_before_lists_and_a_page_leaves_the_list_behind() {
    let row = [0.0f32; 4096];
    let logits = Logits { best_ids: &[1, 0], best: &[0.0, 0.0], row: Some(&row), logsumexp: 1.3, vocab: row.len() };
    let whole = Arc::new(Distribution::from_logits(logits));
    let mut cache = PrefixCache::new(2, 1, 5 * size_of_val(&row));
    let nodes: Vec<NodeId> = (0..8).map(|token| cache.hold(None, TokenId(token))).collect();
    let pages: Vec<Option<Page>> = nodes.iter().map(|&node| cache.give_page(node, &FxHashSet::default())).collect();
    assert_eq!(pages[2..], [pages[0], pages[1]].repeat(3), "the page that was used longest ago is given");
    for &node in &nodes {
        cache.give_next(node, Arc::clone(&whole));
        cache.touch(nodes[0], Class::Interactive);
        cache.check();
    }
    let has_row: Vec<bool> = nodes.iter().map(|&node| cache.next(node).unwrap().is_full()).collect();
    assert_eq!(has_row, [true, false, false, false, false, true, true, true], "the least recently used rows went");
    // A page is taken from the node that was used longest ago of those that have one.
    assert_eq!(cache.give_page(nodes[0], &FxHashSet::default()), pages[6]);
    assert!(cache.page(nodes[6]).is_none() && cache.next(nodes[6]).unwrap().is_full());
    cache.check();
}

#[test]
fn a_whole_row_is_not_replaced_by_less() {
    let mut cache = PrefixCache::new(0, 1, 1 << 20);
    let node = cache.hold(Above::Nothing(Partition::default()), TokenId(0));
    cache.give_next(node, distribution(true));
    cache.give_next(node, distribution(false));
    assert!(cache.next(node).unwrap().is_full());
    cache.check();
}

#[test]
fn bulk_work_takes_only_half_of_what_people_who_type_have() {
    let mut cache = PrefixCache::new(8, 1, 1 << 20);
    let keep = FxHashSet::default();
    let mut next_token = 0;
    let mut used = |cache: &mut PrefixCache, class| {
        next_token += 1;
        let node = cache.hold(None, TokenId(next_token));
        cache.give_page(node, &keep);
        cache.touch(node, class);
        node
    };
    let typed: Vec<NodeId> = (0..8).map(|_| used(&mut cache, Class::Interactive)).collect();
    for _ in 0..100 {
        used(&mut cache, Class::Bulk);
    }
    let left: Vec<bool> = typed.iter().map(|&node| cache.page(node).is_some()).collect();
    assert_eq!(left, [[false; 4], [true; 4]].concat(), "the least recently used of them went");
    // What somebody types comes before what bulk work has, until that has less.
    let more: Vec<NodeId> = (0..2).map(|_| used(&mut cache, Class::Interactive)).collect();
    assert!(more.iter().all(|&node| cache.page(node).is_some()));
    cache.check();
}
