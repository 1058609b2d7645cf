//! Tokens by the classes of their characters, as a tree: tokens that begin alike share a path.

use std::ops::Range;

use super::vocabulary::TokenId;

/// A node: the tokens whose classes begin with those on the way to it.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// The classes of the next characters: bit `i` stands for class `i`.
    next: u64,
    /// The first of the nodes below it, which are in the order of their classes.
    children: u32,
    /// The first token of this node and those below it.
    tokens: u32,
    /// The token behind this node's own ones.
    own_end: u32,
}

/// The tree. The children of a node lie side by side. A node knows their classes, so that a walk reads only the nodes
/// that it goes to.
#[derive(Clone, Debug)]
pub struct TokenTree {
    /// Level by level, from the root.
    nodes: Vec<Node>,
    /// By node: see [`TokenTree::longest`]. Apart from the nodes, because most of them are passed over by it: the bytes
    /// of all branches behind a node are in one or two lines of the cache.
    longest: Vec<u8>,
    /// By node: the token behind the last one of this node and those below it.
    ends: Vec<u32>,
    /// In the order of their classes, so that those of a node and of all below it lie side by side.
    tokens: Vec<TokenId>,
}

/// A node's number.
#[derive(Clone, Copy, Debug)]
pub struct Branch(u32);

impl TokenTree {
    /// A tree of tokens with their characters' classes, below 64; those without a character are left out.
    pub fn new<'a>(tokens: impl IntoIterator<Item = (&'a [u8], TokenId)>) -> Self {
        let mut sorted: Vec<_> = tokens.into_iter().filter(|(classes, _)| !classes.is_empty()).collect();
        sorted.sort_unstable();
        let node = |tokens: &Range<usize>| {
            let start = tokens.start as u32;
            Node { next: 0, children: 0, tokens: start, own_end: start }
        };
        // By node: its tokens and those below it, and the characters on the way to it.
        let mut below = vec![(0..sorted.len(), 0)];
        let (mut nodes, mut longest) = (vec![node(&below[0].0)], vec![0]);
        let mut index = 0;
        while let Some((range, depth)) = below.get(index).cloned() {
            nodes[index].children = nodes.len() as u32;
            let own = sorted[range.clone()].partition_point(|(classes, _)| classes.len() == depth);
            let mut start = range.start + own;
            nodes[index].own_end = start as u32;
            for alike in sorted[start..range.end].chunk_by(|a, b| a.0[depth] == b.0[depth]) {
                let length = alike.iter().map(|(classes, _)| classes.len()).fold(0, usize::max);
                longest.push(u8::try_from(length).unwrap_or(u8::MAX));
                let tokens = start..start + alike.len();
                start = tokens.end;
                nodes[index].next |= 1 << alike[0].0[depth];
                nodes.push(node(&tokens));
                below.push((tokens, depth + 1));
            }
            index += 1;
        }
        let ends = below.into_iter().map(|(tokens, _)| tokens.end as u32).collect();
        Self { nodes, longest, ends, tokens: sorted.into_iter().map(|(_, token)| token).collect() }
    }

    fn node(&self, branch: Branch) -> &Node {
        &self.nodes[branch.0 as usize]
    }

    /// Before the first character.
    pub fn root(&self) -> Branch {
        Branch(0)
    }

    /// Whether tokens go on behind a branch.
    pub fn goes_on(&self, branch: Branch) -> bool {
        self.node(branch).next != 0
    }

    /// The branches behind one, with the classes of their last characters, of those classes whose bits `wanted` has.
    pub fn branches(&self, branch: Branch, wanted: u64) -> impl Iterator<Item = (u8, Branch)> + use<> {
        let &Node { next, children, .. } = self.node(branch);
        let mut left = next & wanted;
        std::iter::from_fn(move || {
            let class = (left != 0).then(|| left.trailing_zeros())?;
            left &= left - 1;
            let before = (next & ((1 << class) - 1)).count_ones();
            Some((class as u8, Branch(children + before)))
        })
    }

    /// The tokens whose classes `text` begins with, and those that begin with all of `text`.
    pub fn along(&self, text: impl Iterator<Item = u8>) -> impl Iterator<Item = TokenId> {
        let (mut text, mut branch) = (text.peekable(), self.root());
        let on_the_way = std::iter::from_fn(move || {
            let class = text.next()?;
            (_, branch) = self.branches(branch, 1 << class).next()?;
            Some(if text.peek().is_none() { self.all(branch) } else { self.own(branch) })
        });
        on_the_way.flatten().copied()
    }

    /// Characters of the longest token of a branch and of all below it, at most 255.
    pub fn longest(&self, branch: Branch) -> u8 {
        self.longest[branch.0 as usize]
    }

    /// The tokens that end at a branch.
    pub fn own(&self, branch: Branch) -> &[TokenId] {
        let &Node { tokens, own_end, .. } = self.node(branch);
        &self.tokens[tokens as usize..own_end as usize]
    }

    /// The tokens of a branch and of all below it.
    pub fn all(&self, branch: Branch) -> &[TokenId] {
        &self.tokens[self.node(branch).tokens as usize..self.ends[branch.0 as usize] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The way to each node, its own tokens, all of it and below it, and its longest one's characters.
    type Found = Vec<(String, Vec<u32>, usize, u8)>;

    fn walk(tree: &TokenTree, branch: Branch, way: &str, found: &mut Found) {
        for (class, next) in tree.branches(branch, u64::MAX) {
            let way = format!("{way}{}", char::from(b'a' + class));
            let own = tree.own(next).iter().map(|token| token.0).collect();
            found.push((way.clone(), own, tree.all(next).len(), tree.longest(next)));
            walk(tree, next, &way, found);
        }
        assert_eq!(tree.goes_on(branch), tree.branches(branch, u64::MAX).next().is_some());
    }

    #[test]
    fn a_branch_has_the_tokens_that_begin_as_it_does() {
        let tokens: [&[u8]; 7] = [b"heat", b"he", b"he", b"x", b"heater", b"", b"hi"];
        let classes = tokens.map(|token| token.iter().map(|letter| letter - b'a').collect::<Vec<_>>());
        let tree = TokenTree::new(classes.iter().map(Vec::as_slice).zip((0..).map(TokenId)));
        let mut found = Found::new();
        walk(&tree, tree.root(), "", &mut found);
        let expected = [
            ("h", vec![], 5, 6),
            ("he", vec![1, 2], 4, 6),
            ("hea", vec![], 2, 6),
            ("heat", vec![0], 2, 6),
            ("heate", vec![], 1, 6),
            ("heater", vec![4], 1, 6),
            ("hi", vec![6], 1, 2),
            ("x", vec![3], 1, 1),
        ];
        assert_eq!(found, expected.map(|(way, own, all, longest)| (way.to_owned(), own, all, longest)));
        let wanted = 1 << (b'x' - b'a') | 1 << (b'y' - b'a');
        let some: Vec<_> = tree.branches(tree.root(), wanted).map(|(class, next)| (class, tree.all(next))).collect();
        assert_eq!(some, [(b'x' - b'a', &[TokenId(3)][..])]);
        let along = |text: &[u8]| {
            let classes = text.iter().map(|letter| letter - b'a');
            let mut tokens: Vec<_> = tree.along(classes).map(|token| token.0).collect();
            tokens.sort_unstable();
            tokens
        };
        assert_eq!((along(b"heath"), along(b"he"), along(b"y")), (vec![0, 1, 2], vec![0, 1, 2, 4], vec![]));
        let empty = TokenTree::new([]);
        assert!(!empty.goes_on(empty.root()) && empty.all(empty.root()).is_empty());
    }
}
