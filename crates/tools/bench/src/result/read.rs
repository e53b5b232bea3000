//! Reads results from files.
//!
//! Owns: what is accepted as a result, and the sentence for what is not.
//! Must not know: results of other programs (`import` reads those), how results are shown.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{RunResult, SCHEMA};

/// The largest file that is read. A run of an hour keeps a few hundred samples of each phase, so real
/// ones have a few megabytes.
pub const RESULT_LEN_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// What schema versions start with.
const SCHEMA_PREFIX: &str = "cairn-bench/";

/// Why a file is not a result that can be shown. Each is a sentence that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("cannot read the result {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "{} is no result: it is larger than the {RESULT_LEN_BYTES_MAX} bytes that one can have",
        path.display()
    )]
    TooLong { path: PathBuf },
    #[error("{} is not a whole JSON file ({source}); if its run was killed while it wrote, run it again", path.display())]
    Syntax {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error(
        "{} has no \"schema\", so it is no result of `cairn bench`; the output of fio, IOR or IOzone is \
         turned into one by `cairn bench import`",
        path.display()
    )]
    NoSchema { path: PathBuf },
    #[error(
        "{} has the schema {schema:?}, and this program knows {SCHEMA:?} only; \
         show it with the version of cairn that wrote it, or run the benchmark again",
        path.display()
    )]
    OtherSchema { path: PathBuf, schema: String },
    #[error("{} has the schema {schema:?} of a newer cairn; this one knows {SCHEMA:?}: update it", path.display())]
    NewerSchema { path: PathBuf, schema: String },
    #[error("{} says that it is a {SCHEMA:?} result, and is not ({source}); it was changed or damaged", path.display())]
    Shape {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("{} contradicts itself: {what}; it was changed or damaged", path.display())]
    Contradiction { path: PathBuf, what: String },
}

/// Reads the result in a file. Memory is bounded by the length that a result can have.
pub fn load(path: &Path) -> Result<RunResult, LoadError> {
    let failed = |source| LoadError::Read {
        path: path.to_path_buf(),
        source,
    };
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(RESULT_LEN_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(failed)?;
    parse(path, &bytes)
}

/// Reads a result; `path` is for the errors.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<RunResult, LoadError> {
    let path = || path.to_path_buf();
    if bytes.len() as u64 > RESULT_LEN_BYTES_MAX {
        return Err(LoadError::TooLong { path: path() });
    }
    // The version first: what other versions hold is unknown, so nothing else can be said of them.
    let schema = match serde_json::from_slice::<Versioned>(bytes) {
        Ok(versioned) => versioned.schema,
        Err(error) if error.is_data() => return Err(LoadError::NoSchema { path: path() }),
        Err(source) => {
            return Err(LoadError::Syntax {
                path: path(),
                source,
            });
        }
    };
    if schema != SCHEMA {
        let version = |schema: &str| schema.strip_prefix(SCHEMA_PREFIX)?.parse::<u64>().ok();
        return Err(if version(&schema) > version(SCHEMA) {
            LoadError::NewerSchema {
                path: path(),
                schema,
            }
        } else {
            LoadError::OtherSchema {
                path: path(),
                schema,
            }
        });
    }
    let result: RunResult = serde_json::from_slice(bytes).map_err(|source| LoadError::Shape {
        path: path(),
        source,
    })?;
    check(&result).map_err(|what| LoadError::Contradiction { path: path(), what })?;
    Ok(result)
}

#[derive(Deserialize)]
struct Versioned {
    schema: String,
}

/// What every reader may rely on, beyond the types.
fn check(result: &RunResult) -> Result<(), String> {
    for phase in &result.phases {
        let name = &phase.name;
        if let Some(worker) = phase
            .workers
            .iter()
            .find(|worker| worker.client >= result.clients.len())
        {
            return Err(format!(
                "the phase {name:?} has a worker of client {} and there are {} clients",
                worker.client,
                result.clients.len()
            ));
        }
        if phase.foreground_seconds < 0.0 || phase.drained_seconds < 0.0 {
            return Err(format!("the phase {name:?} took less than no time"));
        }
        if phase
            .samples
            .iter()
            .any(|sample| sample.seconds < 0.0 || sample.at_seconds < 0.0)
        {
            return Err(format!(
                "the phase {name:?} has samples from before its start"
            ));
        }
        let percentiles = phase
            .latency
            .iter()
            .flat_map(|latency| &latency.percentiles_us);
        if !percentiles.is_sorted_by(|before, after| before.0 <= after.0) {
            return Err(format!("the percentiles of the phase {name:?} do not rise"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"{"schema":"cairn-bench/1","suite":"ior","label":"a","started":"2026-01-01T00:00:00Z",
        "cairn_version":"0.1.0","target":{"kind":"nfs","text":"nfs://a/b"},"clients":[],"cache":"cold","parameters":{},
        "phases":[PHASES],"summary":[]}"#;
    const PHASE: &str = r#"{"name":"p","operations":1,"bytes":1,"errors":0,"foreground_seconds":SECONDS,
        "drained_seconds":1.0,"workers":[WORKERS],"samples":[]}"#;

    fn error(text: &str) -> String {
        match parse(Path::new("r.json"), text.as_bytes()) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    fn with_phase(seconds: &str, workers: &str) -> String {
        WHOLE.replace(
            "PHASES",
            &PHASE
                .replace("SECONDS", seconds)
                .replace("WORKERS", workers),
        )
    }

    #[test]
    fn results_are_read_or_refused_with_a_sentence() {
        let whole = WHOLE.replace("PHASES", "");
        let worker = r#"{"client":0,"operations":1,"bytes":1,"seconds":1.0}"#;
        let cases: &[(&str, String, &str)] = &[
            ("whole", whole.clone(), ""),
            ("with a phase", with_phase("1.0", ""), ""),
            ("empty", String::new(), "not a whole JSON file"),
            (
                "cut off",
                whole[..whole.len() - 9].to_string(),
                "not a whole JSON file",
            ),
            ("text", "Run began: Sat".into(), "not a whole JSON file"),
            (
                "fio's",
                r#"{"fio version":"fio-3.33","jobs":[]}"#.into(),
                "cairn bench import",
            ),
            ("a list", "[1]".into(), "has no \"schema\""),
            (
                "a schema that is a number",
                r#"{"schema":1}"#.into(),
                "has no \"schema\"",
            ),
            ("newer", whole.replace("bench/1", "bench/2"), "update it"),
            (
                "far newer",
                whole.replace("bench/1", "bench/18446744073709551615"),
                "update it",
            ),
            (
                "older",
                whole.replace("bench/1", "bench/0"),
                "run the benchmark again",
            ),
            (
                "no number",
                whole.replace("bench/1", "bench/x"),
                "run the benchmark again",
            ),
            (
                "of others",
                whole.replace("cairn-bench/1", "other"),
                "run the benchmark again",
            ),
            (
                "a field missing",
                whole.replace("\"suite\"", "\"suit\""),
                "missing field `suite`",
            ),
            (
                "a worker of nobody",
                with_phase("1.0", worker),
                "there are 0 clients",
            ),
            ("negative time", with_phase("-1.0", ""), "less than no time"),
            (
                "infinite time",
                with_phase("1e999", ""),
                "number out of range",
            ),
        ];
        for (name, text, want) in cases {
            let error = error(text);
            assert!(
                error.contains(want) && error.is_empty() == want.is_empty(),
                "{name}: {error}"
            );
            assert!(
                error.is_empty() || error.contains("r.json"),
                "{name}: {error}"
            );
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = load(Path::new("/no/such/result.json"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("/no/such/result.json"), "{error}");
    }
}
