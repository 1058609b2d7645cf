//! The GPUs of Amazon's instance types, so that plans can be built before an instance is there.

use std::fmt;

use tensorrt::Sm;

use super::error::PlanError;

/// A family of instance types, and its GPU.
struct Family {
    name: &'static str,
    gpu: &'static str,
    sm: Sm,
}

const fn family(name: &'static str, gpu: &'static str, sm: u32) -> Family {
    Family { name, gpu, sm: Sm(sm) }
}

/// The families with an NVIDIA GPU, by the name behind `ml.`.
const FAMILIES: [Family; 15] = [
    family("g4dn", "T4", 75),
    family("p4d", "A100", 80),
    family("p4de", "A100", 80),
    family("g5", "A10G", 86),
    family("g6", "L4", 89),
    family("gr6", "L4", 89),
    family("g6e", "L40S", 89),
    family("p5", "H100", 90),
    family("p5e", "H200", 90),
    family("p5en", "H200", 90),
    family("p6-b200", "B200", 100),
    family("p6-b300", "B300", 103),
    family("g7e", "RTX PRO 6000", 120),
    family("p3", "V100", 70),
    family("p3dn", "V100", 70),
];

/// The oldest architecture that TensorRT 11 and TensorRT-RTX build for.
const OLDEST: Sm = Sm(75);

/// What a plan is for: an instance type's GPU, or an architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The name that was given, such as `ml.g5.xlarge` or `86`.
    pub name: String,
    /// The GPU's name, of an instance type.
    pub gpu: Option<&'static str>,
    /// The GPU's architecture.
    pub sm: Sm,
}

impl Target {
    /// Reads an instance type of Amazon SageMaker or EC2, or an architecture such as `86`.
    ///
    /// # Errors
    /// [`PlanError::Target`] for a name that is neither, with all that there are; [`PlanError::OldGpu`].
    pub fn read(name: &str) -> Result<Self, PlanError> {
        let unknown = || PlanError::Target { name: name.to_owned(), known: known() };
        let (gpu, sm) = match name.parse::<Sm>() {
            Ok(sm) => (None, sm),
            Err(_) => {
                let family = find(name).ok_or_else(unknown)?;
                (Some(family.gpu), family.sm)
            }
        };
        if sm < OLDEST {
            return Err(PlanError::OldGpu { name: name.to_owned(), gpu: gpu.unwrap_or("GPU"), sm: sm.to_string() });
        }
        Ok(Self { name: name.to_owned(), gpu, sm })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gpu {
            Some(gpu) => write!(f, "{} ({gpu}, {})", self.name, self.sm),
            None => self.sm.fmt(f),
        }
    }
}

/// The family of `ml.FAMILY.SIZE` or `FAMILY.SIZE`, where a size is `xlarge`, `12xlarge` or the like.
fn find(name: &str) -> Option<&'static Family> {
    let (family, size) = name.strip_prefix("ml.").unwrap_or(name).split_once('.')?;
    let times = size.strip_suffix("xlarge")?;
    FAMILIES.iter().find(|known| known.name == family).filter(|_| times.bytes().all(|byte| byte.is_ascii_digit()))
}

/// All families that plans are built for, for messages.
fn known() -> String {
    let new = FAMILIES.iter().filter(|family| family.sm >= OLDEST);
    let said: Vec<String> = new.map(|family| format!("ml.{}.* ({})", family.name, family.gpu)).collect();
    said.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_type_is_its_gpu() {
        let read = |name: &str| Target::read(name).map(|target| target.sm.0).map_err(|error| error.to_string());
        for (name, sm) in [
            ("ml.g4dn.xlarge", 75),
            ("ml.p4d.24xlarge", 80),
            ("ml.g5.xlarge", 86),
            ("g5.48xlarge", 86),
            ("ml.g6.xlarge", 89),
            ("ml.g6e.12xlarge", 89),
            ("ml.p5.48xlarge", 90),
            ("ml.p5en.48xlarge", 90),
            ("ml.p6-b200.48xlarge", 100),
            ("ml.g7e.2xlarge", 120),
            ("86", 86),
            ("sm120", 120),
        ] {
            assert_eq!(read(name), Ok(sm), "{name}");
        }
        assert_eq!(Target::read("ml.g5.xlarge").expect("known").to_string(), "ml.g5.xlarge (A10G, SM86)");
        for wrong in ["", "ml.g5", "ml.g5.", "ml.g5.large", "ml.g5.xxlarge", "ml.c7i.xlarge", "ml.xlarge", "g55.xlarge"]
        {
            let error = read(wrong).expect_err(wrong);
            assert!(error.contains(&format!("`{wrong}` is no")) && error.contains("ml.g5.* (A10G)"), "{error}");
            assert!(!error.contains("V100"), "{error}");
        }
        for old in ["ml.p3.2xlarge", "70"] {
            let error = read(old).expect_err(old);
            assert!(error.contains("SM70") && error.contains("SM75"), "{error}");
        }
    }
}
