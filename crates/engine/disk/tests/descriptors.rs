//! Data files leave file descriptors for those who cannot wait for one. Apart from the other tests: the limit is
//! that of the whole process.

use std::fs::File;

use cairn_base::disk::{Disk, DiskError, OpenMode};
use cairn_disk::{DiskSettings, RealDisk};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;

const LIMIT: u64 = 128;
/// Some of those that are spared may be in use for a moment, for the folder of a name.
const LEFT_COUNT_MIN: usize = 24;
const NEW: OpenMode = OpenMode::CreateNew { len_bytes: 0 };

#[test]
fn files_leave_descriptors_for_others() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(async {
        let disk = RealDisk::open(dir.path(), DiskSettings::default()).unwrap();
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(LIMIT),
                ..getrlimit(Resource::Nofile)
            },
        )
        .unwrap();
        let mut files = Vec::new();
        let refused = loop {
            let name = format!("file{}", files.len());
            match disk.open(&name, NEW).await {
                Ok(file) => files.push(file),
                Err(error) => break error,
            }
            assert!(files.len() < LIMIT as usize);
        };
        assert!(
            matches!(refused, DiskError::NoDescriptor { .. }),
            "{refused}"
        );
        // A refused file is not there, and can be tried again.
        let name = format!("file{}", files.len());
        assert_eq!(disk.list("").await.unwrap().len(), files.len());
        let others: Vec<_> = (0..LIMIT)
            .map_while(|_| File::open("/dev/null").ok())
            .collect();
        assert!(others.len() >= LEFT_COUNT_MIN, "{}", others.len());
        drop(others);
        let again = disk.open("file0", OpenMode::Existing).await.map(|_| ());
        assert!(matches!(again, Err(DiskError::NoDescriptor { .. })));
        files.pop();
        disk.open(&name, NEW).await.unwrap();
    });
}
