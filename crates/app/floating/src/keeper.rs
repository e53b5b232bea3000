//! Which addresses this machine has, for volumes and of pools.
//!
//! Owns: the order of the steps when one comes and goes, that each is renewed, what is in the way.
//! Must not know: who owns which volume, which node holds which address of a pool.
//!
//! An address is on an interface for [`KEPT_SECONDS`] and is renewed long before. So a server that is killed, or stands still,
//! leaves none behind: the kernel removes it, whatever becomes of the process.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::env::BoxFuture;
use cairn_base::{Backoff, VolumeId};
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::hook::{Hook, HookAddress, HookError, Verb};
use crate::interface::{Interface, InterfaceError};

/// How long an address stays where it is not renewed.
pub const KEPT_SECONDS: u32 = 5;
/// It is renewed so often: see [`Keeper::keep`].
pub const RENEWED_EVERY: Duration = Duration::from_secs(1);
/// Neighbours are told so often, once a second: a frame may be lost.
const ANNOUNCEMENTS: u32 = 5;
/// What failed is tried again after so long.
const RETRY_AFTER: Duration = Duration::from_secs(3);
/// So many announcements in a row may fail before that is in the way: each is tried again after [`RENEWED_EVERY`].
const ANNOUNCE_FAILURES_MAX: u32 = 5;
/// An address that did not go is dropped again after so long, at first and at most.
const DROP_PAUSES: Backoff = Backoff::new(RENEWED_EVERY, Duration::from_secs(60));

/// What an address is here for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// Clients of this volume. It has one address at most, which may become another.
    Volume(VolumeId),
    /// Clients of any volume: it is this one of a pool.
    Pool(IpAddr),
}

impl Purpose {
    /// The word for it in logs and for hooks.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Volume(_) => "volume",
            Self::Pool(_) => "pool",
        }
    }
}

/// An address, as an operator wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedAddress {
    /// Of the volume or the pool.
    pub name: String,
    pub address: IpAddr,
    pub prefix_len: u8,
    pub interface: Option<String>,
}

impl WantedAddress {
    fn text(&self) -> String {
        format!("{}/{}", self.address, self.prefix_len)
    }
}

/// An address that this machine's kernel has. It stays for some seconds when this process is gone, unless somebody takes it away
/// ([`PlacedAddress::remove`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedAddress {
    pub address: IpAddr,
    /// In bits.
    pub prefix_len: u8,
    /// The interface that it is on.
    pub interface: String,
}

impl PlacedAddress {
    /// Takes it away, in the place of the process that put it there; fine if it has gone. Blocks for milliseconds.
    pub fn remove(&self) -> Result<(), InterfaceError> {
        let interface = Interface::find(self.address, self.prefix_len, Some(&self.interface))?;
        interface.remove(self.address, self.prefix_len)
    }
}

/// Lets clients in at an address.
pub trait Listens: Send + Sync + 'static {
    /// Serves clients at `address` until what this returns is closed.
    fn listen(&self, address: IpAddr) -> io::Result<Box<dyn Listening>>;
}

/// An address at which clients are served.
pub trait Listening: Send + Sync + 'static {
    /// Ends the connections of clients that came in here, and lets nobody in any more. While the address is here: without
    /// it they would hear nothing of that.
    fn close(self: Box<Self>) -> BoxFuture<()>;
}

#[derive(Debug, thiserror::Error)]
enum KeeperError {
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    #[error(transparent)]
    Hook(#[from] HookError),
    #[error("telling neighbours of it: {0}")]
    Announce(Box<Self>),
    #[error("listening on {address}: {source}")]
    Listen { address: IpAddr, source: io::Error },
    #[error("{0}")]
    Task(String),
}

/// An address that is here.
struct HeldAddress {
    wanted: WantedAddress,
    /// `None`: the hook put it somewhere.
    interface: Option<Interface>,
    /// Where neighbours are told of it, also of one that a hook put there.
    announces: Option<Interface>,
    listener: Option<Box<dyn Listening>>,
    announcements: Announcements,
}

/// How neighbours were told of an address.
#[derive(Clone, Copy, Debug, Default)]
struct Announcements {
    made: u32,
    /// Since the last one that was made.
    failed: u32,
}

impl Announcements {
    fn is_due(&self) -> bool {
        self.made < ANNOUNCEMENTS
    }

