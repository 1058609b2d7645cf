//! Tokens by the classes of their characters, as a tree: tokens that begin alike share a path.

use super::vocabulary::TokenId;

/// A node: the tokens whose classes begin with those on the way to it.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// The class of the last character.
    pub class: u8,
    /// Characters on the way, from 1.
    pub depth: u16,
    /// Characters of the longest token of this node and those below it.
    pub longest: u16,
    /// The first node that isn't below this one.
    pub end: u32,
    /// The first token of this node and those below it.
    tokens: u32,
}

/// The tree, its nodes in the order of a depth-first walk: what is below a node follows it.
#[derive(Clone, Debug)]
pub struct TokenTree {
    /// One more than there are nodes: the last one is behind all.
    nodes: Vec<Node>,
    /// In the order of their nodes.
    tokens: Vec<TokenId>,
}

impl TokenTree {
    /// A tree of tokens with their characters' classes; those without a character are left out.
    pub fn new<'a>(tokens: impl IntoIterator<Item = (&'a [u8], TokenId)>) -> Self {
        let mut sorted: Vec<_> = tokens.into_iter().filter(|(classes, _)| !classes.is_empty()).collect();
        sorted.sort_unstable();
        let mut nodes: Vec<Node> = Vec::new();
        // The nodes on the way to the last token.
        let mut path: Vec<usize> = Vec::new();
        let mut last: &[u8] = &[];
        for (index, &(classes, _)) in (0..).zip(&sorted) {
            let common = classes.iter().zip(last).take_while(|(a, b)| a == b).count();
            let end = nodes.len() as u32;
            path.drain(common..).for_each(|node| nodes[node].end = end);
            let length = classes.len() as u16;
            for &node in &path {
                nodes[node].longest = nodes[node].longest.max(length);
            }
            for (&class, depth) in classes.iter().zip(1..).skip(common) {
                path.push(nodes.len());
                nodes.push(Node { class, depth, longest: length, end: 0, tokens: index });
            }
            last = classes;
        }
        let end = nodes.len() as u32;
        path.into_iter().for_each(|node| nodes[node].end = end);
        nodes.push(Node { class: 0, depth: 0, longest: 0, end: end + 1, tokens: sorted.len() as u32 });
        Self { nodes, tokens: sorted.into_iter().map(|(_, token)| token).collect() }
    }

    /// A node by its number, from 0; `None` behind the last one.
    pub fn node(&self, index: usize) -> Option<&Node> {
        self.nodes[..self.nodes.len() - 1].get(index)
    }

    /// The tokens of the nodes from one to before another.
    pub fn tokens(&self, from: usize, to: usize) -> &[TokenId] {
        &self.tokens[self.nodes[from].tokens as usize..self.nodes[to].tokens as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_the_tokens_that_begin_as_it_does() {
        let tokens: [&[u8]; 7] = [b"heat", b"he", b"he", b"x", b"heater", b"", b"hi"];
        let tree = TokenTree::new(tokens.into_iter().zip((0..).map(TokenId)));
        let mut way = Vec::new();
        let mut found = Vec::new();
        for index in 0.. {
            let Some(node) = tree.node(index) else { break };
            way.truncate(usize::from(node.depth) - 1);
            way.push(node.class);
            let own: Vec<u32> = tree.tokens(index, index + 1).iter().map(|token| token.0).collect();
            let all = tree.tokens(index, node.end as usize).len();
            found.push((String::from_utf8(way.clone()).unwrap(), own, all, node.longest));
        }
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
        assert!(TokenTree::new([]).node(0).is_none());
    }
}
