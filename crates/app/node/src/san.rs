//! Answers the admin API about LUNs, and starts the iSCSI server when there is one.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use cairn_admin::api::ErrorKind;
use cairn_admin::san::{
    IgroupSet, IgroupView, InitiatorSet, InitiatorView, LunAt, LunClone, LunCreate, LunMapSet,
    LunMapView, LunReserve, LunRestore, LunSet, LunView, SanControl, SessionView,
};
use cairn_admin::{Answer, ControlError};
use cairn_config::{LISTEN_ISCSI_DEFAULT, VolumeName};
use cairn_iscsi::{PeerServer, PortalCore, Running, Target};
use cairn_pool::ChangeFailure;
use cairn_san::{Chap, Lun, LunChange, LunSpec, SanError};
use parking_lot::Mutex;

use crate::control::{Controller, no_room, refusal};
use crate::node::NodeCore;

/// The iSCSI server, running or waiting for the first LUN.
#[derive(Default)]
pub struct IscsiServer(Mutex<Option<Running>>);

impl IscsiServer {
    /// Serves on bound sockets, or binds the usual one as soon as there is a LUN. A node of a cluster always serves
    /// forwarded requests.
    pub fn tend(
        self: &Arc<Self>,
        inner: &Arc<NodeCore>,
        shared: Arc<PortalCore>,
        bound: Vec<TcpListener>,
    ) {
        let server = Arc::clone(self);
        if let Some(cluster) = &inner.cluster {
            cluster.announce_iscsi(&inner.env, portals(inner, &bound));
            if let Some(passed) = server.start(shared, bound) {
                cluster.serve_iscsi(passed);
            }
            return;
        }
        if !bound.is_empty() {
            inner.targets.set_portals(portals(inner, &bound));
            server.start(shared, bound);
            return;
        }
        let targets = Arc::clone(&inner.targets);
        let told = inner.config.iscsi_portals.clone();
        let mut has_luns = inner.targets.has_luns.subscribe();
        let task = async move {
            if has_luns.wait_for(|has| *has).await.is_err() {
                return;
            }
            match TcpListener::bind(LISTEN_ISCSI_DEFAULT) {
                Ok(listener) => {
                    targets.set_portals(match told.is_empty() {
                        true => vec![LISTEN_ISCSI_DEFAULT],
                        false => told,
                    });
                    server.start(shared, vec![listener]);
                }
                Err(error) => tracing::error!(
                    address = %LISTEN_ISCSI_DEFAULT,
                    %error,
                    "LUNs exist, but iSCSI is not served: free the port, or start with --listen-iscsi ADDR:PORT"
                ),
            }
        };
        inner.env.spawner.spawn("iscsi start", Box::pin(task));
    }

    fn start(&self, shared: Arc<PortalCore>, listeners: Vec<TcpListener>) -> Option<PeerServer> {
        let addresses: Vec<String> = listeners
            .iter()
            .filter_map(|listener| listener.local_addr().ok())
            .map(|address| address.to_string())
            .collect();
        match Running::start(shared, listeners) {
            Ok(running) => {
                if !addresses.is_empty() {
                    tracing::info!(address = addresses.join(", "), "iSCSI is served");
                }
                let passed = running.passed();
                *self.0.lock() = Some(running);
                Some(passed)
            }
            Err(error) => {
                tracing::error!(%error, "iSCSI is not served");
                None
            }
        }
    }

    pub async fn stop(&self, grace: std::time::Duration) {
        let running = self.0.lock().take();
        if let Some(running) = running {
            running.stop(grace).await;
        }
    }
}

/// The addresses at which hosts should find this server: the configured ones, otherwise those where it listens.
fn portals(inner: &NodeCore, bound: &[TcpListener]) -> Vec<SocketAddr> {
    let told = &inner.config.iscsi_portals;
    match told.is_empty() {
        true => bound
            .iter()
            .filter_map(|listener| listener.local_addr().ok())
            .collect(),
        false => told.clone(),
    }
}

