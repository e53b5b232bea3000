//! The highest state of the cluster's map that this node saw, in a file of its cluster folder.
//!
//! Owns: the file, which after a crash is the old one or the new one. Must not know: the meaning of the state.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use cairn_cluster::map::{HighWater, HighWaterStore};

const NAME: &str = "high-water.json";

pub struct HighWaterFile(PathBuf);

impl HighWaterFile {
    pub fn in_folder(folder: &Path) -> Self {
        Self(folder.join(NAME))
    }
}

impl HighWaterStore for HighWaterFile {
    fn load(&self) -> Result<Option<HighWater>, String> {
        let told = |error: &dyn std::fmt::Display| format!("{}: {error}", self.0.display());
        match fs::read(&self.0) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|error| told(&error)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(told(&error)),
        }
    }

    fn store(&self, seen: HighWater) -> Result<(), String> {
        let told = |error: std::io::Error| format!("{}: {error}", self.0.display());
        let bytes = serde_json::to_vec(&seen).map_err(|error| error.to_string())?;
        let new = self.0.with_extension("new");
        let mut file = File::create(&new).map_err(told)?;
        file.write_all(&bytes).map_err(told)?;
        file.sync_all().map_err(told)?;
        fs::rename(&new, &self.0).map_err(told)?;
        let folder = self.0.parent().unwrap_or(Path::new("."));
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(told)
    }
}

#[cfg(test)]
mod tests {
    use cairn_cluster::Revision;
    use cairn_cluster::map::{ClusterId, MapGeneration};

    use super::*;

    #[test]
    fn what_was_seen_is_there_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = HighWaterFile::in_folder(folder.path());
        assert_eq!(file.load(), Ok(None));
        for revision in [Revision(3), Revision(9)] {
            let seen = HighWater {
                cluster: ClusterId(7),
                generation: MapGeneration(1),
                revision: revision.0,
            };
            file.store(seen).unwrap();
            assert_eq!(file.load(), Ok(Some(seen)));
        }
        fs::write(folder.path().join(NAME), "nonsense").unwrap();
        assert!(file.load().unwrap_err().contains(NAME));
    }
}
