//! A store ends while a group is in its log write: waiting callers get the outcome from the next store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cairn_base::env::BoxFuture;
use cairn_testkit::Pace;
use futures_util::FutureExt;
use tokio::sync::Notify;

use super::*;
use crate::Succession;

/// Log writes wait, once requested, until they are released.
#[derive(Default)]
pub(super) struct HeldLog {
    is_held: AtomicBool,
    pub reached: Notify,
    go: Notify,
}

impl HeldLog {
    pub fn hold(&self) {
        self.is_held.store(true, Ordering::Relaxed);
    }

    pub fn let_go(&self) {
        self.is_held.store(false, Ordering::Relaxed);
        self.go.notify_waiters();
    }
}

/// The pace of a disk, shared by several.
pub(super) struct PaceOf(pub Arc<HeldLog>);

impl Pace for PaceOf {
    fn pause(&self, kind: OpKind, name: &str) -> Option<BoxFuture<()>> {
        let held = self.0.clone();
        if kind != OpKind::WriteDurable
            || !name.contains("log.")
            || !held.is_held.load(Ordering::Relaxed)
        {
            return None;
        }
        held.reached.notify_one();
        Some(Box::pin(async move {
            while held.is_held.load(Ordering::Relaxed) {
                held.go.notified().await;
            }
        }))
    }
}

fn settings_of(succession: &Succession) -> MetaSettings {
    MetaSettings {
        succession: Some(succession.clone()),
        ..settings(2)
    }
}

struct Volume {
    world: TestWorld,
    pool: Pool,
    succession: Succession,
    held: Arc<HeldLog>,
    store: Arc<MetaStore>,
}

impl Volume {
    async fn new() -> Self {
        let (world, pool) = (TestWorld::new(1), Pool::new(2));
        let succession = Succession::default();
        let held = Arc::new(HeldLog::default());
        let created = MetaStore::create(
            world.env.clone(),
            settings_of(&succession),
            VOLUME,
            pool.present(),
        );
        let store = created.await.expect("creates");
        for disk in &pool.disks {
            disk.pace_with(Arc::new(PaceOf(held.clone())));
        }
        Self {
            world,
            pool,
            succession,
            held,
            store,
        }
    }

    /// Submits a change whose log write does not end, and another one behind it; waits for both.
    async fn submit(&self) -> [tokio::task::JoinHandle<Result<(), MetaError>>; 2] {
        self.held.hold();
        let first = self.wait(self.store.submit(put(10)));
        self.held.reached.notified().await;
        [first, self.wait(self.store.submit(put(11)))]
    }

    fn wait(&self, ticket: Ticket) -> tokio::task::JoinHandle<Result<(), MetaError>> {
        let store = self.store.clone();
        tokio::spawn(async move { store.outcome(ticket).await })
    }

    async fn open_again(&self) -> Arc<MetaStore> {
        let settings = settings_of(&self.succession);
        let opened = MetaStore::open(
            self.world.env.clone(),
            settings,
            VOLUME,
            self.pool.present(),
        );
        opened.await.expect("opens").0
    }

    fn fail(&self) {
        let damage = MetaError::StateDamaged("a test".to_owned());
        self.store.shared.fail(damage);
    }
}

#[test]
fn a_change_under_way_when_the_store_fails_is_answered_by_what_became_of_it() {
    block_on(async {
        let volume = Volume::new().await;
        let [first, second] = volume.submit().await;
        volume.fail();
        limits::settle(&volume.world).await;
        assert!(!first.is_finished(), "it may take effect");
        volume.held.let_go();
        let _ = volume.store.close().await;
        let next = volume.open_again().await;
        first.await.expect("ends").expect("it took effect");
        let lost = second.await.expect("ends");
        assert!(lost.is_err(), "it was never written");
        assert!(
            next.live()
                .get(&Key::inode(Ino(10)))
                .expect("reads")
                .is_some()
        );
        assert_eq!(next.live().get(&Key::inode(Ino(11))).expect("reads"), None);
        next.abort().await;
    });
}

