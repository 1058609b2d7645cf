//! A plan's record: a small JSON file beside it. It is written last, so a plan with a record is complete.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tensorrt::{Flavour, Gpu, Library, Sm, Version};

use super::error::{Misfit, PlanError};
use super::part::Part;
use super::shapes::PlanShapes;
use bundle::manifest::{FileEntry, Manifest, hexadecimal};

/// The folder of plans in a bundle.
pub const ENGINES: &str = "engines";

/// The format that this version reads and writes.
const FORMAT: u32 = 1;

/// The description of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanRecord {
    format: u32,
    /// The graph that the plan was built from.
    #[serde(default, skip_serializing_if = "Part::is_decoder")]
    pub part: Part,
    /// `tensorrt` or `tensorrt-rtx`: the product that built the plan.
    pub flavour: String,
    /// The builder's version; no other can run the plan.
    pub version: String,
    /// GPU architectures that the plan is for, such as 86, in ascending order.
    pub architectures: Vec<u32>,
    /// The GPU on which TensorRT timed the kernels. Absent from plans of TensorRT-RTX, which compiles them where they
    /// run, and from those of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<PlanGpu>,
    /// The shapes that the plan takes. For an encoder's plan only the length of the sources matters.
    pub shapes: PlanShapes,
    /// The plan, beside the record.
    pub plan: FileEntry,
    /// The graph and the weights that it was built from, as in the manifest then.
    pub graph: Vec<FileEntry>,
    /// The program that wrote the record, with its version.
    pub tool: String,
}

/// The GPU that a plan was built on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanGpu {
    /// The GPU's name, as the driver reports it.
    pub name: String,
    /// Number of its streaming multiprocessors.
    pub multiprocessors: u32,
    /// The CUDA version that the driver supported, such as `13.0`.
    pub cuda: String,
}

impl From<&Gpu> for PlanGpu {
    fn from(gpu: &Gpu) -> Self {
        let (major, minor) = gpu.cuda;
        Self { name: gpu.name.clone(), multiprocessors: gpu.multiprocessors, cuda: format!("{major}.{minor}") }
    }
}

/// A plan that was just built, and what it was built from.
pub(super) struct BuiltPlan<'a> {
    pub(super) library: &'a Library,
    pub(super) part: Part,
    pub(super) architectures: &'a [Sm],
    pub(super) gpu: Option<&'a Gpu>,
    pub(super) shapes: PlanShapes,
    pub(super) manifest: &'a Manifest,
    pub(super) bytes: &'a [u8],
}

