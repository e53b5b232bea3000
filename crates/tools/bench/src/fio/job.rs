//! Job files of fio: one section per worker, complete, so that anybody can run them again.
//!
//! Owns: which options make fio do what a phase says. Must not know: how fio is run, other files.
//!
//! Source: fio's documentation, "Job file format" and "Job file parameters".

use std::fmt::Write as _;
use std::path::Path;

use crate::engine::EngineError;
use crate::fio::find::Mode;
use crate::plan::{DataPattern, Direction, Order};

/// Buffers are made compressible in pieces of this, as storage sees them.
const COMPRESS_CHUNK_BYTES: u64 = 4096;

/// All that a job file says.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// Shown in a comment.
    pub title: &'a str,
    /// What the names of files are in.
    pub folder: &'a Path,
    pub mode: Mode,
    pub direction: Direction,
    pub order: Order,
    pub request_bytes: u64,
    pub depth: u32,
    pub parts: Vec<Part>,
    /// Milliseconds of ramp and of the time after it; without it each part is done once.
    pub time: Option<(u64, u64)>,
    pub sync: Sync,
    pub pattern: DataPattern,
    /// Of the data and the order; another one in each phase and on each client.
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    None,
    /// fsync after the last request, inside fio's clock.
    AtEnd,
    /// O_SYNC.
    EachRequest,
}

/// What one worker works on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Of the worker: `w0003`.
    pub name: String,
    /// Relative to the folder.
    pub file: String,
    /// Of the whole file.
    pub file_bytes: u64,
    /// Its first byte in the file.
    pub offset: u64,
    /// Its blocks are this long,
    pub block_bytes: u64,
    /// start so far from each other,
    pub stride_bytes: u64,
    /// and are so many.
    pub blocks: u64,
}

impl Part {
    /// Bytes of its own.
    pub fn bytes(&self) -> u64 {
        self.block_bytes.saturating_mul(self.blocks)
    }
}

impl Job<'_> {
    /// The job file.
    pub fn text(&self) -> Result<String, EngineError> {
        let mut text = String::new();
        self.write(&mut text)
            .map_err(|_| EngineError::Engine("no memory for a job file".to_owned()))?;
        // fio would take a line break in a name for another option.
        let folder = folder_option(self.folder)?;
        Ok(text.replacen(FOLDER_PLACE, &folder, 1))
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "# {}: run it again with: fio FILE",
            one_line(self.title)
        )?;
        writeln!(text, "[global]")?;
        writeln!(text, "directory={FOLDER_PLACE}")?;
        writeln!(text, "ioengine={}", self.mode.engine.name())?;
        writeln!(text, "direct={}", u8::from(self.mode.direct))?;
        writeln!(text, "iodepth={}", self.depth)?;
        writeln!(text, "thread=1")?;
        let rw = match (self.direction, self.order) {
            (Direction::Write, Order::Sequential) => "write",
            (Direction::Write, Order::Random) => "randwrite",
            (Direction::Read, Order::Sequential) => "read",
            (Direction::Read, Order::Random) => "randread",
        };
        writeln!(text, "rw={rw}")?;
        writeln!(text, "bs={}", self.request_bytes)?;
        if let Some((ramp_ms, runtime_ms)) = self.time {
            writeln!(text, "time_based=1")?;
            writeln!(text, "runtime={runtime_ms}ms")?;
            if ramp_ms > 0 {
                writeln!(text, "ramp_time={ramp_ms}ms")?;
            }
            if self.order == Order::Random {
                // Uniform: a map of what was done would leave less and less to choose from.
                writeln!(text, "norandommap=1")?;
            }
        }
        match self.sync {
            Sync::None => {}
            Sync::AtEnd => writeln!(text, "end_fsync=1")?,
            Sync::EachRequest => writeln!(text, "sync=1")?,
        }
        // Space is allocated by writing, and the caller drops caches if it wants that.
        writeln!(text, "fallocate=none")?;
        writeln!(text, "invalidate=0")?;
        writeln!(text, "randseed={}", self.seed)?;
        writeln!(text, "refill_buffers=1")?;
        if self.pattern.compressible_percent > 0 {
            writeln!(
                text,
                "buffer_compress_percentage={}",
                self.pattern.compressible_percent
            )?;
            let chunk = COMPRESS_CHUNK_BYTES.min(self.request_bytes);
            writeln!(text, "buffer_compress_chunk={chunk}")?;
        }
        if self.pattern.dedupe_percent > 0 {
            writeln!(text, "dedupe_percentage={}", self.pattern.dedupe_percent)?;
        }
        writeln!(text, "lat_percentiles=1")?;
        writeln!(text, "clat_percentiles=0")?;
        for part in &self.parts {
            part.write(text, self.request_bytes)?;
        }
        Ok(())
    }
}

