//! The operators of the domain `foretype`, which bundles for the CPU use. ONNX Runtime owns the graph, its memory and
//! the order of its nodes; the crate `foretype-kernels` computes the operators.
//!
//! The inputs and outputs of each operator are in `engine-build`'s `fuse` module, which writes them. `context` is the
//! fenced part that reads and writes tensors, `huge_pages` that which copies weights; every other file is one operator
//! or two. A graph has them as the links of a `chain`.

mod attention;
mod chain;
mod constants;
mod context;
mod embedding;
mod head;
mod huge_pages;
mod linear;
mod links;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use kernels::Kernels;
use kernels::observe::Seen;
use ort::operator::OperatorDomain;

use self::chain::ChainOperator;
use self::context::{Call, Info};
use self::huge_pages::HugePages;

/// What the linear maps and the head have read so far, by the name of their nodes.
pub type Observed = Arc<Mutex<BTreeMap<String, Seen>>>;

/// All operators, computed by `kernels`. Linear maps and the head note in `observed` what they read, and copy their
/// weights into huge pages if that is wished.
///
/// # Errors
/// ONNX Runtime's own.
pub fn domain(kernels: Kernels, observed: Option<&Observed>, huge_pages: bool) -> Result<OperatorDomain, ort::Error> {
    let shared = Shared { observed: observed.cloned(), pages: huge_pages.then(HugePages::default) };
    OperatorDomain::new("foretype")?.add(ChainOperator { shared, team: Arc::new(Mutex::new(kernels)) })
}

/// What the operators of a session share while they are made.
struct Shared {
    observed: Option<Observed>,
    pages: Option<HugePages>,
}

/// An operator that is ready to run.
trait Compute: Send {
    fn compute(&mut self, kernels: &mut Kernels, call: &Call) -> Result<(), ort::Error>;
}

/// Reads the attributes and constant inputs of an operator.
fn prepare(operator: &str, info: &Info, shared: &Shared) -> Result<Box<dyn Compute>, ort::Error> {
    let form = if operator.ends_with("Int8") { Form::Int8 } else { Form::F32 };
    Ok(match operator.trim_end_matches("Int8") {
        "Attention" => Box::new(attention::Prepared::read(info)?),
        "Embedding" => Box::new(embedding::Prepared::read(info, form)?),
        "Head" => Box::new(head::Prepared::read(info, form, shared)?),
        "Linear" => Box::new(linear::Prepared::read(info, form, shared)?),
        _ => return Err(ort::Error::new("there is no such operator")),
    })
}

/// Where an operator notes what it reads.
struct Observer {
    observed: Observed,
    node: String,
}

impl Observer {
    fn of(shared: &Shared, info: &Info) -> Result<Option<Self>, ort::Error> {
        let noted = |observed: &Observed| Ok(Self { observed: Arc::clone(observed), node: info.node_name()? });
        shared.observed.as_ref().map(noted).transpose()
    }

    fn note(&self, add: impl FnOnce(&mut Seen)) {
        let mut observed = self.observed.lock().unwrap_or_else(PoisonError::into_inner);
        add(observed.entry(self.node.clone()).or_default());
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

/// How an operator's matrix is stored.
#[derive(Clone, Copy, Debug)]
enum Form {
    F32,
    Int8,
}

impl Form {
    /// The inputs of a packed matrix: its elements, and the scales of int8.
    fn inputs(self) -> usize {
        match self {
            Form::F32 => 1,
            Form::Int8 => 2,
        }
    }
}