/// The shared parts of the server.
pub fn shared(inner: &Arc<NodeCore>, bound: &[TcpListener]) -> Arc<PortalCore> {
    let held = usize::try_from(inner.budget.iscsi_bytes()).unwrap_or(usize::MAX);
    // Part of the same memory: read data stays until the initiator has taken it.
    let unsent = held / 8;
    let settings = cairn_iscsi::Settings {
        threads: inner.config.threads,
        held_bytes_max: held - unsent,
        unsent_bytes_max: unsent,
        // A single address is the one that the host has found.
        portals: match (bound.len(), inner.config.iscsi_portals.is_empty()) {
            (0 | 1, true) => Vec::new(),
            _ => portals(inner, bound),
        },
        ..cairn_iscsi::Settings::default()
    };
    let member = inner
        .cluster
        .as_ref()
        .map(|cluster| Arc::clone(&cluster.member));
    let may_answer = move || member.as_ref().is_none_or(|member| member.lease_is_valid());
    PortalCore::new(Arc::clone(&inner.targets), settings, may_answer)
}

pub(crate) fn refused(error: SanError) -> ControlError {
    let message = error.to_string();
    match error {
        SanError::NoLun(_) => {
            ControlError::new(ErrorKind::NotFound, message).hint("`cairn lun list` shows all LUNs")
        }
        SanError::NoIgroup(_) => ControlError::new(ErrorKind::NotFound, message)
            .hint("`cairn igroup list` shows all groups"),
        SanError::NoInitiator(_) => ControlError::new(ErrorKind::NotFound, message)
            .hint("`cairn initiator list` shows all initiators with secrets"),
        SanError::LunExists(_) => {
            ControlError::new(ErrorKind::Conflict, message).hint("choose another name")
        }
        SanError::Invalid(_) => ControlError::new(ErrorKind::Invalid, message),
        SanError::Conflict(_) => ControlError::new(ErrorKind::Conflict, message),
        SanError::Fs(
            cairn_fs::FsError::Fenced
            | cairn_fs::FsError::TryLater
            | cairn_fs::FsError::Unreachable(_),
        ) => ControlError::new(ErrorKind::Unavailable, message),
        SanError::Fs(cairn_fs::FsError::NoSpace | cairn_fs::FsError::QuotaExceeded) => {
            no_room(message)
        }
        SanError::Secret { .. } => ControlError::new(ErrorKind::Unavailable, message)
            .hint("`cairn key list` shows which master key is missing"),
        SanError::Fs(_) | SanError::Damaged(..) => {
            tracing::error!(%message, "a change of LUNs failed");
            ControlError::new(ErrorKind::Internal, message).hint("the server's log has details")
        }
    }
}

impl Controller {
    fn target(&self, name: &VolumeName) -> Result<Arc<Target>, ControlError> {
        let state = self.inner.pool.state();
        let volume = state
            .volume(name)
            .map_err(|error| refusal(ChangeFailure::from(error)))?;
        if let Some(target) = self.inner.targets.of_volume(volume.id) {
            return Ok(target);
        }
        Err(self.not_here(volume.id, name))
    }

    fn lun_view(&self, target: &Target, lun: &Lun) -> Result<LunView, ControlError> {
        let fs = target.san.fs();
        let volume = fs.name().parse();
        let volume =
            volume.map_err(|_| ControlError::new(ErrorKind::Internal, "the volume has no name"))?;
        Ok(LunView {
            volume,
            name: lun.name.clone(),
            size_bytes: lun.size_bytes,
            used_bytes: fs.attr_under_way(lun.ino).map_or(0, |attr| attr.used_bytes),
            reserve: match fs.reserved_bytes(lun.ino) {
                0 => LunReserve::None,
                _ => LunReserve::Full,
            },
            block_bytes: lun.block_len_bytes,
            write_cache: lun.write_cache,
            read_only: lun.read_only,
            online: lun.online,
            soft_threshold_percent: lun.soft_threshold_percent,
            naa: format!("{:032x}", u128::from_be_bytes(lun.naa_bytes())),
            target: target.san.target().unwrap_or_default(),
            created_seconds: lun.created_seconds,
            portals: {
                let all = self.inner.targets.portals().into_iter();
                all.map(|portal| portal.to_string()).collect()
            },
            maps: lun
                .maps
                .iter()
                .map(|(igroup, number)| LunMapView {
                    igroup: igroup.clone(),
                    number: *number,
                })
                .collect(),
        })
    }

    /// Reports the change to sessions, and returns the present state.
    async fn lun_changed(&self, target: &Target, name: &str) -> Result<LunView, ControlError> {
        target.follow().await.map_err(refused)?;
        let lun = target.san.lun(name).map_err(refused)?;
        self.lun_view(target, &lun)
    }
}

fn named(name: &str) -> Result<(), ControlError> {
    match cairn_iscsi::is_iscsi_name(name) {
        true => Ok(()),
        false => Err(ControlError::new(ErrorKind::Invalid, format!("\"{name}\" is not an initiator name"))
            .hint("a name looks like iqn.1993-08.org.debian:01:abc, in lower case; Linux stores its own in /etc/iscsi/initiatorname.iscsi")),
    }
}

