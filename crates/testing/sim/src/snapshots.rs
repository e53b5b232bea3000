//! Snapshots of the volume beside its clients: each has the contents at one moment while it was taken, and keeps them.
//!
//! Owns: when snapshots are taken and deleted, the allowed contents of each, and that they are unchanged after
//! restarts, moves and deletions of others. Must not know: how versions are kept, when the power goes.
//!
//! A snapshot is judged like the contents after a crash: some prefix of all changes, with everything acknowledged
//! before the call that took it. Its contents then never change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::env::Env;
use cairn_fs::{ChangeKind, FileChange, Fs, FsError, JointSnapshots, SnapshotFailure};
use cairn_testkit::Rng;
use parking_lot::Mutex;

use crate::client;
use crate::judge::Judge;
use crate::model::{Mark, Model};
use crate::tree::{FoundKind, FoundNode, FoundTree};
use crate::world::{VOLUME, World, read_everything};

/// Limit of snapshots at a time.
const COUNT_MAX: usize = 4;
/// Changes requested at a time.
const DIFF_PAGE: usize = 5;
/// Longest pause between two steps.
const PAUSE_MAX: Duration = Duration::from_millis(400);
/// Longest time of other nodes for a step.
const OTHERS_MAX: Duration = Duration::from_millis(30);
/// Limit of the checks until the space of a deleted snapshot is free, and their interval.
const FREED_LOOKS_MAX: u32 = 600;
const FREED_LOOK_PAUSE: Duration = Duration::from_millis(500);

/// Knowledge about a snapshot.
#[derive(Clone, Debug)]
enum KnownSnapshot {
    /// It may or may not exist, and its contents are unknown: a moment since the mark.
    MayBeThere(Mark),
    Has(FoundTree),
    /// It may or may not be deleted.
    MayBeGone(FoundTree),
}

/// All snapshots of the volume, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshots {
    known: BTreeMap<Vec<u8>, KnownSnapshot>,
    named: u32,
    /// Snapshots whose contents were judged, and comparisons of one with its earlier contents.
    pub judged: u64,
    pub compared: u64,
}

/// The contents of a volume's snapshots; none for unreadable ones.
pub(crate) type Read = BTreeMap<Vec<u8>, FoundTree>;

/// Reads all of them.
pub(crate) async fn read_all(fs: &Fs, is_unreadable_allowed: bool) -> Result<Read, String> {
    let mut read = Read::new();
    for snapshot in fs.snapshots() {
        let name = snapshot.name.to_vec();
        let view = fs.in_view(snapshot.view());
        let view = view.map_err(|error| format!("snapshot {}: {error}", shown(&name)))?;
        let found = read_everything(&view, is_unreadable_allowed).await;
        let found = found.map_err(|error| format!("snapshot {}: {error}", shown(&name)))?;
        read.insert(name, found);
    }
    Ok(read)
}

impl Snapshots {
    /// Whether a restart may find these; the error says why not. Returns the knowledge about them after that.
    pub fn judge(&self, model: &Model, read: &Read) -> Result<Self, String> {
        if let Some(name) = read.keys().find(|name| !self.known.contains_key(*name)) {
            return Err(format!(
                "snapshot {} is there, and should not be",
                shown(name)
            ));
        }
        let mut after = Self {
            known: BTreeMap::new(),
            ..self.clone()
        };
        for (name, known) in &self.known {
            let at = |error| format!("snapshot {}: {error}", shown(name));
            let found = match (read.get(name), known) {
                (None, KnownSnapshot::Has(_)) => return Err(at("is gone".to_owned())),
                (None, _) => continue,
                (Some(found), KnownSnapshot::Has(had) | KnownSnapshot::MayBeGone(had)) => {
                    same(had, found).map_err(at)?;
                    after.compared += 1;
                    had
                }
                (Some(found), KnownSnapshot::MayBeThere(mark)) => {
                    model.since(*mark).judge(found).map_err(at)?;
                    after.judged += 1;
                    found
                }
            };
            after
                .known
                .insert(name.clone(), KnownSnapshot::Has(found.clone()));
        }
        Ok(after)
    }

    fn set(&mut self, name: &[u8], known: KnownSnapshot) {
        self.known.insert(name.to_vec(), known);
    }

    fn new_name(&mut self) -> Vec<u8> {
        self.named += 1;
        format!("s{}", self.named).into_bytes()
    }

