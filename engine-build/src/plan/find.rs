//! Finds the plan that fits a machine.

use std::path::{Path, PathBuf};

use tensorrt::{Flavour, Gpu, Version};

use super::error::{Misfit, PlanError};
use super::part::Part;
use super::record::{PlanRecord, records};
use bundle::manifest::Manifest;

/// The requirements of a machine and a server on a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanNeeds<'a> {
    /// The library that will run it.
    pub flavour: Flavour,
    /// Version of the library.
    pub version: Version,
    /// The GPU that will run it.
    pub gpu: &'a Gpu,
    /// The graph to run.
    pub part: Part,
    /// Rows in one step, if the server insists on a number; otherwise as many as the plan takes.
    pub lanes: Option<u32>,
    /// Tokens of one row in one step, if the server needs a number; otherwise as many as the plan takes.
    pub chunk: Option<u32>,
}

/// A plan that fits by its record; its bytes are not read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPlan {
    /// The record's file.
    pub path: PathBuf,
    /// The plan's record.
    pub record: PlanRecord,
}

/// Finds a plan of the bundle with this manifest in a folder of plans. Of several that fit, the one with the smallest
/// maximum shapes is taken, because it is the fastest.
///
/// # Errors
/// Why the plan that comes closest doesn't fit; no plan at all.
pub fn find_plan(engines: &Path, manifest: &Manifest, needs: &PlanNeeds) -> Result<FoundPlan, PlanError> {
    let mut closest: Option<(usize, PlanError)> = None;
    let mut fitting: Option<FoundPlan> = None;
    for found in records(engines)? {
        let (rank, error) = match found {
            Err(error) => (0, error),
            Ok((_, record)) if record.part != needs.part => continue,
            Ok((path, record)) => match fit(&record, manifest, needs) {
                Ok(()) => {
                    let size = |plan: &FoundPlan| (plan.record.shapes.lanes(), plan.record.shapes.chunk());
                    let plan = FoundPlan { path, record };
                    if fitting.as_ref().is_none_or(|best| size(&plan) < size(best)) {
                        fitting = Some(plan);
                    }
                    continue;
                }
                Err((rank, misfit)) => {
                    (rank, PlanError::Misfit { path: path.with_file_name(&record.plan.path), misfit })
                }
            },
        };
        if closest.as_ref().is_none_or(|(best, _)| rank > *best) {
            closest = Some((rank, error));
        }
    }
    match (fitting, closest) {
        (Some(plan), _) => Ok(plan),
        (None, Some((_, error))) => Err(error),
        (None, None) => Err(PlanError::None {
            plan: needs.part.plan(),
            engines: engines.to_owned(),
            builder: format!("{} {}", needs.flavour, needs.version),
            gpu: needs.gpu.sm.to_string(),
        }),
    }
}

/// The plan's bytes, compared with its record.
///
/// # Errors
/// A plan that is damaged, cut off or gone.
pub fn read_plan(found: &FoundPlan) -> Result<Vec<u8>, PlanError> {
    found.record.read_plan(&found.path)
}

/// The first thing that doesn't fit, and how many did before it.
fn fit(record: &PlanRecord, manifest: &Manifest, needs: &PlanNeeds) -> Result<(), (usize, Misfit)> {
    record.check_builder(needs.flavour, needs.version).map_err(|misfit| (1, misfit))?;
    record.check_gpu(needs.gpu).map_err(|misfit| (2, misfit))?;
    record.check_graph(manifest).map_err(|misfit| (3, misfit))?;
    record.check_source(manifest.model.source).map_err(|misfit| (4, misfit))?;
    record.check_shapes(needs.lanes, needs.chunk).map_err(|misfit| (5, misfit))
}
