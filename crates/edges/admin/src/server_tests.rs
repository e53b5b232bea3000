use std::sync::Mutex;

use axum::body::Body;
use axum::http::Method;
use cairn_base::NodeId;
use cairn_config::{ClientNet, ExportRule, MediaChoice, VolumeName};
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::ServiceExt;
use utoipa_axum::router::OpenApiRouter;

use super::*;
use crate::api::{ErrorDetail, Status};
use crate::balance::{BalanceControl, BalanceView};
use crate::caches::{
    CACHE_ADD, CACHE_LIST, CACHE_REMOVE, CacheAdd, CacheControl, CacheList, CacheName, CacheReads,
    CacheState, CacheView,
};
use crate::client::{Client, ClientError, Identity};
use crate::cluster::{
    AuthorityView, ClusterBackup, ClusterControl, ClusterView, NodeName, TicketCreate, TicketView,
};
use crate::control::Answer;
use crate::disks::{
    DISK_ADD, DISK_PLACE, DISK_REMOVE, DISK_REPLACE, DISK_RETRY, DISK_SET, DiskAdd, DiskChange,
    DiskControl, DiskList, DiskName, DiskPlace, DiskReplace, DiskRole, DiskView, PlacePath,
};
use crate::endpoint::Force;
use crate::exports::{
    Clients, EXPORT_REMOVE, EXPORT_SET, ExportControl, ExportList, ExportSet, ExportView,
};
use crate::list_query::ListQuery;
use crate::rebuild::{REBUILD, REBUILD_SET, RebuildControl, RebuildRate, RebuildView};
use crate::s3::{AccessKeyCreate, AccessKeyView, BucketCreate, BucketSet, BucketView, S3Control};
use crate::scrub::{
    SCRUB, SCRUB_PAUSE, SCRUB_REPORT, SCRUB_SCHEDULE, SCRUB_SCHEDULE_CLEAR, SCRUB_SCHEDULE_SET,
    SCRUB_START, ScrubControl, ScrubReport, ScrubSchedule, ScrubScheduleSet, ScrubStage,
    ScrubStart, ScrubView,
};
use crate::spread::{SPREAD, SPREAD_SET, SpreadControl, SpreadSet, SpreadView};
use crate::volumes::{
    VOLUME_CREATE, VOLUME_DELETE, VOLUME_LIST, VOLUME_SET, VOLUME_SHOW, VolumeAddressSet,
    VolumeChange, VolumeCloneCreate, VolumeControl, VolumeCreate, VolumeList, VolumeOrigin,
    VolumeSettingsView, VolumeView,
};

pub(super) const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A node that has one volume, `main`, and remembers what it was told.
#[derive(Default)]
pub(super) struct Pretend {
    pub(super) told: Mutex<Vec<String>>,
    /// Whether it tells numbers over time: a stream of them does not end by itself.
    pub(super) has_live: bool,
    /// The node that has the volume `away`, if it is not this one.
    pub(super) away: Option<NodeId>,
    pub(super) buckets: Vec<&'static str>,
    /// The node that owns its volumes, if it is another one, and what they use, as far as it knows.
    pub(super) owner: Option<&'static str>,
    pub(super) used_bytes: Option<u64>,
    /// So often volume `away`, which this node has, is not open yet.
    pub(super) refusals: Mutex<u32>,
    /// Volumes beside `main`, in lists alone.
    pub(super) other_volumes: usize,
    pub(super) users: super::users_tests::PretendUsers,
}

impl Pretend {
    /// Whether a volume is open that is being opened.
    fn opened(&self) -> Result<(), ControlError> {
        let mut refusals = self.refusals.lock().unwrap();
        if *refusals == 0 {
            return Ok(());
        }
        *refusals -= 1;
        let error = ControlError::new(ErrorKind::Unavailable, "it is not open yet");
        Err(error.passing())
    }

    fn tell(&self, what: String) {
        self.told.lock().unwrap().push(what);
    }

    fn view(&self, name: &VolumeName) -> VolumeView {
        let view = view(name);
        VolumeView {
            owner: self.owner.map(str::to_owned),
            used_bytes: self.used_bytes.unwrap_or(view.used_bytes),
            clone_of: self
                .used_bytes
                .filter(|_| self.owner.is_none())
                .map(|_| VolumeOrigin {
                    volume: "origin".parse().unwrap(),
                    snapshot: "monday".to_owned(),
                    deleted: false,
                }),
            ..view
        }
    }
}

fn view(name: &VolumeName) -> VolumeView {
    VolumeView {
        id: 1,
        name: name.clone(),
        settings: VolumeSettingsView {
            protection: cairn_config::Protection::Plus(2),
            size_limit: cairn_config::SizeLimit::None,
            autogrow: cairn_config::SizeLimit::None,
            access_pattern: cairn_config::AccessPattern::Random,
            compression: cairn_config::Compression::Zstd(3),
            dedupe: cairn_config::Dedupe::On,
            media: MediaChoice::Ssd,
            class: Default::default(),
        },
        layout: "4+2".to_owned(),
        disk_failures_tolerated: 2,
        node_failures_tolerated: None,
        media_bytes: Vec::new(),
        directory_protections: Vec::new(),
        tiering: None,
        rates: None,
        created_seconds: 0,
        serving: true,
        owner: None,
        problem: None,
        used_bytes: 1,
        total_bytes: 2,
        free_bytes: 1,
        inodes: 1,
        snapshots: 0,
        snapshot_bytes: 0,
        garbage_bytes: 2,
        freeing_bytes: 1,
        deduplicated_bytes: 3,
        exported: true,
        encryption: Default::default(),
        clone_of: None,
    }
}

pub(super) fn answer<T: Send + 'static>(result: Result<T, ControlError>) -> Answer<'static, T> {
    Box::pin(async move { result })
}

fn cache() -> CacheView {
    CacheView {
        id: "ef".to_owned(),
        path: "/fast".to_owned(),
        size_bytes: 1 << 30,
        state: CacheState::Ok,
        errors: 0,
        problem: None,
    }
}