    /// What became of one. An error that may pass is none yet: the next one is due soon.
    fn note(&mut self, outcome: Result<(), KeeperError>) -> Result<(), KeeperError> {
        let Err(error) = outcome else {
            self.made += 1;
            self.failed = 0;
            return Ok(());
        };
        self.failed += 1;
        if self.failed >= ANNOUNCE_FAILURES_MAX {
            return Err(KeeperError::Announce(Box::new(error)));
        }
        tracing::debug!(%error, "an address is announced again");
        Ok(())
    }
}

#[derive(Default)]
struct Slot {
    held: Option<HeldAddress>,
    retry_at: Option<Instant>,
    going: Option<Going>,
}

/// Of an address that did not go: nobody knows what of it is still here.
struct Going {
    again_at: Instant,
    pauses: Backoff,
}

/// Why an address is not here, or has not gone.
struct Problem {
    why: String,
    /// Tries that failed, one after the other.
    tries: u32,
}

/// Keeps addresses on this machine.
pub struct Keeper {
    hook: Option<Hook>,
    listens: Arc<dyn Listens>,
    /// A lock for each address: a hook takes long.
    slots: Mutex<BTreeMap<Purpose, Arc<tokio::sync::Mutex<Slot>>>>,
    problems: Mutex<BTreeMap<Purpose, Problem>>,
    /// What the kernel has, or may have.
    placed: watch::Sender<BTreeMap<Purpose, PlacedAddress>>,
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, InterfaceError> + Send + 'static,
) -> Result<T, KeeperError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done?),
        Err(error) => Err(KeeperError::Task(error.to_string())),
    }
}

impl Keeper {
    pub fn new(hook: Option<PathBuf>, listens: Arc<dyn Listens>) -> Self {
        Self {
            hook: hook.map(Hook),
            listens,
            slots: Mutex::default(),
            problems: Mutex::default(),
            placed: watch::Sender::default(),
        }
    }

    /// The addresses that this machine's kernel has for this process, or may have; none that a hook put somewhere.
    pub fn placed(&self) -> watch::Receiver<BTreeMap<Purpose, PlacedAddress>> {
        self.placed.subscribe()
    }

    /// The lock of an address. It is in the map as long as somebody has it.
    async fn locked(&self, purpose: Purpose) -> OwnedMutexGuard<Slot> {
        loop {
            let slot = self.slots.lock().entry(purpose).or_default().clone();
            let locked = Arc::clone(&slot).lock_owned().await;
            // Its former holder may have put it away.
            let now = self.slots.lock().get(&purpose).cloned();
            if now.is_some_and(|now| Arc::ptr_eq(&now, &slot)) {
                return locked;
            }
        }
    }

    /// Why an address is not here although it should be, or is still here although it should not.
    pub fn problem(&self, purpose: Purpose) -> Option<String> {
        let problems = self.problems.lock();
        problems.get(&purpose).map(|problem| problem.why.clone())
    }

    /// How often it was tried in vain to have an address here, since it was here or was wanted last.
    pub fn failed_tries(&self, purpose: Purpose) -> u32 {
        let problems = self.problems.lock();
        problems.get(&purpose).map_or(0, |problem| problem.tries)
    }

    /// For what addresses are here, or may be.
    pub fn purposes(&self) -> Vec<Purpose> {
        self.slots.lock().keys().copied().collect()
    }

