//! The settings of a server: as given by flags or a file, and complete.
//!
//! A new setting is one declaration in [`Settings`]; CONTRIBUTING.md says how.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use cairn_base::units::{SizeError, format_size, parse_size};

use crate::declare::settings;
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
/// How long a write waits for a disk that answers nothing, where others are enough, unless told otherwise.
pub const WRITE_DEADLINE_MS_DEFAULT: u64 = 500;
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

settings! {
    /// Settings as they are given: each is a flag of `cairn serve` (`--listen-nfs`) and a key of the config file (`listen_nfs`). A
    /// setting that is not given is `None` or empty.
    pub struct Settings {
        /// A folder that is one disk of the pool and one failure domain. With one folder there is no redundancy
        data: Vec<PathBuf> {
            value_name: "DIR",
            heading: "Disks",
            example: "[\"/var/lib/cairn/disk1\"]",
            is_set_by_packages: true,
        } => data: Vec<PathBuf>;
        /// Create data folders that do not exist. Otherwise a missing folder stops the start: a typo or an unmounted drive
        /// would become a new disk on the wrong file system
        create: Option<bool> { env: Some("CAIRN_CREATE"), example: "true" } = false => create: bool;
        /// A folder below which the admin API may create disks, read caches and tier directories
        disk_root: Vec<PathBuf> {
            value_name: "DIR",
            example: "[\"/srv\"]",
            default_is: "only the data folders",
        } => disk_roots: Vec<PathBuf>;
        /// Folder with this node's cluster state, created by `cairn cluster init` or `cairn cluster join`
        cluster_dir: Option<PathBuf> {
            value_name: "DIR",
            heading: "Cluster",
            example: "\"/var/lib/cairn/cluster\"",
            default_is: "/var/lib/cairn/cluster, if it exists",
        } => cluster_dir: Option<PathBuf>;
        /// Program that moves addresses of volumes and address pools in networks without announcements, such as clouds. It gets
        /// `take` or `drop`, the name of the volume or address pool, and the address, and has 15 s
        address_hook: Option<PathBuf> {
            value_name: "PATH",
            example: "\"/etc/cairn/address-hook\"",
            default_is: "the node puts addresses on an interface and announces them",
        } => address_hook: Option<PathBuf>;
        /// Encrypt traffic between nodes of a cluster. Two nodes send plain data only if both have `false`: anyone on the internal
        /// network can then read all data, but traffic is still authenticated and protected against changes
        internal_encryption: Option<bool> {
            value_name: "true|false",
            example: "false",
        } = true => internal_encryption: bool;
        /// Address and port for NFS clients; port 0 picks a free one
        listen_nfs: Option<SocketAddr> {
            value_name: "ADDR:PORT",
            heading: "Addresses for clients",
            intro: "To serve other machines, listen on an address that they reach, \
                    and let them in with `cairn export set main --client 10.0.0.0/8`.",
            example: "\"0.0.0.0:2049\"",
        } = LISTEN_NFS_DEFAULT => listen_nfs: SocketAddr;
        /// Address and port for iSCSI initiators; port 0 picks a free one
        listen_iscsi: Vec<SocketAddr> {
            value_name: "ADDR:PORT",
            example: "\"0.0.0.0:3260\"",
            default_is: "127.0.0.1:3260, as soon as there is a LUN",
            count_max: ISCSI_PORTALS_MAX,
        } => listen_iscsi: Vec<SocketAddr>;
        /// Address and port that iSCSI discovery announces, if different from listen_iscsi: for a forwarded port, or for some of
        /// several networks
        iscsi_portal: Vec<SocketAddr> {
            value_name: "ADDR:PORT",
            example: "[\"192.168.1.1:3260\"]",
            count_max: ISCSI_PORTALS_MAX,
        } => iscsi_portals: Vec<SocketAddr>, check |address| check_portal(*address);
        /// Address and port for S3 clients; port 0 picks a free one
        listen_s3: Option<SocketAddr> {
            value_name: "ADDR:PORT",
            example: "\"0.0.0.0:9000\"",
            default_is: "127.0.0.1:9000, as soon as there is a bucket or an access key",
        } => listen_s3: Option<SocketAddr>;
        /// Address and port of the DNS responder (UDP and TCP). It resolves the DNS names of address pools (`cairn address pool
        /// create --dns`) to the addresses that nodes hold now; port 0 picks a free one
        listen_dns: Option<SocketAddr> {
            value_name: "ADDR:PORT",
            example: "\"0.0.0.0:53\"",
            default_is: "no responder",
        } => listen_dns: Option<SocketAddr>;
        /// Serve the port mapper on port 111 as well, so that clients need no port options. With `true` the server does not start
        /// without it
        rpcbind: Option<bool> {
            example: "true",
            default_is: "if the port is free and may be bound",
        } => rpcbind: Option<bool>;
        /// Log each S3 request: access key, request and status
        s3_audit: Option<bool> { heading: "S3", example: "true" } = false => s3_audit: bool;
        /// Serve S3 over HTTPS with this certificate chain (PEM); a replaced file takes effect within seconds
        s3_certificate: Option<PathBuf> { value_name: "PATH", example: "\"/etc/cairn/s3.crt\"" };
        /// Private key of the S3 certificate (PEM)
        s3_key: Option<PathBuf> { value_name: "PATH", example: "\"/etc/cairn/s3.key\"" };
        /// Domain whose host names are bucket names: with s3.example.org, photos.s3.example.org is the bucket photos
        s3_domain: Vec<String> {
            value_name: "DOMAIN",
            example: "[\"s3.example.org\"]",
        } => s3_domains: Vec<String>, check |domain| check_domain(domain);
        /// Region for which S3 clients sign requests
        s3_region: Option<String> {
            value_name: "NAME",
            example: "\"us-east-1\"",
            default_is: "us-east-1",
        } => s3_region: Option<String>, check |region| check_region(region);
        /// Address and port of the admin REST API; port 0 picks a free one
        listen_admin: Option<SocketAddr> {
            value_name: "ADDR:PORT",
            heading: "Admin API and console",
            intro: "Where other machines reach the admin API, it needs HTTPS: \
                    your own certificate (`admin_certificate`), or one that the server creates (`admin_self_signed`).",
        } = LISTEN_ADMIN_DEFAULT => listen_admin: SocketAddr;
        /// Allow the admin API without HTTPS on an address that other machines reach: anyone on that network can read the token,
        /// passwords and new secrets. Meant for a cluster on one machine, or behind a TLS proxy
        insecure: Option<bool> { example: "true" } = false;
        /// Serve the admin API over HTTPS with this certificate chain (PEM); a replaced file takes effect within seconds
        admin_certificate: Option<PathBuf> { value_name: "PATH", example: "\"/etc/cairn/admin.crt\"" };
        /// Private key of the admin API certificate (PEM)
        admin_key: Option<PathBuf> { value_name: "PATH", example: "\"/etc/cairn/admin.key\"" };
        /// Serve the admin API over HTTPS with a self-signed certificate, which the first start creates as admin-tls.pem in the
        /// state folder
        admin_self_signed: Option<bool> { example: "true" } = false;
        /// Name or address of the admin API for HTTPS; the server prints the first one, and a self-signed certificate contains all
        admin_name: Vec<String> {
            value_name: "NAME",
            example: "[\"cairn.example.org\"]",
            default_is: "localhost and the address",
            count_max: 32,
        } => admin_names: Vec<String>, check |name| check_name(name);
        /// Log each change made through the admin API: user and status
        admin_audit: Option<bool> { example: "true" } = false => admin_audit: bool;
        /// Serve /metrics without the admin token
        metrics_open: Option<bool> { example: "true" } = false => metrics_open: bool;
        /// Folder for secrets that must not be lost or stolen with a disk: the admin token, the key of a self-signed certificate. It
        /// is created if necessary, and must not be in a data folder
        state_dir: Option<PathBuf> {
            value_name: "DIR",
            heading: "Secrets",
            example: "\"/var/lib/cairn\"",
            default_is: "/var/lib/cairn for root and services, else ~/.local/state/cairn",
        } => state_dir: Option<PathBuf>;
        /// File that holds the admin token; it is created if necessary, and must not be in a data folder
        token_file: Option<PathBuf> {
            value_name: "PATH",
            example: "\"/etc/cairn/admin-token\"",
            default_is: "admin-token in the state folder",
        } => token_file: Option<PathBuf>;
        /// File with the master keys of encrypted volumes, readable only by its owner: 32 bytes a line, in hexadecimal or base64.
        /// The first line is the current key, further lines are earlier keys (`cairn key generate` makes a key)
        master_key_file: Option<PathBuf> {
            value_name: "PATH",
            example: "\"/etc/cairn/master.key\"",
            conflicts_with: Some("master_key_command"),
        };
        /// Command that prints the content of a master key file within 30 seconds; /bin/sh runs it
        master_key_command: Option<String> {
            value_name: "COMMAND",
            example: "\"systemd-creds decrypt /etc/cairn/master.key.cred -\"",
        };
        /// HOST or HOST:PORT of an object store that may receive credentials: those of this machine (environment, cloud identity)
        /// for tiers without a credentials file, and those of any file. Otherwise credentials go only to the cloud's own hosts over
        /// TLS, or to hosts that the file names
        credential_host: Vec<String> {
            value_name: "HOST[:PORT]",
            example: "[\"minio.example.org:9000\"]",
        } => credential_hosts: Vec<String>, check |host| check_host(host);
        /// Memory that the process may use, at least 256MiB
        memory_limit: Option<Size> {
            value_name: "SIZE",
            heading: "Resources",
        } = Size(MEMORY_LIMIT_BYTES_DEFAULT) => memory_limit_bytes: u64 = |limit| limit.0, check |limit| check_memory_limit(*limit);
        /// Threads that serve clients
        threads: Option<usize> {
            value_name: "COUNT",
            example: "4",
            default_is: "one per CPU",
        } => threads: usize = |given| given.unwrap_or(cpu_count).clamp(1, THREADS_MAX),
            check |count| within(*count as u64, 1..=THREADS_MAX as u64, "");
        /// Bytes of each disk that the server uses at most
        disk_size_limit: Option<Size> {
            value_name: "SIZE",
            example: "\"500GiB\"",
            default_is: "the whole disk",
        } => disk_size_limit_bytes: Option<u64> = |limit| limit.map(|size| size.0);
        /// Space on each disk that is preallocated in idle moments for faster writes of new data. It counts as free, and is given
        /// back when space runs short. Up to 64 files of 64MiB; 0 for none
        disk_spare: Option<Size> { value_name: "SIZE" } = Size(DISK_SPARE_BYTES_DEFAULT) => disk_spare_bytes: u64 = |spare| spare.0;
        /// How disks are read and written: auto, uring or threads. auto is io_uring where the kernel allows it, else threads
        disk_io: Option<DiskIo> { value_name: "KIND" } = DiskIo::Auto => disk_io: DiskIo;
        /// Bytes per second that a scrub reads at most; 0 for no limit beyond throttling for clients
        scrub_rate: Option<Size> { value_name: "SIZE" } = Size(SCRUB_RATE_DEFAULT) => scrub_bytes_per_second: u64 = |rate| rate.0;
        /// Bytes per second that are moved or rebuilt at most when a disk is drained or lost; 0 for no limit beyond throttling for
        /// clients
        rebuild_rate: Option<Size> { value_name: "SIZE" } = Size(REBUILD_RATE_DEFAULT) => rebuild_bytes_per_second: u64 = |rate| rate.0;
        /// Seconds to wait for a lost disk before its data is rebuilt on others
        rebuild_delay: Option<u64> { value_name: "SECONDS" } = REBUILD_DELAY_SECONDS_DEFAULT => rebuild_delay_seconds: u64;
        // A disk that is only busy answers in a second. Ages of operations are not told apart beyond a minute.
        /// Seconds without an answer after which a disk counts as failed, 1 to 60
        hang_after: Option<u64> {
            value_name: "SECONDS",
            heading: "Waits",
            in_file_only: true,
        } = HANG_AFTER_SECONDS_DEFAULT => hang_after: Duration = Duration::from_secs,
            check |seconds| within(*seconds, 1..=60, ": it is in seconds");
        // A good disk that has just been asked for much takes about 100 ms. Beyond 30 s clients would notice first.
        /// Milliseconds that a write waits for an unresponsive disk while the other disks are enough, 100 to 30000; about 2000 for
        /// hard disks
        write_deadline: Option<u64> {
            value_name: "MILLISECONDS",
            in_file_only: true,
        } = WRITE_DEADLINE_MS_DEFAULT => write_deadline: Duration = Duration::from_millis,
            check |millis| within(*millis, 100..=30_000, ": it is in milliseconds");
        // Below a second each pause of a client would end a segment. Beyond an hour free space stays unused.
        /// Seconds without an append after which an open segment is sealed, and without use after which files that wait for new
        /// shards are given back, 1 to 3600
        idle_after: Option<u64> {
            value_name: "SECONDS",
            in_file_only: true,
        } = 60 => idle_after: Duration = Duration::from_secs, check |seconds| within(*seconds, 1..=3600, ": it is in seconds");
        // A look costs a pass over the volume's segments. Beyond ten minutes a disk could fill up between two looks.
        /// Seconds between the looks of a volume for data that goes to its tier or comes back, 1 to 600
        tier_interval: Option<u64> {
            value_name: "SECONDS",
            in_file_only: true,
        } = 10 => tier_interval: Duration = Duration::from_secs, check |seconds| within(*seconds, 1..=600, ": it is in seconds");
        /// Format of log lines, text or json; the variable RUST_LOG chooses what is logged
        log_format: Option<LogFormat> {
            value_name: "FORMAT",
            heading: "Logs and other programs",
        } = LogFormat::Text => log_format: LogFormat;
        /// JSON file into which the server writes its addresses once it is ready; its folder must exist
        ready_file: Option<PathBuf> {
            value_name: "PATH",
            example: "\"/run/cairn/ready.json\"",
        } => ready_file: Option<PathBuf>;
        flatten oidc: OidcSettings;
    }

    /// The complete settings of a server.
    pub struct Config(cpu_count: usize) {
        /// Files of the S3 certificate and its key; `None`: HTTP.
        s3_certificate: Option<(PathBuf, PathBuf)> = s3_certificate.zip(s3_key);
        /// `None`: the admin API speaks HTTP.
        admin_tls: Option<AdminTls> = match admin_certificate.zip(admin_key) {
            Some((certificate, key)) => Some(AdminTls::Files { certificate, key }),
            None => admin_self_signed.then_some(AdminTls::SelfSigned),
        };
        /// `None`: no volume can be encrypted.
        master_keys: Option<KeySource> = match (master_key_file, master_key_command) {
            (Some(path), _) => Some(KeySource::File(path)),
            (None, Some(line)) => Some(KeySource::Command(line)),
            (None, None) => None,
        };
        /// `None`: there is no log-in through a provider.
        oidc: Option<Oidc> = oidc.resolve();
    }
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

fn check_memory_limit(limit: Size) -> Result<(), String> {
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

/// A name of the admin API: of a host, or an address.
fn check_name(name: &str) -> Result<(), String> {
    match name.parse::<IpAddr>() {
        Ok(_) => Ok(()),
        Err(_) => check_domain(name),
    }
}

fn check_portal(address: SocketAddr) -> Result<(), String> {
    match address.ip().is_unspecified() || address.port() == 0 {
        false => Ok(()),
        true => Err(format!(
            "no host finds anything at {address}: give the address and port that hosts connect to"
        )),
    }
}

/// Whether `number` is in `range`; `hint` ends the refusal.
fn within(number: u64, range: RangeInclusive<u64>, hint: &str) -> Result<(), String> {
    if range.contains(&number) {
        return Ok(());
    }
    let (min, max) = range.into_inner();
    Err(format!("{number} is not between {min} and {max}{hint}"))
}

impl Settings {
    /// These settings, with `below` for what they do not say. Flags go above the file.
    pub fn or(self, mut below: Self) -> Self {
        // One takes the place of the other.
        if self.master_key_file.is_some() || self.master_key_command.is_some() {
            below.master_key_file = None;
            below.master_key_command = None;
        }
        self.over(below)
    }

    /// Completes the settings with defaults and checks them; `cpu_count` is the machine's.
    pub fn resolve(self, cpu_count: usize) -> Result<Config, ConfigError> {
        let mut problems = Vec::new();
        self.check(&mut problems);
        if !problems.is_empty() {
            return Err(ConfigError { problems });
        }
        Ok(self.complete(cpu_count))
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
        self.refuse_own_values(&mut refuse);
        self.oidc.check(&mut refuse);
        if self.master_key_file.is_some() && self.master_key_command.is_some() {
            refuse(
                "master_key_file and master_key_command are given: choose one, which has all keys"
                    .to_owned(),
            );
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
