//! The life of this node's lease: it is asked for, and what rested on it is left when it is over.
//!
//! Owns: this order. Must not know: which volumes the node takes meanwhile (`run`).

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::Backoff;
use cairn_cluster::OwnedLease;
use cairn_cluster::map::{Process, ProcessNonce};
use cairn_pool::{Leave, Pool};
use futures_util::future::{Either, join, join_all, select};

use super::run::served;
use crate::member::{ClusterMember, HeldLease};

/// A lease that is not granted is asked for again after so long, at first and at most.
const LEASE_RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(2));
/// The store is told for so long that this node is gone; else it finds out when the lease ends.
const REVOKE_MAX: Duration = Duration::from_secs(1);

impl ClusterMember {
    /// Runs until the node stops: one lease after the other.
    pub(crate) async fn own_volumes(self: Arc<Self>, pool: Arc<Pool>) {
        let mut pauses = LEASE_RETRY;
        while !self.is_stopping() {
            let Some(lease) = self.new_lease(&mut pauses).await else {
                continue;
            };
            pauses.reset();
            self.on_lease(&pool, &lease).await;
            if !self.is_stopping() {
                tracing::warn!(lease = %lease.id(), "this node's lease has expired: it owns nothing until it has another lease; does etcd answer?");
            }
            self.end_lease(&pool, lease).await;
        }
    }

    /// `None`: there is none, or the node stops. Without most of etcd asking for one takes seconds.
    async fn new_lease(&self, pauses: &mut Backoff) -> Option<Arc<OwnedLease>> {
        let stopped = self.told_to_stop();
        if self.is_stopping() {
            return None;
        }
        tokio::select! {
            biased;
            () = stopped => None,
            lease = self.try_new_lease(pauses) => lease,
        }
    }

    async fn try_new_lease(&self, pauses: &mut Backoff) -> Option<Arc<OwnedLease>> {
        let granted = OwnedLease::grant(
            self.env.clone(),
            Arc::clone(&self.coordinator),
            self.settings.lease,
        );
        let lease = match granted.await {
            Ok(lease) => lease,
            Err(error) => {
                tracing::warn!(%error, "this node cannot get a lease, so it owns nothing");
                self.env.clock.sleep(pauses.pause()).await;
                return None;
            }
        };
        let process = Process {
            node: self.own.node,
            nonce: ProcessNonce(self.env.entropy.u128()),
            lease: lease.id(),
        };
        let sign = self.sign(&self.view(), BTreeSet::new(), BTreeSet::new());
        if let Err(error) = self.map.announce(process, &sign).await {
            tracing::warn!(%error, "this node could not write its sign of life");
            self.env.clock.sleep(pauses.pause()).await;
            return None;
        }
        let lease = Arc::new(lease);
        self.note_lease(lease.view());
        self.hold(Some(HeldLease {
            process,
            lease: Arc::clone(&lease),
        }));
        tracing::info!(lease = %lease.id(), "this node has a lease");
        Some(lease)
    }

    /// After a lease: nothing is served that rested on it. A node that stops has closed its volumes, and says at once that
    /// it is gone.
    async fn end_lease(&self, pool: &Arc<Pool>, lease: Arc<OwnedLease>) {
        self.hold(None);
        let how = match lease.is_valid() {
            true => Leave::Close,
            false => {
                tracing::error!(
                    "this node's lease has expired: it serves no volume until it has another lease"
                );
                Leave::Abandon
            }
        };
        let leaving = served(pool);
        let over = || lease.over();
        let over = &over;
        let left = leaving.iter().map(|id| async move {
            if how == Leave::Close {
                let farewell = pin!(self.say_farewell(*id));
                select(farewell, pin!(over())).await;
                pool.disown_before(*id, how, over()).await;
            } else {
                join(self.say_farewell(*id), pool.disown(*id, how)).await;
            }
        });
        join_all(left).await;
        if !self.is_stopping() {
            return;
        }
        let is_valid = lease.is_valid();
        let Ok(lease) = Arc::try_unwrap(lease) else {
            return;
        };
        if is_valid {
            let told = pin!(lease.revoke());
            match select(told, self.env.clock.sleep(REVOKE_MAX)).await {
                Either::Left((Ok(()), _)) => self.note_gone(),
                Either::Left((Err(error), _)) => {
                    tracing::debug!(%error, "the lease ends by itself");
                }
                Either::Right(_) => tracing::debug!("the lease ends by itself"),
            }
        }
    }
}
