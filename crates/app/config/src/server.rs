//! The settings of a server: as given by flags or a file, and complete.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use cairn_base::units::{SizeError, format_size, parse_size};

use crate::memory::{MEMORY_LIMIT_BYTES_DEFAULT, MEMORY_LIMIT_BYTES_MIN};
use crate::oidc::{Oidc, OidcSettings};
use crate::problem::{ConfigError, Problem};
use cairn_base::words::{serde_as_word, word_enum};

/// 2049 is NFS's own port, and no privileged one, so every user can start a server on it.
pub const LISTEN_NFS_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 2049);
pub const LISTEN_ISCSI_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 3260);
/// Most addresses of this server for iSCSI.
pub const ISCSI_PORTALS_MAX: usize = 16;
/// Where S3 is served once there is a bucket or an access key, unless said otherwise.
pub const LISTEN_S3_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9000);
pub const LISTEN_ADMIN_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8049);
/// Most disks of one process.
pub const DATA_FOLDERS_MAX: usize = cairn_formats::pool_file::DISKS_MAX;
/// Space of each disk that is written ahead, unless told otherwise. None: through NFS no gain was seen on
/// a disk whose first write is as fast as the next.
pub const DISK_SPARE_BYTES_DEFAULT: u64 = 0;
/// How fast a scrub reads, unless told otherwise.
pub const SCRUB_RATE_DEFAULT: u64 = 50 << 20;
/// How fast shards are moved and rebuilt, unless told otherwise: as fast as disks and clients let it.
pub const REBUILD_RATE_DEFAULT: u64 = 0;
/// How long a lost disk is waited for before its data is rebuilt elsewhere, unless told otherwise.
pub const REBUILD_DELAY_SECONDS_DEFAULT: u64 = 600;
/// How long an operation of a disk may take before the disk counts as hanging, unless told otherwise.
pub const HANG_AFTER_SECONDS_DEFAULT: u64 = 30;
/// A disk that is only busy answers in a second.
pub const HANG_AFTER_SECONDS_MIN: u64 = 1;
/// Ages of operations are not told apart beyond that.
pub const HANG_AFTER_SECONDS_MAX: u64 = 60;
/// How long a write waits for a disk that answers nothing, where others are enough, unless told otherwise.
pub const WRITE_DEADLINE_MS_DEFAULT: u64 = 500;
/// A good disk that has just been asked for much takes about that long.
pub const WRITE_DEADLINE_MS_MIN: u64 = 100;
/// Beyond that clients would notice before we do.
pub const WRITE_DEADLINE_MS_MAX: u64 = 30_000;
/// How long segments and files are left alone after their last use before they count as idle, unless told otherwise: who writes
/// again and again fills the one and takes the other.
pub const IDLE_AFTER_SECONDS_DEFAULT: u64 = 60;
/// Below it each pause of a client would end a segment.
pub const IDLE_AFTER_SECONDS_MIN: u64 = 1;
/// Beyond it space that is free waits for nobody.
pub const IDLE_AFTER_SECONDS_MAX: u64 = 3600;
/// How often a volume looks for what goes to its tier or comes back, unless told otherwise.
pub const TIER_INTERVAL_SECONDS_DEFAULT: u64 = 10;
/// A look costs a pass over the volume's segments.
pub const TIER_INTERVAL_SECONDS_MIN: u64 = 1;
/// Beyond it a disk could fill up between two looks.
pub const TIER_INTERVAL_SECONDS_MAX: u64 = 600;
/// Most threads that serve clients.
pub const THREADS_MAX: usize = 256;

word_enum!(
    /// How log lines are written.
    LogFormat, "a log format", "text or json" {
        Text = "text",
        Json = "json",
    }
);

word_enum!(
    /// How disks are read and written.
    DiskIo, "a kind of disk I/O", "auto, uring or threads" {
        /// io_uring where the kernel allows it, else threads.
        Auto = "auto",
        Uring = "uring",
        Threads = "threads",
    }
);

/// A number of bytes, written as `10GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format_size(self.0))
    }
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        parse_size(text).map(Self)
    }
}

serde_as_word!(Size);