    /// The names of those that certainly exist.
    fn names(&self) -> Vec<Vec<u8>> {
        let is_there =
            |(_, known): &(&Vec<u8>, &KnownSnapshot)| matches!(known, KnownSnapshot::Has(_));
        let there = self.known.iter().filter(is_there);
        there.map(|(name, _)| name.clone()).collect()
    }
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Checks that a snapshot has its earlier contents, where both were readable.
fn same(had: &FoundTree, has: &FoundTree) -> Result<(), String> {
    let names = |found: &FoundTree| found.nodes.keys().copied().collect::<Vec<u64>>();
    if names(had) != names(has) {
        let (had, has) = (names(had), names(has));
        return Err(format!("has inodes {has:?}, had {had:?}"));
    }
    for (ino, node) in &had.nodes {
        if !node.is_like(&has.nodes[ino]) {
            return Err(format!("inode {ino} is another than it was"));
        }
    }
    Ok(())
}

/// Takes and deletes snapshots in one life, like a client.
pub(crate) struct Snapshotter {
    pub life: Arc<client::Life>,
    pub judge: Arc<Judge>,
    pub env: Env,
    pub rng: Rng,
}

impl Snapshotter {
    pub async fn run(mut self, step_count: u64) {
        for _ in 0..step_count {
            let goes_on = self.life.pause(&self.env, &mut self.rng, PAUSE_MAX);
            if !goes_on.await {
                break;
            }
            let fs = self.life.serving.begin().await;
            if let Err(error) = self.step(&fs).await {
                self.life.fail(error);
            }
            self.life.serving.end();
        }
        self.life.client_is_done();
    }

    async fn step(&mut self, fs: &Fs) -> Result<(), String> {
        // Groups that an earlier life left unfinished.
        if let Err(error) = give_up_groups(fs).await {
            return self.refused(fs, "giving up", b"of a group", &error);
        }
        let names = self.life.snapshots.lock().names();
        let pick = self.rng.below(names.len().max(1) as u64) as usize;
        match self.rng.below(4) {
            0 if !names.is_empty() => self.delete(fs, &names[pick]).await,
            1 if !names.is_empty() => self.look(fs, &names[pick]).await,
            _ if names.len() < COUNT_MAX => self.take(fs).await,
            _ => self.delete(fs, &names[pick]).await,
        }
    }

    async fn take(&mut self, fs: &Fs) -> Result<(), String> {
        let life = Arc::clone(&self.life);
        let snapshots = &life.snapshots;
        let name = snapshots.lock().new_name();
        let mark = self.life.model.lock().mark();
        snapshots.lock().set(&name, KnownSnapshot::MayBeThere(mark));
        tracing::debug!(name = shown(&name), "a snapshot begins");
        let taken = match self.rng.below(3) {
            0 => self.take_with_group(fs, &name).await,
            _ => fs.take_snapshot(&name, b"").await.map(|_| true),
        };
        match taken {
            Ok(true) => self.look(fs, &name).await,
            Ok(false) => {
                snapshots.lock().known.remove(&name);
                match fs.snapshot(&name) {
                    Some(_) => Err(format!("snapshot {} of no group is seen", shown(&name))),
                    None => Ok(()),
                }
            }
            Err(error) => self.refused(fs, "taking", &name, &error),
        }
    }

    /// Like the node of one of several volumes: clients wait for answers meanwhile. Returns whether the group is
    /// complete.
    async fn take_with_group(&mut self, fs: &Fs, name: &[u8]) -> Result<bool, SnapshotFailure> {
        let group = self.rng.u64().max(1);
        let of_one = |(_, error)| error;
        let mut joint = JointSnapshots::begin(&[fs], name, b"")
            .await
            .map_err(of_one)?;
        joint.close().await.map_err(of_one)?;
        joint.hold();
        self.pause().await;
        joint.take(self.env.clock.now(), group).map_err(of_one)?;
        self.pause().await;
        joint.end().await.map_err(of_one)?;
        self.pause().await;
        let is_whole = self.rng.below(4) > 0;
        fs.decide_group(group, is_whole).await?;
        Ok(is_whole)
    }

    /// Until other nodes have come as far.
    async fn pause(&mut self) {
        let pause = self.rng.below(OTHERS_MAX.as_micros() as u64);
        self.env.clock.sleep(Duration::from_micros(pause)).await;
    }

    async fn delete(&self, fs: &Fs, name: &[u8]) -> Result<(), String> {
        let snapshots = &self.life.snapshots;
        let had = match snapshots.lock().known.get(name) {
            Some(KnownSnapshot::Has(found)) => found.clone(),
            _ => return Ok(()),
        };
        snapshots.lock().set(name, KnownSnapshot::MayBeGone(had));
        match fs.delete_snapshot(name).await {
            Ok(()) => {
                if fs.snapshot(name).is_some() {
                    return Err(format!("snapshot {} is seen after its end", shown(name)));
                }
                snapshots.lock().known.remove(name);
                Ok(())
            }
            Err(error) => self.refused(fs, "deleting", name, &error),
        }
    }

