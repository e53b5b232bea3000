//! Targets: one for each volume that has LUNs, their sessions, and changes of their LUNs.
//!
//! Owns: which targets there are, who is connected, that sessions see changes. Must not know: PDUs, commands.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use cairn_activity::{Activities, Activity, Client, Protocol};
use cairn_base::env::Env;
use cairn_base::{Ino, VolumeId};
use cairn_codec_scsi::code;
use cairn_fs::Fs;
use cairn_qos::{Gate, Shaper};
use cairn_san::{Initiator, San, SanError, Seen};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, watch};

use crate::execute::SessionContext;
use crate::login::Login;
use crate::pass::{self, Cluster, Known};
use crate::session::Joining;
use crate::tokens::Tokens;
use crate::unit::{Nexus, Unit};

/// The one target port group of a server that is in no cluster, and the one port in it.
pub const PORT_GROUP: u16 = 1;
/// How often a volume that could not be read is tried again.
const RETRY_PAUSE: std::time::Duration = std::time::Duration::from_secs(5);

/// A volume as a target.
pub struct Target {
    pub volume: VolumeId,
    pub san: Arc<San>,
    gate: Arc<Gate>,
    activity: Arc<Activity>,
    tokens: Arc<Tokens>,
    cluster: Option<Arc<Cluster>>,
    units: RwLock<BTreeMap<Ino, Arc<Unit>>>,
    /// Grows when what initiators see may have changed.
    version: AtomicU64,
    /// What sessions saw since they began, with the initiator of each.
    seen: Mutex<BTreeMap<u64, SeenBySession>>,
    seen_next: AtomicU64,
}

/// An initiator's name; numbers, and the identities of the LUNs that had them.
type SeenBySession = (String, BTreeSet<(u16, u64)>);

/// Where commands on a volume are counted: before they begin, and when they have ended.
struct CommandCounters {
    gate: Arc<Gate>,
    activity: Arc<Activity>,
}

/// A session as others see it.
pub struct Session {
    pub initiator: String,
    pub target: Option<String>,
    pub volume: Option<VolumeId>,
    pub isid: [u8; 6],
    pub tsih: u16,
    /// The target port group through which it came.
    pub group: u16,
    pub peer: SocketAddr,
    pub begun_seconds: i64,
    pub(crate) connections: AtomicU32,
    /// Where connections go that join it.
    pub(crate) joins: mpsc::Sender<Joining>,
    /// Set when it is to end.
    pub end: watch::Sender<bool>,
    /// Closed when it has ended.
    pub ended: watch::Receiver<()>,
}