/// Settings as they are given: each is a flag of `cairn serve` (`--listen-nfs`) and a key of the
/// config file (`listen_nfs`); what is not given is `None` or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Settings {
    /// A folder that is one disk of the pool and one failure domain; repeat the flag for each disk
    #[arg(long, value_name = "DIR")]
    pub data: Vec<PathBuf>,
    /// Create --data folders that do not exist. Without this flag a missing folder stops the start: a typo or an unmounted drive
    /// would otherwise become a new disk on the wrong file system [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        env = "CAIRN_CREATE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub create: Option<bool>,
    /// A folder below which the admin API may create disks, read caches and tier directories; repeat the flag for more
    /// [default: only the folders of --data]
    #[arg(long, value_name = "DIR")]
    pub disk_root: Vec<PathBuf>,
    /// Folder with this node's cluster state, created by `cairn cluster init` or `cairn cluster join` [default:
    /// /var/lib/cairn/cluster, if it exists]
    #[arg(long, value_name = "DIR")]
    pub cluster_dir: Option<PathBuf>,
    /// Program that moves addresses of volumes and address pools in networks without announcements, such as clouds. It gets `take`
    /// or `drop`, the name of the volume or address pool, and the address, and has 15 s [default: the node puts addresses on an
    /// interface and announces them]
    #[arg(long, value_name = "PATH")]
    pub address_hook: Option<PathBuf>,
    /// Encrypt traffic between nodes of a cluster. Two nodes send plain data only if both have `false`: anyone on the internal
    /// network can then read all data, but traffic is still authenticated and protected against changes [default: true]
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub internal_encryption: Option<bool>,
    /// Address and port for NFS clients; port 0 picks a free one [default: 127.0.0.1:2049]
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address)]
    pub listen_nfs: Option<SocketAddr>,
    /// Address and port for iSCSI initiators; port 0 picks a free one; repeat the flag for more portals [default:
    /// 127.0.0.1:3260, as soon as there is a LUN]
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address)]
    pub listen_iscsi: Vec<SocketAddr>,
    /// Address and port that iSCSI discovery announces, if different from --listen-iscsi: for a forwarded port, or for some of
    /// several networks; repeat the flag for more
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address)]
    pub iscsi_portal: Vec<SocketAddr>,
    /// Address and port for S3 clients; port 0 picks a free one [default: 127.0.0.1:9000, as soon as there is a bucket or an
    /// access key]
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address)]
    pub listen_s3: Option<SocketAddr>,
    /// Address and port of the DNS responder (UDP and TCP). It resolves the DNS names of address pools (`cairn address pool create
    /// --dns`) to the addresses that nodes hold now; port 0 picks a free one [default: no responder]
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address)]
    pub listen_dns: Option<SocketAddr>,
    /// Log each change made through the admin API: user and status
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub admin_audit: Option<bool>,
    /// Log each S3 request: access key, request and status
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub s3_audit: Option<bool>,
    /// Serve S3 over HTTPS with this certificate chain (PEM); a replaced file takes effect within seconds
    #[arg(long, value_name = "PATH")]
    pub s3_certificate: Option<PathBuf>,
    /// Private key of the S3 certificate (PEM)
    #[arg(long, value_name = "PATH")]
    pub s3_key: Option<PathBuf>,
    /// Domain whose host names are bucket names: with s3.example.org, photos.s3.example.org is the bucket photos; repeat the flag
    /// for more
    #[arg(long, value_name = "DOMAIN")]
    pub s3_domain: Vec<String>,
    /// Region for which S3 clients sign requests [default: us-east-1]
    #[arg(long, value_name = "NAME")]
    pub s3_region: Option<String>,
    /// Address and port of the admin REST API; port 0 picks a free one [default: 127.0.0.1:8049]
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address)]
    pub listen_admin: Option<SocketAddr>,
    /// Allow the admin API without HTTPS on an address that other machines reach: anyone on that network can read the token,
    /// passwords and new secrets. Meant for a cluster on one machine, or behind a TLS proxy
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub insecure: Option<bool>,
    /// Serve the admin API over HTTPS with this certificate chain (PEM); a replaced file takes effect within seconds
    #[arg(long, value_name = "PATH")]
    pub admin_certificate: Option<PathBuf>,
    /// Private key of the admin API certificate (PEM)
    #[arg(long, value_name = "PATH")]
    pub admin_key: Option<PathBuf>,
    /// Serve the admin API over HTTPS with a self-signed certificate, which the first start creates as admin-tls.pem in the state
    /// folder
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub admin_self_signed: Option<bool>,
    /// Name or address of the admin API for HTTPS; the server prints the first one, and a self-signed certificate contains all;
    /// repeat the flag for more [default: localhost and the address]
    #[arg(long, value_name = "NAME")]
    pub admin_name: Vec<String>,
    #[command(flatten)]
    pub oidc: OidcSettings,
    /// HOST or HOST:PORT of an object store that may receive credentials: those of this machine (environment, cloud identity) for
    /// tiers without a credentials file, and those of any file. Otherwise credentials go only to the cloud's own hosts over TLS, or
    /// to hosts that the file names; repeat the flag for more
    #[arg(long, value_name = "HOST[:PORT]")]
    pub credential_host: Vec<String>,
    /// Serve the port mapper on port 111 as well, so that clients need no port options [default: if the port is free and
    /// may be bound]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub rpcbind: Option<bool>,
    /// JSON file into which the server writes its addresses once it is ready; its folder must exist
    #[arg(long, value_name = "PATH")]
    pub ready_file: Option<PathBuf>,
    /// Folder for secrets that must not be lost or stolen with a disk: the admin token, the key of a self-signed certificate. It is
    /// created if necessary, and must not be in a data folder [default: /var/lib/cairn for root and services, else
    /// ~/.local/state/cairn]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// File that holds the admin token; it is created if necessary, and must not be in a data folder [default: admin-token in
    /// the state folder]
    #[arg(long, value_name = "PATH")]
    pub token_file: Option<PathBuf>,
    /// File with the master keys of encrypted volumes, readable only by its owner: 32 bytes a line, in hexadecimal or base64. The
    /// first line is the current key, further lines are earlier keys (`cairn key generate` makes a key)
    #[arg(long, value_name = "PATH", conflicts_with = "master_key_command")]
    pub master_key_file: Option<PathBuf>,
    /// Command that prints the content of a master key file within 30 seconds; /bin/sh runs it
    #[arg(long, value_name = "COMMAND")]
    pub master_key_command: Option<String>,
    /// Memory that the process may use, at least 256MiB [default: 2GiB]
    #[arg(long, value_name = "SIZE")]
    pub memory_limit: Option<Size>,
    /// Threads that serve clients [default: one per CPU]
    #[arg(long, value_name = "COUNT")]
    pub threads: Option<usize>,
    /// text or json [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Serve /metrics without the admin token
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub metrics_open: Option<bool>,
    /// Bytes of each disk that the server uses at most [default: the whole disk]
    #[arg(long, value_name = "SIZE")]
    pub disk_size_limit: Option<Size>,
    /// Space on each disk that is preallocated in idle moments for faster writes of new data. It counts as free, and is given
    /// back when space runs short. Up to 64 files of 64MiB; 0 for none [default: 0]
    #[arg(long, value_name = "SIZE")]
    pub disk_spare: Option<Size>,
    /// auto, uring or threads [default: auto]
    #[arg(long, value_name = "KIND")]
    pub disk_io: Option<DiskIo>,
    /// Bytes per second that a scrub reads at most; 0 for no limit beyond throttling for clients [default: 50MiB]
    #[arg(long, value_name = "SIZE")]
    pub scrub_rate: Option<Size>,
    /// Bytes per second that are moved or rebuilt at most when a disk is drained or lost; 0 for no limit beyond throttling for
    /// clients [default: 0]
    #[arg(long, value_name = "SIZE")]
    pub rebuild_rate: Option<Size>,
    /// Seconds to wait for a lost disk before its data is rebuilt on others [default: 600]
    #[arg(long, value_name = "SECONDS")]
    pub rebuild_delay: Option<u64>,
    /// Seconds without an answer after which a disk counts as failed: in the config file only.
    #[arg(skip)]
    pub hang_after: Option<u64>,
    /// Milliseconds that a write waits for an unresponsive disk while the other disks are enough: in the config file only.
    #[arg(skip)]
    pub write_deadline: Option<u64>,
    /// Seconds without an append after which an open segment is sealed, and without use after which files that wait for new
    /// shards are given back: in the config file only.
    #[arg(skip)]
    pub idle_after: Option<u64>,
    /// Seconds between the looks of a volume for what goes to its tier or comes back: in the config file only.
    #[arg(skip)]
    pub tier_interval: Option<u64>,
}