    /// Has an address here, taken or renewed; to be called every [`RENEWED_EVERY`]. Nothing is done if it is not wanted any
    /// more once it is its turn: it may just have been dropped.
    pub async fn keep(
        &self,
        purpose: Purpose,
        wanted: &WantedAddress,
        is_wanted: impl Fn() -> bool,
    ) {
        let mut slot = self.locked(purpose).await;
        if !is_wanted() {
            if slot.held.is_none() {
                self.slots.lock().remove(&purpose);
            }
            return;
        }
        if slot.retry_at.is_some_and(|at| Instant::now() < at) {
            return;
        }
        let kept = self.kept(&mut slot, purpose, wanted).await;
        let mut problems = self.problems.lock();
        match kept {
            Ok(()) => {
                slot.retry_at = None;
                problems.remove(&purpose);
            }
            Err(error) => {
                slot.retry_at = Some(Instant::now() + RETRY_AFTER);
                let why = error.to_string();
                let tries = problems.get(&purpose).map_or(0, |before| before.tries);
                let problem = Problem {
                    why: why.clone(),
                    tries: tries.saturating_add(1),
                };
                let before = problems.insert(purpose, problem);
                if before.is_none_or(|before| before.why != why) {
                    let (name, address) = (&wanted.name, wanted.address);
                    let of = purpose.word();
                    tracing::error!(of, name, %address, problem = why, "an address is not here");
                }
            }
        }
    }

    async fn kept(
        &self,
        slot: &mut Slot,
        purpose: Purpose,
        wanted: &WantedAddress,
    ) -> Result<(), KeeperError> {
        if let Some(mut held) = slot.held.take_if(|held| held.wanted != *wanted) {
            slot.going = None;
            if let Err(error) = self.release(purpose, &mut held).await {
                let (of, name, address) = (purpose.word(), &wanted.name, held.wanted.address);
                tracing::warn!(of, name, %address, %error, "an address may still be here");
            }
        }
        let held = match &mut slot.held {
            // What dropped it in vain may have taken some of it away.
            Some(held) if slot.going.is_some() => {
                held.interface = self.take(purpose, wanted).await?;
                held.announcements = Announcements::default();
                held
            }
            Some(held) => {
                if let Some(interface) = held.interface.clone() {
                    put(interface, wanted).await?;
                }
                held
            }
            empty => {
                let interface = self.take(purpose, wanted).await?;
                let announces = match &interface {
                    Some(interface) => Some(interface.clone()),
                    None => found(wanted.address).await,
                };
                let (name, address) = (&wanted.name, wanted.address);
                let on = interface.as_ref().map_or("by the hook", |it| &it.name);
                tracing::info!(of = purpose.word(), name, %address, on, "this node has an address");
                empty.insert(HeldAddress {
                    wanted: wanted.clone(),
                    interface,
                    announces,
                    listener: None,
                    announcements: Announcements::default(),
                })
            }
        };
        slot.going = None;
        if held.listener.is_none() {
            let address = wanted.address;
            let listener = self.listens.listen(address);
            held.listener =
                Some(listener.map_err(|source| KeeperError::Listen { address, source })?);
        }
        if held.announcements.is_due()
            && let Some(interface) = held.announces.clone()
        {
            let address = wanted.address;
            let announced = blocking(move || interface.announce(address)).await;
            held.announcements.note(announced)?;
        }
        Ok(())
    }

    async fn take(
        &self,
        purpose: Purpose,
        wanted: &WantedAddress,
    ) -> Result<Option<Interface>, KeeperError> {
        if let Some(hook) = &self.hook {
            hook.call(Verb::Take, &told(purpose, wanted)).await?;
            return Ok(None);
        }
        let (address, prefix_len) = (wanted.address, wanted.prefix_len);
        let name = wanted.interface.clone();
        let interface =
            blocking(move || Interface::find(address, prefix_len, name.as_deref())).await?;
        let placed = PlacedAddress {
            address,
            prefix_len,
            interface: interface.name.clone(),
        };
        self.placed
            .send_modify(|all| drop(all.insert(purpose, placed)));
        put(interface.clone(), wanted).await?;
        Ok(Some(interface))
    }

