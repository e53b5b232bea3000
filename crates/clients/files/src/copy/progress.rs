//! What a person sees while a copy runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Counts files and bytes, and shows them if there is anybody to see it.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    file_count: AtomicU64,
    byte_count: AtomicU64,
}

impl Progress {
    pub fn new(is_shown: bool) -> Self {
        let bar = is_shown.then(|| {
            let style = "{spinner} {bytes} of {total_bytes} found, {binary_bytes_per_sec}, {msg}";
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            bar.set_style(
                ProgressStyle::with_template(style).unwrap_or(ProgressStyle::default_bar()),
            );
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self {
            bar,
            file_count: AtomicU64::new(0),
            byte_count: AtomicU64::new(0),
        }
    }

    /// A file with so many bytes is going to be copied.
    pub fn expect(&self, len_bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc_length(len_bytes);
        }
    }

    pub fn bytes_done(&self, len_bytes: u64) {
        self.byte_count.fetch_add(len_bytes, Ordering::Relaxed);
        if let Some(bar) = &self.bar {
            bar.inc(len_bytes);
        }
    }

    pub fn file_done(&self) {
        let count = self.file_count.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{count} files"));
        }
    }

    /// Takes the bar away; the sum of it if there was one.
    pub fn finish(&self) -> Option<String> {
        let bar = self.bar.as_ref()?;
        bar.finish_and_clear();
        let files = self.file_count.load(Ordering::Relaxed);
        let bytes = HumanBytes(self.byte_count.load(Ordering::Relaxed));
        Some(format!("copied {files} files, {bytes}"))
    }
}
