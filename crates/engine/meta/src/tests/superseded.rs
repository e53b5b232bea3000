//! Old copies of the state that wait for removal, on disks that do not answer; copies in progress at the end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use cairn_base::env::BoxFuture;
use cairn_testkit::Pace;
use tokio::sync::Notify;

use super::*;
use crate::state::Candidate;

/// Runs a test on a thread of its own, and fails if that takes too long.
fn in_time(test: impl Future<Output = ()> + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        block_on(test);
        done.send(())
    });
    let ended = is_done.recv_timeout(REAL_PATIENCE);
    ended.expect("it waits for a disk that does not answer, or failed");
}

/// The disk hangs, and is then faulted.
#[test]
fn shipping_goes_on_when_a_disk_hangs_with_an_old_copy() {
    in_time(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(2);
        let store = create(&world, 1, pool.present()).await;
        let (hang, hangs) = mpsc::channel::<()>();
        let superseded = || store.shared.superseded.lock();
        superseded().push(Candidate::closing(1, move || {
            let _ = hangs.recv();
        }));
        drop(pool.disks[1].crash(Crash::Random, 1));
        store.ship().await.expect("ships");
        store.ship().await.expect("ships again");
        assert!(superseded().is_empty());
        drop(hang);
        store.abort().await;
    });
}

#[test]
fn an_old_copy_on_a_disk_that_failed_is_left_alone() {
    in_time(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(2);
        let folder = tempfile::tempdir().expect("a folder");
        let store = create(&world, 1, pool.present()).await;
        let old = Candidate::closed(1, folder.path().join("state"));
        std::fs::create_dir(folder.path().join("state")).expect("makes");
        store.shared.superseded.lock().push(old);
        store.shared.disks.mark_failed(1, &"a test");
        store.ship().await.expect("ships");
        assert!(folder.path().join("state").exists());
        assert_eq!(store.shared.superseded.lock().len(), 1);
        // The disk returns.
        let disk: Arc<dyn Disk> = pool.disks[1].clone();
        store
            .log()
            .add_disk(DiskId(2), disk, crate::Preference::Last);
        store.ship().await.expect("ships");
        assert!(!folder.path().join("state").exists());
        store.abort().await;
    });
}

/// A store opened in the place of an abandoned one may need copies that look old to it. Closing open files may take for
/// ever.
#[test]
fn a_store_that_is_left_behind_removes_nothing_and_waits_for_nothing() {
    in_time(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(2);
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("state")).expect("makes");
        let store = create(&world, 1, pool.present()).await;
        let (closing, is_closing) = mpsc::channel();
        let (hang, hangs) = mpsc::channel::<()>();
        {
            let mut superseded = store.shared.superseded.lock();
            superseded.push(Candidate::closed(0, folder.path().join("state")));
            superseded.push(Candidate::closing(1, move || {
                let _ = closing.send(());
                let _ = hangs.recv();
            }));
        }
        store.abandon();
        assert!(store.shared.superseded.lock().is_empty());
        let _ = store.shared.ship_now().await;
        assert!(folder.path().join("state").exists());
        drop(store);
        is_closing.recv().expect("it is closed by another thread");
        drop(hang);
    });
}

/// After that, the disk can be unmounted: none of its files is open.
#[test]
fn a_disk_leaves_with_its_old_copy_closed() {
    in_time(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(2);
        let store = create(&world, 1, pool.present()).await;
        let (closing, is_closing) = mpsc::channel();
        store
            .shared
            .superseded
            .lock()
            .push(Candidate::closing(1, move || {
                let _ = closing.send(());
            }));
        store.log().retire_disk(DiskId(2)).await.expect("retires");
        is_closing.recv().expect("it is closed");
        store.abort().await;
    });
}

/// The first file of a copy of the state waits until it is released.
#[derive(Default)]
struct Held {
    is_over: AtomicBool,
    reached: Notify,
    go: Arc<Notify>,
}

impl Pace for Held {
    fn pause(&self, kind: OpKind, name: &str) -> Option<BoxFuture<()>> {
        if kind != OpKind::Create || !name.contains("state") {
            return None;
        }
        if self.is_over.swap(true, Ordering::Relaxed) {
            return None;
        }
        self.reached.notify_one();
        let go = self.go.clone();
        Some(Box::pin(async move { go.notified().await }))
    }
}

/// A store that is opened in the place of this one may have copies there by then.
#[test]
fn a_copy_under_way_is_waited_for() {
    in_time(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(2);
        let store = create(&world, 2, pool.present()).await;
        store.ship().await.expect("ships");
        store.durable(store.submit(put(1))).await.expect("durable");
        let held = Arc::new(Held::default());
        pool.disks[1].pace_with(held.clone());
        let shipping = tokio::spawn({
            let store = store.clone();
            async move { store.ship().await }
        });
        held.reached.notified().await;
        let aborting = tokio::spawn({
            let store = store.clone();
            async move { store.abort().await }
        });
        limits::settle(&world).await;
        assert!(!aborting.is_finished());
        held.go.notify_one();
        let _ = shipping.await.expect("ends");
        aborting.await.expect("ends");
        assert!(matches!(store.ship().await, Err(MetaError::Closed)));
    });
}

/// The shipment in progress has chosen its disks already.
#[test]
fn a_disk_that_comes_while_a_copy_is_made_gets_one_too() {
    in_time(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(3);
        let mut disks = pool.present();
        let (id, disk) = disks.pop().expect("three disks");
        let store = create(&world, 3, disks).await;
        store.ship().await.expect("ships");
        store.durable(store.submit(put(1))).await.expect("durable");
        limits::settle(&world).await;
        let held = Arc::new(Held::default());
        pool.disks[1].pace_with(held.clone());
        store.shared.ship_in_background();
        held.reached.notified().await;
        store.log().add_disk(id, disk, crate::Preference::Last);
        limits::settle(&world).await;
        held.go.notify_one();
        while store.stats().states.len() < 3 {
            tokio::task::yield_now().await;
        }
        store.abort().await;
    });
}