/// Reads `ADDR:PORT`; `localhost` and nothing stand for 127.0.0.1 and all addresses.
pub(crate) fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let written_out = match text.rsplit_once(':') {
        Some(("localhost", port)) => format!("127.0.0.1:{port}"),
        Some(("", port)) => format!("[::]:{port}"),
        _ => text.to_owned(),
    };
    written_out.parse().map_err(|_| {
        format!(
            "\"{text}\" is not an address with a port: write 127.0.0.1:2049, [::1]:2049 or :2049"
        )
    })
}

pub(crate) fn check_memory_limit(limit: Size) -> Result<(), String> {
    if limit.0 >= MEMORY_LIMIT_BYTES_MIN {
        return Ok(());
    }
    Err(format!(
        "{limit} is too little; the minimum is {}",
        format_size(MEMORY_LIMIT_BYTES_MIN)
    ))
}

fn check_domain(domain: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_label = |label: &str| !label.is_empty() && label.bytes().all(is_plain);
    match domain.split('.').all(is_label) {
        true => Ok(()),
        false => Err(format!(
            "\"{domain}\" is no domain: write s3.example.org, without a port"
        )),
    }
}

/// `HOST` or `HOST:PORT`, of a name or an address; an IPv6 address with a port is in brackets.
fn check_host(text: &str) -> Result<(), String> {
    if text.parse::<IpAddr>().is_ok() || text.parse::<SocketAddr>().is_ok() {
        return Ok(());
    }
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, port.parse::<u16>().ok()),
        None => (text, Some(1)),
    };
    match port.is_some_and(|port| port > 0) && check_domain(host).is_ok() {
        true => Ok(()),
        false => Err(format!(
            "\"{text}\" is no host: write minio.example.org, minio.example.org:9000 or [fd00::1]:9000"
        )),
    }
}

fn check_region(region: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    match !region.is_empty() && region.bytes().all(is_plain) {
        true => Ok(()),
        false => Err(format!(
            "\"{region}\" is no region: a-z, 0-9 and '-', as in us-east-1"
        )),
    }
}

pub(crate) fn check_threads(threads: usize) -> Result<(), String> {
    if (1..=THREADS_MAX).contains(&threads) {
        return Ok(());
    }
    Err(format!("{threads} is not between 1 and {THREADS_MAX}"))
}

pub(crate) fn check_hang_after(seconds: u64) -> Result<(), String> {
    if (HANG_AFTER_SECONDS_MIN..=HANG_AFTER_SECONDS_MAX).contains(&seconds) {
        return Ok(());
    }
    Err(format!(
        "{seconds} is not between {HANG_AFTER_SECONDS_MIN} and {HANG_AFTER_SECONDS_MAX}"
    ))
}

pub(crate) fn check_idle_after(seconds: u64) -> Result<(), String> {
    if (IDLE_AFTER_SECONDS_MIN..=IDLE_AFTER_SECONDS_MAX).contains(&seconds) {
        return Ok(());
    }
    Err(format!(
        "{seconds} is not between {IDLE_AFTER_SECONDS_MIN} and {IDLE_AFTER_SECONDS_MAX}: it is in seconds"
    ))
}

