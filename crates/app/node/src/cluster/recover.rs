//! Recovers a cluster whose etcd has lost its majority for good. Offline: on one node, while no server runs.
//!
//! Owns: which copies of the map exist and which is used, what the disks of this node know beyond it, a new etcd with
//! one member, and how the other nodes follow. Must not know: the contents of a copy (`cairn_cluster::map::copy`),
//! the command line.
//!
//! A copy that is older than the logs on the disks would hide changes that were acknowledged since: a takeover reads
//! only the files that the map names. So this module looks for log files that the copy does not know, and reports
//! them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_base::env::Env;
use cairn_base::{Epoch, VolumeId};
use cairn_cluster::map::copy::{CopiedVolume, MapCopy};
use cairn_cluster::map::{HighWater, HighWaterStore, MapGeneration};
use cairn_cluster::{ClusterMap, Coordinator, end_left_behind};
use cairn_formats::shard::promise::{decode_promise, promise_path};
pub use cairn_trust::EtcdMemberEntry;
use cairn_trust::{ClusterFolder, EtcdSource, Membership, Trust, TrustSettings};
use parking_lot::Mutex;

use super::copies::{CopiesFolder, ON_DISK, read_file};
use super::etcd::{self, EtcdSide};
use super::high_water::HighWaterFile;
use crate::error::NodeError;

/// Names of shard files of logs: `shards/VOLUME/SEGMENT.INDEX`, with bit 63 of the segment
/// (docs/reference/formats/shard.md).
const SHARDS: &str = "shards";
const LOG_BIT: u64 = 1 << 63;
/// The counter in a log file's number: the epoch is in the bits above.
const COUNTER_BITS: u32 = 32;

fn failed(error: impl std::fmt::Display) -> NodeError {
    NodeError::Cluster(error.to_string())
}

/// A copy of the map, and its path.
#[derive(Clone, Debug)]
pub struct FoundMapCopy {
    pub place: PathBuf,
    pub copy: MapCopy,
}

/// Facts about a volume from the disks of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnDisks {
    /// The highest number of a file of its log.
    pub log_number: Option<u64>,
    /// The highest epoch that a disk promised to obey, or that a file has.
    pub epoch: Epoch,
}

/// A volume with log files on this node's disks that are newer than those of the copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newer {
    pub volume: VolumeId,
    pub on_disk: u64,
    pub in_copy: Option<u64>,
}

/// The plan of a recovery.
#[derive(Debug)]
pub struct RecoveryPlan {
    pub membership: Membership,
    pub chosen: FoundMapCopy,
    /// All copies of the cluster, the newest first.
    pub found: Vec<FoundMapCopy>,
    /// Files that should be copies and are unusable, each with the reason.
    pub unusable: Vec<String>,
    pub on_disks: BTreeMap<VolumeId, OnDisks>,
    pub newer: Vec<Newer>,
}

/// Paths of possible copies: in the cluster folder, on the disks, and where an operator says.
fn places(folder: &Path, disks: &[PathBuf], given: &[PathBuf]) -> Vec<PathBuf> {
    if !given.is_empty() {
        return given.to_vec();
    }
    let copies = CopiesFolder::in_folder(folder);
    let on_disks = disks.iter().map(|disk| disk.join(ON_DISK));
    let mut places = vec![copies.newest()];
    places.extend(on_disks);
    places.extend(copies.kept());
    places
}

/// The copy in a file; none if there is no such file, unless one is `wanted`.
fn read_if_there(place: &Path, wanted: bool) -> Result<Option<MapCopy>, String> {
    match (read_file(place), place.try_exists()) {
        (Ok(copy), _) => Ok(Some(copy)),
        (Err(_), Ok(false)) if !wanted => Ok(None),
        (Err(why), _) => Err(why),
    }
}