fn place(path: &str) -> DiskPlace {
    DiskPlace {
        path: path.to_owned(),
        exists: true,
        device: "/dev/sdb1".to_owned(),
        file_system: "xfs".to_owned(),
        mount_point: "/srv".to_owned(),
        total_bytes: 2,
        free_bytes: 1,
        shares_with: Vec::new(),
    }
}

fn disk(id: &str) -> DiskView {
    DiskView {
        role: DiskRole::Data,
        media: MediaChoice::Any,
        logs: 0,
        states: 0,
        id: id.to_owned(),
        label: "/disk".to_owned(),
        state: crate::disks::DiskState::Ok,
        total_bytes: 2,
        free_bytes: 1,
        read_errors: 0,
        write_errors: 0,
        full_errors: 0,
        checksum_errors: 0,
        shards: 3,
        problem: None,
    }
}

fn only_main(name: &VolumeName) -> Result<(), ControlError> {
    if name.as_str() == "main" {
        Ok(())
    } else {
        Err(ControlError::new(
            ErrorKind::NotFound,
            format!("there is no volume \"{name}\""),
        ))
    }
}

impl S3Control for Pretend {
    fn buckets(&self) -> Answer<'_, Vec<BucketView>> {
        let view = |name: &&str| BucketView {
            name: (*name).to_owned(),
            volume: "main".parse().unwrap(),
            path: String::new(),
            created_seconds: 0,
            versioning: None,
            nfs_versions_seconds: None,
        };
        answer(Ok(self.buckets.iter().map(view).collect()))
    }

    fn bucket_create(&self, create: BucketCreate) -> Answer<'_, BucketView> {
        let error = match self.away {
            Some(node) => ControlError::new(ErrorKind::Unavailable, "another node has it").at(node),
            None => ControlError::new(ErrorKind::Conflict, format!("{} is taken", create.name)),
        };
        answer(Err(error))
    }

    fn bucket_set(&self, name: String, set: BucketSet) -> Answer<'_, BucketView> {
        if !self.buckets.contains(&&*name) {
            return answer(Err(ControlError::new(
                ErrorKind::NotFound,
                "no such bucket",
            )));
        }
        answer(Ok(BucketView {
            name,
            volume: "main".parse().unwrap(),
            path: String::new(),
            created_seconds: 0,
            versioning: Some("enabled".to_owned()),
            nfs_versions_seconds: set.nfs_versions.then_some(60),
        }))
    }

    fn bucket_delete(&self, name: String, _keep: bool) -> Answer<'_, ()> {
        let absent = || ControlError::new(ErrorKind::NotFound, "no such bucket");
        answer(
            self.buckets
                .contains(&&*name)
                .then_some(())
                .ok_or_else(absent),
        )
    }

    fn access_keys(&self) -> Answer<'_, Vec<AccessKeyView>> {
        answer(Ok(Vec::new()))
    }

    fn access_key_create(&self, _create: AccessKeyCreate) -> Answer<'_, AccessKeyView> {
        answer(Err(ControlError::new(ErrorKind::Conflict, "none is made")))
    }

    fn access_key_revoke(&self, _id: String) -> Answer<'_, ()> {
        answer(Err(ControlError::new(ErrorKind::NotFound, "no such key")))
    }
}

impl VolumeControl for Pretend {
    fn volume_list(&self, query: ListQuery) -> Answer<'_, VolumeList> {
        let others = (0..self.other_volumes).map(|number| format!("v{number}"));
        let names = std::iter::once("main".to_owned()).chain(others);
        let cut = query.cut(names.map(|name| (name, ())));
        let views = cut
            .items
            .iter()
            .map(|(name, ())| self.view(&name.parse().unwrap()));
        answer(Ok(VolumeList {
            volumes: views.collect(),
            total: cut.total,
            next_after: cut.next_after,
        }))
    }

    fn volume_show(&self, name: VolumeName) -> Answer<'_, VolumeView> {
        match (name.as_str(), self.away) {
            ("away", Some(node)) => {
                let error = ControlError::new(ErrorKind::Unavailable, "another node has it");
                answer(Err(error.at(node)))
            }
            ("away", None) => answer(self.opened().map(|()| view(&name))),
            _ => answer(only_main(&name).map(|()| self.view(&name))),
        }
    }

    fn volume_create(&self, create: VolumeCreate) -> Answer<'_, VolumeView> {
        self.tell(format!("create {create:?}"));
        if create.name.as_str() == "main" {
            return answer(Err(
                ControlError::new(ErrorKind::Conflict, "main is there").hint("choose another name")
            ));
        }
        answer(Ok(view(&create.name)))
    }

    fn volume_clone(&self, source: VolumeName, clone: VolumeCloneCreate) -> Answer<'_, VolumeView> {
        self.tell(format!("clone {source} {clone:?}"));
        answer(only_main(&source).map(|()| view(&clone.name)))
    }

    fn volume_set(&self, name: VolumeName, change: VolumeChange) -> Answer<'_, VolumeView> {
        self.tell(format!("set {name} {change:?}"));
        answer(only_main(&name).map(|()| view(&name)))
    }

    fn volume_delete(&self, name: VolumeName, force: bool) -> Answer<'_, ()> {
        self.tell(format!("delete {name} {force}"));
        match (name.as_str(), self.away) {
            ("away", None) => answer(self.opened()),
            _ => answer(only_main(&name)),
        }
    }

    fn volume_move(&self, name: VolumeName, to: Option<String>) -> Answer<'_, VolumeView> {
        self.tell(format!("move {name} {to:?}"));
        answer(only_main(&name).map(|()| view(&name)))
    }

    fn volume_address(
        &self,
        name: VolumeName,
        address: Option<VolumeAddressSet>,
    ) -> Answer<'_, ClusterView> {
        self.tell(format!("address of {name} {address:?}"));
        answer(only_main(&name).map(|()| ClusterView::default()))
    }
}

impl ExportControl for Pretend {
    fn export_list(&self) -> Answer<'_, ExportList> {
        answer(Ok(ExportList {
            exports: Vec::new(),
        }))
    }

    fn export_set(&self, volume: VolumeName, rules: Vec<ExportRule>) -> Answer<'_, ExportView> {
        answer(only_main(&volume).map(|()| ExportView { volume, rules }))
    }

    fn export_remove(&self, volume: VolumeName, clients: Vec<ClientNet>) -> Answer<'_, ExportView> {
        self.tell(format!("remove {clients:?}"));
        let rules = Vec::new();
        answer(only_main(&volume).map(|()| ExportView { volume, rules }))
    }
}

