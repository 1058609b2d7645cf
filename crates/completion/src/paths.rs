//! The token sequences that a task refers to, and the distributions that it wants behind them.
//!
//! All that a scheduler needs to know of a task: it reads [`Paths::wanted`], looks up or computes, and calls
//! [`Paths::supply`].

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::distribution::Distribution;
use crate::text::TokenId;

/// A node: a path from the prompt. Indices are dense from 0, the prompt's own, and a parent's is smaller than its
/// child's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeIndex(pub usize);

/// A path whose distribution is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The path's node.
    pub node: NodeIndex,
    /// Whether the row of the whole vocabulary is wanted, not only the best tokens.
    pub full: bool,
    /// Whether the task can go on without it.
    pub speculative: bool,
}

/// The tokens that all paths of a task begin with, and the encoder's source if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The tokens from position 0 on; at least one.
    pub tokens: Vec<TokenId>,
    /// What the encoder reads, in models that have one.
    pub source: Option<Arc<[TokenId]>>,
}

impl From<Vec<TokenId>> for Prompt {
    /// A prompt for a model without an encoder.
    fn from(tokens: Vec<TokenId>) -> Self {
        Self { tokens, source: None }
    }
}

/// Whose paths these are: paths of different partitions have nothing in common, however alike their tokens are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Partition(pub u128);

/// One path. The root is the prompt; every other adds a token to its parent.
struct Node {
    parent: Option<NodeIndex>,
    token: TokenId,
    /// Positions from the prompt's first token to this node's, inclusive.
    depth: usize,
    next: Option<Arc<Distribution>>,
}

/// The nodes. See the module's documentation.
pub struct Paths {
    prompt: Prompt,
    partition: Partition,
    nodes: Vec<Node>,
    children: FxHashMap<(NodeIndex, TokenId), NodeIndex>,
    wanted: Vec<Wanted>,
    supplied: usize,
}

impl Paths {
    /// The node of the prompt.
    pub const ROOT: NodeIndex = NodeIndex(0);

    /// The prompt alone; it has at least one token.
    pub fn new(prompt: impl Into<Prompt>) -> Self {
        let prompt = prompt.into();
        let depth = prompt.tokens.len();
        let root = Node { parent: None, token: prompt.tokens[depth - 1], depth, next: None };
        let partition = Partition::default();
        Self { prompt, partition, nodes: vec![root], children: FxHashMap::default(), wanted: Vec::new(), supplied: 0 }
    }

    /// The tokens from position 0 to the root.
    pub fn prompt(&self) -> &[TokenId] {
        &self.prompt.tokens
    }

    /// What the encoder has to read before any of these paths can be computed.
    pub fn source(&self) -> Option<&Arc<[TokenId]>> {
        self.prompt.source.as_ref()
    }

    /// Tokens of the text that the client sent: the source's, or the prompt's.
    pub fn client_tokens(&self) -> usize {
        self.source().map_or(self.prompt().len(), |source| source.len())
    }

    /// Whether both have the same prompt, and are of the same partition.
    pub fn has_same_prompt(&self, other: &Self) -> bool {
        (self.partition, &self.prompt) == (other.partition, &other.prompt)
    }

    /// Gives all distributions back; a task that is done needs none.
    pub fn release(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.next = None);
    }

    /// Whose paths these are.
    pub fn partition(&self) -> Partition {
        self.partition
    }

    /// Says whose paths these are, before anything is computed for them.
    pub fn set_partition(&mut self, partition: Partition) {
        self.partition = partition;
    }

    /// Number of nodes, the prompt's included.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Never: the prompt is a node.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The node that adds a token to another, made if there is none.
    pub fn child(&mut self, parent: NodeIndex, token: TokenId) -> NodeIndex {
        let nodes = &mut self.nodes;
        *self.children.entry((parent, token)).or_insert_with(|| {
            nodes.push(Node { parent: Some(parent), token, depth: nodes[parent.0].depth + 1, next: None });
            NodeIndex(nodes.len() - 1)
        })
    }

    /// A node's parent and the token it adds; `None` for the prompt.
    pub fn step_to(&self, node: NodeIndex) -> Option<(NodeIndex, TokenId)> {
        let node = &self.nodes[node.0];
        node.parent.map(|parent| (parent, node.token))
    }

    /// The tokens from position 0 to a node.
    pub fn tokens(&self, node: NodeIndex) -> Vec<TokenId> {
        let mut tokens = Vec::with_capacity(self.depth(node));
        let mut above = node;
        while let Some((parent, token)) = self.step_to(above) {
            tokens.push(token);
            above = parent;
        }
        tokens.extend(self.prompt().iter().rev());
        tokens.reverse();
        tokens
    }

    /// Positions from the prompt's first token to the node's, inclusive.
    pub fn depth(&self, node: NodeIndex) -> usize {
        self.nodes[node.0].depth
    }

    /// The distribution behind a node, if it was supplied.
    pub fn next(&self, node: NodeIndex) -> Option<&Arc<Distribution>> {
        self.nodes[node.0].next.as_ref()
    }

    /// Takes the distribution behind a node; it is no longer kept.
    pub fn take_next(&mut self, node: NodeIndex) -> Option<Arc<Distribution>> {
        self.nodes[node.0].next.take()
    }

    /// The distributions that are missing, and the speculative ones.
    pub fn wanted(&self) -> &[Wanted] {
        &self.wanted
    }

    /// Asks for a distribution.
    pub fn want(&mut self, wanted: Wanted) {
        self.wanted.push(wanted);
    }

    /// Withdraws what was asked for.
    pub fn want_nothing(&mut self) {
        self.wanted.clear();
    }

    /// Whether the task has to wait for a distribution.
    pub fn is_waiting(&self) -> bool {
        self.wanted.iter().any(|wanted| !wanted.speculative)
    }

    /// Distributions that were supplied so far.
    pub fn supplied(&self) -> usize {
        self.supplied
    }

    /// Supplies the wanted distributions that `find` has, and returns their number.
    pub fn supply_known(&mut self, mut find: impl FnMut(&Wanted) -> Option<Arc<Distribution>>) -> usize {
        let Self { wanted, nodes, .. } = self;
        let before = wanted.len();
        wanted.retain(|wanted| {
            let found = find(wanted);
            let is_missing = found.is_none();
            if let Some(next) = found {
                nodes[wanted.node.0].next = Some(next);
            }
            is_missing
        });
        let supplied = before - self.wanted.len();
        self.supplied += supplied;
        supplied
    }

    /// Supplies the distribution of a wanted node.
    pub fn supply(&mut self, node: NodeIndex, next: Arc<Distribution>) {
        self.wanted.retain(|wanted| wanted.node != node);
        self.supplied += 1;
        self.nodes[node.0].next = Some(next);
    }
}
