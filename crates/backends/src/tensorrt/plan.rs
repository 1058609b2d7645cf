//! The plan for this machine: the bundle's own, one that was built here before, or one that is built now.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bundle::manifest::{GRAPH_FILE, Manifest};
use engine_build::Progress;
use engine_build::plan::{
    ENGINES, FoundPlan, Part, PlanNeeds, PlanOptions, PlanShapes, build_plan, find_plan, read_plan,
};
use tensorrt::{Engine, Library, Runtime, Validity};

use super::{LoadError, Options};
use crate::cuda::Device;

/// A bundle's plans, on a device.
pub(super) struct Plans<'a> {
    pub(super) bundle: &'a Path,
    pub(super) manifest: &'a Manifest,
    pub(super) library: &'a Library,
    pub(super) device: &'a Device,
    pub(super) options: &'a Options,
}

impl Plans<'_> {
    /// An engine of one of the bundle's graphs on the device, which is the current one, and the shapes that it takes. A
    /// plan that doesn't load is built again, in the folder of this machine.
    ///
    /// # Errors
    /// There is no plan that fits and loads, and none can be built.
    pub(super) fn engine(&self, part: Part) -> Result<(Engine, PlanShapes), LoadError> {
        let &Self { bundle, manifest, library, device, options } = self;
        let (gpu, runtime) = (device.describe()?, Runtime::new(library)?);
        let (flavour, version) = (library.flavour(), library.version());
        let needs = PlanNeeds { flavour, version, gpu: &gpu, part, lanes: None, chunk: None };
        let misfit = match Self::find(&runtime, &bundle.join(ENGINES), manifest, &needs) {
            Ok(engine) => return Ok(engine),
            Err(misfit) => misfit,
        };
        let engines = kept(options, manifest);
        // What was built here was built for these options, or for others.
        let shapes = wanted(options, manifest);
        let exact = PlanNeeds { lanes: Some(shapes.lanes()), chunk: Some(shapes.chunk()), ..needs };
        if let Ok(engine) = Self::find(&runtime, &engines, manifest, &exact) {
            return Ok(engine);
        }
        tracing::warn!(reason = %misfit, "there is no plan for this machine: building one, which takes a while");
        let (architectures, engines) = (vec![gpu.sm], Some(engines));
        let build = PlanOptions { architectures, gpu: Some(gpu), part, shapes, engines, ..PlanOptions::default() };
        let (path, record) = build_plan(bundle, library, &build, Arc::new(Announced))
            .map_err(|error| LoadError::Unbuilt(format!("{misfit}; building one here failed: {error}")))?;
        Self::load(&runtime, FoundPlan { path, record })
    }

    /// The engine of a plan in a folder, if one fits and loads.
    fn find(
        runtime: &Runtime,
        engines: &Path,
        manifest: &Manifest,
        needs: &PlanNeeds<'_>,
    ) -> Result<(Engine, PlanShapes), LoadError> {
        Self::load(runtime, find_plan(engines, manifest, needs)?)
    }

    /// Reads a plan, which is the only time that it is read, and makes its engine.
    fn load(runtime: &Runtime, found: FoundPlan) -> Result<(Engine, PlanShapes), LoadError> {
        let bytes = read_plan(&found)?;
        if let Ok(Validity::Invalid(why)) = runtime.validity(&bytes) {
            let reason = format!("{} can't be used: {why}", found.path.display());
            return Err(tensorrt::Error::Argument(reason).into());
        }
        // SAFETY: the plan is, by its checksum, what TensorRT wrote.
        let engine = unsafe { runtime.deserialize(&bytes) }?;
        Ok((engine, found.record.shapes))
    }
}

/// The shapes of a plan that is built for these options.
pub(super) fn wanted(options: &Options, manifest: &Manifest) -> PlanShapes {
    let size = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    PlanShapes::for_server(size(options.lanes), size(options.chunk))
        .within(manifest.model.context)
        .reading(manifest.model.source)
}

/// The folder of the plans of this graph that this machine has built, and of the kernels that it has compiled.
pub(super) fn kept(options: &Options, manifest: &Manifest) -> PathBuf {
    let graph = manifest.file(GRAPH_FILE).map_or("", |file| file.sha256.as_str());
    options.engines.join(format!("{}-{}", manifest.name, &graph[..graph.len().min(16)]))
}

/// Logs the progress of a build.
struct Announced;

impl Progress for Announced {
    fn stage(&self, name: &str, _total_bytes: u64) {
        tracing::info!(stage = name, "building the plan");
    }

    fn advance(&self, _bytes: u64) {}
}