/// One of the copies was written when the store was abandoned; the result of the other is not reported.
#[test]
fn a_change_under_way_when_the_store_is_left_behind_is_answered_by_what_became_of_it() {
    block_on(async {
        let volume = Volume::new().await;
        let [first, second] = volume.submit().await;
        volume.store.abandon();
        limits::settle(&volume.world).await;
        assert!(!first.is_finished() && !second.is_finished());
        volume.held.let_go();
        limits::settle(&volume.world).await;
        let next = volume.open_again().await;
        first.await.expect("ends").expect("it took effect");
        assert!(second.await.expect("ends").is_err());
        assert!(
            next.live()
                .get(&Key::inode(Ino(10)))
                .expect("reads")
                .is_some()
        );
        next.abort().await;
    });
}

#[test]
fn nobody_waits_for_ever_for_a_store_that_is_not_opened_again() {
    block_on(async {
        let volume = Volume::new().await;
        let [first, second] = volume.submit().await;
        volume.fail();
        volume.held.let_go();
        // It was written after all, which is known without a successor.
        first.await.expect("ends").expect("it took effect");
        limits::settle(&volume.world).await;
        assert!(!second.is_finished());
        volume.world.clock.advance(Duration::from_secs(200));
        assert!(second.await.expect("ends").is_err());

        let volume = Volume::new().await;
        let [first, second] = volume.submit().await;
        volume.store.abandon();
        limits::settle(&volume.world).await;
        volume.succession.end();
        assert!(first.await.expect("ends").is_err());
        assert!(second.await.expect("ends").is_err());
        let refused = volume.store.outcome(volume.store.submit(put(12))).await;
        assert!(refused.is_err(), "nothing was submitted");
        volume.held.let_go();
    });
}

/// Until its term has begun, another history may still count.
#[test]
fn a_start_that_fails_says_nothing() {
    block_on(async {
        let volume = Volume::new().await;
        let [first, second] = volume.submit().await;
        volume.store.abandon();
        volume.held.let_go();
        limits::settle(&volume.world).await;
        for disk in &volume.pool.disks {
            disk.fail_nth(OpKind::Create, 0, Fault::Io);
            disk.fail_nth(OpKind::WriteDurable, 0, Fault::Io);
            disk.fail_nth(OpKind::Rename, 0, Fault::Io);
        }
        let settings = settings_of(&volume.succession);
        let present = volume.pool.present();
        let opened = MetaStore::open(volume.world.env.clone(), settings, VOLUME, present).await;
        assert!(opened.is_err(), "no disk takes the log");
        limits::settle(&volume.world).await;
        assert!(!first.is_finished() && !second.is_finished());
        for disk in &volume.pool.disks {
            disk.clear_faults();
        }
        let next = volume.open_again().await;
        first.await.expect("ends").expect("it took effect");
        assert!(second.await.expect("ends").is_err());
        next.abort().await;
    });
}

#[test]
fn what_was_refused_has_no_outcome_to_wait_for() {
    block_on(async {
        let volume = Volume::new().await;
        let mut large = Batch::new();
        let value = Bytes::from(vec![1; volume.store.batch_bytes_max() + 1]);
        large.put(Key::inode(Ino(10)), value);
        let outcome = volume.store.outcome(volume.store.submit(large));
        let refused = outcome.now_or_never().expect("is known at once");
        assert!(matches!(refused, Err(MetaError::BatchTooLarge { .. })));
        volume.store.abort().await;
    });
}

/// The volume is being closed, so there is no successor.
#[test]
fn a_store_that_is_opened_after_the_last_waits_for_nobody() {
    block_on(async {
        let volume = Volume::new().await;
        volume.store.close().await.expect("closes");
        volume.succession.end();
        let last = volume.open_again().await;
        volume.held.hold();
        let ticket = last.submit(put(10));
        volume.held.reached.notified().await;
        last.abandon();
        let outcome = last.outcome(ticket).now_or_never();
        assert!(outcome.expect("is known at once").is_err());
        volume.held.let_go();
    });
}