impl PlanRecord {
    pub(super) fn new(built: BuiltPlan) -> Self {
        let BuiltPlan { library, part, architectures, gpu, shapes, manifest, bytes } = built;
        let mut architectures: Vec<u32> = architectures.iter().map(|sm| sm.0).collect();
        architectures.sort_unstable();
        architectures.dedup();
        let (flavour, version) = (library.flavour().name().to_owned(), library.version().to_string());
        let gpus = architectures.iter().map(u32::to_string).collect::<Vec<_>>().join("+");
        let path = format!("{flavour}-{version}-sm{gpus}{}.plan", part.suffix());
        let sha256 = hexadecimal(&Sha256::digest(bytes));
        Self {
            format: FORMAT,
            part,
            flavour,
            version,
            architectures,
            gpu: gpu.map(PlanGpu::from),
            shapes,
            plan: FileEntry { path, bytes: bytes.len() as u64, sha256 },
            graph: part.files(manifest),
            tool: concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }

    /// The record's file beside a plan.
    pub(super) fn path_beside(plan: &Path) -> PathBuf {
        plan.with_extension("json")
    }

    fn read(path: &Path) -> Result<Self, PlanError> {
        let broken = |reason: String| PlanError::Record { path: path.to_owned(), reason };
        let bytes = fs::read(path).map_err(|source| PlanError::Io { path: path.to_owned(), source })?;
        let record: Self = serde_json::from_slice(&bytes).map_err(|error| broken(error.to_string()))?;
        if record.format != FORMAT {
            return Err(broken(format!("it has format {}, and this version reads {FORMAT}", record.format)));
        }
        // It is about the file beside it and no other.
        let beside = path.with_extension("plan").file_name().map(|name| name.to_string_lossy().into_owned());
        if beside.as_deref() != Some(&record.plan.path) || !record.shapes.is_ordered() {
            return Err(broken("its content contradicts itself".into()));
        }
        Ok(record)
    }

    /// Whether it was built by this library.
    pub(super) fn check_builder(&self, flavour: Flavour, version: Version) -> Result<(), Misfit> {
        let named =
            |name: &str| name.parse::<Flavour>().map_or_else(|_| name.to_owned(), |flavour| flavour.to_string());
        if self.flavour == flavour.name() && self.version == version.to_string() {
            return Ok(());
        }
        Err(Misfit::Builder {
            built_by: format!("{} {}", named(&self.flavour), self.version),
            here: format!("{flavour} {version}"),
        })
    }

    /// Whether it was built for this GPU: of the same architecture, and if its kernels were timed, of the same kind.
    pub(super) fn check_gpu(&self, here: &Gpu) -> Result<(), Misfit> {
        if self.architectures.contains(&here.sm.0) {
            let same = |gpu: &&PlanGpu| (&gpu.name, gpu.multiprocessors) == (&here.name, here.multiprocessors);
            let Some(other) = self.gpu.as_ref().filter(|gpu| !same(gpu)) else { return Ok(()) };
            let built_for =
                format!("the {} with {} multiprocessors and CUDA {}", other.name, other.multiprocessors, other.cuda);
            return Err(Misfit::Gpu { built_for, here: here.to_string() });
        }
        let built_for = self.architectures.iter().map(|number| Sm(*number).to_string()).collect::<Vec<_>>().join(", ");
        Err(Misfit::Gpu { built_for, here: here.sm.to_string() })
    }

    /// Whether it takes sources as long as the model does.
    pub(super) fn check_source(&self, model: Option<u32>) -> Result<(), Misfit> {
        match (self.shapes.source.map(|source| source.max), model) {
            (has, Some(model)) if has != Some(model) => Err(Misfit::Source { has: has.unwrap_or(0), model }),
            _ => Ok(()),
        }
    }

    /// Whether it takes so much.
    pub(super) fn check_shapes(&self, lanes: Option<u32>, chunk: Option<u32>) -> Result<(), Misfit> {
        // An encoder reads one source at a time, whatever the lanes.
        if self.part == Part::Encoder {
            return Ok(());
        }
        let (has_lanes, has_chunk) = (self.shapes.lanes(), self.shapes.chunk());
        let (lanes, chunk) = (lanes.unwrap_or(has_lanes), chunk.unwrap_or(has_chunk));
        if lanes <= has_lanes && chunk <= has_chunk {
            return Ok(());
        }
        Err(Misfit::Shapes { has_lanes, has_chunk, lanes, chunk })
    }

    /// Whether it was built from the bundle's graph and weights.
    pub(super) fn check_graph(&self, manifest: &Manifest) -> Result<(), Misfit> {
        let now = self.part.files(manifest);
        let changed = now
            .iter()
            .find(|file| !self.graph.contains(file))
            .or_else(|| self.graph.iter().find(|file| !now.contains(file)));
        let Some(changed) = changed else { return Ok(()) };
        let sum = |files: &[FileEntry]| {
            files.iter().find(|file| file.path == changed.path).map_or("none".into(), |file| file.sha256.clone())
        };
        Err(Misfit::Graph { file: changed.path.clone(), built_from: sum(&self.graph), here: sum(&now) })
    }

    /// Reads the plan and compares it with the record; `record` is the record's own path.
    pub(super) fn read_plan(&self, record: &Path) -> Result<Vec<u8>, PlanError> {
        let path = record.with_file_name(&self.plan.path);
        let io = |source| PlanError::Io { path: path.clone(), source };
        let mut file = File::open(&path).map_err(io)?;
        let found = file.metadata().map_err(io)?.len();
        let misfit = |misfit| PlanError::Misfit { path: path.clone(), misfit };
        // The size first: nothing is reserved for a plan of another.
        if found != self.plan.bytes {
            return Err(misfit(Misfit::Size { found, expected: self.plan.bytes }));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(found).unwrap_or(0));
        file.read_to_end(&mut bytes).map_err(io)?;
        let sha256 = hexadecimal(&Sha256::digest(&bytes));
        if sha256 != self.plan.sha256 {
            return Err(misfit(Misfit::Checksum { found: sha256, expected: self.plan.sha256.clone() }));
        }
        Ok(bytes)
    }
}

/// The records in a folder of plans, by path; none where there is no folder.
///
/// # Errors
/// A folder that can't be read. Records that can't are in the list, as errors.
#[expect(clippy::type_complexity, reason = "each record with its path, or why there is none")]
pub fn records(engines: &Path) -> Result<Vec<Result<(PathBuf, PlanRecord), PlanError>>, PlanError> {
    if !engines.is_dir() {
        return Ok(Vec::new());
    }
    let io = |source| PlanError::Io { path: engines.to_owned(), source };
    let entries = fs::read_dir(engines).map_err(io)?.collect::<Result<Vec<_>, _>>().map_err(io)?;
    let mut paths: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "plan"));
    paths.sort();
    Ok(paths
        .iter()
        .map(|plan| PlanRecord::path_beside(plan))
        .map(|path| PlanRecord::read(&path).map(|record| (path, record)))
        .collect())
}
