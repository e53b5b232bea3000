//! The LUNs of one volume, in memory as they are in the volume.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use bytes::Bytes;
use cairn_base::Ino;
use cairn_base::env::Env;
use cairn_fs::{
    CreateMode, Credentials, Expected, Fs, FsError, FsView, Placing, SecretError, SetAttr,
    SnapshotFailure, XattrMode,
};
use parking_lot::RwLock;

use crate::records::{
    AccessRecord, KindRecord, LunRecord, TargetRecord, VERSION, check_name, decode, encode,
};
use crate::*;

const FOLDER: &[u8] = b"luns";
const OF_LUN: &[u8] = b"user.lun";
// Begin with `XATTR_ACCESS_PREFIX`, so that a restore of the volume leaves them as they are.
const OF_ACCESS: &[u8] = b"user.access.lun";
const OF_RESERVATIONS: &[u8] = b"user.access.reservations";
const OF_TARGET: &[u8] = b"user.target";
const OF_IGROUP: &str = "user.igroup.";
const OF_INITIATOR: &str = "user.initiator.";
/// Entries of the folder that are read at a time.
const PAGE_COUNT: usize = 256;
/// What takes the snapshots that clones are made of, in place of a schedule: none has such a name.
const CLONING: &[u8] = b".lun-clone";
/// Before the volume's name in the name of a target. The month is that of the project's beginning.
const NAME_PREFIX: &str = "iqn.2025-11.storage.cairn";

/// What a new LUN is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LunSpec {
    pub name: String,
    pub size_bytes: u64,
    pub block_len_bytes: u32,
    pub write_cache: bool,
    /// All its space is set aside for it.
    pub is_reserved: bool,
}

/// What to change about a LUN.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LunChange {
    pub size_bytes: Option<u64>,
    /// A smaller size is meant.
    pub shrink: bool,
    pub write_cache: Option<bool>,
    pub read_only: Option<bool>,
    pub online: Option<bool>,
    /// At most [`SOFT_THRESHOLD_PERCENT_MAX`]; 0: none.
    pub soft_threshold_percent: Option<u8>,
    /// No space is set aside for it any more.
    pub unreserve: bool,
}

#[derive(Default)]
struct State {
    /// The folder, once there is one.
    folder: Option<Ino>,
    target: Option<String>,
    luns: BTreeMap<String, Lun>,
    igroups: BTreeMap<String, Igroup>,
    initiators: BTreeMap<String, KeptInitiator>,
}

/// The LUNs of one volume that is open. Changes are durable when they are answered.
pub struct San {
    fs: Fs,
    env: Env,
    state: RwLock<State>,
    /// What nobody has to prove, kept as what initiators have to, once somebody asked for it.
    nobody: OnceLock<KeptInitiator>,
    /// Held by who changes something.
    turn: tokio::sync::Mutex<()>,
}

const WHO: Credentials = Credentials::ROOT;