    /// Reads an existing snapshot, and judges it.
    async fn look(&self, fs: &Fs, name: &[u8]) -> Result<(), String> {
        let (life, judge) = (&self.life, &self.judge);
        let at = |error| format!("snapshot {}: {error}", shown(name));
        let Some(snapshot) = fs.snapshot(name) else {
            return match life.is_reopening() || judge.has_stopped(fs) {
                true => Ok(()),
                false => Err(at("is not there".to_owned())),
            };
        };
        // Everything that may be in it has begun by now.
        let model = life.model.lock().clone();
        let found = match fs.in_view(snapshot.view()) {
            Ok(view) => read_everything(&view, judge.is_unreadable_allowed()).await,
            Err(error) => Err(error.to_string()),
        };
        let found = match found {
            Ok(found) => found,
            Err(_) if life.is_reopening() || judge.has_stopped(fs) => return Ok(()),
            Err(error) if life.is_tier_away(&error) => return Ok(()),
            Err(error) => return Err(at(error)),
        };
        let mut snapshots = life.snapshots.lock();
        let had = match snapshots.known.get(name) {
            Some(KnownSnapshot::Has(had)) => {
                same(had, &found).map_err(at)?;
                let had = had.clone();
                snapshots.compared += 1;
                had
            }
            Some(KnownSnapshot::MayBeThere(mark)) => {
                model.since(*mark).judge(&found).map_err(at)?;
                snapshots.judged += 1;
                found
            }
            _ => return Ok(()),
        };
        snapshots.set(name, KnownSnapshot::Has(had));
        Ok(())
    }

