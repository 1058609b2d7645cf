//! TensorRT plans of a bundle: engines for particular GPUs, beside the graph that they are built from.
//!
//! A plan is `engines/FLAVOUR-VERSION-smA+B.plan`, with a record (`.json`) beside it; the file of an encoder's plan
//! ends with `-encoder.plan`. The manifest does not list plans. A plan fits only the TensorRT version and the GPUs that
//! it was built for, and is built again from the graph elsewhere.
//!
//! - [`Part`]: which graph a plan is of.
//! - [`PlanShapes`]: the batches and lengths that a plan accepts: a prefill profile and a decode profile.
//! - [`build_plan`]: graph to plan. [`PlanRecord`]: the description of a plan.
//! - [`Target`]: the GPUs of instance types.
//! - [`find_plan`] and [`read_plan`]: the plan that fits a machine, or one sentence for each that doesn't.

mod build;
mod error;
mod find;
mod instances;
mod part;
mod record;
mod sealed;
mod shapes;

pub use build::{PlanOptions, build_plan};
pub use error::{Misfit, PlanError};
pub use find::{FoundPlan, PlanNeeds, find_plan, read_plan};
pub use instances::Target;
pub use part::Part;
pub use record::{ENGINES, PlanGpu, PlanRecord, records};
pub use sealed::{read_sealed, write_sealed};
pub use shapes::{DECODE_PROFILE, PREFILL_PROFILE, PlanShapes, ProfileShapes, Range};