impl Session {
    /// How many it has now.
    pub fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
struct Table {
    /// Of all volumes that are served here; `None` while what they keep is not read yet.
    volumes: BTreeMap<VolumeId, (Fs, Option<Arc<Target>>)>,
}

/// All targets of this server.
pub struct Targets {
    env: Env,
    shaper: Arc<Shaper>,
    activities: Arc<Activities>,
    cluster: Option<Arc<Cluster>>,
    pub(crate) known: Known,
    /// Where hosts find this server, once it serves.
    portals: RwLock<Vec<SocketAddr>>,
    table: RwLock<Table>,
    sessions: Mutex<HashMap<u64, Arc<Session>>>,
    session_next: AtomicU64,
    tsih_next: AtomicU16,
    /// Changes when a volume was read, or a LUN made: the listener may have to begin.
    pub has_luns: watch::Sender<bool>,
}

impl Targets {
    /// `cluster`: if this node is in one.
    pub fn new(
        env: Env,
        shaper: Arc<Shaper>,
        activities: Arc<Activities>,
        cluster: Option<Arc<Cluster>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            env,
            shaper,
            activities,
            cluster,
            known: pass::known(),
            portals: RwLock::default(),
            table: RwLock::default(),
            sessions: Mutex::default(),
            session_next: AtomicU64::new(1),
            tsih_next: AtomicU16::new(1),
            has_luns: watch::Sender::new(false),
        })
    }

    pub fn env(&self) -> &Env {
        &self.env
    }

    pub fn cluster(&self) -> Option<&Arc<Cluster>> {
        self.cluster.as_ref()
    }

    /// Where hosts find targets: the addresses of all nodes in a cluster.
    pub fn portals(&self) -> Vec<SocketAddr> {
        match &self.cluster {
            Some(cluster) => {
                let all = cluster.portals().into_iter();
                all.flat_map(|node| node.addresses).collect()
            }
            None => self.portals.read().clone(),
        }
    }

    /// Says where this server is found from now on.
    pub fn set_portals(&self, portals: Vec<SocketAddr>) {
        *self.portals.write() = portals;
    }

    /// Which volumes are served here from now on. Sessions of others end.
    pub fn replace(self: &Arc<Self>, served: Vec<Fs>) {
        let mut gone = Vec::new();
        {
            let mut table = self.table.write();
            let mut before = std::mem::take(&mut table.volumes);
            for fs in served {
                let id = fs.volume();
                let known = before.remove(&id);
                // One that was opened again is another one.
                let target = match known {
                    Some((_, Some(target)))
                        if target.san.fs().write_verifier() == fs.write_verifier() =>
                    {
                        Some(target)
                    }
                    Some((old, None)) if old.write_verifier() == fs.write_verifier() => {
                        table.volumes.insert(id, (fs, None));
                        continue;
                    }
                    Some(_) => {
                        gone.push(id);
                        None
                    }
                    None => None,
                };
                if target.is_none() {
                    let (targets, fs) = (Arc::clone(self), fs.clone());
                    self.env
                        .spawner
                        .spawn("luns", Box::pin(async move { targets.read(fs).await }));
                }
                table.volumes.insert(id, (fs, target));
            }
            gone.extend(before.into_keys());
        }
        self.end_sessions(|session| session.volume.is_some_and(|volume| gone.contains(&volume)));
    }

    /// Reads what a volume keeps, for as long as it is served.
    async fn read(self: Arc<Self>, fs: Fs) {
        let mut said = false;
        loop {
            let is_current = {
                let table = self.table.read();
                let now = table.volumes.get(&fs.volume());
                now.is_some_and(|(now, target)| {
                    target.is_none() && now.write_verifier() == fs.write_verifier()
                })
            };
            if !is_current {
                return;
            }
            let counted = CommandCounters {
                gate: self.shaper.gate(fs.volume()),
                activity: self.activities.of(fs.volume()),
            };
            match Target::open(fs.clone(), self.env.clone(), counted, self.cluster.clone()).await {
                Ok(target) => {
                    let has_luns = target.san.has_luns();
                    if let Some(place) = self.table.write().volumes.get_mut(&fs.volume())
                        && place.0.write_verifier() == fs.write_verifier()
                    {
                        place.1 = Some(Arc::new(target));
                    }
                    if has_luns {
                        self.has_luns.send_replace(true);
                    }
                    return;
                }
                Err(error) => {
                    if !std::mem::replace(&mut said, true) {
                        tracing::error!(volume = fs.name(), %error, "the LUNs of a volume cannot be read; trying again");
                    }
                    self.env.clock.sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    pub fn all(&self) -> Vec<Arc<Target>> {
        let table = self.table.read();
        table
            .volumes
            .values()
            .filter_map(|(_, target)| target.clone())
            .collect()
    }

    /// Whether some volume was not read yet.
    pub fn is_starting(&self) -> bool {
        self.table
            .read()
            .volumes
            .values()
            .any(|(_, target)| target.is_none())
    }

    pub fn of_volume(&self, volume: VolumeId) -> Option<Arc<Target>> {
        self.table.read().volumes.get(&volume)?.1.clone()
    }

    pub fn named(&self, name: &str) -> Option<Arc<Target>> {
        self.all()
            .into_iter()
            .find(|target| target.san.target().as_deref() == Some(name))
    }

    /// What an initiator has to prove before it is told of targets: what is set for it anywhere. An error means that
    /// something is, and cannot be read.
    pub fn initiator(&self, name: &str) -> Result<Option<Initiator>, SanError> {
        let all = self.all();
        let mut set = all.iter().map(|target| target.san.initiator(name));
        let found = set.find(|found| !matches!(found, Ok(None)));
        found.unwrap_or(Ok(None))
    }

    /// Does as much as [`Self::initiator`] does for a name that is set.
    pub fn reveal_nobody(&self) {
        if let Some(target) = self.all().first() {
            target.san.reveal_nobody();
        }
    }

    /// The names of the targets of which an initiator sees something.
    pub fn seen_by(&self, initiator: &str) -> Vec<String> {
        let all = self.all();
        let seen = all
            .iter()
            .filter(|target| !target.san.seen_by(initiator).is_empty());
        seen.filter_map(|target| target.san.target()).collect()
    }

    /// A number for a new session; never 0.
    pub fn new_tsih(&self) -> u16 {
        loop {
            let tsih = self.tsih_next.fetch_add(1, Ordering::Relaxed);
            if tsih != 0 {
                return tsih;
            }
        }
    }

    /// Ends the session that this one takes the place of, and notes the new one.
    pub async fn begin_session(&self, session: Arc<Session>) -> u64 {
        let replaced: Vec<Arc<Session>> = {
            let sessions = self.sessions.lock();
            let is_same = |other: &&Arc<Session>| {
                (&other.initiator, other.isid, &other.target, other.group)
                    == (
                        &session.initiator,
                        session.isid,
                        &session.target,
                        session.group,
                    )
            };
            sessions.values().filter(is_same).cloned().collect()
        };
        for old in replaced {
            old.end.send_replace(true);
            let mut ended = old.ended.clone();
            while ended.changed().await.is_ok() {}
        }
        let id = self.session_next.fetch_add(1, Ordering::Relaxed);
        self.sessions.lock().insert(id, session);
        id
    }

    /// The session that one more connection is for: of this initiator with this target, through the same group of portals.
    pub(crate) fn session_of(
        &self,
        login: &Login,
        tsih: u16,
        target: &str,
    ) -> Option<Arc<Session>> {
        let sessions = self.sessions.lock();
        let mut sessions = sessions.values();
        let found = sessions.find(|session| {
            let own = (
                &*session.initiator,
                session.isid,
                session.tsih,
                session.group,
            );
            own == (&*login.initiator, login.isid, tsih, login.group)
                && session.target.as_deref() == Some(target)
        });
        found.cloned()
    }

    pub fn end_session(&self, id: u64) {
        self.sessions.lock().remove(&id);
    }

    pub fn sessions(&self) -> Vec<Arc<Session>> {
        self.sessions.lock().values().cloned().collect()
    }

    pub fn end_sessions(&self, which: impl Fn(&Session) -> bool) {
        for session in self.sessions.lock().values() {
            if which(session) {
                session.end.send_replace(true);
            }
        }
    }
}

impl Target {
    async fn open(
        fs: Fs,
        env: Env,
        counted: CommandCounters,
        cluster: Option<Arc<Cluster>>,
    ) -> Result<Self, SanError> {
        let volume = fs.volume();
        let target = Self {
            volume,
            tokens: Tokens::new(env.clone()),
            san: Arc::new(San::open(fs, env).await?),
            gate: counted.gate,
            activity: counted.activity,
            cluster,
            units: RwLock::default(),
            version: AtomicU64::new(1),
            seen: Mutex::default(),
            seen_next: AtomicU64::new(1),
        };
        target.follow().await?;
        Ok(target)
    }

    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub fn units(&self) -> Vec<Arc<Unit>> {
        self.units.read().values().cloned().collect()
    }

    /// What initiators that are logged in saw in their sessions. A LUN that is mapped must not get the number of another.
    pub fn seen(&self) -> Seen {
        let mut all = Seen::new();
        for (initiator, numbers) in self.seen.lock().values() {
            all.entry(initiator.clone()).or_default().extend(numbers);
        }
        all
    }

    /// Notes what a session sees now beside what it saw before.
    fn note_seen(&self, session: u64, initiator: &str, place: &SessionContext) {
        let mut all = self.seen.lock();
        let (_, seen) = all
            .entry(session)
            .or_insert_with(|| (initiator.to_owned(), BTreeSet::new()));
        let now = place.units.iter();
        seen.extend(now.map(|(number, unit)| (*number, unit.lun().naa)));
    }

    /// Makes logical units of LUNs that are new, and tells those of others what changed. To be called after each change.
    pub async fn follow(&self) -> Result<(), SanError> {
        let luns = self.san.luns();
        for lun in &luns {
            let known = self.units.read().get(&lun.ino).cloned();
            match known {
                Some(unit) => unit.changed(lun.clone()),
                None => {
                    // Hosts do not notice that the volume has another owner: nothing of theirs may be gone.
                    let keeps_all = self.cluster.is_some();
                    let unit = Unit::open(Arc::clone(&self.san), lun.clone(), keeps_all).await?;
                    self.units.write().entry(lun.ino).or_insert(unit);
                }
            }
        }
        self.units
            .write()
            .retain(|ino, _| luns.iter().any(|lun| lun.ino == *ino));
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// What an initiator sees now that came through a target port group.
    pub fn place(&self, initiator: &str, group: u16) -> SessionContext {
        let units = self.units.read();
        let seen = self.san.seen_by(initiator).into_iter();
        SessionContext {
            target_name: self.san.target().unwrap_or_default(),
            group,
            cluster: self.cluster.clone(),
            tells_of_physical_blocks: self.san.os_of(initiator).is_some(),
            gate: Arc::clone(&self.gate),
            activity: Arc::clone(&self.activity),
            client: Client::named(Protocol::Iscsi, initiator),
            tokens: Arc::clone(&self.tokens),
            revision: revision(),
            units: seen
                .filter_map(|(number, lun)| Some((number, Arc::clone(units.get(&lun.ino)?))))
                .collect(),
        }
    }
}

/// The program's version as the four characters of a product revision.
pub fn revision() -> [u8; 4] {
    revision_of(
        env!("CARGO_PKG_VERSION_MAJOR"),
        env!("CARGO_PKG_VERSION_MINOR"),
    )
}

/// `1.12`; where that is too long, without the dot, and then with as much of its end as fits.
fn revision_of(major: &str, minor: &str) -> [u8; 4] {
    let mut text = format!("{major}.{minor}");
    if text.len() > 4 {
        text = format!("{major}{minor}");
    }
    let shown = text.get(text.len().saturating_sub(4)..).unwrap_or_default();
    let mut revision = *b"    ";
    for (place, byte) in revision.iter_mut().zip(shown.bytes()) {
        *place = byte;
    }
    revision
}

/// A session's view of its target: brought up to date before each command.
pub struct View {
    target: Arc<Target>,
    initiator: String,
    group: u16,
    nexus: Nexus,
    version: u64,
    place: Arc<SessionContext>,
    /// Its place among what sessions saw.
    seen: u64,
}

impl View {
    pub fn new(target: Arc<Target>, initiator: &str, group: u16, nexus: Nexus) -> Self {
        let version = target.version();
        let place = Arc::new(target.place(initiator, group));
        for unit in place.units.values() {
            unit.nexus_begins(&nexus);
        }
        let seen = target.seen_next.fetch_add(1, Ordering::Relaxed);
        target.note_seen(seen, initiator, &place);
        Self {
            seen,
            target,
            initiator: initiator.to_owned(),
            group,
            nexus,
            version,
            place,
        }
    }

    pub fn place(&mut self) -> Arc<SessionContext> {
        let version = self.target.version();
        if version != self.version {
            self.version = version;
            self.renew();
        }
        Arc::clone(&self.place)
    }

    fn renew(&mut self) {
        let now = Arc::new(self.target.place(&self.initiator, self.group));
        self.target.note_seen(self.seen, &self.initiator, &now);
        let before = std::mem::replace(&mut self.place, Arc::clone(&now));
        let is_in = |place: &SessionContext, unit: &Arc<Unit>| {
            place.units.values().any(|other| Arc::ptr_eq(unit, other))
        };
        for unit in before.units.values().filter(|unit| !is_in(&now, unit)) {
            unit.nexus_ends(&self.nexus);
        }
        for unit in now.units.values().filter(|unit| !is_in(&before, unit)) {
            unit.nexus_begins(&self.nexus);
        }
        let numbers = |place: &SessionContext| {
            place
                .units
                .iter()
                .map(|(number, unit)| (*number, unit.lun().ino))
                .collect::<Vec<_>>()
        };
        if numbers(&before) != numbers(&now) {
            for unit in now.units.values() {
                unit.attention(&self.nexus, code::REPORTED_LUNS_CHANGED);
            }
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.target.seen.lock().remove(&self.seen);
        for unit in self.place.units.values() {
            unit.nexus_ends(&self.nexus);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_revision_is_the_version() {
        for (major, minor, want) in [
            ("0", "1", b"0.1 "),
            ("1", "12", b"1.12"),
            ("12", "3", b"12.3"),
            ("12", "34", b"1234"),
            ("123", "45", b"2345"),
        ] {
            assert_eq!(&revision_of(major, minor), want, "{major}.{minor}");
        }
    }
}