    /// Lets another node have an address, if it is here. `false`: it may still be here. Then this is to be called again, and again;
    /// it tries when it is time to.
    pub async fn drop_of(&self, purpose: Purpose) -> bool {
        if !self.slots.lock().contains_key(&purpose) {
            self.problems.lock().remove(&purpose);
            return true;
        }
        // Until it has left nobody takes it again.
        let mut slot = self.locked(purpose).await;
        let Slot { held, going, .. } = &mut *slot;
        if let Some(held) = held {
            if going
                .as_ref()
                .is_some_and(|it| Instant::now() < it.again_at)
            {
                return false;
            }
            if let Err(error) = self.release(purpose, held).await {
                self.note_staying(purpose, held, going, &error);
                return false;
            }
        }
        slot.held = None;
        self.problems.lock().remove(&purpose);
        self.slots.lock().remove(&purpose);
        true
    }

    fn note_staying(
        &self,
        purpose: Purpose,
        held: &HeldAddress,
        going: &mut Option<Going>,
        error: &KeeperError,
    ) {
        let mut pauses = going.as_ref().map_or(DROP_PAUSES, |going| going.pauses);
        let again_at = Instant::now() + pauses.pause();
        if going.replace(Going { again_at, pauses }).is_none() {
            let (of, name, address) = (purpose.word(), &held.wanted.name, held.wanted.address);
            tracing::warn!(of, name, %address, %error, "an address may still be here; it is dropped again");
        }
        let problem = Problem {
            why: format!("it does not go from this node: {error}"),
            tries: 0,
        };
        self.problems.lock().insert(purpose, problem);
    }

    async fn release(&self, purpose: Purpose, held: &mut HeldAddress) -> Result<(), KeeperError> {
        // First: nobody is to be answered by who does not have it.
        if let Some(listener) = held.listener.take() {
            listener.close().await;
        }
        let wanted = &held.wanted;
        let (address, prefix_len) = (wanted.address, wanted.prefix_len);
        let released = match (held.interface.clone(), &self.hook) {
            (Some(interface), _) => blocking(move || interface.remove(address, prefix_len)).await,
            (None, Some(hook)) => {
                let told = told(purpose, wanted);
                hook.call(Verb::Drop, &told)
                    .await
                    .map_err(KeeperError::from)
            }
            (None, None) => Ok(()),
        };
        let (of, name) = (purpose.word(), &wanted.name);
        let is_gone = released.is_ok();
        self.placed
            .send_if_modified(|all| is_gone && all.remove(&purpose).is_some());
        if is_gone {
            tracing::info!(of, name, %address, "an address has left this node");
        }
        released
    }
}

/// What a hook is told.
fn told(purpose: Purpose, wanted: &WantedAddress) -> HookAddress<'_> {
    HookAddress {
        of: purpose.word(),
        name: &wanted.name,
        address: wanted.text(),
        interface: wanted.interface.as_deref(),
    }
}

/// The interface that a hook put an address on; none if that is not of this machine's kernel.
async fn found(address: IpAddr) -> Option<Interface> {
    let whole = if address.is_ipv4() { 32 } else { 128 };
    blocking(move || Interface::find(address, whole, None))
        .await
        .ok()
}

