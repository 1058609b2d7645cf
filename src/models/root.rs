//! The folder that models must come from. Links are resolved, so that none leads out of it.

use std::path::{Component, Path, PathBuf};

use super::error::ModelError;

/// Where a multi-model endpoint has its models.
pub const SAGEMAKER_MODELS: &str = "/opt/ml/models";

/// A folder below which all models are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelsRoot(PathBuf);

impl ModelsRoot {
    /// Such a folder.
    ///
    /// # Errors
    /// If it doesn't exist.
    pub fn new(folder: &Path) -> std::io::Result<Self> {
        folder.canonicalize().map(Self)
    }

    /// The folder of a model, with its links resolved.
    ///
    /// # Errors
    /// [`ModelError::Outside`] if the folder, or what a link in it leads to, isn't below the root. Whether a folder
    /// outside exists isn't told.
    pub fn resolve(&self, url: &str) -> Result<PathBuf, ModelError> {
        let outside = || ModelError::Outside { url: url.to_owned(), root: self.0.clone() };
        let path = Path::new(url);
        let has_parents = path.components().any(|part| part == Component::ParentDir);
        let Ok(folder) = path.canonicalize() else {
            // What is missing may be named where it would be allowed.
            return if path.starts_with(&self.0) && !has_parents { Ok(path.to_owned()) } else { Err(outside()) };
        };
        if !self.holds(&folder) || !self.holds_links_of(&folder) {
            return Err(outside());
        }
        Ok(folder)
    }

    fn holds(&self, resolved: &Path) -> bool {
        resolved.starts_with(&self.0) && resolved != self.0
    }

    /// Whether the entries of a folder, and those of the folders in it, stay below the root: a model is found there.
    fn holds_links_of(&self, folder: &Path) -> bool {
        let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
        let stays = |path: &PathBuf| path.canonicalize().map_or(true, |resolved| self.holds(&resolved));
        entries(folder).all(|entry| stays(&entry) && entries(&entry).all(|below| stays(&below)))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn nothing_leads_out_of_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (models, secret) = (path("models"), path("secret"));
        for made in [&models.join("a/inner"), &models.join("linked/inner"), &models.join("deep"), &secret] {
            std::fs::create_dir_all(made).unwrap();
        }
        std::fs::write(secret.join("weights"), "x").unwrap();
        symlink(&secret, models.join("link")).unwrap();
        symlink(secret.join("weights"), models.join("linked/inner/weights")).unwrap();
        symlink(&secret, models.join("deep/model")).unwrap();
        symlink(models.join("a"), path("beside")).unwrap();
        let root = ModelsRoot::new(&models).unwrap();
        let resolve = |path: &Path| root.resolve(path.to_str().unwrap());
        let models = models.canonicalize().unwrap();
        assert_eq!(resolve(&models.join("a")).unwrap(), models.join("a"));
        assert_eq!(resolve(&path("beside")).unwrap(), models.join("a"), "what counts is where a link leads");
        assert_eq!(resolve(&models.join("missing")).unwrap(), models.join("missing"));
        let mut messages = std::collections::BTreeSet::new();
        for out in [
            models.clone(),
            secret.clone(),
            path("nothing"),
            models.join("../secret"),
            models.join("../nothing"),
            models.join("link"),
            models.join("linked"),
            models.join("deep"),
            PathBuf::from("relative"),
        ] {
            let message = resolve(&out).unwrap_err().to_string();
            assert!(message.contains("it must be a folder below"), "{message}");
            messages.insert(message.replacen(out.to_str().unwrap(), "URL", 1));
        }
        assert_eq!(messages.len(), 1, "what is there isn't told");
    }
}
