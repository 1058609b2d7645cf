//! Values that cross the shim: flavours, versions, architectures, shapes, names, element types.

use std::ffi::{CStr, CString};
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use crate::error::Error;
use crate::sys::TrtDims;

/// Which of NVIDIA's two products: they share their C++ interface, but neither files nor vtables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavour {
    /// TensorRT, for data-centre GPUs: kernels are chosen by timing them when the engine is built.
    Enterprise,
    /// TensorRT-RTX: builds without a GPU, and compiles its kernels when the engine is first run.
    Rtx,
}

impl Flavour {
    /// All flavours.
    pub const ALL: [Self; 2] = [Self::Enterprise, Self::Rtx];

    /// `tensorrt` or `tensorrt-rtx`: as in flags and file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Enterprise => "tensorrt",
            Self::Rtx => "tensorrt-rtx",
        }
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Enterprise => "TensorRT",
            Self::Rtx => "TensorRT-RTX",
        })
    }
}

impl FromStr for Flavour {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|flavour| flavour.name() == text);
        found.ok_or_else(|| Error::Argument(format!("`{text}` is neither `tensorrt` nor `tensorrt-rtx`")))
    }
}

/// A library's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Engines and interfaces of another major version can't be used.
    pub major: u32,
    /// Grows with features.
    pub minor: u32,
    /// Grows with corrections.
    pub patch: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl FromStr for Version {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let numbers: Option<Vec<u32>> = text.split('.').map(|part| part.parse().ok()).collect();
        match numbers.as_deref() {
            Some(&[major, minor, patch]) => Ok(Self { major, minor, patch }),
            _ => Err(Error::Argument(format!("`{text}` is no version: three numbers with dots between them are"))),
        }
    }
}

/// A GPU architecture, as CUDA's compute capability without its dot: 86 is compute capability 8.6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sm(pub u32);

impl Sm {
    /// The architectures that TensorRT-RTX builds for.
    pub const RTX: [Self; 6] = [Self(75), Self(80), Self(86), Self(89), Self(120), Self(121)];
}

impl fmt::Display for Sm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SM{}", self.0)
    }
}

impl FromStr for Sm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let digits = text.strip_prefix("sm").or_else(|| text.strip_prefix("SM")).unwrap_or(text);
        match digits.parse() {
            Ok(number) if (50..1000).contains(&number) => Ok(Self(number)),
            _ => Err(Error::Argument(format!("`{text}` is no GPU architecture: 75, 80, 86 and 89 are"))),
        }
    }
}

/// Severity of a message of TensorRT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// TensorRT can't be used any more.
    InternalError,
    /// The call failed.
    Error,
    /// The call worked, but not as it might be meant.
    Warning,
    /// Information about normal operation.
    Info,
    /// Details for debugging.
    Verbose,
}

impl Severity {
    /// Converts an `nvinfer1::ILogger::Severity`; an unknown one counts as an error.
    pub(crate) fn from_raw(raw: i32) -> Self {
        match raw {
            0 => Self::InternalError,
            2 => Self::Warning,
            3 => Self::Info,
            4 => Self::Verbose,
            _ => Self::Error,
        }
    }
}

/// A tensor's element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
#[non_exhaustive]
pub enum DataType {
    F32,
    F16,
    I8,
    I32,
    Bool,
    U8,
    Fp8,
    Bf16,
    I64,
    /// Another type, by TensorRT's number.
    Other(i32),
}

impl DataType {
    pub(crate) fn from_raw(raw: i32) -> Self {
        match raw {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::I8,
            3 => Self::I32,
            4 => Self::Bool,
            5 => Self::U8,
            6 => Self::Fp8,
            7 => Self::Bf16,
            8 => Self::I64,
            other => Self::Other(other),
        }
    }

    /// Size of one element; `None` where several share a byte.
    pub fn bytes(self) -> Option<usize> {
        match self {
            Self::I8 | Self::Bool | Self::U8 | Self::Fp8 => Some(1),
            Self::F16 | Self::Bf16 => Some(2),
            Self::F32 | Self::I32 => Some(4),
            Self::I64 => Some(8),
            Self::Other(_) => None,
        }
    }
}

/// A tensor's name, ready to be handed over as often as needed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorName(CString);

impl TensorName {
    /// # Errors
    /// A name with a zero byte in it.
    pub fn new(name: impl Into<Vec<u8>>) -> Result<Self, Error> {
        CString::new(name).map(Self).map_err(|_| Error::Argument("a tensor's name can't contain a zero byte".into()))
    }

    pub(crate) fn as_ptr(&self) -> *const std::ffi::c_char {
        self.0.as_ptr()
    }
}

impl fmt::Display for TensorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_string_lossy())
    }
}

/// At most eight extents; -1 stands for one that is not known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Shape {
    rank: usize,
    extents: [i64; Self::MAX_RANK],
}

impl Shape {
    /// The highest rank.
    pub const MAX_RANK: usize = 8;

    /// # Errors
    /// More than eight extents.
    pub fn new(extents: &[i64]) -> Result<Self, Error> {
        let mut shape = Self { rank: extents.len(), ..Self::default() };
        let Some(to) = shape.extents.get_mut(..extents.len()) else {
            return Err(Error::Argument(format!("{} dimensions; TensorRT has at most 8", extents.len())));
        };
        to.copy_from_slice(extents);
        Ok(shape)
    }

    /// `None` where TensorRT says that there is no such tensor.
    pub(crate) fn from_raw(raw: TrtDims) -> Option<Self> {
        let rank = usize::try_from(raw.rank).ok().filter(|rank| *rank <= Self::MAX_RANK)?;
        Some(Self { rank, extents: raw.extents })
    }

    pub(crate) fn to_raw(self) -> TrtDims {
        TrtDims { rank: self.rank as i32, extents: self.extents }
    }
}

impl Deref for Shape {
    type Target = [i64];

    fn deref(&self) -> &[i64] {
        &self.extents[..self.rank]
    }
}

/// A string that the library owns, copied; empty for null.
///
/// # Safety
/// Null, or a string with a zero byte at its end.
pub(crate) unsafe fn text(raw: *const std::ffi::c_char) -> String {
    if raw.is_null() {
        return String::new();
    }
    // SAFETY: not null, and the caller vouches for the rest.
    unsafe { CStr::from_ptr(raw) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_is_read() {
        assert_eq!("tensorrt-rtx".parse::<Flavour>().unwrap(), Flavour::Rtx);
        assert!("rtx".parse::<Flavour>().unwrap_err().to_string().contains("neither"));
        assert_eq!(["86", "sm86", "SM86"].map(|text| text.parse::<Sm>().unwrap()), [Sm(86); 3]);
        for wrong in ["", "8.6", "7", "-75", "sm"] {
            assert!(wrong.parse::<Sm>().is_err(), "{wrong}");
        }
        assert_eq!("1.7.1".parse::<Version>().unwrap(), Version { major: 1, minor: 7, patch: 1 });
        assert!("1.7".parse::<Version>().is_err());
    }

    #[test]
    fn shapes_keep_their_extents_and_their_limit() {
        let shape = Shape::new(&[2, -1, 7]).unwrap();
        assert_eq!(*shape, [2, -1, 7]);
        assert_eq!(Shape::from_raw(shape.to_raw()), Some(shape));
        assert!(Shape::new(&[1; 9]).is_err());
        assert_eq!(Shape::from_raw(TrtDims { rank: -1, extents: [0; 8] }), None);
        assert!(TensorName::new("a\0b").is_err());
    }
}