async fn put(interface: Interface, wanted: &WantedAddress) -> Result<(), KeeperError> {
    let (address, prefix_len) = (wanted.address, wanted.prefix_len);
    blocking(move || interface.keep(address, prefix_len, KEPT_SECONDS)).await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::hook::tests::write_script;

    #[derive(Default)]
    struct Counted(Arc<AtomicUsize>);

    struct Open(Arc<AtomicUsize>);

    impl Listening for Open {
        fn close(self: Box<Self>) -> BoxFuture<()> {
            self.0.fetch_sub(1, Ordering::SeqCst);
            Box::pin(async {})
        }
    }

    impl Listens for Counted {
        fn listen(&self, _: IpAddr) -> io::Result<Box<dyn Listening>> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Ok(Box::new(Open(Arc::clone(&self.0))))
        }
    }

    #[tokio::test]
    async fn an_address_is_taken_once_and_dropped_once() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let text = format!("echo $1 $3 >> {}", out.display());
        let path = write_script(folder.path(), &text);
        let open = Arc::new(AtomicUsize::new(0));
        let keeper = Keeper::new(Some(path), Arc::new(Counted(Arc::clone(&open))));
        let wanted = |address: &str| WantedAddress {
            name: "home".to_owned(),
            address: address.parse().unwrap(),
            prefix_len: 24,
            interface: None,
        };
        let volume = Purpose::Volume(VolumeId(1));
        for _ in 0..3 {
            keeper.keep(volume, &wanted("10.0.0.9"), || true).await;
        }
        assert_eq!(open.load(Ordering::SeqCst), 1);
        keeper.keep(volume, &wanted("10.0.0.8"), || true).await;
        assert_eq!(open.load(Ordering::SeqCst), 1);
        assert_eq!(keeper.purposes(), [volume]);
        assert!(keeper.drop_of(volume).await);
        assert!(keeper.drop_of(volume).await);
        assert_eq!(open.load(Ordering::SeqCst), 0);
        assert!(keeper.purposes().is_empty());
        let told = std::fs::read_to_string(&out).unwrap();
        let want = "take 10.0.0.9/24\ndrop 10.0.0.9/24\ntake 10.0.0.8/24\ndrop 10.0.0.8/24\n";
        assert_eq!(told, want);
    }

    #[tokio::test]
    async fn what_is_in_the_way_is_told_until_it_is_gone() {
        let open = Arc::new(AtomicUsize::new(0));
        let keeper = Keeper::new(None, Arc::new(Counted(Arc::clone(&open))));
        let volume = Purpose::Volume(VolumeId(1));
        let wanted = WantedAddress {
            name: "home".to_owned(),
            address: "192.0.2.9".parse().unwrap(),
            prefix_len: 24,
            interface: Some("no-such-if".to_owned()),
        };
        keeper.keep(volume, &wanted, || true).await;
        let problem = keeper.problem(volume).expect("a problem");
        assert!(problem.contains("no-such-if"), "{problem}");
        assert_eq!(open.load(Ordering::SeqCst), 0);
        keeper.drop_of(volume).await;
        assert_eq!(keeper.problem(volume), None);
    }

    #[test]
    fn an_announcement_that_fails_is_tried_again_before_it_is_in_the_way() {
        let failed = || Err(KeeperError::Task("a test".to_owned()));
        let mut announcements = Announcements::default();
        for _ in 0..2 {
            for _ in 1..ANNOUNCE_FAILURES_MAX {
                announcements.note(failed()).unwrap();
            }
            announcements.note(Ok(())).unwrap();
        }
        for _ in 1..ANNOUNCE_FAILURES_MAX {
            announcements.note(failed()).unwrap();
        }
        let in_the_way = announcements.note(failed());
        assert!(matches!(in_the_way, Err(KeeperError::Announce(_))));
        assert!(announcements.is_due());
        announcements.made = ANNOUNCEMENTS;
        assert!(!announcements.is_due());
    }

    /// As long as it is there, a clock that is paused moves by `advance` alone. It would jump to the time limit of a hook
    /// otherwise, because all wait for the hook; where it did not pause, a machine that does not run this process for a second
    /// would make it time for the next try. Tokio does not move the clock of a runtime while a blocking task runs.
    struct Still {
        _end: std::sync::mpsc::Sender<()>,
    }

    impl Still {
        fn new() -> Self {
            let (end, ends) = std::sync::mpsc::channel();
            drop(tokio::task::spawn_blocking(move || ends.recv().is_ok()));
            Self { _end: end }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_go_is_dropped_again_after_longer_and_longer() {
        let _still = Still::new();
        let folder = tempfile::tempdir().unwrap();
        let (out, fails) = (folder.path().join("out"), folder.path().join("fails"));
        let text = format!(
            "echo $1 >> {}\n[ $1 = take ] || [ ! -e {} ]",
            out.display(),
            fails.display()
        );
        let path = write_script(folder.path(), &text);
        let open = Arc::new(AtomicUsize::new(0));
        let keeper = Keeper::new(Some(path), Arc::new(Counted(Arc::clone(&open))));
        let wanted = WantedAddress {
            name: "lan".to_owned(),
            address: "10.0.0.9".parse().unwrap(),
            prefix_len: 24,
            interface: None,
        };
        let of = Purpose::Pool(wanted.address);
        let told = || std::fs::read_to_string(&out).unwrap();
        keeper.keep(of, &wanted, || true).await;
        std::fs::write(&fails, "").unwrap();
        for drops in 1..4 {
            assert!(!keeper.drop_of(of).await);
            assert!(!keeper.drop_of(of).await, "it is not time yet");
            assert_eq!(told().matches("drop").count(), drops);
            assert_eq!(open.load(Ordering::SeqCst), 0, "nobody is answered there");
            assert_eq!(keeper.purposes(), [of]);
            let problem = keeper.problem(of).expect("a problem");
            assert!(problem.contains("does not go"), "{problem}");
            tokio::time::advance(RENEWED_EVERY * (1_u32 << (drops - 1))).await;
        }
        // It is wanted here again, and nobody knows what is left of it.
        keeper.keep(of, &wanted, || true).await;
        assert_eq!(told().matches("take").count(), 2);
        assert_eq!(open.load(Ordering::SeqCst), 1);
        assert_eq!(keeper.problem(of), None);
        std::fs::remove_file(&fails).unwrap();
        assert!(keeper.drop_of(of).await);
        assert!(keeper.purposes().is_empty());
        assert_eq!(keeper.problem(of), None);
    }

    /// A listener whose clients leave only when they are told to.
    struct Slow(Arc<tokio::sync::Notify>, Arc<tokio::sync::Notify>);

    impl Listening for Slow {
        fn close(self: Box<Self>) -> BoxFuture<()> {
            Box::pin(async move {
                self.0.notify_one();
                self.1.notified().await;
            })
        }
    }

    struct SlowListens(Arc<tokio::sync::Notify>, Arc<tokio::sync::Notify>);

    impl Listens for SlowListens {
        fn listen(&self, _: IpAddr) -> io::Result<Box<dyn Listening>> {
            Ok(Box::new(Slow(Arc::clone(&self.0), Arc::clone(&self.1))))
        }
    }

    /// Else it would be announced behind the next node that has it.
    #[tokio::test]
    async fn what_is_being_dropped_is_not_taken_again_beside_that() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let text = format!("echo $1 >> {}", out.display());
        let path = write_script(folder.path(), &text);
        let (closing, may_close) = (Arc::default(), Arc::default());
        let listens = SlowListens(Arc::clone(&closing), Arc::clone(&may_close));
        let keeper = Keeper::new(Some(path), Arc::new(listens));
        let wanted = WantedAddress {
            name: "home".to_owned(),
            address: "10.0.0.9".parse().unwrap(),
            prefix_len: 24,
            interface: None,
        };
        let volume = Purpose::Volume(VolumeId(1));
        let told = || std::fs::read_to_string(&out).unwrap();
        keeper.keep(volume, &wanted, || true).await;
        for (is_wanted, want) in [(false, "take\ndrop\n"), (true, "take\ndrop\ntake\n")] {
            let dropping = async {
                keeper.drop_of(volume).await;
            };
            let keeping = async {
                closing.notified().await;
                let kept = keeper.keep(volume, &wanted, || is_wanted);
                let mut kept = std::pin::pin!(kept);
                assert!(futures_util::poll!(&mut kept).is_pending());
                assert_eq!(keeper.purposes(), [volume], "it may still be here");
                may_close.notify_one();
                kept.await;
            };
            tokio::join!(dropping, keeping);
            assert_eq!(told(), want, "{is_wanted}");
            assert_eq!(keeper.purposes().is_empty(), !is_wanted);
            if !is_wanted {
                std::fs::write(&out, "").unwrap();
                keeper.keep(volume, &wanted, || true).await;
            }
        }
    }
}