    fn refused(
        &self,
        fs: &Fs,
        what: &str,
        name: &[u8],
        failure: &SnapshotFailure,
    ) -> Result<(), String> {
        let error = match failure {
            SnapshotFailure::Fs(error) => error.clone(),
            SnapshotFailure::Refused(_) => FsError::Fenced,
        };
        if self.life.is_excused(fs, &error, false) {
            return Ok(());
        }
        Err(format!("{what} snapshot {}: {failure}", shown(name)))
    }
}

/// Deletes the snapshots of unknown groups.
async fn give_up_groups(fs: &Fs) -> Result<(), SnapshotFailure> {
    for group in fs.undecided_groups() {
        fs.decide_group(group, false).await?;
    }
    Ok(())
}

/// Restores the volume from one of them, and then from its contents before that. Each time it has the contents of the
/// snapshot, all others are unchanged, and the reported changes between any two of them are right.
pub(crate) async fn there_and_back(
    env: &Env,
    world: World,
    snapshots: &Mutex<Snapshots>,
    mut rng: Rng,
) -> Result<World, String> {
    let names = snapshots.lock().names();
    let Some(name) = names.get(rng.below(names.len().max(1) as u64) as usize) else {
        return Ok(world);
    };
    // A crash may have interrupted an earlier run after it took the snapshot.
    let mut kept = (0..).map(|number| format!("before{number}").into_bytes());
    let is_new = |kept: &Vec<u8>| !snapshots.lock().known.contains_key(kept);
    let kept = &kept.find(is_new).unwrap_or_default();
    let was = read_everything(&world.fs, false).await?;
    snapshots.lock().set(kept, KnownSnapshot::Has(was));
    let world = restored(env, world, snapshots, name, Some(kept)).await?;
    let world = restored(env, world, snapshots, kept, None).await?;
    let known = snapshots.lock().known.clone();
    check_diffs(&world.fs, &known).await?;
    Ok(world)
}

async fn restored(
    env: &Env,
    world: World,
    snapshots: &Mutex<Snapshots>,
    name: &[u8],
    keep: Option<&Vec<u8>>,
) -> Result<World, String> {
    let at = |error: String| format!("restored from snapshot {}: {error}", shown(name));
    let keep = keep.map(|keep| &keep[..]);
    let restored = world.pool.restore_volume(VOLUME, name, keep).await;
    restored.map_err(|error| at(error.to_string()))?;
    let world = world.again().map_err(at)?;
    let (has, read) = world.read_and_count(env).await.map_err(at)?;
    let known = snapshots.lock().known.get(name).cloned();
    if let Some(KnownSnapshot::Has(had)) = known {
        same(&had, &has).map_err(at)?;
    }
    // None of them is in an unknown state.
    snapshots.lock().judge(&Model::new(), &read).map_err(at)?;
    Ok(world)
}

/// Checks that the reported differences of any two snapshots are right.
async fn check_diffs(fs: &Fs, known: &BTreeMap<Vec<u8>, KnownSnapshot>) -> Result<(), String> {
    let all = fs.snapshots();
    for (at, earlier) in all.iter().enumerate() {
        for later in &all[at + 1..] {
            let (Some(KnownSnapshot::Has(before)), Some(KnownSnapshot::Has(after))) =
                (known.get(&earlier.name[..]), known.get(&later.name[..]))
            else {
                continue;
            };
            let between = format!("{} to {}", shown(&earlier.name), shown(&later.name));
            let failed = |error: FsError| format!("what changed from {between}: {error}");
            let mut diff = fs
                .diff(earlier.generation, later.generation)
                .map_err(failed)?;
            let mut changes = Vec::new();
            loop {
                let page = diff.page(DIFF_PAGE).await.map_err(failed)?;
                let is_last = page.len() < DIFF_PAGE;
                changes.extend(page);
                if is_last {
                    break;
                }
            }
            check_diff(before, after, &changes)
                .map_err(|error| format!("what changed from {between}: {error}"))?;
        }
    }
    Ok(())
}

fn check_diff(before: &FoundTree, after: &FoundTree, changes: &[FileChange]) -> Result<(), String> {
    let told = |ino: u64, is_it: fn(&ChangeKind) -> bool| {
        let mut of = changes.iter().filter(|change| change.ino.0 == ino);
        of.any(|change| is_it(&change.change))
    };
    for (ino, node) in &after.nodes {
        let is_told = match before.nodes.get(ino) {
            None => told(*ino, |change| {
                matches!(
                    change,
                    ChangeKind::Created | ChangeKind::Modified { replaced: true, .. }
                )
            }),
            Some(before) => {
                let of = |node: &FoundNode| FoundNode {
                    nlink: 0,
                    kind: match &node.kind {
                        // Names are reported one by one.
                        FoundKind::Dir(_) => FoundKind::Dir(BTreeMap::new()),
                        kind => kind.clone(),
                    },
                    ..node.clone()
                };
                let is_modified = |change: &ChangeKind| {
                    matches!(
                        change,
                        ChangeKind::Modified {
                            replaced: false,
                            ..
                        }
                    )
                };
                of(before).is_like(&of(node)) || told(*ino, is_modified)
            }
        };
        if !is_told {
            return Err(format!("inode {ino} is not in it"));
        }
    }
    let replaced = changes
        .iter()
        .filter(|change| matches!(change.change, ChangeKind::Modified { replaced: true, .. }));
    let mut replaced = replaced.count();
    for ino in before
        .nodes
        .keys()
        .filter(|ino| !after.nodes.contains_key(ino))
    {
        if told(*ino, |change| *change == ChangeKind::Deleted) {
            continue;
        }
        // Another file has its name, once each.
        replaced = replaced
            .checked_sub(1)
            .ok_or_else(|| format!("inode {ino}, which went, is not in it"))?;
    }
    for change in changes {
        let ino = change.ino.0;
        let is_there = match change.change {
            ChangeKind::Deleted => before.nodes.contains_key(&ino),
            _ => after.nodes.contains_key(&ino),
        };
        if !is_there || change.path.is_none() && change.change == ChangeKind::Created {
            return Err(format!("{change:?} is not so"));
        }
    }
    Ok(())
}

/// Deletes all of them, one after the other; then the volume holds no space for them.
pub(crate) async fn delete_all(
    env: &Env,
    fs: &Fs,
    snapshots: &Mutex<Snapshots>,
    mut rng: Rng,
) -> Result<(), String> {
    let given_up = give_up_groups(fs).await;
    given_up.map_err(|error| format!("giving up groups: {error}"))?;
    loop {
        let names = snapshots.lock().names();
        let Some(name) = names.get(rng.below(names.len().max(1) as u64) as usize) else {
            break;
        };
        let deleted = fs.delete_snapshot(name).await;
        deleted.map_err(|error| format!("deleting snapshot {}: {error}", shown(name)))?;
        snapshots.lock().known.remove(name);
        if rng.coin() {
            let read = read_all(fs, false).await?;
            // None of them is in an unknown state.
            snapshots.lock().judge(&Model::new(), &read)?;
        }
    }
    for _ in 0..FREED_LOOKS_MAX {
        if fs.snapshot_freeing().snapshots == 0 {
            return Ok(());
        }
        env.clock.sleep(FREED_LOOK_PAUSE).await;
    }
    let left = fs.snapshot_freeing();
    Err(format!(
        "what deleted snapshots held is not freed: {left:?}"
    ))
}