impl DiskControl for Pretend {
    fn disk_list(&self) -> Answer<'_, DiskList> {
        answer(Ok(DiskList { disks: Vec::new() }))
    }

    fn disk_place(&self, path: String) -> Answer<'_, DiskPlace> {
        answer(Ok(place(&path)))
    }

    fn disk_add(&self, add: DiskAdd) -> Answer<'_, DiskView> {
        self.tell(format!("add {add:?}"));
        answer(Ok(disk("ab")))
    }

    fn disk_drain(&self, DiskName(id): DiskName, draining: bool) -> Answer<'_, DiskView> {
        self.tell(format!("drain {id} {draining}"));
        answer(Ok(disk(&id)))
    }

    fn disk_media(&self, DiskName(id): DiskName, media: MediaChoice) -> Answer<'_, DiskView> {
        Box::pin(async move { Ok(DiskView { media, ..disk(&id) }) })
    }

    fn disk_remove(&self, DiskName(id): DiskName, force: bool) -> Answer<'_, ()> {
        self.tell(format!("remove {id} {force}"));
        answer(Ok(()))
    }

    fn disk_replace(&self, DiskName(id): DiskName, by: DiskReplace) -> Answer<'_, DiskView> {
        self.tell(format!("replace {id} {by:?}"));
        answer(Ok(disk("cd")))
    }

    fn disk_retry(&self, DiskName(id): DiskName) -> Answer<'_, DiskView> {
        self.tell(format!("retry {id}"));
        answer(Ok(disk(&id)))
    }
}

impl CacheControl for Pretend {
    fn cache_list(&self) -> Answer<'_, CacheList> {
        answer(Ok(CacheList {
            caches: vec![cache()],
            reads: CacheReads::default(),
        }))
    }

    fn cache_add(&self, add: CacheAdd) -> Answer<'_, CacheView> {
        self.tell(format!("cache {add:?}"));
        answer(Ok(cache()))
    }

    fn cache_remove(&self, CacheName(id): CacheName) -> Answer<'_, ()> {
        self.tell(format!("uncache {id}"));
        answer(Ok(()))
    }
}

impl RebuildControl for Pretend {
    fn rebuild(&self) -> Answer<'_, RebuildView> {
        answer(Ok(RebuildView::default()))
    }

    fn rebuild_set(&self, rate_bytes_per_second: u64) -> Answer<'_, RebuildView> {
        answer(Ok(RebuildView {
            rate_bytes_per_second,
            ..RebuildView::default()
        }))
    }
}

impl SpreadControl for Pretend {
    fn spread(&self) -> Answer<'_, SpreadView> {
        answer(Ok(SpreadView::default()))
    }

    fn spread_set(&self, set: SpreadSet) -> Answer<'_, SpreadView> {
        answer(Ok(SpreadView {
            paused: set.paused,
            ..SpreadView::default()
        }))
    }
}

impl ScrubControl for Pretend {
    fn scrub(&self) -> Answer<'_, ScrubView> {
        answer(Ok(ScrubView::default()))
    }

    fn scrub_start(&self, start: ScrubStart) -> Answer<'_, ScrubView> {
        answer(Ok(ScrubView {
            stage: ScrubStage::Running,
            rate_bytes_per_second: start.rate_bytes_per_second.unwrap_or(7),
            ..ScrubView::default()
        }))
    }

    fn scrub_pause(&self) -> Answer<'_, ScrubView> {
        answer(Err(ControlError::new(ErrorKind::Conflict, "no scrub runs")))
    }

    fn scrub_report(&self) -> Answer<'_, ScrubReport> {
        answer(Ok(ScrubReport::default()))
    }

    fn scrub_schedule(&self) -> Answer<'_, ScrubSchedule> {
        answer(Ok(ScrubSchedule::default()))
    }

    fn scrub_schedule_set(&self, set: ScrubScheduleSet) -> Answer<'_, ScrubSchedule> {
        answer(Ok(ScrubSchedule {
            every: set.every,
            window: set.window,
            ..ScrubSchedule::default()
        }))
    }
}

impl ClusterControl for Pretend {
    fn cluster(&self) -> Answer<'_, ClusterView> {
        answer(Err(ControlError::new(ErrorKind::NotFound, "no cluster")))
    }

    fn cluster_backup(&self) -> Answer<'_, ClusterBackup> {
        self.tell("backup".to_owned());
        answer(Ok(ClusterBackup {
            copy: "{}".to_owned(),
        }))
    }

    fn cluster_authority(&self) -> Answer<'_, AuthorityView> {
        answer(Ok(AuthorityView::default()))
    }

    fn cluster_authority_rotate(&self) -> Answer<'_, AuthorityView> {
        self.tell("rotate".to_owned());
        answer(Ok(AuthorityView::default()))
    }

    fn cluster_ticket(&self, create: TicketCreate) -> Answer<'_, TicketView> {
        self.tell(format!("ticket {create:?}"));
        let ticket = "cairn1-abc".to_owned();
        answer(Ok(TicketView { ticket }))
    }

    fn node_set(&self, NodeName(node): NodeName, draining: bool) -> Answer<'_, ClusterView> {
        self.tell(format!("drain node {node} {draining}"));
        answer(Ok(ClusterView::default()))
    }

    fn node_maintenance(&self, NodeName(node): NodeName, seconds: u64) -> Answer<'_, ClusterView> {
        self.tell(format!("maintenance of node {node} for {seconds} s"));
        answer(Ok(ClusterView::default()))
    }

    fn node_weight(&self, NodeName(node): NodeName, weight: u32) -> Answer<'_, ClusterView> {
        self.tell(format!("weight of node {node} is {weight}"));
        answer(Ok(ClusterView::default()))
    }

    fn node_replace(&self, NodeName(node): NodeName, by: String) -> Answer<'_, ClusterView> {
        self.tell(format!("replace node {node} by {by}"));
        answer(Ok(ClusterView::default()))
    }

    fn node_remove(&self, NodeName(node): NodeName) -> Answer<'_, ()> {
        self.tell(format!("remove node {node}"));
        match (node.as_str(), self.away) {
            ("away", Some(at)) => {
                let error = ControlError::new(ErrorKind::Unavailable, "another node does this");
                answer(Err(error.at(at)))
            }
            _ => answer(Ok(())),
        }
    }
}

