//! Space that is reserved for LUNs in a cluster: reports the needs of this node's volumes, and leaves the
//! reservations of other nodes free.
//!
//! Owns: when that is checked. Must not know: how it is reported (`cairn_owner`), how space is left free (`cairn_fs`).

use std::sync::Arc;
use std::time::Duration;

use cairn_base::VolumeId;
use cairn_base::env::BoxFuture;
use cairn_fs::{Claims, FsError};
use cairn_owner::{ClusterMember, elsewhere};
use cairn_pool::VolumeService;
use parking_lot::Mutex;

use crate::node::NodeCore;

/// Interval at which the volumes' needs are compared with the reports of them. Bytes that a LUN gives back are
/// garbage for longer.
const INTERVAL: Duration = Duration::from_secs(1);

/// The nodes of the cluster.
struct ClusterClaims(Arc<ClusterMember>);

impl Claims for ClusterClaims {
    fn claim(&self, volume: VolumeId, bytes: u64) -> BoxFuture<Result<(), FsError>> {
        let member = Arc::clone(&self.0);
        Box::pin(async move {
            let claimed = member.claim_reserved(volume, bytes).await;
            claimed.map_err(|error| FsError::Unreachable(error.to_string()))
        })
    }
}

/// Leaves the reservations of other nodes free, from before this node serves its first volume until it ends.
pub(crate) fn tend(inner: &Arc<NodeCore>, member: &Arc<ClusterMember>) {
    inner
        .dirty
        .set_claims(Arc::new(ClusterClaims(Arc::clone(member))));
    let alone = Arc::new(Mutex::new(()));
    heed(inner, member, &alone);
    let mut views = member.views();
    let (node, followed) = (Arc::downgrade(inner), Arc::downgrade(member));
    let following = Arc::clone(&alone);
    let task = async move {
        while views.changed().await.is_ok() {
            let (Some(inner), Some(member)) = (node.upgrade(), followed.upgrade()) else {
                return;
            };
            heed(&inner, &member, &following);
        }
    };
    let name = "space that others set aside";
    inner.env.spawner.spawn(name, Box::pin(task));
    let told = Arc::downgrade(member);
    inner.every("reserved-space", INTERVAL, move |inner| {
        let (member, alone) = (told.upgrade(), Arc::clone(&alone));
        async move {
            if let Some(member) = member {
                // The start or end of a volume's service does not show in the map.
                heed(&inner, &member, &alone);
                tell(&inner, &member).await;
            }
        }
    });
}

/// `alone`: held meanwhile, so that the view that this node reports as followed is never newer than the one it follows.
fn heed(inner: &NodeCore, member: &ClusterMember, alone: &Mutex<()>) {
    let _alone = alone.lock();
    let services = inner.pool.services();
    let is_here =
        |volume: VolumeId| matches!(services.get(&volume), Some(VolumeService::Serving(_)));
    let found = elsewhere(&member.view(), member.node(), is_here);
    inner
        .dirty
        .set_elsewhere(found.reserved_bytes, found.unflushed_bytes);
    // Other nodes hear of it when it is true.
    member.note_reserved_seen(found.seen);
}

async fn tell(inner: &NodeCore, member: &ClusterMember) {
    for (volume, service) in inner.pool.services() {
        let VolumeService::Serving(fs) = service else {
            continue;
        };
        let needed_bytes = fs.reserved_on_disks();
        if let Err(error) = member.tell_reserved(volume, needed_bytes).await {
            tracing::debug!(%volume, %error, "other nodes do not know yet how much space is reserved for the volume's LUNs");
        }
    }
}