pub(crate) fn check_tier_interval(seconds: u64) -> Result<(), String> {
    if (TIER_INTERVAL_SECONDS_MIN..=TIER_INTERVAL_SECONDS_MAX).contains(&seconds) {
        return Ok(());
    }
    Err(format!(
        "{seconds} is not between {TIER_INTERVAL_SECONDS_MIN} and {TIER_INTERVAL_SECONDS_MAX}: it is in seconds"
    ))
}

pub(crate) fn check_write_deadline(millis: u64) -> Result<(), String> {
    if (WRITE_DEADLINE_MS_MIN..=WRITE_DEADLINE_MS_MAX).contains(&millis) {
        return Ok(());
    }
    Err(format!(
        "{millis} is not between {WRITE_DEADLINE_MS_MIN} and {WRITE_DEADLINE_MS_MAX}: it is in milliseconds"
    ))
}

impl Settings {
    /// These settings, with `below` for what they do not say. Flags go above the file.
    pub fn or(self, below: Self) -> Self {
        // One takes the place of the other.
        let has_keys = self.master_key_file.is_some() || self.master_key_command.is_some();
        Self {
            master_key_file: match has_keys {
                true => self.master_key_file,
                false => below.master_key_file,
            },
            master_key_command: match has_keys {
                true => self.master_key_command,
                false => below.master_key_command,
            },
            data: if self.data.is_empty() {
                below.data
            } else {
                self.data
            },
            create: self.create.or(below.create),
            disk_root: if self.disk_root.is_empty() {
                below.disk_root
            } else {
                self.disk_root
            },
            listen_nfs: self.listen_nfs.or(below.listen_nfs),
            listen_iscsi: if self.listen_iscsi.is_empty() {
                below.listen_iscsi
            } else {
                self.listen_iscsi
            },
            iscsi_portal: if self.iscsi_portal.is_empty() {
                below.iscsi_portal
            } else {
                self.iscsi_portal
            },
            listen_s3: self.listen_s3.or(below.listen_s3),
            listen_dns: self.listen_dns.or(below.listen_dns),
            admin_audit: self.admin_audit.or(below.admin_audit),
            s3_audit: self.s3_audit.or(below.s3_audit),
            s3_certificate: self.s3_certificate.or(below.s3_certificate),
            s3_key: self.s3_key.or(below.s3_key),
            s3_domain: if self.s3_domain.is_empty() {
                below.s3_domain
            } else {
                self.s3_domain
            },
            s3_region: self.s3_region.or(below.s3_region),
            listen_admin: self.listen_admin.or(below.listen_admin),
            insecure: self.insecure.or(below.insecure),
            admin_certificate: self.admin_certificate.or(below.admin_certificate),
            admin_key: self.admin_key.or(below.admin_key),
            admin_self_signed: self.admin_self_signed.or(below.admin_self_signed),
            admin_name: if self.admin_name.is_empty() {
                below.admin_name
            } else {
                self.admin_name
            },
            oidc: self.oidc.or(below.oidc),
            credential_host: if self.credential_host.is_empty() {
                below.credential_host
            } else {
                self.credential_host
            },
            rpcbind: self.rpcbind.or(below.rpcbind),
            cluster_dir: self.cluster_dir.or(below.cluster_dir),
            address_hook: self.address_hook.or(below.address_hook),
            internal_encryption: self.internal_encryption.or(below.internal_encryption),
            ready_file: self.ready_file.or(below.ready_file),
            state_dir: self.state_dir.or(below.state_dir),
            token_file: self.token_file.or(below.token_file),
            memory_limit: self.memory_limit.or(below.memory_limit),
            threads: self.threads.or(below.threads),
            log_format: self.log_format.or(below.log_format),
            metrics_open: self.metrics_open.or(below.metrics_open),
            disk_size_limit: self.disk_size_limit.or(below.disk_size_limit),
            disk_spare: self.disk_spare.or(below.disk_spare),
            disk_io: self.disk_io.or(below.disk_io),
            scrub_rate: self.scrub_rate.or(below.scrub_rate),
            rebuild_rate: self.rebuild_rate.or(below.rebuild_rate),
            rebuild_delay: self.rebuild_delay.or(below.rebuild_delay),
            hang_after: self.hang_after.or(below.hang_after),
            write_deadline: self.write_deadline.or(below.write_deadline),
            idle_after: self.idle_after.or(below.idle_after),
            tier_interval: self.tier_interval.or(below.tier_interval),
        }
    }

