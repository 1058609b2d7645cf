//! `foretype pack`: the archive that Amazon SageMaker unpacks into `/opt/ml/model`.
//!
//! The same bundle gives the same bytes: entries in order of their names, without owners and times, and plain files
//! only, because SageMaker refuses archives with links. Every file is compared with the manifest before it is packed.

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use bundle::manifest::{FILE, Manifest};
use bundle::{is_bundle, is_checkpoint};
use clap::Args;
use engine_build::Hashed;
use engine_build::plan::{ENGINES, FoundPlan, read_plan, records};
use flate2::{Compression, GzBuilder};

/// Arguments of `pack`.
#[derive(Clone, Debug, Args)]
pub struct PackArgs {
    /// The bundle folder, as `foretype build` writes it.
    bundle: PathBuf,
    /// The archive to write.
    #[arg(long, env = "FORETYPE_OUT", value_name = "FILE", default_value = "model.tar.gz")]
    out: PathBuf,
}

impl PackArgs {
    pub(super) fn run(self) -> Result<(), Box<dyn Error>> {
        if !is_bundle(&self.bundle) {
            let folder = self.bundle.display();
            let why = if is_checkpoint(&self.bundle) {
                format!("{folder} is a checkpoint; make a bundle of it first: foretype build {folder} --out BUNDLE")
            } else {
                format!("{folder} is no bundle: it has no {FILE}; `foretype build` makes one of a checkpoint")
            };
            return Err(why.into());
        }
        let partial = self.out.with_extension("partial");
        let packed = pack(&self.bundle, &partial).inspect_err(|_| {
            let _ = std::fs::remove_file(&partial);
        })?;
        std::fs::rename(&partial, &self.out)?;
        println!(
            "packed {} files, {:.1} MiB, into {}\nsha256 {}",
            packed.files,
            packed.bytes as f64 / f64::from(1 << 20),
            self.out.display(),
            packed.sha256
        );
        Ok(())
    }
}

struct Packed {
    files: usize,
    bytes: u64,
    sha256: String,
}

fn pack(bundle: &Path, out: &Path) -> Result<Packed, Box<dyn Error>> {
    let manifest = Manifest::load(bundle)?;
    manifest.verify_checksums(bundle)?;
    let mut names: Vec<String> = manifest.files.iter().map(|file| file.path.clone()).collect();
    names.push(FILE.into());
    names.extend(engines(bundle)?);
    names.sort();
    names.dedup();

    let file = Hashed::new(BufWriter::new(File::create(out)?));
    // Weights hardly compress; more effort would only take time.
    let gzip = GzBuilder::new().mtime(0).write(file, Compression::fast());
    let mut archive = tar::Builder::new(gzip);
    for name in &names {
        // Opening follows links: what is packed is the file.
        let file = File::open(bundle.join(name))?;
        let mut header = tar::Header::new_gnu();
        header.set_size(file.metadata()?.len());
        header.set_mode(0o644);
        header.set_mtime(0);
        archive.append_data(&mut header, name, file)?;
    }
    let mut file = archive.into_inner()?.finish()?;
    file.flush()?;
    file.get_ref().get_ref().sync_all()?;
    Ok(Packed { files: names.len(), bytes: file.bytes(), sha256: file.sha256() })
}

/// TensorRT plans and their records, which the manifest doesn't list: each plan is compared with its record.
fn engines(bundle: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let mut names = Vec::new();
    for found in records(&bundle.join(ENGINES))? {
        let (path, record) = found?;
        let plan = FoundPlan { path, record };
        read_plan(&plan)?;
        let record = plan.path.file_name().unwrap_or_default().to_string_lossy();
        names.extend([&*record, &plan.record.plan.path].map(|name| format!("{ENGINES}/{name}")));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine_build::BuildOptions;

    fn bundle(at: &Path) {
        let checkpoint = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/plain");
        engine_build::build(&BuildOptions::new(&checkpoint, at), &()).unwrap();
    }

    #[test]
    fn the_same_bundle_gives_the_same_archive_of_plain_files() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        bundle(&one);
        bundle(&two);
        std::fs::create_dir(two.join(ENGINES)).unwrap();
        // As the Hugging Face cache keeps files.
        std::fs::rename(two.join("tokenizer.json"), folder.path().join("blob")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("blob"), two.join("tokenizer.json")).unwrap();
        let first = pack(&one, &folder.path().join("1.tar.gz")).unwrap();
        let second = pack(&two, &folder.path().join("2.tar.gz")).unwrap();
        assert_eq!(first.sha256, second.sha256);

        std::fs::write(two.join(ENGINES).join("x.plan"), "engine").unwrap();
        let path = folder.path().join("3.tar.gz");
        let error = pack(&two, &path).err().unwrap().to_string();
        assert!(error.contains("x.json"), "a plan without its record is none: {error}");
        let record = |sha256: &str| {
            format!(
                r#"{{"format": 1, "flavour": "tensorrt-rtx", "version": "1.7.1", "architectures": [86], "tool": "t",
                    "graph": [],
                    "shapes": {{"prefill": {{"batch": [1, 1, 1], "tokens": [1, 1, 1], "select": [1, 1, 1]}},
                                "decode": {{"batch": [1, 1, 1], "tokens": [1, 1, 1], "select": [1, 1, 1]}}}},
                    "plan": {{"path": "x.plan", "bytes": 6, "sha256": "{sha256}"}}}}"#
            )
        };
        std::fs::write(two.join(ENGINES).join("x.json"), record(&"0".repeat(64))).unwrap();
        let error = pack(&two, &path).err().unwrap().to_string();
        assert!(error.contains("SHA-256"), "{error}");
        let mut engine = Hashed::new(Vec::new());
        engine.write_all(b"engine").unwrap();
        std::fs::write(two.join(ENGINES).join("x.json"), record(&engine.sha256())).unwrap();
        assert_eq!(pack(&two, &path).unwrap().files, first.files + 2);
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(File::open(path).unwrap()));
        let unpacked = folder.path().join("unpacked");
        std::fs::create_dir(&unpacked).unwrap();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            assert!(entry.header().entry_type().is_file());
            assert!(entry.unpack_in(&unpacked).unwrap());
        }
        assert!(unpacked.join("engines/x.plan").is_file() && unpacked.join("engines/x.json").is_file());
        Manifest::load(&unpacked).unwrap().verify_checksums(&unpacked).unwrap();
    }

    #[test]
    fn a_damaged_bundle_is_not_packed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bundle");
        bundle(&path);
        let weights = path.join("model.weights");
        let mut bytes = std::fs::read(&weights).unwrap();
        bytes[100] ^= 1;
        std::fs::write(&weights, bytes).unwrap();
        let out = folder.path().join("model.tar.gz");
        let error = PackArgs { bundle: path, out: out.clone() }.run().unwrap_err().to_string();
        assert!(error.contains("SHA-256"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
    }

    #[test]
    fn what_is_no_bundle_is_named() {
        let checkpoint = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/plain");
        let error = PackArgs { bundle: checkpoint, out: "x".into() }.run().unwrap_err().to_string();
        assert!(error.contains("foretype build"), "{error}");
    }
}
