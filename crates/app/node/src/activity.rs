//! Answers the admin API about the present activity of clients.

use std::collections::BTreeMap;

use cairn_activity::{File, FileName, OperationReport, Protocol, Row, Who, Work};
use cairn_admin::activity::{
    ActivityControl, ActivityList, ActivityProtocol, ActivityView, ClientActivity, FileActivity,
    FileKind, OperationActivity, VolumeActivity,
};
use cairn_admin::api::ErrorKind;
use cairn_admin::{Answer, ControlError};
use cairn_base::Ino;
use cairn_config::VolumeName;
use cairn_fs::{Fs, FsError};
use cairn_pool::VolumeService;

use crate::control::Controller;

/// Work as rates, over a period.
struct Rates {
    operations: f64,
    read_bytes: u64,
    written_bytes: u64,
}

impl Rates {
    fn of(work: Work, seconds: f64) -> Self {
        let each = |count: u64| match seconds > 0.0 {
            true => count as f64 / seconds,
            // No client can have done anything yet.
            false => 0.0,
        };
        Self {
            operations: (each(work.operations) * 10.0).round() / 10.0,
            read_bytes: each(work.read_bytes).round() as u64,
            written_bytes: each(work.written_bytes).round() as u64,
        }
    }
}

fn protocol(protocol: Protocol) -> ActivityProtocol {
    match protocol {
        Protocol::Nfs => ActivityProtocol::Nfs,
        Protocol::Iscsi => ActivityProtocol::Iscsi,
        Protocol::S3 => ActivityProtocol::S3,
    }
}

fn operation(report: &OperationReport, seconds: f64) -> OperationActivity {
    let rates = Rates::of(report.work, seconds);
    let micros = |latency: std::time::Duration| latency.as_nanos() as f64 / 1e3;
    OperationActivity {
        protocol: protocol(report.operation.protocol),
        operation: report.operation.name.to_owned(),
        operations_per_second: rates.operations,
        read_bytes_per_second: rates.read_bytes,
        written_bytes_per_second: rates.written_bytes,
        latency_mean_microseconds: report.latency_mean.map(micros),
        latency_max_microseconds: report.latency_max.map(micros),
    }
}

fn client(row: Row<cairn_activity::Client>, seconds: f64) -> ClientActivity {
    let rates = Rates::of(row.work, seconds);
    ClientActivity {
        client: match row.key.who {
            Who::Address(address) => address.to_string(),
            Who::Named(name) => name.as_ref().to_owned(),
        },
        protocol: protocol(row.key.protocol),
        operations_per_second: rates.operations,
        read_bytes_per_second: rates.read_bytes,
        written_bytes_per_second: rates.written_bytes,
        lower_bound: row.is_lower_bound,
    }
}

/// The present path of an inode.
async fn name_of(
    fs: &Fs,
    luns: &BTreeMap<Ino, String>,
    ino: Ino,
) -> Result<(FileKind, Option<String>), ControlError> {
    if let Some(lun) = luns.get(&ino) {
        return Ok((FileKind::Lun, Some(lun.clone())));
    }
    let found = async {
        let path = fs.path_of(ino).await?;
        Ok::<_, FsError>((path, fs.attr(ino).await))
    };
    let (path, attr) = match found.await {
        Ok(found) => found,
        Err(error @ (FsError::Fenced | FsError::TryLater | FsError::Unreachable(_))) => {
            return Err(ControlError::new(ErrorKind::Unavailable, error.to_string()));
        }
        Err(error) => {
            // Its activity is worth showing without its name.
            tracing::warn!(volume = fs.name(), %ino, %error, "a file's path cannot be looked up");
            return Ok((FileKind::File, None));
        }
    };
    // The kind of a removed inode is unknown.
    let kind = match attr.map(|attr| attr.kind) {
        Ok(cairn_fs::FileKind::Directory) => FileKind::Directory,
        Ok(_) | Err(_) => FileKind::File,
    };
    let path = path.map(|path| match path.is_empty() {
        true => "/".to_owned(),
        false => String::from_utf8_lossy(&path).into_owned(),
    });
    Ok((kind, path))
}

async fn file(
    fs: &Fs,
    luns: &BTreeMap<Ino, String>,
    row: Row<File>,
    seconds: f64,
) -> Result<FileActivity, ControlError> {
    let (kind, name, inode) = match row.key.name {
        FileName::Inode(ino) => {
            let (kind, name) = name_of(fs, luns, ino).await?;
            (kind, name, Some(ino.0))
        }
        FileName::Object(name) => (FileKind::Object, Some(name.as_ref().to_owned()), None),
    };
    let rates = Rates::of(row.work, seconds);
    Ok(FileActivity {
        kind,
        name,
        inode,
        operations_per_second: rates.operations,
        read_bytes_per_second: rates.read_bytes,
        written_bytes_per_second: rates.written_bytes,
        lower_bound: row.is_lower_bound,
    })
}

impl ActivityControl for Controller {
    fn activity(&self, volume: VolumeName) -> Answer<'_, ActivityView> {
        Box::pin(async move {
            let fs = self.fs_of(&volume)?;
            let report = self.inner.activities.of(fs.volume()).report();
            let seconds = report.span.as_secs_f64();
            let total = Rates::of(report.total, seconds);
            let target = self.inner.targets.of_volume(fs.volume());
            let luns = target.map(|target| target.san.luns()).unwrap_or_default();
            let luns = luns.into_iter().map(|lun| (lun.ino, lun.name)).collect();
            let mut files = Vec::with_capacity(report.files.rows.len());
            for row in report.files.rows {
                files.push(file(&fs, &luns, row, seconds).await?);
            }
            let operations = report.operations.iter();
            let clients = report.clients.rows.into_iter();
            Ok(ActivityView {
                volume: fs.name().to_owned(),
                seconds,
                operations_per_second: total.operations,
                read_bytes_per_second: total.read_bytes,
                written_bytes_per_second: total.written_bytes,
                operations: operations.map(|it| operation(it, seconds)).collect(),
                clients: clients.map(|row| client(row, seconds)).collect(),
                has_more_clients: report.clients.has_others,
                files,
                has_more_files: report.files.has_others,
            })
        })
    }

    fn activities(&self) -> Answer<'_, ActivityList> {
        Box::pin(async move {
            let pool = &self.inner.pool;
            let state = pool.state();
            let is_served = |id| matches!(pool.service(id), Some(VolumeService::Serving(_)));
            let volumes = state.all_volumes().filter(|volume| is_served(volume.id));
            let volumes = volumes.map(|volume| {
                let (total, span) = self.inner.activities.of(volume.id).total();
                let rates = Rates::of(total, span.as_secs_f64());
                VolumeActivity {
                    volume: volume.name.to_string(),
                    operations_per_second: rates.operations,
                    read_bytes_per_second: rates.read_bytes,
                    written_bytes_per_second: rates.written_bytes,
                }
            });
            let mut volumes: Vec<_> = volumes.collect();
            volumes.sort_by(|a, b| a.volume.cmp(&b.volume));
            Ok(ActivityList { volumes })
        })
    }
}
