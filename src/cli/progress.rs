//! A progress bar for builds and downloads: on a terminal a bar, elsewhere a line per stage.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use engine_build::Progress;
use indicatif::{ProgressBar, ProgressStyle};

/// Shows the stages of a build or the files of a download on standard error.
#[derive(Default)]
pub struct Bar {
    bar: Mutex<Option<ProgressBar>>,
    cancelled: Arc<AtomicBool>,
}

impl Bar {
    /// A progress bar whose build ends when the flag is set.
    pub fn cancelled_by(flag: Arc<AtomicBool>) -> Self {
        Self { bar: Mutex::default(), cancelled: flag }
    }

    fn show(&self, name: &str, total: u64, template: &str) {
        let bar = ProgressBar::new(total).with_message(name.to_owned());
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        if let Some(last) = self.current().replace(bar) {
            last.finish();
        }
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Option<ProgressBar>> {
        self.bar.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Progress for Bar {
    fn stage(&self, name: &str, total_bytes: u64) {
        if !std::io::stderr().is_terminal() {
            tracing::info!(mib = total_bytes >> 20, "{name}");
            return;
        }
        self.show(name, total_bytes, "{msg:24} {wide_bar} {bytes}/{total_bytes} {elapsed}");
    }

    fn steps(&self, name: &str, total: u64) {
        if !std::io::stderr().is_terminal() {
            tracing::info!(steps = total, "{name}");
            return;
        }
        self.show(name, total, "{msg:24} {wide_bar} {pos}/{len} {elapsed}");
    }

    fn advance(&self, amount: u64) {
        if let Some(bar) = &*self.current() {
            bar.inc(amount);
        }
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

#[cfg(feature = "remote")]
impl sources::Progress for Bar {
    fn file(&self, name: &str, bytes: u64) {
        self.stage(&format!("downloading {name}"), bytes);
    }

    fn advance(&self, bytes: u64) {
        Progress::advance(self, bytes);
    }

    fn is_cancelled(&self) -> bool {
        Progress::is_cancelled(self)
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = self.current().take() {
            bar.finish();
        }
    }
}