    /// Completes the settings with defaults and checks them; `cpu_count` is the machine's.
    pub fn resolve(self, cpu_count: usize) -> Result<Config, ConfigError> {
        let mut problems = Vec::new();
        self.check(&mut problems);
        if !problems.is_empty() {
            return Err(ConfigError { problems });
        }
        Ok(Config {
            data: self.data,
            create: self.create.unwrap_or(false),
            disk_roots: self.disk_root,
            listen_nfs: self.listen_nfs.unwrap_or(LISTEN_NFS_DEFAULT),
            listen_iscsi: self.listen_iscsi,
            iscsi_portals: self.iscsi_portal,
            listen_s3: self.listen_s3,
            listen_dns: self.listen_dns,
            admin_audit: self.admin_audit.unwrap_or(false),
            s3_audit: self.s3_audit.unwrap_or(false),
            s3_certificate: self.s3_certificate.zip(self.s3_key),
            s3_domains: self.s3_domain,
            s3_region: self.s3_region,
            listen_admin: self.listen_admin.unwrap_or(LISTEN_ADMIN_DEFAULT),
            admin_tls: match self.admin_certificate.zip(self.admin_key) {
                Some((certificate, key)) => Some(AdminTls::Files { certificate, key }),
                None => self
                    .admin_self_signed
                    .unwrap_or(false)
                    .then_some(AdminTls::SelfSigned),
            },
            admin_names: self.admin_name,
            oidc: self.oidc.resolve(),
            credential_hosts: self.credential_host,
            rpcbind: self.rpcbind,
            cluster_dir: self.cluster_dir,
            address_hook: self.address_hook,
            internal_encryption: self.internal_encryption.unwrap_or(true),
            ready_file: self.ready_file,
            state_dir: self.state_dir,
            token_file: self.token_file,
            master_keys: match (self.master_key_file, self.master_key_command) {
                (Some(path), _) => Some(KeySource::File(path)),
                (None, Some(line)) => Some(KeySource::Command(line)),
                (None, None) => None,
            },
            memory_limit_bytes: self
                .memory_limit
                .map_or(MEMORY_LIMIT_BYTES_DEFAULT, |size| size.0),
            threads: self.threads.unwrap_or(cpu_count).clamp(1, THREADS_MAX),
            log_format: self.log_format.unwrap_or(LogFormat::Text),
            metrics_open: self.metrics_open.unwrap_or(false),
            disk_size_limit_bytes: self.disk_size_limit.map(|size| size.0),
            disk_spare_bytes: self
                .disk_spare
                .map_or(DISK_SPARE_BYTES_DEFAULT, |size| size.0),
            disk_io: self.disk_io.unwrap_or(DiskIo::Auto),
            scrub_bytes_per_second: self.scrub_rate.map_or(SCRUB_RATE_DEFAULT, |rate| rate.0),
            rebuild_bytes_per_second: self
                .rebuild_rate
                .map_or(REBUILD_RATE_DEFAULT, |rate| rate.0),
            rebuild_delay_seconds: self.rebuild_delay.unwrap_or(REBUILD_DELAY_SECONDS_DEFAULT),
            hang_after: Duration::from_secs(self.hang_after.unwrap_or(HANG_AFTER_SECONDS_DEFAULT)),
            write_deadline: Duration::from_millis(
                self.write_deadline.unwrap_or(WRITE_DEADLINE_MS_DEFAULT),
            ),
            idle_after: Duration::from_secs(self.idle_after.unwrap_or(IDLE_AFTER_SECONDS_DEFAULT)),
            tier_interval: Duration::from_secs(
                self.tier_interval.unwrap_or(TIER_INTERVAL_SECONDS_DEFAULT),
            ),
        })
    }

