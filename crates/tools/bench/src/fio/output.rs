//! What fio prints with `--output-format=json` and `json+`.
//!
//! Owns: its JSON, taking it apart as it comes. Must not know: how fio was started, results.
//!
//! Source: fio's documentation, "JSON output" and "JSON+ output", and what fio 3.33 prints.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};

use hdrhistogram::Histogram;
use serde::{Deserialize, Deserializer};

use crate::latency;
use crate::result::Latency;

/// One document: 1024 jobs with all their bins are about 60 MiB.
pub const DOCUMENT_BYTES_MAX: u64 = 256 * 1024 * 1024;

#[derive(Clone, Debug, Deserialize)]
pub struct Document {
    #[serde(rename = "fio version")]
    pub version: String,
    /// Seconds since 1970 at which it was printed.
    #[serde(default)]
    pub timestamp: u64,
    #[serde(default)]
    pub timestamp_ms: u64,
    #[serde(rename = "global options", default)]
    pub global_options: BTreeMap<String, String>,
    #[serde(default)]
    pub jobs: Vec<Job>,
    /// Instead of `jobs` when fio's own server made the load.
    #[serde(default)]
    pub client_stats: Vec<Job>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Job {
    pub jobname: String,
    #[serde(default)]
    pub groupid: i64,
    /// An errno, or 0.
    #[serde(default)]
    pub error: i32,
    #[serde(rename = "job options", default)]
    pub options: BTreeMap<String, String>,
    #[serde(default)]
    pub hostname: Option<String>,
    #[serde(default)]
    pub read: Side,
    #[serde(default)]
    pub write: Side,
    /// Milliseconds.
    #[serde(default)]
    pub job_runtime: u64,
    /// Percent of the time of one CPU.
    #[serde(default)]
    pub usr_cpu: f64,
    #[serde(default)]
    pub sys_cpu: f64,
}

/// One direction of a job.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Side {
    #[serde(default)]
    pub io_bytes: u64,
    #[serde(default)]
    pub total_ios: u64,
    /// Milliseconds.
    #[serde(default)]
    pub runtime: u64,
    /// From giving the request to its completion.
    #[serde(default)]
    pub lat_ns: Times,
    /// From the request's being taken to its completion.
    #[serde(default)]
    pub clat_ns: Times,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Times {
    #[serde(default)]
    pub min: f64,
    #[serde(default)]
    pub max: f64,
    #[serde(default)]
    pub mean: f64,
    #[serde(rename = "N", default)]
    pub count: u64,
    /// Percent to nanoseconds.
    #[serde(default)]
    pub percentile: BTreeMap<String, f64>,
    /// Nanoseconds to requests; only `json+` has them.
    #[serde(default, deserialize_with = "bins")]
    pub bins: Vec<(u64, u64)>,
}

/// An object whose keys are numbers. Buffered types lose serde_json's numeric keys, so by hand.
fn bins<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(u64, u64)>, D::Error> {
    let by_text = BTreeMap::<String, u64>::deserialize(deserializer)?;
    by_text
        .into_iter()
        .map(|(key, count)| match key.parse() {
            Ok(nanoseconds) => Ok((nanoseconds, count)),
            Err(_) => Err(serde::de::Error::custom(format!(
                "the bin {key:?} is no number"
            ))),
        })
        .collect()
}

impl Document {
    /// The jobs, wherever they are; without the sum over machines.
    pub fn jobs(&self) -> impl Iterator<Item = &Job> {
        let clients = self.client_stats.iter();
        let clients = clients.filter(|job| job.jobname != "All clients");
        self.jobs.iter().chain(clients)
    }
}

impl Job {
    /// Seconds of CPU time.
    pub fn cpu_seconds(&self) -> f64 {
        (self.usr_cpu + self.sys_cpu) / 100.0 * self.job_runtime as f64 / 1e3
    }
}

impl Side {
    /// Requests that were completed. While it runs fio counts `total_ios` when they are given.
    pub fn operations(&self) -> u64 {
        match self.times().count {
            0 => self.total_ios,
            count => count,
        }
    }