impl Part {
    fn write(&self, text: &mut String, request_bytes: u64) -> std::fmt::Result {
        writeln!(text, "[{}]", self.name)?;
        writeln!(text, "filename={}", self.file)?;
        if self.blocks <= 1 {
            writeln!(text, "offset={}", self.offset)?;
            // Whole requests only: fio would leave the rest out anyway.
            return writeln!(
                text,
                "size={}",
                self.bytes() / request_bytes.max(1) * request_bytes
            );
        }
        let gap = self.stride_bytes.saturating_sub(self.block_bytes);
        let span = self
            .stride_bytes
            .saturating_mul(self.blocks - 1)
            .saturating_add(self.block_bytes);
        writeln!(text, "filesize={}", self.file_bytes)?;
        writeln!(text, "offset={}", self.offset)?;
        writeln!(text, "size={span}")?;
        writeln!(text, "io_size={}", self.bytes())?;
        writeln!(text, "zonemode=strided")?;
        writeln!(text, "zonerange={}", self.block_bytes)?;
        writeln!(text, "zonesize={}", self.block_bytes)?;
        writeln!(text, "zoneskip={gap}")
    }
}

/// Stands for the folder until that has been checked.
const FOLDER_PLACE: &str = "@FOLDER@";

/// A folder as a job file spells it: `:` separates folders there, and `$` starts a variable.
fn folder_option(folder: &Path) -> Result<String, EngineError> {
    let text = folder.to_str().unwrap_or("\n");
    let refused = |c: char| c.is_control() || matches!(c, '$' | '\\' | '"');
    if text.is_empty() || text.contains(refused) || text.trim() != text {
        return Err(EngineError::Target(format!(
            "{} has a character that a job file of fio cannot have; use a path without \
             line breaks, quotes, backslashes, dollar signs and outer spaces",
            folder.display()
        )));
    }
    Ok(text.replace(':', "\\:"))
}

fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::find::IoEngine;

    fn job(folder: &Path) -> Job<'_> {
        Job {
            title: "random write\ndepth 8",
            folder,
            mode: Mode {
                engine: IoEngine::IoUring,
                direct: true,
            },
            direction: Direction::Write,
            order: Order::Random,
            request_bytes: 4096,
            depth: 8,
            parts: vec![
                Part {
                    name: "w0".to_owned(),
                    file: "data/w0".to_owned(),
                    file_bytes: 10_000,
                    offset: 0,
                    block_bytes: 10_000,
                    stride_bytes: 10_000,
                    blocks: 1,
                },
                Part {
                    name: "w1".to_owned(),
                    file: "data/shared".to_owned(),
                    file_bytes: 81_920,
                    offset: 8192,
                    block_bytes: 8192,
                    stride_bytes: 16_384,
                    blocks: 5,
                },
            ],
            time: Some((500, 2000)),
            sync: Sync::AtEnd,
            pattern: DataPattern {
                compressible_percent: 50,
                dedupe_percent: 20,
                seed: 1,
            },
            seed: 42,
        }
    }

    #[test]
    fn a_job_file_says_it_all() {
        let want = "\
# random write depth 8: run it again with: fio FILE
[global]
directory=/mnt/a b\\:c
ioengine=io_uring
direct=1
iodepth=8
thread=1
rw=randwrite
bs=4096
time_based=1
runtime=2000ms
ramp_time=500ms
norandommap=1
end_fsync=1
fallocate=none
invalidate=0
randseed=42
refill_buffers=1
buffer_compress_percentage=50
buffer_compress_chunk=4096
dedupe_percentage=20
lat_percentiles=1
clat_percentiles=0
[w0]
filename=data/w0
offset=0
size=8192
[w1]
filename=data/shared
filesize=81920
offset=8192
size=73728
io_size=40960
zonemode=strided
zonerange=8192
zonesize=8192
zoneskip=8192
";
        assert_eq!(
            job(Path::new("/mnt/a b:c"))
                .text()
                .expect("the path is in order"),
            want
        );
    }

    #[test]
    fn folders_that_would_be_read_otherwise_are_refused() {
        for folder in [
            "",
            "/m/$HOME",
            "/m/a\nexec_prerun=x",
            "/m/a\\",
            "/m/\"x\"",
            "/m/x ",
        ] {
            job(Path::new(folder)).text().expect_err(folder);
        }
    }
}