    fn check(&self, problems: &mut Vec<Problem>) {
        let mut refuse = |what: String| problems.push(Problem { line: None, what });
        if self.data.is_empty() {
            refuse(
                "no data folder is given: add --data DIR, or data = [\"DIR\"] to the config file"
                    .to_owned(),
            );
        }
        if self.data.len() > DATA_FOLDERS_MAX {
            refuse(format!(
                "{} data folders are given; one process serves at most {DATA_FOLDERS_MAX}",
                self.data.len()
            ));
        }
        let mut seen = BTreeSet::new();
        for folder in &self.data {
            if folder.as_os_str().is_empty() {
                refuse("a data folder has an empty name".to_owned());
            } else if !seen.insert(folder) {
                refuse(format!(
                    "the data folder {} is given twice; each disk needs a folder of its own",
                    folder.display()
                ));
            }
        }
        if self
            .disk_root
            .iter()
            .any(|root| root.as_os_str().is_empty())
        {
            refuse("disk_root: a folder has an empty name".to_owned());
        }
        for (name, addresses) in [
            ("listen_iscsi", &self.listen_iscsi),
            ("iscsi_portal", &self.iscsi_portal),
        ] {
            if addresses.len() > ISCSI_PORTALS_MAX {
                refuse(format!(
                    "{name}: {} addresses are given; {ISCSI_PORTALS_MAX} are the most",
                    addresses.len()
                ));
            }
        }
        let is_nowhere =
            |address: &&SocketAddr| address.ip().is_unspecified() || address.port() == 0;
        if let Some(address) = self.iscsi_portal.iter().find(is_nowhere) {
            refuse(format!(
                "iscsi_portal: no host finds anything at {address}: give the address and port that hosts connect to"
            ));
        }
        if self.s3_certificate.is_some() != self.s3_key.is_some() {
            refuse("s3_certificate and s3_key belong together: give both, or neither".to_owned());
        }
        if self.admin_certificate.is_some() != self.admin_key.is_some() {
            refuse(
                "admin_certificate and admin_key belong together: give both, or neither".to_owned(),
            );
        }
        let is_self_signed = self.admin_self_signed == Some(true);
        if is_self_signed && self.admin_certificate.is_some() {
            refuse(
                "admin_self_signed and admin_certificate are given: choose one certificate"
                    .to_owned(),
            );
        }
        let is_https = is_self_signed || self.admin_certificate.is_some();
        if !is_https && !self.admin_name.is_empty() {
            refuse(
                "admin_name is for HTTPS: give admin_certificate and admin_key, or admin_self_signed"
                    .to_owned(),
            );
        }
        if let Some(address) = self.listen_admin
            && !address.ip().to_canonical().is_loopback()
            && !is_https
            && self.insecure != Some(true)
        {
            refuse(format!(
                "listen_admin: other machines reach {address}, and a host in between could read the admin token and \
                 passwords: give admin_certificate and admin_key, or admin_self_signed = true, or a loopback address; \
                 insecure = true (--insecure) does without"
            ));
        }
        if self.admin_name.len() > ADMIN_NAMES_MAX {
            refuse(format!(
                "admin_name: {} names are given; {ADMIN_NAMES_MAX} are the most",
                self.admin_name.len()
            ));
        }
        for name in &self.admin_name {
            if name.parse::<IpAddr>().is_err()
                && let Err(why) = check_domain(name)
            {
                refuse(format!("admin_name: {why}"));
            }
        }
        self.oidc.check(&mut refuse);
        for host in &self.credential_host {
            if let Err(why) = check_host(host) {
                refuse(format!("credential_host: {why}"));
            }
        }
        if self.master_key_file.is_some() && self.master_key_command.is_some() {
            refuse(
                "master_key_file and master_key_command are given: choose one, which has all keys"
                    .to_owned(),
            );
        }
        for domain in &self.s3_domain {
            if let Err(why) = check_domain(domain) {
                refuse(format!("s3_domain: {why}"));
            }
        }
        if let Some(Err(why)) = self.s3_region.as_deref().map(check_region) {
            refuse(format!("s3_region: {why}"));
        }
        if let Some(Err(why)) = self.memory_limit.map(check_memory_limit) {
            refuse(format!("memory_limit: {why}"));
        }
        if let Some(Err(why)) = self.threads.map(check_threads) {
            refuse(format!("threads: {why}"));
        }
        if let Some(Err(why)) = self.hang_after.map(check_hang_after) {
            refuse(format!("hang_after: {why}"));
        }
        if let Some(Err(why)) = self.write_deadline.map(check_write_deadline) {
            refuse(format!("write_deadline: {why}"));
        }
        if let Some(Err(why)) = self.idle_after.map(check_idle_after) {
            refuse(format!("idle_after: {why}"));
        }
        if let Some(Err(why)) = self.tier_interval.map(check_tier_interval) {
            refuse(format!("tier_interval: {why}"));
        }
        let hang_after = self.hang_after.unwrap_or(HANG_AFTER_SECONDS_DEFAULT);
        let write_deadline = self.write_deadline.unwrap_or(WRITE_DEADLINE_MS_DEFAULT);
        if write_deadline >= hang_after.saturating_mul(1000) {
            refuse(format!(
                "write_deadline: {write_deadline} ms is not less than hang_after, {hang_after} s, after which the disk \
                 is given up"
            ));
        }
    }
}

/// Most names of the admin API's certificate.
const ADMIN_NAMES_MAX: usize = 32;

/// With what the admin API speaks HTTPS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminTls {
    /// A certificate that the server makes for itself.
    SelfSigned,
    Files {
        certificate: PathBuf,
        key: PathBuf,
    },
}

/// Where the master keys of encrypted volumes come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    File(PathBuf),
    /// A line for /bin/sh, which prints them.
    Command(String),
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Command(line) => write!(f, "command {line}"),
        }
    }
}