impl SanControl for Controller {
    fn luns(&self) -> Answer<'_, Vec<LunView>> {
        Box::pin(async move {
            let mut views = Vec::new();
            for target in self.inner.targets.all() {
                for lun in target.san.luns() {
                    views.push(self.lun_view(&target, &lun)?);
                }
            }
            views.sort_by(|left, right| {
                (&left.volume, &left.name).cmp(&(&right.volume, &right.name))
            });
            Ok(views)
        })
    }

    fn lun(&self, at: LunAt) -> Answer<'_, LunView> {
        Box::pin(async move {
            let target = self.target(&at.volume)?;
            self.lun_view(&target, &target.san.lun(&at.name).map_err(refused)?)
        })
    }

    fn lun_create(&self, create: LunCreate) -> Answer<'_, LunView> {
        Box::pin(async move {
            let target = self.target(&create.volume)?;
            let spec = LunSpec {
                is_reserved: create.reserve == LunReserve::Full,
                name: create.name.clone(),
                size_bytes: create.size_bytes,
                block_len_bytes: create.block_bytes.unwrap_or(512),
                write_cache: create.write_cache,
            };
            target.san.create(spec).await.map_err(refused)?;
            let view = self.lun_changed(&target, &create.name).await?;
            self.inner.targets.has_luns.send_replace(true);
            Ok(view)
        })
    }

    fn lun_clone(&self, at: LunAt, clone: LunClone) -> Answer<'_, LunView> {
        Box::pin(async move {
            let target = self.target(&at.volume)?;
            let snapshot = clone.snapshot.as_deref();
            let cloned = target.san.clone_lun(&at.name, snapshot, &clone.name).await;
            cloned.map_err(refused)?;
            self.lun_changed(&target, &clone.name).await
        })
    }

    fn lun_restore(&self, at: LunAt, restore: LunRestore) -> Answer<'_, LunView> {
        Box::pin(async move {
            let target = self.target(&at.volume)?;
            let restored = target.san.restore_lun(&at.name, &restore.snapshot).await;
            restored.map_err(|error| match error {
                SanError::Conflict(why) => ControlError::new(ErrorKind::Conflict, why).hint(
                    "detach the LUN from its hosts, then `cairn lun offline`; or clone the snapshot (`cairn lun clone --snapshot`)",
                ),
                error => refused(error),
            })?;
            self.lun_changed(&target, &at.name).await
        })
    }

    fn lun_set(&self, at: LunAt, set: LunSet) -> Answer<'_, LunView> {
        Box::pin(async move {
            let target = self.target(&at.volume)?;
            if set.reserve == Some(LunReserve::Full) {
                let why = "space can be reserved only for a new LUN: an existing LUN may share its blocks with other LUNs";
                return Err(ControlError::new(ErrorKind::Invalid, why).hint(
                    "create another LUN with `cairn lun create --reserve full`, and copy the data",
                ));
            }
            let change = LunChange {
                unreserve: set.reserve == Some(LunReserve::None),
                size_bytes: set.size_bytes,
                shrink: set.shrink,
                write_cache: set.write_cache,
                read_only: set.read_only,
                online: set.online,
                soft_threshold_percent: set.soft_threshold_percent,
            };
            target
                .san
                .change(&at.name, change)
                .await
                .map_err(|error| match error {
                    SanError::Conflict(why) => ControlError::new(ErrorKind::Conflict, why)
                        .hint("use --shrink to allow this"),
                    error => refused(error),
                })?;
            self.lun_changed(&target, &at.name).await
        })
    }

    fn lun_delete(&self, at: LunAt, force: bool) -> Answer<'_, ()> {
        Box::pin(async move {
            let target = self.target(&at.volume)?;
            target
                .san
                .delete(&at.name, force)
                .await
                .map_err(|error| match error {
                    SanError::Conflict(why) => ControlError::new(ErrorKind::Conflict, why)
                        .hint("unmap it first (`cairn lun unmap`), or use --force"),
                    error => refused(error),
                })?;
            target.follow().await.map_err(refused)
        })
    }

    fn lun_map(&self, at: LunAt, igroup: String, map: LunMapSet) -> Answer<'_, LunView> {
        Box::pin(async move {
            let target = self.target(&at.volume)?;
            target
                .san
                .map(&at.name, &igroup, map.number, &target.seen())
                .await
                .map_err(refused)?;
            self.lun_changed(&target, &at.name).await
        })
    }

    fn lun_unmap(&self, at: LunAt, igroup: String) -> Answer<'_, LunView> {
        Box::pin(async move {
            let target = self.target(&at.volume)?;
            target.san.unmap(&at.name, &igroup).await.map_err(refused)?;
            self.lun_changed(&target, &at.name).await
        })
    }

    fn igroups(&self) -> Answer<'_, Vec<IgroupView>> {
        Box::pin(async move {
            let mut views = Vec::new();
            for target in self.inner.targets.all() {
                let Ok(volume) = target.san.fs().name().parse::<VolumeName>() else {
                    continue;
                };
                for (name, igroup) in target.san.igroups() {
                    views.push(IgroupView {
                        volume: volume.clone(),
                        name,
                        os: igroup.os,
                        initiators: igroup.initiators.into_iter().collect(),
                    });
                }
            }
            Ok(views)
        })
    }

    fn igroup_set(
        &self,
        volume: VolumeName,
        name: String,
        set: IgroupSet,
    ) -> Answer<'_, IgroupView> {
        Box::pin(async move {
            let target = self.target(&volume)?;
            for initiator in &set.initiators {
                named(initiator)?;
            }
            let initiators: BTreeSet<String> = set.initiators.into_iter().collect();
            let igroup = target
                .san
                .igroup_set(&name, initiators, set.os, &target.seen())
                .await
                .map_err(refused)?;
            target.follow().await.map_err(refused)?;
            Ok(IgroupView {
                volume,
                name,
                os: igroup.os,
                initiators: igroup.initiators.into_iter().collect(),
            })
        })
    }

    fn igroup_remove(&self, volume: VolumeName, name: String) -> Answer<'_, ()> {
        Box::pin(async move {
            let target = self.target(&volume)?;
            target.san.igroup_remove(&name).await.map_err(refused)?;
            target.follow().await.map_err(refused)
        })
    }

    fn initiators(&self) -> Answer<'_, Vec<InitiatorView>> {
        Box::pin(async move {
            let mut views = Vec::new();
            for target in self.inner.targets.all() {
                let Ok(volume) = target.san.fs().name().parse::<VolumeName>() else {
                    continue;
                };
                for (name, initiator) in target.san.initiators() {
                    views.push(InitiatorView {
                        volume: volume.clone(),
                        name,
                        chap_user: initiator.chap.user,
                        mutual_user: initiator.mutual.map(|mutual| mutual.user),
                    });
                }
            }
            Ok(views)
        })
    }

    fn initiator_set(
        &self,
        volume: VolumeName,
        name: String,
        set: InitiatorSet,
    ) -> Answer<'_, InitiatorView> {
        Box::pin(async move {
            named(&name)?;
            let target = self.target(&volume)?;
            let chap = Chap {
                user: set.chap_user.clone(),
                secret: set.chap_secret,
            };
            let mutual = match (set.mutual_user.clone(), set.mutual_secret) {
                (Some(user), Some(secret)) => Some(Chap { user, secret }),
                (None, None) => None,
                _ => {
                    let why = "mutual CHAP needs a user and a secret";
                    return Err(ControlError::new(ErrorKind::Invalid, why));
                }
            };
            target
                .san
                .initiator_set(&name, chap, mutual)
                .await
                .map_err(refused)?;
            Ok(InitiatorView {
                volume,
                name,
                chap_user: set.chap_user,
                mutual_user: set.mutual_user,
            })
        })
    }

    fn initiator_remove(&self, volume: VolumeName, name: String) -> Answer<'_, ()> {
        Box::pin(async move {
            let target = self.target(&volume)?;
            target.san.initiator_remove(&name).await.map_err(refused)
        })
    }

    fn sessions(&self) -> Answer<'_, Vec<SessionView>> {
        Box::pin(async move {
            let sessions = self.inner.targets.sessions();
            let mut views: Vec<SessionView> = sessions
                .iter()
                .map(|session| SessionView {
                    initiator: session.initiator.clone(),
                    target: session.target.clone(),
                    address: session.peer.to_string(),
                    portal_group: session.group,
                    connections: session.connections(),
                    begun_seconds: session.begun_seconds,
                })
                .collect();
            views.sort_by(|left, right| {
                (&left.initiator, &left.target).cmp(&(&right.initiator, &right.target))
            });
            Ok(views)
        })
    }
}
