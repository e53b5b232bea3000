//! The config file, and the words that flags, files and JSON share.

use std::fmt::{Debug, Display};
use std::path::Path;
use std::str::FromStr;

use cairn_base::units::parse_size;
use cairn_config::{
    AccessPattern, ClassChoice, ClientNet, Compression, DATA_FOLDERS_MAX, MEMORY_LIMIT_BYTES_MIN,
    Protection, SizeLimit, Squash, THREADS_MAX, VolumeName, parse_file,
};
use cairn_keys::{KEYS_MAX, MasterKey};

const CPU_COUNT: usize = 2;

/// Tries one input.
pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    file(text);
    word::<AccessPattern>(text);
    word::<ClassChoice>(text);
    word::<ClientNet>(text);
    word::<Compression>(text);
    word::<Protection>(text);
    word::<SizeLimit>(text);
    word::<Squash>(text);
    word::<VolumeName>(text);
    let _ = parse_size(text);
    keys(text);
}

/// A file of master keys: what is read has keys, and not too many.
fn keys(text: &str) {
    if let Ok(keys) = MasterKey::parse_all(text) {
        assert!((1..=KEYS_MAX).contains(&keys.len()));
    }
}

fn file(content: &str) {
    let settings = match parse_file(content, Path::new("/etc/cairn")) {
        Ok(settings) => settings,
        Err(error) => {
            assert!(!error.problems.is_empty());
            let line_count = content.split('\n').count();
            assert!(error.problems.is_sorted_by_key(|problem| problem.line));
            for problem in &error.problems {
                assert!(
                    problem
                        .line
                        .is_none_or(|line| (1..=line_count).contains(&line))
                );
                assert!(!problem.what.is_empty());
            }
            return;
        }
    };
    let folders = settings.data.iter().chain(&settings.disk_root);
    let files = [
        &settings.master_key_file,
        &settings.oidc.oidc_client_secret_file,
        &settings.s3_key,
        &settings.state_dir,
    ];
    for path in folders.chain(files.into_iter().flatten()) {
        assert!(path.is_absolute(), "{}", path.display());
    }
    if let Ok(config) = settings.resolve(CPU_COUNT) {
        assert!((1..=DATA_FOLDERS_MAX).contains(&config.data.len()));
        assert!((1..=THREADS_MAX).contains(&config.threads));
        assert!(config.memory_limit_bytes >= MEMORY_LIMIT_BYTES_MIN);
    }
}

/// What is read, written and read again is the same.
fn word<T: FromStr + Display + Debug + PartialEq>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        let again = value.to_string().parse::<T>().ok();
        assert_eq!(again.as_ref(), Some(&value), "{text:?} written as {value}");
    }
}
