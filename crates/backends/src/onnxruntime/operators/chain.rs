//! `Chain`: operators that follow each other, as one node. The attributes are described in `engine-build`'s
//! `fuse::chain`, which writes them.

use std::sync::{Arc, Mutex, PoisonError};

use kernels::Kernels;
use ort::operator::{ComputeContext, Kernel, KernelContext, Operator, OperatorInput, OperatorOutput};

use super::context::{Call, Info, Values};
use super::links::Link;
use super::{Compute, Shared, prepare, unwinding};

/// The operator, for all chains of a session.
pub(super) struct ChainOperator {
    pub(super) shared: Shared,
    /// Nodes run one after the other, so the lock is never contended.
    pub(super) team: Arc<Mutex<Kernels>>,
}

impl Operator for ChainOperator {
    type Kernel<'attr> = Chain;

    fn name(&self) -> &str {
        "Chain"
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        [OperatorInput::variadic(1)]
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        [OperatorOutput::variadic(1)]
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> ort::Result<Chain> {
        let mut links = Vec::new();
        while let Some(info) = Info::new(context, links.len())? {
            let operator = info.text("operator")?;
            let title = format!("{operator} `{}`", info.node_name()?);
            let prepared = unwinding("its attributes", || prepare(&operator, &info, &self.shared))
                .map_err(|error| ort::Error::new(format!("{title}: {error}")))?;
            links.push((info.link, title, prepared));
        }
        let values = Values::new(context, links.iter().map(|(link, ..)| link))?;
        Ok(Chain { links, values, team: Arc::clone(&self.team) })
    }
}

/// The links of a node, ready to run: the values of each, its operator and name, and the operator itself.
pub(super) struct Chain {
    links: Vec<(Link, String, Box<dyn Compute>)>,
    values: Values,
    team: Arc<Mutex<Kernels>>,
}

impl Kernel for Chain {
    fn compute(&mut self, context: &ComputeContext) -> ort::Result<()> {
        let mut kernels = self.team.lock().unwrap_or_else(PoisonError::into_inner);
        self.values.clear();
        for (link, title, prepared) in &mut self.links {
            let call = Call::new(context, link, &self.values);
            unwinding("its inputs", || prepared.compute(&mut kernels, &call))
                .map_err(|error| ort::Error::new(format!("{title}: {error}")))?;
        }
        Ok(())
    }
}
