//! Nodes and disks that are slow, and owners that wait for one another.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cairn_base::env::BoxFuture;
use cairn_base::{DiskId, Epoch, NodeId};
use cairn_remote::{PeerSettings, Peers, ServeSettings};
use cairn_shard::{Copied, ShardError, ShardService};
use cairn_testkit::{OpKind, Pace};
use tokio::sync::Semaphore;

use crate::common::{CAPACITY, EPOCH, Pair, VOLUME, block_on, fill, name, settle, write};

/// Writes wait for a permit.
struct HeldWrites(Arc<Semaphore>);

impl Pace for HeldWrites {
    fn pause(&self, kind: OpKind, _name: &str) -> Option<BoxFuture<()>> {
        let gate = self.0.clone();
        let wait = async move { drop(gate.acquire().await) };
        (kind == OpKind::Write).then(|| Box::pin(wait) as BoxFuture<()>)
    }
}

#[test]
fn a_fence_waits_for_appends_of_another_client_and_refuses_later_ones() {
    block_on(async {
        let pair = Pair::new().await;
        let old: Arc<dyn ShardService> = pair.remote();
        let other = Pair::another(&pair.world.env, &pair.wire, NodeId(3));
        other.connected().await;
        let new: Arc<dyn ShardService> = other.disks().remove(0);
        old.clone()
            .create(EPOCH, name(1), CAPACITY, 0)
            .await
            .unwrap();
        let gate = Arc::new(Semaphore::new(0));
        pair.disk.pace_with(Arc::new(HeldWrites(gate.clone())));
        let late = tokio::spawn(old.clone().append(EPOCH, name(1), write(0, 4096, 2)));
        settle().await;
        let next = Epoch(EPOCH.0 + 1);
        let fencing = tokio::spawn(new.clone().fence(VOLUME, next));
        settle().await;
        assert!(!fencing.is_finished() && !late.is_finished());
        let behind = old.clone().append(EPOCH, name(1), write(0, 4096, 3)).await;
        assert!(
            matches!(behind, Err(ShardError::Fenced { .. })),
            "{behind:?}"
        );
        gate.add_permits(1);
        fencing.await.unwrap().expect("promised");
        late.await.unwrap().expect("as it was begun");
        assert_eq!(new.read(name(1), 0, 4096).await.unwrap(), fill(4096, 2));
        new.clone()
            .append(next, name(1), write(0, 4096, 4))
            .await
            .expect("its owner");
    });
}

#[test]
fn a_disk_that_hangs_costs_a_deadline_and_no_more_than_its_share() {
    block_on(async {
        let settings = ServeSettings {
            requests_max: 2,
            ..ServeSettings::default()
        };
        let pair = Pair::with(settings, Arc::new(())).await;
        let disk: Arc<dyn ShardService> = pair.remote();
        disk.clone()
            .create(EPOCH, name(1), CAPACITY, 0)
            .await
            .unwrap();
        let gate = Arc::new(Semaphore::new(0));
        pair.disk.pace_with(Arc::new(HeldWrites(gate.clone())));
        // The third is not sent: the peer would cut us off.
        let append = |block: u64| {
            disk.clone()
                .append(EPOCH, name(1), write(block * 4096, 4096, 1))
        };
        let waiting: Vec<_> = (0..3).map(|block| tokio::spawn(append(block))).collect();
        settle().await;
        let deadline = PeerSettings::default().deadline;
        // The node is alive: both sides say so all the time.
        pass(&pair, deadline).await;
        for waiting in waiting {
            let error = waiting.await.unwrap().unwrap_err();
            assert!(matches!(error, ShardError::Late { .. }), "{error}");
        }
        assert!(pair.peer.is_connected());
        gate.add_permits(1);
        settle().await;
        disk.probe().await.expect("there is room again");
    });
}

#[test]
fn a_node_that_says_nothing_is_silent_and_then_given_up() {
    block_on(async {
        let pair = Pair::new().await;
        let disk = pair.remote();
        assert!(!disk.is_silent());
        let settings = PeerSettings::default();
        pair.wire.hold();
        pass(&pair, settings.silent_after).await;
        assert!(disk.is_silent() && pair.peer.is_connected());
        let waiting = tokio::spawn(async move { disk.probe().await });
        pass(&pair, settings.dead_after).await;
        let error = waiting.await.unwrap().unwrap_err();
        assert!(error.to_string().contains("nothing was heard"), "{error}");
        assert!(!pair.peer.is_connected());
    });
}

/// Time goes by, and everybody notices all of it.
async fn pass(pair: &Pair, time: Duration) {
    let step = Duration::from_millis(100);
    let mut passed = Duration::ZERO;
    while passed < time {
        pair.world.clock.advance(step);
        passed += step;
        settle().await;
    }
}

const THIRD: NodeId = NodeId(4);

/// The disk of a third node, as the second one reaches it.
struct Third(Arc<dyn ShardService>, AtomicUsize);

impl Peers for Third {
    fn disk(&self, node: NodeId, disk: DiskId) -> Option<Arc<dyn ShardService>> {
        self.1.fetch_add(1, Ordering::SeqCst);
        (node == THIRD && disk == self.0.id()).then(|| self.0.clone())
    }
}

#[test]
fn a_copy_is_pulled_by_the_node_that_takes_it_or_goes_through_the_caller() {
    block_on(async {
        let source = Pair::of(THIRD, ServeSettings::default(), Arc::new(())).await;
        let from: Arc<dyn ShardService> = source.remote();
        from.clone()
            .create(EPOCH, name(1), CAPACITY, 0)
            .await
            .unwrap();
        from.clone()
            .append(EPOCH, name(1), write(0, 65536, 6))
            .await
            .unwrap();
        let sum = cairn_base::crc32c(&fill(65536, 6));
        let third = Arc::new(Third(from.clone(), AtomicUsize::new(0)));
        let ways: [(Arc<dyn Peers>, usize); 2] = [(third.clone(), 2), (Arc::new(()), 0)];
        for (peers, pulled_count) in ways {
            let target = Pair::with(ServeSettings::default(), peers).await;
            let disk = target.remote();
            let hidden = disk
                .create_hidden(EPOCH, name(1), CAPACITY, 0)
                .await
                .unwrap();
            let damaged = disk
                .copy_from(EPOCH, hidden, &*from, 0..65536, &[sum ^ 1])
                .await;
            assert!(matches!(damaged, Ok(Copied::Damaged(_))), "{damaged:?}");
            let copied = disk
                .copy_from(EPOCH, hidden, &*from, 0..65536, &[sum])
                .await;
            let Ok(Copied::Whole(sums)) = copied else {
                panic!("{copied:?}");
            };
            assert_eq!(sums, [sum]);
            assert_eq!(third.1.swap(0, Ordering::SeqCst), pulled_count);
            disk.publish(EPOCH, hidden).await.unwrap();
            assert_eq!(disk.read(name(1), 0, 65536).await.unwrap(), fill(65536, 6));
        }
    });
}