    /// The whole latency if its distribution is there, else that of the completion.
    pub fn times(&self) -> &Times {
        let whole = &self.lat_ns;
        let told = |times: &Times| times.bins.len() + times.percentile.len();
        match told(whole) == 0 && told(&self.clat_ns) > 0 {
            true => &self.clat_ns,
            false => whole,
        }
    }
}

/// Adds several jobs up: with bins exactly (to fio's resolution of 1.6 %), else only for one job.
pub fn latency(sides: &[&Side]) -> Option<Latency> {
    let times: Vec<&Times> = sides
        .iter()
        .map(|side| side.times())
        .filter(|times| times.count > 0)
        .collect();
    let min_us = times
        .iter()
        .map(|times| times.min)
        .fold(f64::INFINITY, f64::min)
        / 1e3;
    let max_us = times.iter().map(|times| times.max).fold(0.0, f64::max) / 1e3;
    let count = times
        .iter()
        .fold(0u64, |sum, times| sum.saturating_add(times.count));
    if count == 0 {
        return None;
    }
    let weighted: f64 = times
        .iter()
        .map(|times| times.mean * times.count as f64)
        .sum();
    let mean_us = weighted / count as f64 / 1e3;
    if times.iter().all(|times| !times.bins.is_empty()) {
        let mut latency = latency::latency(&histogram(&times))?;
        // A bin stands for a range; the least and the greatest are known better.
        for (_, us) in &mut latency.percentiles_us {
            *us = us.max(min_us).min(max_us);
        }
        return Some(Latency {
            min_us,
            mean_us,
            max_us,
            ..latency
        });
    }
    let mut percentiles_us = vec![(0.0, min_us)];
    if let [only] = times.as_slice() {
        let mut between: Vec<(f64, f64)> = only
            .percentile
            .iter()
            .filter_map(|(percent, nanoseconds)| Some((percent.parse().ok()?, nanoseconds / 1e3)))
            .filter(|(percent, _)| *percent > 0.0 && *percent < 100.0)
            .collect();
        between.sort_by(|one, other| one.0.total_cmp(&other.0));
        percentiles_us.extend(between);
    }
    percentiles_us.push((100.0, max_us));
    Some(Latency {
        count,
        min_us,
        mean_us,
        max_us,
        percentiles_us,
        histogram: None,
    })
}

fn histogram(times: &[&Times]) -> Histogram<u64> {
    let mut sum = latency::histogram();
    for &(nanoseconds, count) in times.iter().flat_map(|times| &times.bins) {
        sum.saturating_record_n(nanoseconds, count);
    }
    sum
}

/// Takes apart a stream of documents, as `--status-interval` makes it, with words in between.
///
/// fio indents everything in a document, so its first and last lines are the only bare braces.
pub struct Documents<R> {
    input: R,
    /// Lines so far.
    line: u64,
}

/// A document and the line that it starts in, counted from 1.
pub struct FoundDocument {
    pub text: String,
    pub line: u64,
}

impl<R: BufRead> Documents<R> {
    pub fn new(input: R) -> Self {
        Self { input, line: 0 }
    }

    /// The next whole document; nothing at the end, where half a document is dropped.
    pub fn next_text(&mut self) -> io::Result<Option<FoundDocument>> {
        let mut text = String::new();
        let mut start = None;
        loop {
            let begin = text.len();
            let left = DOCUMENT_BYTES_MAX - begin as u64;
            if (&mut self.input).take(left).read_line(&mut text)? == 0 {
                return match left {
                    0 => Err(io::Error::other("a document of fio's output is too long")),
                    _ => Ok(None),
                };
            }
            self.line += 1;
            let line = text
                .get(begin..)
                .unwrap_or_default()
                .trim_end_matches(['\n', '\r']);
            match (line, start) {
                ("}", Some(line)) => return Ok(Some(FoundDocument { text, line })),
                ("{", _) => {
                    text.drain(..begin);
                    start = Some(self.line);
                }
                (_, None) => text.clear(),
                (_, Some(_)) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, stream: &str, want: &[(&str, u64)]) {
        let mut documents = Documents::new(stream.as_bytes());
        let mut found = Vec::new();
        while let Some(document) = documents.next_text().expect("memory does not fail") {
            found.push((document.text, document.line));
        }
        let found: Vec<(&str, u64)> = found
            .iter()
            .map(|(text, line)| (text.as_str(), *line))
            .collect();
        assert_eq!(found, want, "{name}");
    }

    #[test]
    fn documents_are_taken_apart() {
        check("one", "{\n  a\n}\n", &[("{\n  a\n}\n", 1)]);
        check("without an end of line", "{\n}", &[("{\n}", 1)]);
        check(
            "with words around",
            "note: x\n{\n  1\n}\nfio: terminating on signal 2\n\n{\n  2\n}\n",
            &[("{\n  1\n}\n", 2), ("{\n  2\n}\n", 7)],
        );
        check("nested", "{\n  {\n  }\n}\n", &[("{\n  {\n  }\n}\n", 1)]);
        check(
            "cut off and begun again",
            "{\n  1\n{\n  2\n}\n",
            &[("{\n  2\n}\n", 3)],
        );
        check("cut off", "{\n  1\n", &[]);
        check("nothing", "", &[]);
    }
}