/// Finds the copies, and reads the disks. Changes nothing.
pub fn plan(
    folder: &Path,
    disks: &[PathBuf],
    given: &[PathBuf],
) -> Result<RecoveryPlan, NodeError> {
    let locked = ClusterFolder::open(folder).map_err(failed)?;
    let membership = locked.membership().map_err(failed)?;
    let mut found = Vec::new();
    let mut unusable = Vec::new();
    for place in places(folder, disks, given) {
        match read_if_there(&place, !given.is_empty()) {
            Ok(None) => {}
            Ok(Some(copy)) if copy.cluster.0 != membership.cluster.0 => unusable.push(format!(
                "{}: it belongs to cluster {}, and this node is in cluster {}",
                place.display(),
                copy.cluster,
                membership.cluster
            )),
            Ok(Some(copy)) => found.push(FoundMapCopy { place, copy }),
            Err(why) => unusable.push(why),
        }
    }
    // Of several copies of one state, the first path.
    found.sort_by_key(|found| std::cmp::Reverse(found.copy.order()));
    let Some(chosen) = found.first().cloned() else {
        let why = match unusable.is_empty() {
            true => "there is none".to_owned(),
            false => unusable.join("; "),
        };
        return Err(failed(format!(
            "no copy of the map of cluster {} can be used: {why}. Look on other nodes of the cluster, in their cluster folders and \
             on their disks (--data), or name one (--copy)",
            membership.cluster_name
        )));
    };
    let on_disks = look_at_disks(disks)?;
    let newer = newer_logs(&chosen.copy.volumes(), &on_disks);
    Ok(RecoveryPlan {
        membership,
        chosen,
        found,
        unusable,
        on_disks,
        newer,
    })
}

/// Volumes whose log has files on these disks that are newer than all files that the copy names.
fn newer_logs(volumes: &[CopiedVolume], on_disks: &BTreeMap<VolumeId, OnDisks>) -> Vec<Newer> {
    let known = volumes
        .iter()
        .filter_map(|known| Some((known.volume, known.log.as_ref()?.newest_number()?)));
    newer_than(&known.collect(), on_disks)
}

/// Volumes whose log has files on these disks that are newer than the newest known file.
fn newer_than(
    known: &BTreeMap<VolumeId, u64>,
    on_disks: &BTreeMap<VolumeId, OnDisks>,
) -> Vec<Newer> {
    let in_copy = |volume: VolumeId| known.get(&volume).copied();
    let found = on_disks.iter().filter_map(|(volume, found)| {
        let on_disk = found.log_number?;
        let in_copy = in_copy(*volume);
        // A volume that the copy does not know was deleted, or made later: either way its log is newer.
        (in_copy.is_none_or(|number| on_disk > number)).then_some(Newer {
            volume: *volume,
            on_disk,
            in_copy,
        })
    });
    found.collect()
}

fn look_at_disks(disks: &[PathBuf]) -> Result<BTreeMap<VolumeId, OnDisks>, NodeError> {
    let mut all: BTreeMap<VolumeId, OnDisks> = BTreeMap::new();
    for disk in disks {
        let volumes = match fs::read_dir(disk.join(SHARDS)) {
            Ok(volumes) => volumes,
            Err(error) => {
                let place = disk.display();
                return Err(failed(format!(
                    "{place} is not a readable disk of this node ({error}); mount it, or leave it out"
                )));
            }
        };
        // An unreadable file may be the newest.
        let unreadable = |place: &Path, error: std::io::Error| {
            failed(format!(
                "{}: {error}; repair the disk, or leave it out",
                place.display()
            ))
        };
        for entry in volumes {
            let entry = entry.map_err(|error| unreadable(disk, error))?;
            let name = entry.file_name();
            let number = name
                .to_str()
                .and_then(|name| u32::from_str_radix(name, 16).ok());
            let Some(volume) = number.map(VolumeId) else {
                continue;
            };
            let known = all.entry(volume).or_default();
            let files = fs::read_dir(entry.path()).and_then(Iterator::collect);
            let files: Vec<fs::DirEntry> =
                files.map_err(|error| unreadable(&entry.path(), error))?;
            let numbers = files.iter();
            let numbers = numbers.filter_map(|file| log_number(file.file_name().to_str()?));
            known.log_number = known.log_number.max(numbers.max());
            let of_files = known.log_number.map_or(0, |number| number >> COUNTER_BITS);
            let promise = disk.join(promise_path(volume));
            let promised = match fs::read(&promise) {
                Ok(bytes) => Some(bytes),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
                Err(error) => return Err(unreadable(&promise, error)),
            };
            let promised = promised.and_then(|bytes| decode_promise(&bytes).ok());
            let promised = promised.map_or(0, |promise| promise.value.epoch.0);
            known.epoch = known.epoch.max(Epoch(of_files.max(promised)));
        }
    }
    Ok(all)
}

/// The number of a log's file, from the name of its shard.
fn log_number(name: &str) -> Option<u64> {
    let (segment, _) = name.split_once('.')?;
    let segment = u64::from_str_radix(segment, 16).ok()?;
    (segment & LOG_BIT != 0).then_some(segment & !LOG_BIT)
}

