//! The operators of the domain `foretype`, which bundles for the CPU use. ONNX Runtime owns the graph, its memory and
//! the order of its nodes; the crate `foretype-kernels` computes the operators.
//!
//! The inputs and outputs of each operator are in `engine-build`'s `fuse` module, which writes them. `context` is the
//! fenced part that reads and writes tensors, `huge_pages` that which copies weights; every other file is one operator
//! or two.

mod attention;
mod context;
mod embedding;
mod head;
mod huge_pages;
mod linear;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kernels::Kernels;
use kernels::observe::Seen;
use ort::operator::{ComputeContext, Kernel, KernelContext, Operator, OperatorDomain, OperatorInput, OperatorOutput};
use ort::value::TensorElementType;

use self::context::{Call, Info};
use self::huge_pages::HugePages;

/// State shared by the operators of one session. Nodes run one after the other, so the lock is never contended.
type Team = Arc<Mutex<Kernels>>;

/// What the linear maps and the head have read so far, by the name of their nodes.
pub type Observed = Arc<Mutex<BTreeMap<String, Seen>>>;

/// All operators, computed by `kernels`. Linear maps and the head note in `observed` what they read, and copy their
/// weights into huge pages if that is wished.
///
/// # Errors
/// ONNX Runtime's own.
pub fn domain(kernels: Kernels, observed: Option<&Observed>, huge_pages: bool) -> Result<OperatorDomain, ort::Error> {
    let team = Arc::new(Mutex::new(kernels));
    let pages = huge_pages.then(|| Arc::new(HugePages::default()));
    let mut domain = OperatorDomain::new("foretype")?;
    for form in [Form::F32, Form::Int8] {
        let (team, pages) = (|| Arc::clone(&team), || pages.clone());
        domain = domain.add(Registered(linear::LinearOperator(form, observed.cloned(), pages()), team()))?;
        domain = domain.add(Registered(embedding::EmbeddingOperator(form), team()))?;
        domain = domain.add(Registered(head::HeadOperator(form, observed.cloned(), pages()), team()))?;
    }
    domain.add(Registered(attention::AttentionOperator, team))
}

/// Where a node notes what it reads.
struct Observer {
    observed: Observed,
    node: String,
}

impl Observer {
    fn of(observed: Option<&Observed>, info: &Info) -> Result<Option<Self>, ort::Error> {
        let noted = |observed: &Observed| Ok(Self { observed: Arc::clone(observed), node: info.node_name()? });
        observed.map(noted).transpose()
    }

    fn note(&self, add: impl FnOnce(&mut Seen)) {
        let mut observed = self.observed.lock().unwrap_or_else(PoisonError::into_inner);
        add(observed.entry(self.node.clone()).or_default());
    }
}

/// An operator, in this module's terms.
trait Definition: Send + Sync {
    type Prepared: Compute;

    fn name(&self) -> &'static str;
    /// Required and optional inputs, in order.
    fn inputs(&self) -> Vec<OperatorInput>;
    fn outputs(&self) -> Vec<OperatorOutput>;
    /// Reads a node's attributes and constant inputs.
    fn prepare(&self, info: &Info) -> Result<Self::Prepared, ort::Error>;
}

/// A node that is ready to run.
trait Compute: Send + 'static {
    fn compute(&mut self, kernels: &mut Kernels, call: &Call) -> Result<(), ort::Error>;
}

struct Registered<D>(D, Team);

impl<D: Definition> Operator for Registered<D> {
    type Kernel<'attr> = Node<D::Prepared>;

    fn name(&self) -> &str {
        self.0.name()
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        self.0.inputs()
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        self.0.outputs()
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> ort::Result<Node<D::Prepared>> {
        let prepared = unwinding("its attributes", || self.0.prepare(&Info::new(context))).map_err(|error| {
            let node = context.node_name().unwrap_or_default();
            ort::Error::new(format!("{} `{node}`: {error}", self.0.name()))
        })?;
        Ok(Node { name: self.0.name(), prepared, team: Arc::clone(&self.1) })
    }
}

struct Node<C> {
    name: &'static str,
    prepared: C,
    team: Team,
}

impl<C: Compute> Kernel for Node<C> {
    fn compute(&mut self, context: &ComputeContext) -> ort::Result<()> {
        let mut kernels: MutexGuard<'_, Kernels> = self.team.lock().unwrap_or_else(PoisonError::into_inner);
        let call = Call::new(context);
        unwinding("its inputs", || self.prepared.compute(&mut kernels, &call))
            .map_err(|error| ort::Error::new(format!("{}: {error}", self.name)))
    }
}

/// Does work for C++, which no panic may reach: the kernels assert that lengths fit shapes.
///
/// ONNX Runtime calls this program in three ways: to make a node, to run it and to drop it. Dropping a node drops plain
/// data and shares of memory.
fn unwinding<T>(what: &str, work: impl FnOnce() -> Result<T, ort::Error>) -> Result<T, ort::Error> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(ort::Error::new(format!("{what} don't fit together"))))
}

const F32: TensorElementType = TensorElementType::Float32;
const I64: TensorElementType = TensorElementType::Int64;
const U8: TensorElementType = TensorElementType::Uint8;

/// How an operator's matrix is stored.
#[derive(Clone, Copy, Debug)]
enum Form {
    F32,
    Int8,
}

impl Form {
    /// Of an operator's two names the one for this form.
    fn name(self, [f32, int8]: [&'static str; 2]) -> &'static str {
        match self {
            Form::F32 => f32,
            Form::Int8 => int8,
        }
    }

    /// The inputs of a packed matrix: its elements, and the scales of int8.
    fn inputs(self) -> Vec<OperatorInput> {
        self.types().iter().map(|element| required(*element)).collect()
    }

    /// The same where a node may have none.
    fn optional_inputs(self) -> Vec<OperatorInput> {
        self.types().iter().map(|element| optional(*element)).collect()
    }

    fn types(self) -> &'static [TensorElementType] {
        match self {
            Form::F32 => &[F32],
            Form::Int8 => &[U8, F32],
        }
    }
}

fn required(element: TensorElementType) -> OperatorInput {
    OperatorInput::required(element)
}

fn optional(element: TensorElementType) -> OperatorInput {
    OperatorInput::optional(element)
}
