//! What goes wrong during a soak: a disk that is full, an engine that fails, a process that is killed.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use scheduler::fake::{Fault, FaultFn};

/// A disk for a soak is smaller than this, in MiB, or filling it would disturb others.
const LARGEST_DISK_MIB: usize = 256;
/// Mean time between two faults of an engine.
const BETWEEN_FAULTS: f64 = 5.0;
/// How long an engine hangs: less than the time at which a forward is given up.
const HANG: Duration = Duration::from_millis(300);

/// A small file system that nobody else uses.
pub struct SmallDisk {
    folder: PathBuf,
}

impl SmallDisk {
    /// A file system that a folder is the root of.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// A file or folder on the disk.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Leaves no room on it.
    pub fn fill(&self) -> Result<()> {
        let path = self.path("filler");
        let mut file = File::create(&path).with_context(|| path.display().to_string())?;
        let block = vec![0; 1 << 20];
        for _ in 0..LARGEST_DISK_MIB {
            if let Err(error) = file.write_all(&block) {
                return match error.kind() {
                    ErrorKind::StorageFull => Ok(()),
                    _ => Err(error).context(path.display().to_string()),
                };
            }
        }
        drop(fs::remove_file(&path));
        bail!("{} has room for more than {LARGEST_DISK_MIB} MiB; mount a small disk there", self.folder.display())
    }

    /// Makes room: the filler goes, logs are cut, and bundles that were built are forgotten.
    pub fn free(&self) -> Result<()> {
        remove(fs::remove_file(self.path("filler")))?;
        remove(fs::remove_dir_all(self.path("cache")))?;
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "log") {
                File::options().write(true).open(&path)?.set_len(0)?;
            }
        }
        Ok(())
    }
}

/// What wasn't there is gone as well.
fn remove(result: std::io::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Faults of an engine, as often as [`BETWEEN_FAULTS`] says while it is used. Loading is spared.
pub fn engine_faults(seed: u64) -> FaultFn {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut next = Instant::now() + Duration::from_secs_f64(rng.random_range(1.0..2.0) * BETWEEN_FAULTS);
    Box::new(move |_| {
        if Instant::now() < next {
            return None;
        }
        next = Instant::now() + Duration::from_secs_f64(rng.random_range(0.5..1.5) * BETWEEN_FAULTS);
        let faults = [Fault::Panic, Fault::Error, Fault::NotANumber, Fault::Hang(HANG)];
        Some(faults[rng.random_range(0..faults.len())])
    })
}