/// The result of a recovery.
#[derive(Clone, Debug)]
pub struct Recovered {
    pub generation: MapGeneration,
    /// The member of etcd that has the map now, by which other nodes follow; none where others run etcd.
    pub member: Option<EtcdMemberEntry>,
    /// The new path of the data of this node's earlier member of etcd.
    pub moved_to: Option<PathBuf>,
}

/// Remembers nothing: the map is about to be replaced.
pub(super) struct Forgetful;

impl HighWaterStore for Forgetful {
    fn load(&self) -> Result<Option<HighWater>, String> {
        Ok(None)
    }

    fn store(&self, _seen: HighWater) -> Result<(), String> {
        Ok(())
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, NodeError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(NodeError::Runtime)
}

/// Moves the data of this node's member of etcd aside, once no process uses it any more.
async fn put_member_aside(folder: &Path, env: &Env) -> Result<Option<PathBuf>, NodeError> {
    let data = folder.join(etcd::FOLDER);
    let is_there = |path: &Path| {
        let found = path.try_exists();
        found.map_err(|error| failed(format!("{}: {error}", path.display())))
    };
    if !is_there(&data)? {
        return Ok(None);
    }
    end_left_behind(&data).await.map_err(failed)?;
    let mut aside = folder.join(format!("etcd.lost-{}", env.clock.now().seconds));
    let mut count = 1;
    while is_there(&aside)? {
        aside = folder.join(format!("etcd.lost-{}-{count}", env.clock.now().seconds));
        count += 1;
    }
    fs::rename(&data, &aside).map_err(|error| {
        failed(format!(
            "moving {} to {}: {error}",
            data.display(),
            aside.display()
        ))
    })?;
    Ok(Some(aside))
}

/// Carries out a plan.
pub fn apply(folder: &Path, plan: &RecoveryPlan) -> Result<Recovered, NodeError> {
    let runtime = runtime()?;
    let env: Env = cairn_base::real::env(runtime.handle().clone());
    runtime.block_on(async {
        let locked = Arc::new(ClusterFolder::open(folder).map_err(failed)?);
        let mut membership = locked.membership().map_err(failed)?;
        let trust = Trust::open(env.clone(), Arc::clone(&locked), TrustSettings::default());
        let trust = trust.map_err(failed)?;
        let mut moved_to = None;
        let mut member = None;
        if let EtcdSource::Own {
            client_port,
            peer_port,
            ..
        } = membership.etcd
        {
            if !trust.authority().has_key() {
                return Err(failed(format!(
                    "this node does not have the key of the cluster's CA, and a node that is made the first one needs it. Recover on a \
                     node that has ca.key in its cluster folder, with --copy and the copy that this command names ({}); or copy ca.key \
                     from there into {} and try again",
                    plan.chosen.place.display(),
                    folder.display()
                )));
            }
            moved_to = put_member_aside(folder, &env).await?;
            let (client_url, peer_url) = etcd::urls_of(&membership)?;
            let own = EtcdMemberEntry {
                node_name: membership.node_name.clone(),
                client_url,
                peer_url,
            };
            member = Some(own.clone());
            membership.etcd = EtcdSource::Own {
                client_port,
                peer_port,
                members: vec![own],
                runs_member: true,
                joins: false,
                made_anew: u64::try_from(env.clock.now().seconds).ok(),
            };
            locked.save_membership(&membership).map_err(failed)?;
        }
        let shared = Arc::new(Mutex::new(membership));
        let side = EtcdSide::start(Arc::clone(&locked), trust, shared).await?;
        let coordinator: Arc<dyn Coordinator> = Arc::new(side.etcd.clone());
        let highest = plan.found.iter().map(|found| found.copy.generation).max();
        let seen = HighWaterFile::in_folder(folder).load().map_err(failed)?;
        let seen = seen.map(|seen| seen.generation);
        let above = highest.max(seen).unwrap_or(MapGeneration(0));
        let promised = |volume: VolumeId| {
            let found = plan.on_disks.get(&volume);
            found.map_or(Epoch(0), |found| found.epoch)
        };
        let copy = &plan.chosen.copy;
        let written = copy.write_to(&coordinator, &env, above, promised).await;
        // They are asked to follow before this node's server has told etcd of them.
        for node in copy.nodes() {
            if node.id == side.node() {
                continue;
            }
            if let Err(error) = side.admit(node.id).await {
                side.stop().await;
                return Err(failed(format!(
                    "making node {} a user of etcd: {error}; run the command again",
                    node.name
                )));
            }
        }
        // Whatever the result: the next server starts its own member.
        side.stop().await;
        Ok(Recovered {
            generation: written.map_err(failed)?,
            member,
            moved_to,
        })
    })
}

/// Makes this node follow a map that was recovered on another node, or restored in an etcd that others run.
///
/// `member`: the member of etcd that has it. Without one, asks the etcd that this node knows, and accepts an older
/// state there than this node has seen.
pub fn accept_restored(
    folder: &Path,
    member: Option<EtcdMemberEntry>,
    disks: &[PathBuf],
    gives_up_newer: bool,
) -> Result<Accepted, NodeError> {
    let on_disks = look_at_disks(disks)?;
    let runtime = runtime()?;
    let env: Env = cairn_base::real::env(runtime.handle().clone());
    runtime.block_on(async {
        let locked = Arc::new(ClusterFolder::open(folder).map_err(failed)?);
        let mut membership = locked.membership().map_err(failed)?;
        let trust = Trust::open(env.clone(), Arc::clone(&locked), TrustSettings::default());
        let trust = trust.map_err(failed)?;
        let follows = member.is_some();
        match (&membership.etcd, member) {
            (EtcdSource::Given { .. }, Some(_)) => {
                return Err(failed(
                    "this cluster uses its own etcd outside of the nodes: leave --member out",
                ));
            }
            (
                EtcdSource::Own {
                    client_port,
                    peer_port,
                    ..
                },
                Some(member),
            ) => {
                if member.node_name == membership.node_name {
                    return Err(failed(
                        "that is this node itself, which already has the recovered map: start its server",
                    ));
                }
                membership.etcd = EtcdSource::Own {
                    client_port: *client_port,
                    peer_port: *peer_port,
                    members: vec![member],
                    runs_member: false,
                    joins: false,
                    made_anew: None,
                };
            }
            (EtcdSource::Own { .. } | EtcdSource::Given { .. }, None) => {}
        }
        let name = membership.cluster_name.clone();
        let shared = Arc::new(Mutex::new(membership.clone()));
        let side = EtcdSide::start(Arc::clone(&locked), trust, shared).await?;
        let coordinator: Arc<dyn Coordinator> = Arc::new(side.etcd.clone());
        let found = recovered_logs(Arc::clone(&coordinator), &env, &name).await;
        let newer = match &found {
            Ok(Some(known)) => newer_than(known, &on_disks),
            Ok(None) | Err(_) => Vec::new(),
        };
        // Before anything of this node is changed.
        if found.is_err() || !newer.is_empty() && !gives_up_newer {
            side.stop().await;
            found?;
            return Ok(Accepted::Newer(newer));
        }
        let raised_to = accept(coordinator, &env, &name, folder).await;
        side.stop().await;
        let raised_to = raised_to?;
        let mut moved_to = None;
        if follows {
            moved_to = put_member_aside(folder, &env).await?;
            locked.save_membership(&membership).map_err(failed)?;
        }
        Ok(Accepted::Follows {
            raised_to,
            moved_to,
        })
    })
}

#[derive(Clone, Debug)]
pub enum Accepted {
    Follows {
        /// The new generation of the map, if it was older than the one that this node had seen.
        raised_to: Option<MapGeneration>,
        moved_to: Option<PathBuf>,
    },
    /// The disks of this node have logs that the recovered map does not know. Nothing was changed.
    Newer(Vec<Newer>),
}

/// The newest files of logs in the copy that the map was recovered from, if it was.
async fn recovered_logs(
    coordinator: Arc<dyn Coordinator>,
    env: &Env,
    name: &str,
) -> Result<Option<BTreeMap<VolumeId, u64>>, NodeError> {
    let opened = ClusterMap::open(coordinator, env.clone(), name, Arc::new(Forgetful));
    let map = opened.await.map_err(failed)?;
    let recovered = map.recovered().await.map_err(failed)?;
    Ok(recovered.map(|recovered| recovered.logs))
}

async fn accept(
    coordinator: Arc<dyn Coordinator>,
    env: &Env,
    name: &str,
    folder: &Path,
) -> Result<Option<MapGeneration>, NodeError> {
    let high_water = HighWaterFile::in_folder(folder);
    let opened = ClusterMap::open(
        Arc::clone(&coordinator),
        env.clone(),
        name,
        Arc::new(HighWaterFile::in_folder(folder)),
    );
    match opened.await {
        Ok(_) => Ok(None),
        Err(cairn_cluster::MapError::WentBack { .. }) => {
            let seen = high_water.load().map_err(failed)?;
            let above = seen.map_or(MapGeneration(0), |seen| seen.generation);
            let raised =
                ClusterMap::accept_restored(Arc::clone(&coordinator), env.clone(), name, above);
            let raised = raised.await.map_err(failed)?;
            // It is readable, whatever state was seen before.
            let opened = ClusterMap::open(coordinator, env.clone(), name, Arc::new(Forgetful));
            opened.await.map_err(failed)?;
            Ok(Some(raised))
        }
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::{DiskId, LogPosition};
    use cairn_cluster::map::{Ensemble, EnsembleId, VolumeLog};

    use super::*;

    /// Otherwise an older copy would be used, or a member's data would stay where the next member writes.
    #[tokio::test]
    async fn what_cannot_be_read_is_not_taken_for_absent() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let absent = root.path().join("absent");
        assert!(matches!(read_if_there(&absent, false), Ok(None)));
        assert!(read_if_there(&absent, true).is_err());
        assert!(read_if_there(&file.join("map"), false).is_err());
        let env = cairn_base::real::env(tokio::runtime::Handle::current());
        let none = put_member_aside(root.path(), &env).await;
        assert!(none.unwrap().is_none());
        assert!(put_member_aside(&file, &env).await.is_err());

        let disk = root.path().join("disk");
        let volume = disk.join(SHARDS).join("00000007");
        fs::create_dir_all(&volume).unwrap();
        fs::write(volume.join("8000000700000002.00"), "").unwrap();
        let found = look_at_disks(std::slice::from_ref(&disk)).unwrap();
        assert_eq!(found[&VolumeId(7)].epoch, Epoch(7));
        let promise = disk.join(promise_path(VolumeId(7)));
        fs::create_dir_all(&promise).unwrap();
        assert!(look_at_disks(std::slice::from_ref(&disk)).is_err());
        fs::remove_dir(&promise).unwrap();
        fs::write(disk.join(SHARDS).join("00000008"), "").unwrap();
        assert!(look_at_disks(&[disk]).is_err(), "no folder of a volume");
    }

    #[test]
    fn files_of_logs_are_told_by_their_names() {
        for (name, want) in [
            ("8000000700000002.00", Some((7 << 32) | 2)),
            ("0000000700000002.00", None),
            ("4000000700000002.00", None),
            ("8000000700000002", None),
            ("x.00", None),
        ] {
            assert_eq!(log_number(name), want, "{name}");
        }
    }

    #[test]
    fn logs_that_a_copy_does_not_know_are_told() {
        let ensemble = |epoch, counter| Ensemble {
            id: EnsembleId {
                epoch: Epoch(epoch),
                counter,
            },
            from: LogPosition(1),
            to: None,
            disks: vec![DiskId(1)],
        };
        let volume = |number, parts: Vec<Ensemble>| CopiedVolume {
            volume: VolumeId(number),
            epoch: Epoch(3),
            log: Some(VolumeLog {
                ensembles: parts,
                state: None,
            }),
        };
        let volumes = [
            volume(1, vec![ensemble(2, 1), ensemble(3, 0)]),
            volume(2, vec![ensemble(3, 0)]),
        ];
        let on_disk = |number| OnDisks {
            log_number: Some(number),
            epoch: Epoch(number >> 32),
        };
        let found = BTreeMap::from([
            // A number equal to the copy's, a newer one, and one of a volume that the copy does not know.
            (VolumeId(1), on_disk(3 << 32)),
            (VolumeId(2), on_disk((3 << 32) | 1)),
            (VolumeId(3), on_disk(1 << 32)),
            (VolumeId(4), OnDisks::default()),
        ]);
        let newer = newer_logs(&volumes, &found);
        let want = [
            Newer {
                volume: VolumeId(2),
                on_disk: (3 << 32) | 1,
                in_copy: Some(3 << 32),
            },
            Newer {
                volume: VolumeId(3),
                on_disk: 1 << 32,
                in_copy: None,
            },
        ];
        assert_eq!(newer, want);
    }
}