impl BalanceControl for Pretend {
    fn balance(&self) -> Answer<'_, BalanceView> {
        answer(Ok(BalanceView::default()))
    }

    fn balance_step(&self) -> Answer<'_, BalanceView> {
        self.tell("balance".to_owned());
        answer(Ok(BalanceView::default()))
    }
}

impl Control for Pretend {
    fn status(&self) -> Answer<'_, Status> {
        answer(Err(ControlError::new(ErrorKind::Unavailable, "starting")))
    }

    fn metrics(&self) -> Answer<'_, String> {
        answer(Ok("cairn_up 1\n".to_owned()))
    }

    fn volumes(&self) -> &(dyn VolumeControl + 'static) {
        self
    }

    fn exports(&self) -> &(dyn ExportControl + 'static) {
        self
    }

    fn disks(&self) -> &(dyn DiskControl + 'static) {
        self
    }

    fn caches(&self) -> &(dyn CacheControl + 'static) {
        self
    }

    fn rebuilds(&self) -> &(dyn RebuildControl + 'static) {
        self
    }

    fn spreads(&self) -> &(dyn SpreadControl + 'static) {
        self
    }

    fn scrubs(&self) -> &(dyn ScrubControl + 'static) {
        self
    }

    fn cluster(&self) -> &(dyn ClusterControl + 'static) {
        self
    }

    fn balances(&self) -> &(dyn BalanceControl + 'static) {
        self
    }

    fn s3(&self) -> Option<&(dyn S3Control + 'static)> {
        Some(self)
    }

    fn users(&self) -> Option<&(dyn crate::users::UserControl + 'static)> {
        Some(&self.users)
    }

    fn audit(&self) -> Option<&(dyn crate::audit::AuditControl + 'static)> {
        Some(&self.users)
    }

    fn live(&self) -> Option<&(dyn crate::live::LiveControl + 'static)> {
        self.has_live.then_some(self)
    }
}

fn server(metrics_open: bool) -> AdminServer {
    AdminServer::new(
        Arc::new(Pretend::default()),
        Token::parse(TOKEN).unwrap(),
        AdminSettings {
            metrics_open,
            audit: false,
        },
        cairn_testkit::test_env(),
        None,
        None,
    )
}

pub(super) async fn ask(
    router: &Router,
    method: &str,
    path: &str,
    token: Option<&str>,
    body: &str,
) -> (u16, String) {
    let mut request = Request::builder()
        .method(Method::from_bytes(method.as_bytes()).unwrap())
        .uri(path);
    if let Some(token) = token {
        request = request.header("Authorization", format!("Bearer {token}"));
    }
    let request = request.body(Body::from(body.to_owned())).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

/// Method, path, token, body; the status to expect and a part of the answer.
type Case<'a> = (&'a str, &'a str, Option<&'a str>, &'a str, u16, &'a str);