/// The complete settings of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// One folder per disk; at least one, no two alike.
    pub data: Vec<PathBuf>,
    /// Whether those that do not exist are made.
    pub create: bool,
    /// Below these, folders are used that the admin API names.
    pub disk_roots: Vec<PathBuf>,
    pub listen_nfs: SocketAddr,
    /// None: the usual one, as soon as there is a LUN.
    pub listen_iscsi: Vec<SocketAddr>,
    /// What hosts are told instead.
    pub iscsi_portals: Vec<SocketAddr>,
    /// `None`: the usual one, as soon as there is a bucket or an access key.
    pub listen_s3: Option<SocketAddr>,
    /// `None`: questions of DNS are not answered.
    pub listen_dns: Option<SocketAddr>,
    pub admin_audit: bool,
    pub s3_audit: bool,
    /// Files of the certificate and its key; `None`: HTTP.
    pub s3_certificate: Option<(PathBuf, PathBuf)>,
    pub s3_domains: Vec<String>,
    /// `None`: the one that clients take who are told none.
    pub s3_region: Option<String>,
    pub listen_admin: SocketAddr,
    /// `None`: HTTP.
    pub admin_tls: Option<AdminTls>,
    /// How people reach it over HTTPS, if that was said.
    pub admin_names: Vec<String>,
    /// `None`: nobody logs in by a provider.
    pub oidc: Option<Oidc>,
    /// `HOST` or `HOST:PORT` of object stores that get the credentials of this machine.
    pub credential_hosts: Vec<String>,
    /// Whether port 111 is served; `None`: where it is free and may be bound.
    pub rpcbind: Option<bool>,
    /// `None`: the usual one, if it is there.
    pub cluster_dir: Option<PathBuf>,
    /// The program that moves addresses of volumes; `None`: they are put on interfaces and announced.
    pub address_hook: Option<PathBuf>,
    /// Whether connections between nodes are encrypted, where the other end does not insist on it.
    pub internal_encryption: bool,
    pub ready_file: Option<PathBuf>,
    /// `None`: the usual one of the user.
    pub state_dir: Option<PathBuf>,
    /// `None`: in the state folder.
    pub token_file: Option<PathBuf>,
    /// `None`: no volume can be encrypted.
    pub master_keys: Option<KeySource>,
    pub memory_limit_bytes: u64,
    pub threads: usize,
    pub log_format: LogFormat,
    pub metrics_open: bool,
    pub disk_size_limit_bytes: Option<u64>,
    /// Space of each disk in files that wait for new data.
    pub disk_spare_bytes: u64,
    pub disk_io: DiskIo,
    /// 0: no limit.
    pub scrub_bytes_per_second: u64,
    /// 0: no limit.
    pub rebuild_bytes_per_second: u64,
    pub rebuild_delay_seconds: u64,
    /// An operation of a disk that takes so long has no answer.
    pub hang_after: Duration,
    /// A write waits so long for a disk that answers nothing, where others are enough.
    pub write_deadline: Duration,
    /// Open segments without an append for so long are sealed; files that wait for new shards, and that nobody used for so long, are
    /// given back.
    pub idle_after: Duration,
    /// A volume looks so often for what goes to its tier or comes back.
    pub tier_interval: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_or_refused() {
        let cases: &[(&str, Option<&str>)] = &[
            ("127.0.0.1:2049", Some("127.0.0.1:2049")),
            ("localhost:0", Some("127.0.0.1:0")),
            (":2049", Some("[::]:2049")),
            ("[::1]:1", Some("[::1]:1")),
            ("127.0.0.1", None),
            ("127.0.0.1:70000", None),
            ("example.com:1", None),
            ("", None),
        ];
        for (text, want) in cases {
            let got = parse_address(text).ok().map(|address| address.to_string());
            assert_eq!(got.as_deref(), *want, "{text:?}");
        }
    }

    #[test]
    fn hosts_are_taken_or_refused() {
        let good = [
            "minio",
            "minio.example.org",
            "minio:9000",
            "10.0.0.1",
            "10.0.0.1:9000",
            "::1",
            "[::1]:9000",
        ];
        for text in good {
            assert_eq!(check_host(text), Ok(()), "{text}");
        }
        let bad = [
            "",
            "http://minio",
            "minio:",
            "minio:0",
            "minio:70000",
            "minio/a",
            "*.example.org",
            "a b",
            "a:1:2",
        ];
        for text in bad {
            assert!(check_host(text).is_err(), "{text}");
        }
    }

    #[test]
    fn flags_win_and_defaults_fill() {
        let flags = Settings {
            listen_nfs: Some("127.0.0.1:1".parse().unwrap()),
            ..Settings::default()
        };
        let file = Settings {
            data: vec!["/a".into()],
            listen_nfs: Some("127.0.0.1:2".parse().unwrap()),
            rpcbind: Some(true),
            ..Settings::default()
        };
        let config = flags.or(file).resolve(3).unwrap();
        assert_eq!(config.data, [PathBuf::from("/a")]);
        assert_eq!(config.listen_nfs.port(), 1);
        assert_eq!(config.listen_admin, LISTEN_ADMIN_DEFAULT);
        assert_eq!(config.rpcbind, Some(true));
        let without = Settings {
            data: vec!["/a".into()],
            ..Settings::default()
        };
        assert_eq!(without.resolve(1).unwrap().rpcbind, None);
        assert_eq!(config.threads, 3);
        assert_eq!(config.memory_limit_bytes, 2 << 30);
    }

    #[test]
    fn the_admin_api_is_https_for_other_machines() {
        let cases = [
            ("127.0.0.1:8049", None, None, true),
            ("127.1.2.3:8049", None, None, true),
            ("[::1]:8049", None, None, true),
            ("[::ffff:127.0.0.1]:8049", None, None, true),
            ("0.0.0.0:8049", None, None, false),
            ("[::]:8049", None, None, false),
            ("10.0.0.1:8049", None, None, false),
            ("10.0.0.1:8049", Some(false), None, false),
            ("10.0.0.1:8049", Some(true), None, true),
            ("10.0.0.1:8049", None, Some(true), true),
            ("10.0.0.1:8049", None, Some(false), false),
        ];
        for (address, insecure, admin_self_signed, want) in cases {
            let settings = Settings {
                data: vec!["/a".into()],
                listen_admin: Some(address.parse().unwrap()),
                insecure,
                admin_self_signed,
                ..Settings::default()
            };
            let config = settings.resolve(1);
            assert_eq!(config.is_ok(), want, "{address} {insecure:?}: {config:?}");
        }
    }

    #[test]
    fn keys_come_from_one_place() {
        let settings = |file: Option<&str>, command: Option<&str>| Settings {
            data: vec!["/a".into()],
            master_key_file: file.map(PathBuf::from),
            master_key_command: command.map(str::to_owned),
            ..Settings::default()
        };
        let source = |settings: Settings| settings.resolve(1).map(|config| config.master_keys);
        assert_eq!(source(settings(None, None)), Ok(None));
        let file = Some(KeySource::File("/key".into()));
        assert_eq!(source(settings(Some("/key"), None)), Ok(file.clone()));
        let command = Some(KeySource::Command("pass".to_owned()));
        assert_eq!(source(settings(None, Some("pass"))), Ok(command.clone()));
        assert!(source(settings(Some("/key"), Some("pass"))).is_err());
        // A flag takes the place of what the file says, whichever of the two that is.
        let flag = settings(Some("/key"), None).or(settings(None, Some("pass")));
        assert_eq!(source(flag), Ok(file));
        let flag = settings(None, None).or(settings(None, Some("pass")));
        assert_eq!(source(flag), Ok(command));
    }

    #[test]
    fn the_help_tells_the_defaults() {
        let command = <Settings as clap::Args>::augment_args(clap::Command::new("serve"));
        let cases: &[(&str, u64)] = &[
            ("memory_limit", MEMORY_LIMIT_BYTES_DEFAULT),
            ("disk_spare", DISK_SPARE_BYTES_DEFAULT),
            ("scrub_rate", SCRUB_RATE_DEFAULT),
            ("rebuild_rate", REBUILD_RATE_DEFAULT),
            ("rebuild_delay", REBUILD_DELAY_SECONDS_DEFAULT),
        ];
        for (name, want) in cases {
            let mut flags = command.get_arguments();
            let flag = flags.find(|flag| flag.get_id() == name).unwrap();
            let help = flag.get_help().unwrap().to_string();
            let (_, told) = help.rsplit_once("[default: ").unwrap();
            let told = parse_size(told.strip_suffix(']').unwrap());
            assert_eq!(told.ok(), Some(*want), "{help}");
        }
    }

    #[test]
    fn a_disk_may_hang_for_a_second_to_a_minute() {
        for (seconds, want) in [(0, false), (1, true), (3, true), (60, true), (61, false)] {
            let settings = Settings {
                data: vec!["/a".into()],
                hang_after: Some(seconds),
                ..Settings::default()
            };
            let config = settings.resolve(1);
            assert_eq!(config.is_ok(), want, "{seconds}");
            let is_taken = |config: Config| config.hang_after == Duration::from_secs(seconds);
            assert!(config.is_ok_and(is_taken) || !want, "{seconds}");
        }
    }

    #[test]
    fn waits_for_what_is_idle_and_for_tiers_have_limits() {
        let idle = |seconds| Settings {
            idle_after: Some(seconds),
            ..Settings::default()
        };
        let tier = |seconds| Settings {
            tier_interval: Some(seconds),
            ..Settings::default()
        };
        type Of = fn(&Config) -> Duration;
        let cases: [(Settings, u64, Of, bool); 10] = [
            (Settings::default(), 60, |config| config.idle_after, true),
            (idle(0), 0, |config| config.idle_after, false),
            (idle(1), 1, |config| config.idle_after, true),
            (idle(3600), 3600, |config| config.idle_after, true),
            (idle(3601), 3601, |config| config.idle_after, false),
            (Settings::default(), 10, |config| config.tier_interval, true),
            (tier(0), 0, |config| config.tier_interval, false),
            (tier(1), 1, |config| config.tier_interval, true),
            (tier(600), 600, |config| config.tier_interval, true),
            (tier(601), 601, |config| config.tier_interval, false),
        ];
        for (settings, seconds, of, want) in cases {
            let settings = Settings {
                data: vec!["/a".into()],
                ..settings
            };
            let found = settings.resolve(1).ok().map(|config| of(&config));
            assert_eq!(found, want.then(|| Duration::from_secs(seconds)));
        }
    }

    #[test]
    fn a_write_waits_less_long_than_until_a_disk_is_given_up() {
        let cases = [
            (None, None, true),
            (Some(99), None, false),
            (Some(100), None, true),
            (Some(2_000), None, true),
            (Some(29_999), None, true),
            (Some(30_000), None, false),
            (Some(30_000), Some(31), true),
            (Some(30_001), Some(60), false),
            (None, Some(1), true),
            (Some(1_000), Some(1), false),
        ];
        for (write_deadline, hang_after, want) in cases {
            let settings = Settings {
                data: vec!["/a".into()],
                hang_after,
                write_deadline,
                ..Settings::default()
            };
            let config = settings.resolve(1);
            assert_eq!(
                config.is_ok(),
                want,
                "{write_deadline:?} {hang_after:?}: {config:?}"
            );
            let wanted = write_deadline.unwrap_or(WRITE_DEADLINE_MS_DEFAULT);
            let is_taken = |config: Config| config.write_deadline == Duration::from_millis(wanted);
            assert!(config.is_ok_and(is_taken) || !want, "{wanted}");
        }
    }

    #[test]
    fn all_problems_are_told_at_once() {
        let settings = Settings {
            data: vec!["/a".into(), "/a".into()],
            memory_limit: Some(Size(1 << 20)),
            threads: Some(0),
            ..Settings::default()
        };
        let error = settings.resolve(1).unwrap_err();
        assert_eq!(error.problems.len(), 3, "{error}");
        let error = Settings::default().resolve(1).unwrap_err();
        assert!(error.to_string().contains("--data"), "{error}");
    }
}
