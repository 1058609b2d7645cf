//! Tokens by the classes of their characters, as a tree: tokens that begin alike share a path.

use super::vocabulary::TokenId;

/// A node: the tokens whose classes begin with those on the way to it.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// The class of the last character.
    class: u8,
    /// See [`Branch::longest`].
    longest: u8,
    /// The first of the nodes below it; they end where those of the next node begin.
    children: u32,
    /// The first token of this node and those below it.
    tokens: u32,
}

/// The tree. The children of a node lie side by side, so that a walk looks through them in few cache lines.
#[derive(Clone, Debug)]
pub struct TokenTree {
    /// Level by level, from the root; one more than there are nodes, for where the last one's children end.
    nodes: Vec<Node>,
    /// In the order of their classes, so that those of a node and of all below it lie side by side.
    tokens: Vec<TokenId>,
}

/// A node, with what is known of it on the way there.
#[derive(Clone, Copy, Debug)]
pub struct Branch {
    /// The class of the last character.
    pub class: u8,
    /// Characters of the longest token of this node and those below it, at most 255.
    pub longest: u8,
    node: u32,
    /// The token behind those of this node and those below it.
    end: u32,
}

impl TokenTree {
    /// A tree of tokens with their characters' classes; those without a character are left out.
    pub fn new<'a>(tokens: impl IntoIterator<Item = (&'a [u8], TokenId)>) -> Self {
        let mut sorted: Vec<_> = tokens.into_iter().filter(|(classes, _)| !classes.is_empty()).collect();
        sorted.sort_unstable();
        let mut nodes = vec![Node { class: 0, longest: 0, children: 0, tokens: 0 }];
        // By node: its tokens and those below it, and the characters on the way to it.
        let mut below = vec![(0..sorted.len(), 0)];
        let mut index = 0;
        while let Some((range, depth)) = below.get(index).cloned() {
            nodes[index].children = nodes.len() as u32;
            let own = sorted[range.clone()].partition_point(|(classes, _)| classes.len() == depth);
            let mut start = range.start + own;
            for alike in sorted[start..range.end].chunk_by(|a, b| a.0[depth] == b.0[depth]) {
                let longest = alike.iter().map(|(classes, _)| classes.len()).fold(0, usize::max);
                let (class, longest) = (alike[0].0[depth], u8::try_from(longest).unwrap_or(u8::MAX));
                nodes.push(Node { class, longest, children: 0, tokens: start as u32 });
                below.push((start..start + alike.len(), depth + 1));
                start += alike.len();
            }
            index += 1;
        }
        nodes.push(Node { class: 0, longest: 0, children: nodes.len() as u32, tokens: 0 });
        Self { nodes, tokens: sorted.into_iter().map(|(_, token)| token).collect() }
    }

    /// Before the first character.
    pub fn root(&self) -> Branch {
        Branch { class: 0, longest: 0, node: 0, end: self.tokens.len() as u32 }
    }

    /// The nodes below one, by their last characters' classes.
    fn nodes_below(&self, branch: Branch) -> &[Node] {
        let node = branch.node as usize;
        &self.nodes[self.nodes[node].children as usize..self.nodes[node + 1].children as usize]
    }

    /// The branches below one.
    pub fn branches(&self, branch: Branch) -> impl Iterator<Item = Branch> {
        let nodes = self.nodes_below(branch);
        let ends = nodes.iter().skip(1).map(|next| next.tokens).chain([branch.end]);
        let numbers = self.nodes[branch.node as usize].children..;
        numbers.zip(nodes).zip(ends).map(|((node, &Node { class, longest, .. }), end)| Branch {
            class,
            longest,
            node,
            end,
        })
    }

    /// The tokens that end at a branch.
    pub fn own(&self, branch: Branch) -> &[TokenId] {
        let end = self.nodes_below(branch).first().map_or(branch.end, |first| first.tokens);
        &self.tokens[self.nodes[branch.node as usize].tokens as usize..end as usize]
    }

    /// The tokens of a branch and of all below it.
    pub fn all(&self, branch: Branch) -> &[TokenId] {
        &self.tokens[self.nodes[branch.node as usize].tokens as usize..branch.end as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The way to each node, its own tokens, all of it and below it, and its longest one's characters.
    type Found = Vec<(String, Vec<u32>, usize, u8)>;

    fn walk(tree: &TokenTree, branch: Branch, way: &str, found: &mut Found) {
        for next in tree.branches(branch) {
            let way = format!("{way}{}", char::from(next.class));
            let own = tree.own(next).iter().map(|token| token.0).collect();
            found.push((way.clone(), own, tree.all(next).len(), next.longest));
            walk(tree, next, &way, found);
        }
    }

    #[test]
    fn a_branch_has_the_tokens_that_begin_as_it_does() {
        let tokens: [&[u8]; 7] = [b"heat", b"he", b"he", b"x", b"heater", b"", b"hi"];
        let tree = TokenTree::new(tokens.into_iter().zip((0..).map(TokenId)));
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
        let empty = TokenTree::new([]);
        assert!(empty.branches(empty.root()).next().is_none() && empty.all(empty.root()).is_empty());
    }
}