#[tokio::test]
async fn requests_are_answered_or_refused() {
    let router = server(false).router();
    let huge = format!("{{\"name\":\"{}\"}}", "x".repeat(BODY_LEN_BYTES_MAX));
    let yes = Some(TOKEN);
    let wrong = Some("0123456789abcdef0123456789abcdee");
    #[rustfmt::skip]
    let cases: &[Case] = &[
        ("GET", "/healthz", None, "", 200, "ok"),
        ("GET", "/api/v1/openapi.json", None, "", 200, "\"openapi\""),
        ("GET", "/metrics", None, "", 401, "unauthorized"),
        ("GET", "/metrics", yes, "", 200, "cairn_up 1"),
        ("GET", "/api/v1/volumes", None, "", 401, "no token"),
        ("GET", "/api/v1/volumes", wrong, "", 401, "not this server's"),
        ("GET", "/api/v1/volumes", yes, "", 200, "\"zstd:3\""),
        ("GET", "/api/v1/status", yes, "", 503, "unavailable"),
        ("GET", "/api/v1/disks", yes, "", 200, "\"disks\":[]"),
        ("POST", "/api/v1/disks", None, r#"{"path":"/new"}"#, 401, "unauthorized"),
        ("POST", "/api/v1/disks", yes, r#"{"path":"/new"}"#, 201, "\"shards\":3"),
        ("POST", "/api/v1/disks", yes, r#"{"folder":"/new"}"#, 400, "unknown field"),
        ("GET", "/api/v1/disk-place?path=/new", yes, "", 200, "\"path\":\"/new\""),
        ("GET", "/api/v1/disk-place", yes, "", 400, "path is missing"),
        ("GET", "/api/v1/disk-place?folder=/new", yes, "", 400, "folder"),
        ("PATCH", "/api/v1/disks/ab", yes, r#"{"draining":true}"#, 200, "\"ab\""),
        ("PATCH", "/api/v1/disks/ab", yes, "{}", 400, "nothing"),
        ("DELETE", "/api/v1/disks/ab?force=true", yes, "", 204, ""),
        ("DELETE", "/api/v1/disks/ab?force=1", yes, "", 400, "true or false"),
        ("POST", "/api/v1/disks/ab/replace", yes, r#"{"path":"/n","wipe":true}"#, 201, "\"cd\""),
        ("POST", "/api/v1/disks/ab/retry", yes, "", 200, "\"ab\""),
        ("GET", "/api/v1/rebuild", yes, "", 200, "shards_left"),
        ("PATCH", "/api/v1/rebuild", yes, r#"{"rate_bytes_per_second":5}"#, 200, ":5,"),
        ("GET", "/api/v1/spread", yes, "", 200, "\"even\""),
        ("PUT", "/api/v1/spread", yes, r#"{"paused":true}"#, 200, "\"paused\":true"),
        ("PUT", "/api/v1/spread", yes, "{}", 400, "missing field"),
        ("PUT", "/api/v1/spread", None, r#"{"paused":true}"#, 401, "unauthorized"),
        ("GET", "/api/v1/scrub", yes, "", 200, "\"never\""),
        ("POST", "/api/v1/scrub/start", None, "{}", 401, "unauthorized"),
        ("POST", "/api/v1/scrub/start", yes, "{}", 200, "\"running\""),
        ("POST", "/api/v1/scrub/start", yes, r#"{"rate":1}"#, 400, "unknown field"),
        ("POST", "/api/v1/scrub/pause", yes, "", 409, "no scrub runs"),
        ("GET", "/api/v1/scrub/report", yes, "", 200, "\"damaged\":[]"),
        ("GET", "/api/v1/scrub/schedule", yes, "", 200, "\"is_open\""),
        ("PUT", "/api/v1/scrub/schedule", None, r#"{"every":"30d"}"#, 401, "unauthorized"),
        ("PUT", "/api/v1/scrub/schedule", yes, r#"{"every":"30d","window":"sat:22:00-06:00"}"#, 200, "sat:22:00-06:00"),
        ("PUT", "/api/v1/scrub/schedule", yes, r#"{"window":"sat"}"#, 400, "is not a maintenance window"),
        ("PUT", "/api/v1/scrub/schedule", yes, r#"{"every":"often"}"#, 400, "is not a time between scrubs"),
        ("PUT", "/api/v1/scrub/schedule", yes, "{}", 400, "neither"),
        ("DELETE", "/api/v1/scrub/schedule", yes, "", 204, ""),
        ("GET", "/api/v1/volumes/main", yes, "", 200, "\"+2n\""),
        ("GET", "/api/v1/volumes/other", yes, "", 404, "not_found"),
        ("GET", "/api/v1/volumes/%2e%2e", yes, "", 404, "not_found"),
        ("POST", "/api/v1/volumes", None, r#"{"name":"two"}"#, 401, "unauthorized"),
        ("POST", "/api/v1/volumes", yes, r#"{"name":"two"}"#, 201, "\"two\""),
        ("POST", "/api/v1/volumes", yes, r#"{"name":"two","protection":"+3n","compression":"lz4"}"#, 201, "\"two\""),
        ("POST", "/api/v1/volumes", yes, r#"{"name":"main"}"#, 409, "choose another name"),
        ("POST", "/api/v1/volumes", yes, r#"{"name":"a/b"}"#, 400, "volume name"),
        ("POST", "/api/v1/volumes", yes, r#"{"name":"two","protection":"+9n"}"#, 400, "+1n to +4n"),
        ("POST", "/api/v1/volumes", yes, r#"{"name":"two","size":1}"#, 400, "unknown field"),
        ("POST", "/api/v1/volumes", yes, "{", 400, "invalid"),
        ("POST", "/api/v1/volumes", yes, &huge, 413, "more than 262144 bytes"),
        ("GET", "/api/v1/volumes/%ff", yes, "", 404, "no object has the name"),
        ("PATCH", "/api/v1/volumes/main", yes, r#"{"size_limit":"1GiB"}"#, 200, "main"),
        ("PATCH", "/api/v1/volumes/main", yes, r#"{"size":"1GiB"}"#, 400, "unknown field"),
        ("DELETE", "/api/v1/volumes/main?force=true", yes, "", 204, ""),
        ("DELETE", "/api/v1/volumes/other", yes, "", 404, "not_found"),
        ("DELETE", "/api/v1/volumes/main?force=yes", yes, "", 400, "true or false"),
        ("DELETE", "/api/v1/volumes/main?forced=true", yes, "", 400, "this path knows force"),
        ("PUT", "/api/v1/exports/main", yes, r#"{"rules":[{"client":"10.0.0.0/8"}]}"#, 200, "\"squash\":\"root\""),
        ("PUT", "/api/v1/exports/main", yes, r#"{"rules":[{"client":"all"}]}"#, 400, "client network"),
        ("DELETE", "/api/v1/exports/main?client=10.0.0.0%2F8", yes, "", 200, "\"rules\":[]"),
        ("DELETE", "/api/v1/exports/main?client=x", yes, "", 400, "client network"),
        // Not "the rules of all clients".
        ("DELETE", "/api/v1/exports/main?clients=::1", yes, "", 400, "this path knows client"),
        // serde would take a list for the fields in their order.
        ("PUT", "/api/v1/exports/main", yes, " [[]]", 400, "instead of an object"),
        ("PUT", "/api/v1/exports/main", yes, r#"{"rules":[["10.0.0.0/8"]]}"#, 400, "instead of an object"),
        ("POST", "/api/v1/classes", yes, r#"{"name":"gold","limits":[]}"#, 400, "instead of an object"),
        ("DELETE", "/api/v1/buckets/photos?keep=1", yes, "", 400, "true or false"),
        ("DELETE", "/api/v1/buckets/photos?kept=true", yes, "", 400, "this path knows keep"),
        ("GET", "/api/v1/volumes/main/snapshots?space=1", yes, "", 400, "true or false"),
        // In the API's own words.
        ("GET", "/api/v1/volumes/no%20name/snapshots", yes, "", 404, "no volume has the name"),
        ("GET", "/api/v1/volumes/main/snapshots/%ff", yes, "", 404, "no object has the name"),
        // Parts that a server may be built without.
        ("GET", "/api/v1/plan?capacity=1TiB", yes, "", 501, "not_supported"),
        ("GET", "/api/v1/plan/template?capacity=1TiB", yes, "", 501, "`cairn plan`"),
        ("GET", "/api/v1/benchmarks", yes, "", 501, "not_supported"),
        ("GET", "/api/v1/benchmarks/7", yes, "", 501, "`cairn bench`"),
        ("POST", "/api/v1/benchmarks", yes, r#"{"volume":"main"}"#, 501, "without benchmarks"),
        ("POST", "/api/v1/benchmarks/stop", yes, "", 501, "without benchmarks"),
        ("PUT", "/api/v1/volumes", yes, "", 405, "method"),
        ("GET", "/none", yes, "", 404, "openapi.json"),
    ];
    let document: serde_json::Value = serde_json::from_str(&openapi_json()).unwrap();
    for (method, path, token, body, status, part) in cases {
        let (got, text) = ask(&router, method, path, *token, body).await;
        assert_eq!(got, *status, "{method} {path} {text}");
        assert!(text.contains(part), "{method} {path}: {text}");
        // Whatever is answered at a path that there is, the document tells.
        let operation = &document["paths"][template(path)][method.to_lowercase()];
        if operation.is_object() {
            let told = &operation["responses"][status.to_string()];
            assert!(
                !told["description"].as_str().unwrap_or("").is_empty(),
                "{method} {path} {status}"
            );
        } else {
            assert!(
                [404, 405].contains(status),
                "{method} {path} is not in the document"
            );
        }
    }
}

/// The path of the document that `path` belongs to.
fn template(path: &str) -> String {
    let path = path.split('?').next().unwrap_or_default();
    if path.ends_with("/replace") {
        return "/api/v1/disks/{disk}/replace".to_owned();
    }
    if path.ends_with("/retry") {
        return "/api/v1/disks/{disk}/retry".to_owned();
    }
    for (prefix, template) in [
        ("/api/v1/disks/", "/api/v1/disks/{disk}"),
        ("/api/v1/volumes/", "/api/v1/volumes/{name}"),
        ("/api/v1/exports/", "/api/v1/exports/{volume}"),
        ("/api/v1/buckets/", "/api/v1/buckets/{bucket}"),
        ("/api/v1/benchmarks/7", "/api/v1/benchmarks/{id}"),
    ] {
        if path.starts_with(prefix) {
            return template.to_owned();
        }
    }
    path.to_owned()
}

/// Method and path of every route of a part of the router, with something in place of each parameter.
fn routes(part: OpenApiRouter<Arc<ServerCore>>) -> Vec<(String, String)> {
    let document = serde_json::to_value(part.into_openapi()).unwrap();
    let mut routes = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let path = path
            .split('/')
            .map(|part| if part.starts_with('{') { "main" } else { part });
        let path = path.collect::<Vec<_>>().join("/");
        for method in item.as_object().unwrap().keys() {
            routes.push((method.to_uppercase(), path.clone()));
        }
    }
    routes
}

#[tokio::test]
async fn no_answer_is_kept_or_taken_for_something_else() {
    let router = server(false).router();
    let cases = [
        ("GET", "/healthz", None, "no-store"),
        ("GET", "/api/v1/openapi.json", None, "no-store"),
        ("GET", "/metrics", Some(TOKEN), "no-store"),
        ("GET", "/api/v1/status", Some(TOKEN), "no-store"),
        ("GET", "/api/v1/status", None, "no-store"),
        ("POST", "/api/v1/session", None, "no-store"),
        ("PUT", "/api/v1/volumes", Some(TOKEN), "no-store"),
        ("GET", "/none", None, "no-store"),
        // Asked for each time, and the same for everybody.
        ("GET", "/console/", None, "no-cache"),
    ];
    for (method, path, token, want) in cases {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(token) = token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let request = request.body(Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        let headers = answer.headers();
        let values = |name: &str| headers.get_all(name).iter().collect::<Vec<_>>();
        assert_eq!(values("cache-control"), [want], "{method} {path}");
        assert_eq!(
            values("x-content-type-options"),
            ["nosniff"],
            "{method} {path}"
        );
    }
}

/// A route is made in one of three places; a change that adds one to those that take no token must say so here.
#[tokio::test]
async fn every_route_takes_the_token() {
    let open = |method: &str, path: &str| (method.to_owned(), path.to_owned());
    assert_eq!(
        routes(super::open()),
        [
            open("GET", "/api/v1/openapi.json"),
            open("POST", "/api/v1/session"),
            open("POST", "/api/v1/session/oidc/begin"),
            open("POST", "/api/v1/session/oidc/finish"),
            open("GET", "/api/v1/session/ways"),
            open("GET", "/healthz")
        ]
    );
    assert_eq!(routes(observed()), [open("GET", "/metrics")]);
    // Made otherwise, a route would not be in the document, and not in this test.
    for source in [include_str!("server.rs"), include_str!("route_table.rs")] {
        assert!(!source.contains(".route("));
    }

    let pretend = Arc::new(Pretend::default());
    let control: Arc<dyn Control> = pretend.clone();
    let token = Token::parse(TOKEN).unwrap();
    let settings = AdminSettings {
        metrics_open: false,
        audit: false,
    };
    let router = AdminServer::new(
        control,
        token,
        settings,
        cairn_testkit::test_env(),
        None,
        None,
    )
    .router();
    let secured: Vec<_> = [routes(secured()), routes(observed())].concat();
    assert!(secured.len() > 20, "{secured:?}");
    let half = &TOKEN[..TOKEN.len() / 2];
    let longer = format!("{TOKEN}0");
    let wrong = [
        None,
        Some(""),
        Some("0123456789abcdef0123456789abcdee"),
        Some(half),
        Some(&longer),
    ];
    for (method, path) in &secured {
        for token in wrong {
            let (status, text) = ask(&router, method, path, token, "{}").await;
            assert_eq!(status, 401, "{method} {path} {token:?}: {text}");
        }
        let (status, text) = ask(&router, method, path, Some(TOKEN), "{}").await;
        assert_ne!(status, 401, "{method} {path}: {text}");
        // A token elsewhere is none.
        let path = format!("{path}?token={TOKEN}&access_token={TOKEN}");
        let (status, text) = ask(&router, method, &path, None, "{}").await;
        assert_eq!(status, 401, "{method} {path}: {text}");
    }
    // What nodes ask of one another no client gets to.
    let (status, text) = ask(&router, "POST", crate::groups::PATH, Some(TOKEN), "{}").await;
    assert_eq!(status, 404, "{text}");
    // Without a token nothing was done, not even what the path or the method would have been refused for.
    pretend.told.lock().unwrap().clear();
    for (_, path) in &secured {
        for method in [
            "GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "TRACE",
        ] {
            // The log-in is at the path of the session.
            if routes(super::open()).contains(&open(method, path)) {
                continue;
            }
            let (status, _) = ask(&router, method, path, None, r#"{"path":"/x"}"#).await;
            assert!([401, 405].contains(&status), "{method} {path}: {status}");
        }
    }
    assert!(pretend.told.lock().unwrap().is_empty());
}

/// A head without end takes no memory without end.
#[tokio::test]
async fn long_heads_are_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(server(false).serve(listener, None, async { drop(stopped.await) }));
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nX: ")
        .await
        .unwrap();
    let mut sent_bytes = 0;
    // The server stops reading, answers and closes; what fits into the sockets' buffers goes out.
    while stream.write_all(&[b'x'; 4096]).await.is_ok() {
        sent_bytes += 4096;
        assert!(sent_bytes < 64 << 20, "it takes all of it");
    }
    let mut got = Vec::new();
    let _ = stream.read_to_end(&mut got).await;
    assert!(got.is_empty() || got.starts_with(b"HTTP/1.1 431"));
    stop.send(()).unwrap();
    serving.await.unwrap();
}

/// What comes with one read can be longer than what is kept.
#[tokio::test]
async fn heads_are_taken_up_to_their_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(server(false).serve(listener, None, async { drop(stopped.await) }));
    let head = |len: usize| {
        let begin = "GET /healthz HTTP/1.1\r\nhost: x\r\nx: ";
        let end = "\r\n\r\n";
        let fill = "y".repeat(len - begin.len() - end.len());
        format!("{begin}{fill}{end}")
    };
    for (len, want) in [
        (100, "HTTP/1.1 200"),
        (HEAD_LEN_BYTES_MAX - 1, "HTTP/1.1 200"),
        (HEAD_LEN_BYTES_MAX + 1, "HTTP/1.1 431"),
        (HEAD_LEN_BYTES_MAX + 4096, "HTTP/1.1 431"),
    ] {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(head(len).as_bytes()).await.unwrap();
        let mut got = Vec::new();
        // A reset takes the place of the answer if not all was read.
        let _ = stream.read_to_end(&mut got).await;
        let got = String::from_utf8_lossy(&got);
        let is_lost = want.ends_with("431") && got.is_empty();
        assert!(got.starts_with(want) || is_lost, "{len}: {got:?}");
    }
    stop.send(()).unwrap();
    serving.await.unwrap();
}

#[tokio::test]
async fn metrics_can_be_open() {
    let router = server(true).router();
    assert_eq!(ask(&router, "GET", "/metrics", None, "").await.0, 200);
    assert_eq!(
        ask(&router, "GET", "/api/v1/volumes", None, "").await.0,
        401
    );
}

#[test]
fn the_document_names_every_path() {
    let document = openapi_json();
    for path in [
        "status",
        "disks",
        "disks/{disk}",
        "rebuild",
        "spread",
        "scrub",
        "scrub/report",
        "scrub/schedule",
        "volumes",
        "volumes/{name}",
        "exports",
        "exports/{volume}",
        "openapi.json",
    ] {
        assert!(document.contains(&format!("\"/api/v1/{path}\"")), "{path}");
    }
    assert!(document.contains("\"/metrics\"") && document.contains("\"/healthz\""));
    assert!(document.contains("\"bearer\""));
}

#[test]
fn the_client_speaks_to_the_server() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = runtime.spawn(async move {
        let listener = TcpListener::from_std(listener).unwrap();
        server(false)
            .serve(listener, None, async { drop(stopped.await) })
            .await;
    });

    let token = Identity::Token(Token::parse(TOKEN).unwrap());
    let client = Client::new(&url, Some(&token), None).unwrap();
    let main: VolumeName = "main".parse().unwrap();
    assert_eq!(
        client
            .all(VOLUME_LIST, &ListQuery::default())
            .unwrap()
            .volumes,
        [view(&main)]
    );
    assert_eq!(client.ask(VOLUME_SHOW, &main).unwrap().name, main);
    let create = VolumeCreate {
        name: main.clone(),
        encrypt: false,
        settings: VolumeChange::default(),
    };
    match client.tell(VOLUME_CREATE, &(), &create) {
        Err(ClientError::Refused(ErrorDetail { kind, hint, .. })) => {
            assert_eq!(kind, ErrorKind::Conflict);
            assert_eq!(hint.as_deref(), Some("choose another name"));
        }
        other => panic!("{other:?}"),
    }
    // Whatever is in the name of the folder.
    let folder = "/srv/new disk&path=/x%20";
    assert_eq!(
        client
            .ask(DISK_PLACE, &PlacePath(folder.to_owned()))
            .unwrap(),
        place(folder)
    );
    let add = DiskAdd {
        path: "/new".to_owned(),
        media: MediaChoice::Any,
        role: DiskRole::Journal,
        wipe: false,
        create: true,
    };
    assert_eq!(client.tell(DISK_ADD, &(), &add).unwrap().id, "ab");
    let change = DiskChange {
        draining: Some(true),
        media: None,
    };
    assert_eq!(
        client
            .tell(DISK_SET, &DiskName("ab".to_owned()), &change)
            .unwrap()
            .id,
        "ab"
    );
    let change = DiskChange {
        draining: None,
        media: Some(MediaChoice::Nvme),
    };
    let changed = client
        .tell(DISK_SET, &DiskName("ab".to_owned()), &change)
        .unwrap();
    assert_eq!(changed.media, MediaChoice::Nvme);
    let nothing = DiskChange {
        draining: None,
        media: None,
    };
    let refused = client
        .tell(DISK_SET, &DiskName("ab".to_owned()), &nothing)
        .unwrap_err();
    assert_eq!(refused.kind(), Some(ErrorKind::Invalid));
    client
        .ask(DISK_REMOVE, &(DiskName("ab".to_owned()), Force(true)))
        .unwrap();
    let by = DiskReplace {
        path: "/new".to_owned(),
        wipe: true,
        create: false,
    };
    assert_eq!(
        client
            .tell(DISK_REPLACE, &DiskName("ab".to_owned()), &by)
            .unwrap()
            .id,
        "cd"
    );
    assert_eq!(
        client
            .ask(DISK_RETRY, &DiskName("ab".to_owned()))
            .unwrap()
            .id,
        "ab"
    );
    assert_eq!(client.ask(CACHE_LIST, &()).unwrap().caches, [cache()]);
    let add = CacheAdd {
        path: "/fast".to_owned(),
        size_bytes: 1 << 30,
        create: false,
    };
    assert_eq!(client.tell(CACHE_ADD, &(), &add).unwrap(), cache());
    client
        .ask(CACHE_REMOVE, &CacheName("ef".to_owned()))
        .unwrap();
    assert_eq!(client.ask(REBUILD, &()).unwrap(), RebuildView::default());
    let rate = RebuildRate {
        rate_bytes_per_second: 9,
    };
    assert_eq!(
        client
            .tell(REBUILD_SET, &(), &rate)
            .unwrap()
            .rate_bytes_per_second,
        9
    );
    assert_eq!(client.ask(SPREAD, &()).unwrap(), SpreadView::default());
    let paused = client
        .tell(SPREAD_SET, &(), &SpreadSet { paused: true })
        .unwrap();
    assert!(paused.paused);
    let started = client
        .tell(SCRUB_START, &(), &ScrubStart::default())
        .unwrap();
    assert_eq!(started.stage, ScrubStage::Running);
    assert_eq!(client.ask(SCRUB, &()).unwrap().stage, ScrubStage::Never);
    assert_eq!(
        client.ask(SCRUB_PAUSE, &()).unwrap_err().kind(),
        Some(ErrorKind::Conflict)
    );
    assert!(client.ask(SCRUB_REPORT, &()).unwrap().damaged.is_empty());
    assert_eq!(
        client.ask(SCRUB_SCHEDULE, &()).unwrap(),
        ScrubSchedule::default()
    );
    let weekly = ScrubScheduleSet {
        every: Some("7d".parse().unwrap()),
        window: Some("sat:22:00-06:00".parse().unwrap()),
    };
    let set = client.tell(SCRUB_SCHEDULE_SET, &(), &weekly).unwrap();
    assert_eq!((set.every, set.window), (weekly.every, weekly.window));
    client.ask(SCRUB_SCHEDULE_CLEAR, &()).unwrap();
    client
        .tell(VOLUME_SET, &main, &VolumeChange::default())
        .unwrap();
    client
        .ask(VOLUME_DELETE, &(main.clone(), Force(true)))
        .unwrap();
    let rules = vec![ExportRule::new("10.0.0.0/8".parse().unwrap())];
    let set = ExportSet { rules };
    assert_eq!(
        client.tell(EXPORT_SET, &main, &set).unwrap().rules,
        set.rules
    );
    let clients = vec!["10.0.0.0/8".parse().unwrap(), "::1".parse().unwrap()];
    assert!(
        client
            .ask(EXPORT_REMOVE, &(main.clone(), Clients(clients)))
            .unwrap()
            .rules
            .is_empty()
    );
    let stranger = Client::new(&url, None, None).unwrap();
    assert_eq!(
        stranger
            .all(VOLUME_LIST, &ListQuery::default())
            .unwrap_err()
            .kind(),
        Some(ErrorKind::Unauthorized)
    );

    stop.send(()).unwrap();
    runtime.block_on(serving).unwrap();
    assert!(matches!(
        client.all(VOLUME_LIST, &ListQuery::default()),
        Err(ClientError::Unreachable { .. })
    ));
}

#[test]
fn the_client_has_all_pages_of_a_list() {
    const OTHERS: usize = 2500;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = runtime.spawn(async move {
        let pretend = Pretend {
            other_volumes: OTHERS,
            ..Pretend::default()
        };
        let settings = AdminSettings {
            metrics_open: false,
            audit: false,
        };
        let token = Token::parse(TOKEN).unwrap();
        let env = cairn_testkit::test_env();
        let server = AdminServer::new(Arc::new(pretend), token, settings, env, None, None);
        let listener = TcpListener::from_std(listener).unwrap();
        server
            .serve(listener, None, async { drop(stopped.await) })
            .await;
    });
    let token = Identity::Token(Token::parse(TOKEN).unwrap());
    let list = Client::new(&url, Some(&token), None)
        .unwrap()
        .all(VOLUME_LIST, &ListQuery::default())
        .unwrap();
    let mut names: Vec<&str> = list.volumes.iter().map(|it| it.name.as_str()).collect();
    assert!(names.is_sorted());
    names.dedup();
    assert_eq!(
        (names.len(), list.total, list.next_after),
        (OTHERS + 1, OTHERS + 1, None)
    );
    stop.send(()).unwrap();
    runtime.block_on(serving).unwrap();
}

/// Clients that stop half way, over real sockets. The clock stands still and jumps to the next
/// timer when all wait, so the limits of time cost none.
#[tokio::test(start_paused = true)]
async fn slow_clients_are_cut_off() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(server(false).serve(listener, None, async { drop(stopped.await) }));
    let announced = BODY_LEN_BYTES_MAX + 1;
    let post =
        format!("POST /api/v1/volumes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n");
    let cases = [
        (String::new(), ""),
        ("GET /healthz HTTP/1.1\r\nHo".to_owned(), ""),
        (
            format!("{post}Content-Length: 10\r\n\r\n{{"),
            "HTTP/1.1 408",
        ),
        // Refused at once, and not after bytes that never come.
        (
            format!("{post}Content-Length: {announced}\r\n\r\n"),
            "HTTP/1.1 413",
        ),
    ];
    for (sent, want) in cases {
        let mut tries = 0;
        let got = loop {
            tries += 1;
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            stream.write_all(sent.as_bytes()).await.unwrap();
            let mut got = Vec::new();
            let read = stream.read_to_end(&mut got).await;
            // On a busy machine the clock may jump before the kernel has brought what was sent: nobody asked anything then.
            let is_lost = got.is_empty() && (!want.is_empty() || read.is_err());
            if !is_lost || tries == 100 {
                read.unwrap();
                break got;
            }
        };
        let got = String::from_utf8_lossy(&got);
        assert!(got.starts_with(want), "{sent:?}: {got:?}");
        assert_eq!(got.is_empty(), want.is_empty(), "{sent:?}: {got:?}");
    }
    stop.send(()).unwrap();
    serving.await.unwrap();
}