/// What the file of a LUN carries.
fn stored_of(record: &LunRecord) -> Result<[(&'static [u8], Bytes); 2], SanError> {
    Ok([
        (OF_LUN, encode(&record.kind())?.into()),
        (OF_ACCESS, encode(&record.access())?.into()),
    ])
}

/// Where what an initiator must know lies, in its volume.
fn chap_place(initiator: &str) -> String {
    format!("initiator {initiator} chap")
}

/// Where what it is answered with lies.
fn mutual_place(initiator: &str) -> String {
    format!("initiator {initiator} mutual")
}

/// No initiator has such a name.
const NOBODY: &str = "nobody";

/// What takes as long to read as what an initiator has to prove.
fn nobody() -> Initiator {
    let chap = || Chap {
        user: NOBODY.to_owned(),
        secret: "0".repeat(16),
    };
    Initiator {
        chap: chap(),
        mutual: Some(chap()),
    }
}

fn secret_error(initiator: &str, error: SecretError) -> SanError {
    SanError::Secret {
        initiator: initiator.to_owned(),
        error,
    }
}

fn snapshot_refused(error: SnapshotFailure) -> SanError {
    match error {
        SnapshotFailure::Fs(error) => SanError::Fs(error),
        SnapshotFailure::Refused(error) => SanError::Conflict(error.to_string()),
    }
}

impl San {
    /// Reads what the volume keeps.
    pub async fn open(fs: Fs, env: Env) -> Result<Self, SanError> {
        let san = Self {
            fs,
            env,
            state: RwLock::default(),
            nobody: OnceLock::new(),
            turn: tokio::sync::Mutex::default(),
        };
        let mut state = State::default();
        if let Some(hidden) = san.fs.hidden_folder().await? {
            match san.fs.lookup(&WHO, hidden, FOLDER).await {
                Ok((attr, _)) => san.load(attr.ino, &mut state).await?,
                Err(FsError::NotFound) => {}
                Err(error) => return Err(error.into()),
            }
        }
        *san.state.write() = state;
        san.end_cloning().await?;
        Ok(san)
    }

    /// Deletes the snapshots of clones that broke off when the server ended. In a volume that is only read they wait until it is opened
    /// for changes.
    async fn end_cloning(&self) -> Result<(), SanError> {
        if self.fs.read_only().is_some() {
            return Ok(());
        }
        for snapshot in self.fs.snapshots() {
            if snapshot.schedule == CLONING {
                let deleted = self.fs.delete_snapshot(&snapshot.name).await;
                deleted.map_err(snapshot_refused)?;
            }
        }
        Ok(())
    }

    async fn load(&self, folder: Ino, state: &mut State) -> Result<(), SanError> {
        state.folder = Some(folder);
        for name in self.fs.xattr_list(&WHO, folder).await? {
            let value = self.fs.xattr(&WHO, folder, &name).await?;
            let text = String::from_utf8_lossy(&name).into_owned();
            if name == OF_TARGET {
                state.target = Some(decode::<TargetRecord>("the target", &value)?.name);
            } else if let Some(igroup) = text.strip_prefix(OF_IGROUP) {
                state
                    .igroups
                    .insert(igroup.to_owned(), decode(&text, &value)?);
            } else if let Some(initiator) = text.strip_prefix(OF_INITIATOR) {
                let kept = decode(&text, &value)?;
                let kept = self.wrapped(folder, initiator, kept).await?;
                state.initiators.insert(initiator.to_owned(), kept);
            }
        }
        let mut cookie = 0;
        loop {
            let page = self
                .fs
                .read_dir(&WHO, folder, cookie, PAGE_COUNT, true)
                .await?;
            for entry in &page.entries {
                cookie = entry.cookie;
                let (Some(attr), false) = (entry.attr, entry.name.starts_with(b".")) else {
                    continue;
                };
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                let what = format!("LUN {name}");
                let kind = match self.fs.xattr(&WHO, entry.ino, OF_LUN).await {
                    Ok(kind) => decode(&what, &kind)?,
                    // Its making broke off: nobody was told of it.
                    Err(FsError::NoAttribute) => {
                        if self.fs.read_only().is_none() {
                            self.fs.unreserve(entry.ino).await?;
                        }
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                };
                let access = match self.fs.xattr(&WHO, entry.ino, OF_ACCESS).await {
                    Ok(access) => Some(decode::<AccessRecord>(&what, &access)?),
                    Err(FsError::NoAttribute) => None,
                    Err(error) => return Err(error.into()),
                };
                let record = LunRecord::new(kind, access);
                let lun = Lun {
                    ino: entry.ino,
                    name: name.clone(),
                    size_bytes: attr.size_bytes,
                    record,
                };
                state.luns.insert(name, lun);
            }
            if page.eof || page.entries.is_empty() {
                return Ok(());
            }
        }
    }

    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    pub fn env(&self) -> &Env {
        &self.env
    }

    /// The name of the target that the LUNs are behind, once there was a LUN.
    pub fn target(&self) -> Option<String> {
        self.state.read().target.clone()
    }

    /// In order of their names.
    pub fn luns(&self) -> Vec<Lun> {
        self.state.read().luns.values().cloned().collect()
    }

    pub fn lun(&self, name: &str) -> Result<Lun, SanError> {
        let state = self.state.read();
        let lun = state.luns.get(name).cloned();
        lun.ok_or_else(|| SanError::NoLun(name.to_owned()))
    }

    pub fn has_luns(&self) -> bool {
        !self.state.read().luns.is_empty()
    }

    pub fn igroups(&self) -> BTreeMap<String, Igroup> {
        self.state.read().igroups.clone()
    }

    pub fn initiators(&self) -> BTreeMap<String, KeptInitiator> {
        self.state.read().initiators.clone()
    }

    /// The settings of an initiator. An error means that there are some, and that they cannot be read.
    pub fn initiator(&self, name: &str) -> Result<Option<Initiator>, SanError> {
        let kept = self.state.read().initiators.get(name).cloned();
        kept.map(|kept| self.revealed(name, kept)).transpose()
    }

    /// Takes the time that [`Self::initiator`] takes for one with settings: a client that measures the time of answers
    /// does not learn which names are set.
    pub fn reveal_nobody(&self) {
        if let Some(nobody) = self.nobody() {
            drop(std::hint::black_box(self.revealed(NOBODY, nobody.clone())));
        }
    }

    /// `None`: it cannot be kept while the master key is missing.
    fn nobody(&self) -> Option<&KeptInitiator> {
        if let Some(nobody) = self.nobody.get() {
            return Some(nobody);
        }
        let made = self.kept(NOBODY, nobody()).ok()?;
        Some(self.nobody.get_or_init(|| made))
    }

    fn revealed(&self, name: &str, kept: KeptInitiator) -> Result<Initiator, SanError> {
        let reveal = |place: String, kept: KeptChap| {
            let secret = self.fs.secret(&place, &kept.secret);
            let secret = secret.map_err(|error| secret_error(name, error))?;
            let user = kept.user;
            Ok::<_, SanError>(Chap { user, secret })
        };
        let mutual = kept.mutual.map(|mutual| reveal(mutual_place(name), mutual));
        // As long for those without one: the time of an answer tells nothing.
        let nobodys = mutual.is_none().then(|| self.nobody()).flatten();
        if let Some(nobodys) = nobodys.and_then(|nobody| nobody.mutual.clone()) {
            drop(std::hint::black_box(reveal(mutual_place(NOBODY), nobodys)));
        }
        Ok(Initiator {
            chap: reveal(chap_place(name), kept.chap)?,
            mutual: mutual.transpose()?,
        })
    }

    fn kept(&self, name: &str, initiator: Initiator) -> Result<KeptInitiator, SanError> {
        let keep = |place: String, chap: Chap| {
            let secret = self.fs.keep_secret(&place, &chap.secret);
            let secret = secret.map_err(|error| secret_error(name, error))?;
            let user = chap.user;
            Ok::<_, SanError>(KeptChap { user, secret })
        };
        let mutual = initiator
            .mutual
            .map(|mutual| keep(mutual_place(name), mutual));
        Ok(KeptInitiator {
            version: VERSION,
            chap: keep(chap_place(name), initiator.chap)?,
            mutual: mutual.transpose()?,
        })
    }

    /// Wraps secrets from before there was a master key. What the volume does not take, which may be full, is used as it is
    /// until the next start.
    async fn wrapped(
        &self,
        folder: Ino,
        name: &str,
        kept: KeptInitiator,
    ) -> Result<KeptInitiator, SanError> {
        if kept.is_wrapped() || !self.fs.wraps_secrets() {
            return Ok(kept);
        }
        let wrapped = self.kept(name, self.revealed(name, kept.clone())?)?;
        let key = format!("{OF_INITIATOR}{name}");
        match self.put(folder, key.as_bytes(), &encode(&wrapped)?).await {
            Ok(()) => Ok(wrapped),
            Err(_) => Ok(kept),
        }
    }

    /// What an initiator sees, by number.
    pub fn seen_by(&self, initiator: &str) -> BTreeMap<u16, Lun> {
        let state = self.state.read();
        let is_in = |igroup: &str| {
            let igroup = state.igroups.get(igroup);
            igroup.is_some_and(|igroup| igroup.initiators.contains(initiator))
        };
        let mut seen = BTreeMap::new();
        for lun in state.luns.values() {
            for (igroup, number) in &lun.maps {
                if is_in(igroup) {
                    seen.insert(*number, lun.clone());
                }
            }
        }
        seen
    }

    /// What runs on an initiator's host, if one of its groups says so.
    pub fn os_of(&self, initiator: &str) -> Option<OsType> {
        let state = self.state.read();
        let mut of = state.igroups.values();
        of.find_map(|igroup| igroup.os.filter(|_| igroup.initiators.contains(initiator)))
    }

    async fn folder(&self) -> Result<Ino, SanError> {
        if let Some(folder) = self.state.read().folder {
            return Ok(folder);
        }
        let hidden = self.fs.make_hidden_folder().await?;
        let mode = SetAttr {
            mode: Some(0o700),
            ..SetAttr::default()
        };
        let folder = match self.fs.make_dir(&WHO, hidden, FOLDER, mode).await {
            Ok(made) => made.attr.ino,
            Err(FsError::Exists) => self.fs.lookup(&WHO, hidden, FOLDER).await?.0.ino,
            Err(error) => return Err(error.into()),
        };
        self.state.write().folder = Some(folder);
        Ok(folder)
    }

    async fn put(&self, ino: Ino, key: &[u8], value: &[u8]) -> Result<(), SanError> {
        self.fs
            .set_xattr(&WHO, ino, key, value, XattrMode::Any)
            .await?;
        Ok(())
    }

    /// Keeps what has a name of its own, in the folder of all LUNs.
    async fn put_named(&self, prefix: &str, name: &str, value: &[u8]) -> Result<(), SanError> {
        let folder = self.folder().await?;
        self.put(folder, format!("{prefix}{name}").as_bytes(), value)
            .await
    }

    /// Forgets what [`Self::put_named`] kept; without the folder nothing was kept.
    async fn remove_named(
        &self,
        folder: Option<Ino>,
        prefix: &str,
        name: &str,
    ) -> Result<(), SanError> {
        let Some(folder) = folder else { return Ok(()) };
        let name = format!("{prefix}{name}");
        self.fs.remove_xattr(&WHO, folder, name.as_bytes()).await?;
        Ok(())
    }

    async fn put_access(&self, lun: Ino, record: &LunRecord) -> Result<(), SanError> {
        let access = encode(&record.access())?;
        self.put(lun, OF_ACCESS, &access).await
    }

    /// Gives the volume's target its name, if it has none: that of the volume now, and what makes it the only one.
    async fn name_target(&self, folder: Ino) -> Result<(), SanError> {
        if self.state.read().target.is_some() {
            return Ok(());
        }
        let mut random = [0; 6];
        self.env.entropy.fill(&mut random);
        let unique: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let plain = |byte: char| match byte.to_ascii_lowercase() {
            byte @ ('a'..='z' | '0'..='9' | '.' | '-') => byte,
            _ => '-',
        };
        let volume: String = self.fs.name().chars().map(plain).collect();
        let name = format!("{NAME_PREFIX}:{volume}.{unique}");
        let record = TargetRecord {
            version: VERSION,
            name: name.clone(),
        };
        self.put(folder, OF_TARGET, &encode(&record)?).await?;
        self.state.write().target = Some(name);
        Ok(())
    }

    /// That one more LUN may have this name.
    fn require_free(&self, name: &str) -> Result<(), SanError> {
        check_name(name)?;
        let state = self.state.read();
        if state.luns.contains_key(name) {
            return Err(SanError::LunExists(name.to_owned()));
        }
        if state.luns.len() >= LUN_COUNT_MAX {
            let why =
                format!("the volume has {LUN_COUNT_MAX} LUNs, which is the most there can be");
            return Err(SanError::Conflict(why));
        }
        Ok(())
    }

    /// Makes a LUN with the blocks that another has now, or had in a snapshot, at once and without copying them. Nobody sees
    /// it yet. As after a power cut: what hosts flushed is there.
    pub async fn clone_lun(
        &self,
        from: &str,
        snapshot: Option<&str>,
        name: &str,
    ) -> Result<Lun, SanError> {
        let _turn = self.turn.lock().await;
        self.require_free(name)?;
        let folder = self.folder().await?;
        if let Some(snapshot) = snapshot {
            let found = self.fs.snapshot(snapshot.as_bytes());
            let found = found
                .ok_or_else(|| SanError::Invalid(format!("there is no snapshot {snapshot}")))?;
            let view = self.fs.in_view(found.view())?;
            if let Ok(lun) = self.lun(from) {
                self.require_unreserved(&lun, "cloned")?;
            }
            return self.clone_from(&view, folder, from, name).await;
        }
        self.require_unreserved(&self.lun(from)?, "cloned")?;
        let mut random = [0; 6];
        self.env.entropy.fill(&mut random);
        let unique: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let snapshot = format!("lun-clone.{unique}");
        let taken = self.fs.take_snapshot(snapshot.as_bytes(), CLONING).await;
        let taken = taken.map_err(snapshot_refused)?;
        let cloned = match self.fs.in_view(taken.view()) {
            Ok(view) => self.clone_from(&view, folder, from, name).await,
            Err(error) => Err(error.into()),
        };
        let deleted = self.fs.delete_snapshot(snapshot.as_bytes()).await;
        let cloned = cloned?;
        deleted.map_err(snapshot_refused)?;
        Ok(cloned)
    }

    async fn clone_from(
        &self,
        view: &FsView,
        folder: Ino,
        from: &str,
        name: &str,
    ) -> Result<Lun, SanError> {
        let found = view.lookup(&WHO, folder, from.as_bytes()).await;
        let (source, _) = match found {
            Err(FsError::NotFound | FsError::Stale) => {
                return Err(SanError::NoLun(from.to_owned()));
            }
            found => found?,
        };
        let stored = view.xattr(&WHO, source.ino, OF_LUN).await?;
        let of_source: KindRecord = decode(from, &stored)?;
        // Nobody is let in by a clone: who may use the source has to be said for it, too.
        let record = LunRecord {
            naa: self.new_naa(),
            online: true,
            created_seconds: self.env.clock.now().seconds,
            ..LunRecord::new(of_source, None)
        };
        let mut file = self.fs.make_unnamed(&WHO)?;
        file.share(view, source.ino, 0..source.size_bytes).await?;
        let placing = Placing {
            dir: folder,
            name: name.as_bytes(),
            // What there is of that name is left from a making that broke off.
            expected: Expected::Anything,
            set: SetAttr {
                mode: Some(0o600),
                ..SetAttr::default()
            },
            xattrs: &stored_of(&record)?,
        };
        let attr = file.place(&WHO, &placing).await?;
        let lun = Lun {
            ino: attr.ino,
            name: name.to_owned(),
            size_bytes: source.size_bytes,
            record,
        };
        self.state.write().luns.insert(name.to_owned(), lun.clone());
        Ok(lun)
    }

    /// Gives a LUN the blocks and the size that it had in a snapshot, at once and without copying them. It keeps its identity,
    /// its maps and its reservations. Only one that is offline: what hosts have of it in memory would be written over what is
    /// restored. Everything is as before if that fails.
    pub async fn restore_lun(&self, name: &str, snapshot: &str) -> Result<Lun, SanError> {
        let _turn = self.turn.lock().await;
        let lun = self.lun(name)?;
        if lun.online {
            return Err(SanError::Conflict(format!(
                "LUN {name} is online: hosts would keep using its old content from their caches"
            )));
        }
        self.require_unreserved(&lun, "restored")?;
        let folder = self.folder().await?;
        let found = self.fs.snapshot(snapshot.as_bytes());
        let found =
            found.ok_or_else(|| SanError::Invalid(format!("there is no snapshot {snapshot}")))?;
        let view = self.fs.in_view(found.view())?;
        let source = match view.lookup(&WHO, folder, name.as_bytes()).await {
            Ok((source, _)) => source,
            Err(FsError::NotFound | FsError::Stale) => {
                return Err(SanError::Conflict(format!(
                    "snapshot {snapshot} has no LUN {name}"
                )));
            }
            Err(error) => return Err(error.into()),
        };
        let then: KindRecord = decode(name, &view.xattr(&WHO, source.ino, OF_LUN).await?)?;
        if then.naa != lun.naa {
            return Err(SanError::Conflict(format!(
                "LUN {name} in snapshot {snapshot} is another LUN that had this name earlier: clone that LUN"
            )));
        }
        let mut xattrs = stored_of(&lun.record)?.to_vec();
        if let Some(kept) = self.reservations(lun.ino).await? {
            xattrs.push((OF_RESERVATIONS, kept));
        }
        let mut file = self.fs.make_unnamed(&WHO)?;
        file.share(&view, source.ino, 0..source.size_bytes).await?;
        let placing = Placing {
            dir: folder,
            name: name.as_bytes(),
            expected: Expected::Anything,
            set: SetAttr {
                mode: Some(0o600),
                ..SetAttr::default()
            },
            xattrs: &xattrs,
        };
        let attr = file.place(&WHO, &placing).await?;
        let lun = Lun {
            ino: attr.ino,
            size_bytes: source.size_bytes,
            ..lun
        };
        self.state.write().luns.insert(name.to_owned(), lun.clone());
        Ok(lun)
    }

    /// An identity for hosts.
    fn new_naa(&self) -> u64 {
        let mut random = [0; 8];
        self.env.entropy.fill(&mut random);
        0x3 << 60 | u64::from_be_bytes(random) >> 4
    }

    pub async fn create(&self, spec: LunSpec) -> Result<Lun, SanError> {
        let _turn = self.turn.lock().await;
        check_size(spec.size_bytes, spec.block_len_bytes)?;
        self.require_free(&spec.name)?;
        let folder = self.folder().await?;
        self.name_target(folder).await?;
        let set = SetAttr {
            mode: Some(0o600),
            size_bytes: Some(0),
            ..SetAttr::default()
        };
        // What there is of that name without a record is left from a making that broke off.
        let made = self
            .fs
            .create(
                &WHO,
                folder,
                spec.name.as_bytes(),
                CreateMode::Unchecked(set),
            )
            .await?;
        let ino = made.attr.ino;
        self.resize_file(ino, spec.size_bytes).await?;
        if spec.is_reserved
            && let Err(error) = self.fs.reserve(ino, spec.size_bytes).await
        {
            // Without its record it is no LUN, should it stay; the next one of its name takes its place.
            let _ = self.fs.remove(&WHO, folder, spec.name.as_bytes()).await;
            return Err(not_reserved(error, spec.size_bytes));
        }
        let record = LunRecord {
            naa: self.new_naa(),
            block_len_bytes: spec.block_len_bytes,
            write_cache: spec.write_cache,
            read_only: false,
            online: true,
            soft_threshold_percent: 0,
            created_seconds: self.env.clock.now().seconds,
            maps: BTreeMap::new(),
        };
        // The attribute that makes it a LUN comes last.
        self.put(ino, OF_ACCESS, &encode(&record.access())?).await?;
        self.put(ino, OF_LUN, &encode(&record.kind())?).await?;
        let lun = Lun {
            ino,
            name: spec.name.clone(),
            size_bytes: spec.size_bytes,
            record,
        };
        self.state.write().luns.insert(spec.name, lun.clone());
        Ok(lun)
    }

    /// A LUN with space set aside shares no records with others: what both have is not free when it is overwritten.
    fn require_unreserved(&self, lun: &Lun, what: &str) -> Result<(), SanError> {
        match self.fs.reserved_bytes(lun.ino) {
            0 => Ok(()),
            _ => Err(SanError::Conflict(format!(
                "space is set aside for LUN {}: it is not {what}, as it would share its blocks then",
                lun.name
            ))),
        }
    }

    async fn resize_file(&self, ino: Ino, size_bytes: u64) -> Result<(), SanError> {
        let set = SetAttr {
            size_bytes: Some(size_bytes),
            ..SetAttr::default()
        };
        self.fs.set_attr(&WHO, ino, set, None).await?;
        Ok(())
    }

    pub async fn change(&self, name: &str, change: LunChange) -> Result<Lun, SanError> {
        let _turn = self.turn.lock().await;
        let mut lun = self.lun(name)?;
        if let Some(size_bytes) = change.size_bytes {
            check_size(size_bytes, lun.block_len_bytes)?;
            if size_bytes < lun.size_bytes && !change.shrink {
                return Err(SanError::Conflict(format!(
                    "LUN {name} has {} bytes: a smaller size cuts off what lies beyond it",
                    lun.size_bytes
                )));
            }
        }
        if let Some(percent) = change.soft_threshold_percent
            && percent > SOFT_THRESHOLD_PERCENT_MAX
        {
            return Err(SanError::Invalid(format!(
                "a soft threshold is 1 to {SOFT_THRESHOLD_PERCENT_MAX} percent of the volume's space, or 0 for none, not {percent}"
            )));
        }
        let reserved_bytes = self.fs.reserved_bytes(lun.ino);
        if change.unreserve {
            self.fs.unreserve(lun.ino).await?;
        } else if let Some(size_bytes) = change.size_bytes
            && reserved_bytes > 0
            && size_bytes > lun.size_bytes
        {
            // Before it is larger: else it could be written to.
            let reserved = self.fs.reserve(lun.ino, size_bytes).await;
            reserved.map_err(|error| not_reserved(error, size_bytes))?;
        }
        let mut record = lun.record.clone();
        record.soft_threshold_percent = change
            .soft_threshold_percent
            .unwrap_or(record.soft_threshold_percent);
        record.write_cache = change.write_cache.unwrap_or(record.write_cache);
        record.read_only = change.read_only.unwrap_or(record.read_only);
        record.online = change.online.unwrap_or(record.online);
        if record.kind() != lun.kind() {
            self.put(lun.ino, OF_LUN, &encode(&record.kind())?).await?;
        }
        if record.access() != lun.access() {
            self.put_access(lun.ino, &record).await?;
        }
        lun.record = record;
        if let Some(size_bytes) = change.size_bytes {
            self.resize_file(lun.ino, size_bytes).await?;
            if reserved_bytes > size_bytes && !change.unreserve {
                self.fs.reserve(lun.ino, size_bytes).await?;
            }
            lun.size_bytes = size_bytes;
        }
        self.state.write().luns.insert(name.to_owned(), lun.clone());
        Ok(lun)
    }

    /// Removes a LUN with all that is in it; a mapped one only with `force`.
    pub async fn delete(&self, name: &str, force: bool) -> Result<(), SanError> {
        let _turn = self.turn.lock().await;
        let lun = self.lun(name)?;
        if !force && let Some(igroup) = lun.maps.keys().next() {
            return Err(SanError::Conflict(format!(
                "LUN {name} is mapped to group {igroup}"
            )));
        }
        let folder = self.folder().await?;
        self.fs.remove(&WHO, folder, name.as_bytes()).await?;
        self.state.write().luns.remove(name);
        // It is gone, and nothing is set aside for it any more: the next start finds that, if this is not kept now.
        let _ = self.fs.unreserve(lun.ino).await;
        Ok(())
    }

    /// Lets a group see a LUN, as the first number that is free if none is given. Returns the number.
    ///
    /// `seen`: by initiators that are logged in. A number under which one of them saw another LUN is not free: its host has a
    /// device of that number until it logs out, and would write to this LUN what is meant for the other.
    pub async fn map(
        &self,
        name: &str,
        igroup: &str,
        number: Option<u16>,
        seen: &Seen,
    ) -> Result<u16, SanError> {
        let _turn = self.turn.lock().await;
        let mut lun = self.lun(name)?;
        let (taken, held) = {
            let state = self.state.read();
            let members = state.igroups.get(igroup);
            let members = members.ok_or_else(|| SanError::NoIgroup(igroup.to_owned()))?;
            let initiators = &members.initiators;
            (
                state.numbers_of(initiators, igroup, name),
                held_numbers(seen, initiators, lun.naa),
            )
        };
        if let Some(number) = lun.maps.get(igroup) {
            return Err(SanError::Conflict(format!(
                "LUN {name} is already mapped to group {igroup}, as {number}"
            )));
        }
        let number = match number {
            Some(number) if number > LUN_NUMBER_MAX => {
                return Err(SanError::Invalid(format!(
                    "a LUN's number is 0 to {LUN_NUMBER_MAX}, not {number}"
                )));
            }
            Some(number) => match taken.get(&number) {
                Some(other) => {
                    return Err(SanError::Conflict(format!(
                        "initiators of group {igroup} see LUN {other} as number {number}"
                    )));
                }
                None if held.contains(&number) => {
                    return Err(SanError::Conflict(format!(
                        "a logged-in initiator of group {igroup} saw another LUN as number {number}: choose another number, or log its host out of the target"
                    )));
                }
                None => number,
            },
            None => (0..=LUN_NUMBER_MAX)
                .find(|number| !taken.contains_key(number) && !held.contains(number))
                .ok_or_else(|| {
                    SanError::Conflict(format!(
                        "group {igroup} has no free number: its initiators use all numbers, or used them since their login"
                    ))
                })?,
        };
        if taken.values().any(|other| other == name) {
            return Err(SanError::Conflict(format!(
                "an initiator of group {igroup} sees LUN {name} through another group"
            )));
        }
        lun.record.maps.insert(igroup.to_owned(), number);
        self.put_access(lun.ino, &lun.record).await?;
        self.state.write().luns.insert(name.to_owned(), lun);
        Ok(number)
    }

    pub async fn unmap(&self, name: &str, igroup: &str) -> Result<(), SanError> {
        let _turn = self.turn.lock().await;
        let mut lun = self.lun(name)?;
        if lun.record.maps.remove(igroup).is_none() {
            return Err(SanError::Conflict(format!(
                "LUN {name} is not mapped to group {igroup}"
            )));
        }
        self.put_access(lun.ino, &lun.record).await?;
        self.state.write().luns.insert(name.to_owned(), lun);
        Ok(())
    }

    /// Makes a group, or replaces its initiators. `seen`: as for [`Self::map`], of new members.
    pub async fn igroup_set(
        &self,
        name: &str,
        initiators: BTreeSet<String>,
        os: Option<OsType>,
        seen: &Seen,
    ) -> Result<Igroup, SanError> {
        let _turn = self.turn.lock().await;
        check_name(name)?;
        if initiators.len() > INITIATORS_PER_IGROUP_MAX {
            return Err(SanError::Invalid(format!(
                "a group has at most {INITIATORS_PER_IGROUP_MAX} initiators"
            )));
        }
        let igroup = Igroup {
            version: VERSION,
            initiators,
            os,
        };
        {
            let state = self.state.read();
            if !state.igroups.contains_key(name) && state.igroups.len() >= IGROUP_COUNT_MAX {
                return Err(SanError::Conflict(format!(
                    "the volume has {IGROUP_COUNT_MAX} groups, which is the limit"
                )));
            }
            // A new member may see the same number through another group.
            let others = state.numbers_of(&igroup.initiators, name, "");
            let before = state.igroups.get(name).map(|before| &before.initiators);
            let is_new = |initiator: &&String| {
                before.is_none_or(|before| !before.contains(initiator.as_str()))
            };
            let new: BTreeSet<String> = igroup.initiators.iter().filter(is_new).cloned().collect();
            for lun in state.luns.values() {
                let Some(number) = lun.maps.get(name) else {
                    continue;
                };
                if held_numbers(seen, &new, lun.naa).contains(number) {
                    return Err(SanError::Conflict(format!(
                        "a new initiator of group {name} that is logged in saw another LUN as number {number}, which LUN {} has: log its host out of the target",
                        lun.name
                    )));
                }
                if let Some(other) = others.get(number).filter(|other| **other != lun.name) {
                    return Err(SanError::Conflict(format!(
                        "an initiator would see both LUN {} and LUN {other} as number {number}",
                        lun.name
                    )));
                }
            }
        }
        self.put_named(OF_IGROUP, name, &encode(&igroup)?).await?;
        self.state
            .write()
            .igroups
            .insert(name.to_owned(), igroup.clone());
        Ok(igroup)
    }

    /// Removes a group that no LUN is mapped to.
    pub async fn igroup_remove(&self, name: &str) -> Result<(), SanError> {
        let _turn = self.turn.lock().await;
        let folder = {
            let state = self.state.read();
            if !state.igroups.contains_key(name) {
                return Err(SanError::NoIgroup(name.to_owned()));
            }
            if let Some(lun) = state.luns.values().find(|lun| lun.maps.contains_key(name)) {
                return Err(SanError::Conflict(format!(
                    "LUN {} is mapped to group {name}",
                    lun.name
                )));
            }
            state.folder
        };
        self.remove_named(folder, OF_IGROUP, name).await?;
        self.state.write().igroups.remove(name);
        Ok(())
    }

    pub async fn initiator_set(
        &self,
        name: &str,
        chap: Chap,
        mutual: Option<Chap>,
    ) -> Result<(), SanError> {
        let _turn = self.turn.lock().await;
        check_chap(&chap)?;
        if let Some(mutual) = &mutual {
            check_chap(mutual)?;
            // Else who is asked to prove itself could have the other side answer for it (RFC 7143, section 9.2.1).
            if mutual.secret == chap.secret {
                return Err(SanError::Invalid(
                    "the two secrets of mutual CHAP must differ".to_owned(),
                ));
            }
        }
        {
            let state = self.state.read();
            if !state.initiators.contains_key(name) && state.initiators.len() >= INITIATOR_COUNT_MAX
            {
                return Err(SanError::Conflict(format!(
                    "{INITIATOR_COUNT_MAX} initiators have secrets, which is the limit"
                )));
            }
        }
        let record = self.kept(name, Initiator { chap, mutual })?;
        self.put_named(OF_INITIATOR, name, &encode(&record)?)
            .await?;
        self.state
            .write()
            .initiators
            .insert(name.to_owned(), record);
        Ok(())
    }

    pub async fn initiator_remove(&self, name: &str) -> Result<(), SanError> {
        let _turn = self.turn.lock().await;
        let folder = {
            let state = self.state.read();
            if !state.initiators.contains_key(name) {
                return Err(SanError::NoInitiator(name.to_owned()));
            }
            state.folder
        };
        self.remove_named(folder, OF_INITIATOR, name).await?;
        self.state.write().initiators.remove(name);
        Ok(())
    }

    /// The kept reservations of a LUN.
    pub async fn reservations(&self, lun: Ino) -> Result<Option<Bytes>, SanError> {
        match self.fs.xattr(&WHO, lun, OF_RESERVATIONS).await {
            Ok(kept) => Ok(Some(kept)),
            Err(FsError::NoAttribute) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Keeps a LUN's reservations over restarts and takeovers; `None` forgets them.
    pub async fn keep_reservations(&self, lun: Ino, kept: Option<&[u8]>) -> Result<(), SanError> {
        match kept {
            Some(kept) => self.put(lun, OF_RESERVATIONS, kept).await,
            None => match self.fs.remove_xattr(&WHO, lun, OF_RESERVATIONS).await {
                Ok(_) | Err(FsError::NoAttribute) => Ok(()),
                Err(error) => Err(error.into()),
            },
        }
    }
}

impl State {
    /// Which numbers any of `initiators` has, through `igroup` or another group, with the LUN's name; but for LUN `but` in
    /// `igroup` itself.
    fn numbers_of(
        &self,
        initiators: &BTreeSet<String>,
        igroup: &str,
        but: &str,
    ) -> BTreeMap<u16, String> {
        let shares = |other: &str| {
            let members = self.igroups.get(other);
            members.is_some_and(|members| !members.initiators.is_disjoint(initiators))
        };
        let mut numbers = BTreeMap::new();
        for lun in self.luns.values() {
            for (other, number) in &lun.maps {
                let is_own = other == igroup;
                if (is_own && lun.name != but && !but.is_empty()) || (!is_own && shares(other)) {
                    numbers.insert(*number, lun.name.clone());
                }
            }
        }
        numbers
    }
}

fn not_reserved(error: FsError, size_bytes: u64) -> SanError {
    match error {
        FsError::NoSpace => SanError::Conflict(format!(
            "{size_bytes} bytes cannot be reserved: the pool has less free space, beside the reservations of other LUNs"
        )),
        FsError::QuotaExceeded => SanError::Conflict(format!(
            "{size_bytes} bytes cannot be reserved: a quota of the volume leaves less"
        )),
        FsError::Unreachable(why) => SanError::Conflict(format!(
            "{size_bytes} bytes cannot be reserved now: {why}; try again when the cluster is healthy"
        )),
        error => error.into(),
    }
}

/// Numbers under which any of `initiators` saw another LUN than the one with this identity.
fn held_numbers(seen: &Seen, initiators: &BTreeSet<String>, naa: u64) -> BTreeSet<u16> {
    let of = initiators
        .iter()
        .filter_map(|initiator| seen.get(initiator));
    let others = of.flatten().filter(|(_, other)| *other != naa);
    others.map(|(number, _)| *number).collect()
}

fn check_chap(chap: &Chap) -> Result<(), SanError> {
    let is_plain = |byte: u8| (0x20..0x7f).contains(&byte);
    if chap.user.is_empty() || chap.user.len() > 255 || !chap.user.bytes().all(is_plain) {
        return Err(SanError::Invalid(
            "a CHAP user is 1 to 255 printable ASCII characters".to_owned(),
        ));
    }
    let len = chap.secret.len();
    if !(CHAP_SECRET_LEN_BYTES_MIN..=CHAP_SECRET_LEN_BYTES_MAX).contains(&len) {
        return Err(SanError::Invalid(format!(
            "a CHAP secret has {CHAP_SECRET_LEN_BYTES_MIN} to {CHAP_SECRET_LEN_BYTES_MAX} bytes, this one has {len}"
        )));
    }
    Ok(())
}

fn check_size(size_bytes: u64, block_len_bytes: u32) -> Result<(), SanError> {
    if ![512, 4096].contains(&block_len_bytes) {
        return Err(SanError::Invalid(format!(
            "a LUN has blocks of 512 or 4096 bytes, not {block_len_bytes}"
        )));
    }
    if size_bytes == 0 || size_bytes > LUN_LEN_BYTES_MAX || !size_bytes.is_multiple_of(4096) {
        return Err(SanError::Invalid(format!(
            "a LUN's size is a multiple of 4096 bytes, at most 1 PiB, not {size_bytes} bytes"
        )));
    }
    Ok(())
}
