//! The plan for this machine: the bundle's own, one that was built here before, or one that is built now.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bundle::manifest::{GRAPH_FILE, Manifest};
use engine_build::Progress;
use engine_build::plan::{
    ENGINES, FoundPlan, Part, PlanError, PlanNeeds, PlanOptions, PlanShapes, build_plan, find_plan, read_plan,
};
use tensorrt::{Engine, Library, Runtime, Sm, Validity};

use super::{LoadError, Options};
use crate::cuda::Device;

/// Replicas load side by side; one of them builds, and the others find what it built.
static BUILDING: Mutex<()> = Mutex::new(());

/// A bundle's plans, on a device.
pub(super) struct Plans<'a> {
    pub(super) bundle: &'a Path,
    pub(super) manifest: &'a Manifest,
    pub(super) library: &'a Library,
    pub(super) device: &'a Device,
    pub(super) options: &'a Options,
}

impl Plans<'_> {
    /// An engine of one of the bundle's graphs on the device, which is the current one, and the shapes that it takes.
    ///
    /// # Errors
    /// There is no plan that fits, and none can be built; or TensorRT refuses the one that fits.
    pub(super) fn engine(&self, part: Part) -> Result<(Engine, PlanShapes), LoadError> {
        let found = self.find_or_build(part)?;
        let bytes = read_plan(&found)?;
        let runtime = Runtime::new(self.library)?;
        if let Ok(Validity::Invalid(why)) = runtime.validity(&bytes) {
            let reason = format!("{} can't be used: {why}", found.path.display());
            return Err(tensorrt::Error::Argument(reason).into());
        }
        // SAFETY: the plan is, by its checksum, what TensorRT wrote.
        let engine = unsafe { runtime.deserialize(&bytes) }?;
        Ok((engine, found.record.shapes))
    }

    fn find_or_build(&self, part: Part) -> Result<FoundPlan, LoadError> {
        let &Self { bundle, manifest, library, device, options } = self;
        let architecture = Sm(device.capability());
        let (flavour, version) = (library.flavour(), library.version());
        let needs = PlanNeeds { flavour, version, architecture, part, lanes: None, chunk: None };
        let _one_at_a_time = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
        let misfit = match find_plan(&bundle.join(ENGINES), manifest, &needs) {
            Ok(found) => match read_plan(&found) {
                Ok(_) => return Ok(found),
                Err(damaged) => damaged,
            },
            Err(misfit) => misfit,
        };
        let engines = kept(options, manifest);
        // What was built here was built for these options, or for others.
        let shapes = wanted(options, manifest);
        let exact = PlanNeeds { lanes: Some(shapes.lanes()), chunk: Some(shapes.chunk()), ..needs };
        if let Ok(found) = find_plan(&engines, manifest, &exact)
            && read_plan(&found).is_ok()
        {
            return Ok(found);
        }
        tracing::warn!(reason = %misfit, "there is no plan for this machine: building one, which takes a while");
        let architectures = vec![architecture];
        let build = PlanOptions { architectures, part, shapes, engines: Some(engines), ..PlanOptions::default() };
        let (path, record) =
            build_plan(bundle, library, &build, Arc::new(Announced)).map_err(|error| Unbuilt { misfit, error })?;
        Ok(FoundPlan { path, record })
    }
}

/// The shapes of a plan that is built for these options.
pub(super) fn wanted(options: &Options, manifest: &Manifest) -> PlanShapes {
    let size = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    PlanShapes::for_server(size(options.lanes), size(options.chunk))
        .within(manifest.model.context)
        .reading(manifest.model.source)
}

/// The folder of the plans of this graph that this machine has built.
fn kept(options: &Options, manifest: &Manifest) -> PathBuf {
    let graph = manifest.file(GRAPH_FILE).map_or("", |file| file.sha256.as_str());
    options.engines.join(format!("{}-{}", manifest.name, &graph[..graph.len().min(16)]))
}

/// A plan that was needed and couldn't be built.
#[derive(Debug, thiserror::Error)]
#[error("{misfit}; building one here failed: {error}")]
struct Unbuilt {
    misfit: PlanError,
    error: PlanError,
}

impl From<Unbuilt> for LoadError {
    fn from(unbuilt: Unbuilt) -> Self {
        Self::Unbuilt(unbuilt.to_string())
    }
}

/// Logs the progress of a build.
struct Announced;

impl Progress for Announced {
    fn stage(&self, name: &str, _total_bytes: u64) {
        tracing::info!(stage = name, "building the plan");
    }

    fn advance(&self, _bytes: u64) {}
}
