//! An etcd member that Cairn runs itself.
//!
//! Owns: the command line and folder of one member, its process, restarts, health and a clean stop.
//! Must not know: what is kept in etcd, which nodes run members.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tokio::process::{Child, Command};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::coordinator::CoordinatorError;
use crate::etcd::{Etcd, EtcdSettings, EtcdTls, VERSION_MIN, is_at_least};

const BACKOFF_MIN: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// A process that ran this long had no trouble starting.
const RAN_WELL: Duration = Duration::from_secs(30);
/// How long a process may take to end after it was asked to.
pub const MEMBER_STOP_MAX: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);
/// How much of the log's end is shown when a process ends by itself.
const LOG_SHOWN_LEN_BYTES: u64 = 2048;
const LOG_LEN_BYTES_MAX: u64 = 16 << 20;
/// The most that etcd may keep. The map of a large cluster needs a hundredth.
const QUOTA_LEN_BYTES: u64 = 2 << 30;

/// How often the leader says that it is there.
const HEARTBEAT: Duration = Duration::from_millis(100);
/// A member that hears nothing of the leader asks to be it after so long, or up to twice as long: each draws a number.
const ELECTION_TIMEOUT: Duration = Duration::from_millis(800);
/// After so long there is another leader, unless two members asked at the same moment. Leases have to outlive it: the
/// leader that comes then gives each of them its whole time again.
pub const ELECTION_MAX: Duration = Duration::from_millis(1600);
const _: () = assert!(ELECTION_MAX.as_millis() >= 2 * ELECTION_TIMEOUT.as_millis());
// etcd refuses to start otherwise.
const _: () = assert!(ELECTION_TIMEOUT.as_millis() >= 5 * HEARTBEAT.as_millis());

/// One member of an etcd cluster.
#[derive(Clone, Debug)]
pub struct EtcdMemberSettings {
    /// `etcd`, or the path of another one.
    pub program: PathBuf,
    pub name: String,
    /// The member's folder: etcd's data, its log, and the id of its process.
    pub folder: PathBuf,
    /// Where other members reach this one: `http://HOST:PORT` or `https://HOST:PORT`.
    pub peer_url: String,
    pub client_url: String,
    /// All members with their peer URLs, this one included.
    pub members: Vec<(String, String)>,
    /// Whether the other members exist already. Only the first start looks at it.
    pub joins: bool,
    /// Tells clusters on one network apart.
    pub cluster: String,
    pub tls: Option<EtcdMemberTls>,
}

/// Files with PEM, and what this process needs to ask the member how it is.
#[derive(Clone, Debug)]
pub struct EtcdMemberTls {
    pub ca: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Certificates that are not taken though they are valid (RFC 5280, section 5; DER). etcd reads it at each connection, and
    /// takes none while it is not there.
    pub revoked: PathBuf,
    /// The name that each member has in its certificate: who does not have it is not heard on the port for peers, where etcd looks at
    /// no rights.
    pub peer_name: String,
    pub client: EtcdTls,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// Its process runs; whether it answers says [`EtcdMember::health`].
    Running {
        pid: u32,
    },
    /// Its process ended by itself, and is started again after a while.
    Ended {
        why: String,
    },
    Stopped,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    #[error("{} does not exist; install etcd (Debian: etcd-server)", program.display())]
    NotInstalled { program: PathBuf },
    #[error(
        "{} has version {version}, Cairn needs {VERSION_MIN} or newer; upgrade it",
        program.display()
    )]
    WrongVersion { program: PathBuf, version: String },
    #[error("the folder of the etcd member, {}: {problem}", folder.display())]
    Folder { folder: PathBuf, problem: String },
    #[error("starting {}: {problem}", program.display())]
    Start { program: PathBuf, problem: String },
    #[error("process {pid} of an earlier run uses {} and does not stop", folder.display())]
    Busy { pid: u32, folder: PathBuf },
}

/// A member under supervision. Dropping it kills the process; [`Self::stop`] ends it cleanly.
pub struct EtcdMember {
    settings: EtcdMemberSettings,
    state: watch::Receiver<MemberState>,
    /// Set when the process is to end, to how long it may take.
    stop: watch::Sender<Option<Duration>>,
    /// Set off when the process is to be started again.
    again: Arc<Notify>,
    supervisor: tokio::task::JoinHandle<()>,
}

/// The version of an etcd program, or why it cannot be used.
pub async fn check_program(program: &Path) -> Result<String, MemberError> {
    let output = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .await;
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(MemberError::NotInstalled {
                program: program.to_owned(),
            });
        }
        Err(error) => {
            return Err(MemberError::Start {
                program: program.to_owned(),
                problem: error.to_string(),
            });
        }
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text
        .lines()
        .find_map(|line| line.strip_prefix("etcd Version: "));
    let version = version.unwrap_or("unknown").trim().to_owned();
    if is_at_least(&version, VERSION_MIN) {
        return Ok(version);
    }
    Err(MemberError::WrongVersion {
        program: program.to_owned(),
        version,
    })
}

impl EtcdMember {
    /// Starts the member and watches over its process. It need not answer yet.
    pub async fn start(settings: EtcdMemberSettings) -> Result<Self, MemberError> {
        check_program(&settings.program).await?;
        let folder_error = |problem: io::Error| MemberError::Folder {
            folder: settings.folder.clone(),
            problem: problem.to_string(),
        };
        prepare_folder(&settings.folder).map_err(folder_error)?;
        end_earlier_run(&settings.folder).await?;
        let child = spawn(&settings)?;
        let (states, state) = watch::channel(running(&child));
        let (stop, stopping) = watch::channel(None);
        let again = Arc::new(Notify::new());
        let supervise = supervise(
            settings.clone(),
            child,
            states,
            stopping,
            Arc::clone(&again),
        );
        Ok(Self {
            supervisor: tokio::spawn(supervise),
            again,
            settings,
            state,
            stop,
        })
    }

    pub fn state(&self) -> MemberState {
        self.state.borrow().clone()
    }

    pub fn subscribe(&self) -> watch::Receiver<MemberState> {
        self.state.clone()
    }

    pub fn client_url(&self) -> &str {
        &self.settings.client_url
    }

    /// Whether the member answers, has a leader and no alarm.
    pub async fn health(&self) -> Result<(), CoordinatorError> {
        let mut settings = EtcdSettings::new(vec![self.settings.client_url.clone()]);
        settings.tls = self.settings.tls.as_ref().map(|tls| tls.client.clone());
        Etcd::connect(settings).await.map(|_| ())
    }

    /// Waits until the member is healthy; else its last words, or those of its process.
    pub async fn wait_until_healthy(&self, patience: Duration) -> Result<(), CoordinatorError> {
        let deadline = Instant::now() + patience;
        loop {
            let error = match self.health().await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if Instant::now() >= deadline {
                return Err(match self.state() {
                    MemberState::Ended { why } => CoordinatorError::Unreachable(format!(
                        "{} ends again and again: {why}",
                        self.settings.name
                    )),
                    _ => error,
                });
            }
            sleep(POLL).await;
        }
    }

    /// Ends all connections to the member, and has it read its certificates anew: its process is killed and started again. An
    /// orderly end would wait for watches, for longer than a lease lasts; a kill loses nothing that was acknowledged.
    ///
    /// The next state is that of the next process.
    pub fn start_again(&self) -> watch::Receiver<MemberState> {
        let mut states = self.state.clone();
        states.borrow_and_update();
        self.again.notify_one();
        states
    }

    /// Ends the process as etcd wants it, so that another member leads at once.
    pub async fn stop(self) {
        self.stop_within(MEMBER_STOP_MAX).await;
    }

    /// Ends the process as etcd wants it. A process that takes longer is killed, which loses nothing: what it has acknowledged is on disk.
    pub async fn stop_within(mut self, patience: Duration) {
        self.stop.send_replace(Some(patience));
        if (&mut self.supervisor).await.is_err() {
            tracing::warn!(member = self.settings.name, "its supervisor failed");
        }
    }
}

impl Drop for EtcdMember {
    fn drop(&mut self) {
        // The child goes with the task that has it.
        self.supervisor.abort();
    }
}

fn running(child: &Child) -> MemberState {
    MemberState::Running {
        pid: child.id().unwrap_or(0),
    }
}

/// What a supervisor waits for.
enum Woken {
    Ended(io::Result<ExitStatus>),
    Again,
    Stop,
}

/// Starts the process again whenever it ends by itself, or is to.
async fn supervise(
    settings: EtcdMemberSettings,
    mut child: Child,
    states: watch::Sender<MemberState>,
    mut stopping: watch::Receiver<Option<Duration>>,
    again: Arc<Notify>,
) {
    let mut backoff = BACKOFF_MIN;
    loop {
        states.send_replace(running(&child));
        let started = Instant::now();
        let woken = tokio::select! {
            status = child.wait() => Woken::Ended(status),
            () = again.notified() => Woken::Again,
            _ = stopping.wait_for(Option::is_some) => Woken::Stop,
        };
        let ended = match woken {
            Woken::Ended(status) => Some((status, false)),
            Woken::Again => {
                let _ = child.start_kill();
                Some((child.wait().await, true))
            }
            Woken::Stop => None,
        };
        let Some((status, is_asked_for)) = ended else {
            let patience = stopping.borrow().unwrap_or(MEMBER_STOP_MAX);
            stop_child(&settings.name, &mut child, patience).await;
            let _ = fs::remove_file(pid_file(&settings.folder));
            states.send_replace(MemberState::Stopped);
            return;
        };
        if started.elapsed() >= RAN_WELL {
            backoff = BACKOFF_MIN;
        }
        if is_asked_for {
            match spawn(&settings) {
                Ok(next) => {
                    child = next;
                    continue;
                }
                Err(error) => tracing::warn!(member = settings.name, %error, "starting etcd again"),
            }
        }
        let mut why = last_words(&settings.folder, status);
        child = loop {
            tracing::warn!(member = settings.name, why, "etcd ended; starting it again");
            states.send_replace(MemberState::Ended { why });
            let stop = timeout(backoff, stopping.wait_for(Option::is_some))
                .await
                .is_ok();
            if stop {
                states.send_replace(MemberState::Stopped);
                return;
            }
            backoff = (backoff * 2).min(BACKOFF_MAX);
            match spawn(&settings) {
                Ok(child) => break child,
                Err(error) => why = error.to_string(),
            }
        };
    }
}

async fn stop_child(name: &str, child: &mut Child, patience: Duration) {
    if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(pid as i32)) {
        let _ = kill_process(pid, Signal::TERM);
    }
    if timeout(patience, child.wait()).await.is_err() {
        tracing::warn!(member = name, "etcd did not end when asked to; killing it");
        let _ = child.kill().await;
    }
}

fn prepare_folder(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    // etcd itself asks for a folder that nobody else can read.
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
}

fn pid_file(folder: &Path) -> PathBuf {
    folder.join("pid")
}

fn data_folder(folder: &Path) -> PathBuf {
    folder.join("data")
}

fn log_file(folder: &Path) -> PathBuf {
    folder.join("log")
}

/// Ends the process that is left of a member whose node was killed. Nothing uses its folder then.
pub async fn end_left_behind(folder: &Path) -> Result<(), MemberError> {
    end_earlier_run(folder).await
}

/// Ends the process of an earlier run that was killed without its member: it has the folder and the ports.
async fn end_earlier_run(folder: &Path) -> Result<(), MemberError> {
    let Some((pid, raw)) = earlier_run(folder) else {
        return Ok(());
    };
    let deadline = Instant::now() + MEMBER_STOP_MAX;
    let _ = kill_process(pid, Signal::TERM);
    while earlier_run(folder).is_some() && test_kill_process(pid).is_ok() {
        if Instant::now() >= deadline {
            let folder = folder.to_owned();
            return Err(MemberError::Busy { pid: raw, folder });
        }
        sleep(POLL).await;
    }
    Ok(())
}

/// The process that the folder names, if it runs and is this member's.
fn earlier_run(folder: &Path) -> Option<(Pid, u32)> {
    let raw: u32 = fs::read_to_string(pid_file(folder))
        .ok()?
        .trim()
        .parse()
        .ok()?;
    let pid = Pid::from_raw(i32::try_from(raw).ok()?)?;
    // Another process may have the number by now.
    let command = fs::read(format!("/proc/{raw}/cmdline")).ok()?;
    let ours = data_folder(folder);
    let is_ours = command
        .split(|byte| *byte == 0)
        .any(|argument| argument == ours.as_os_str().as_encoded_bytes());
    is_ours.then_some((pid, raw))
}

fn spawn(settings: &EtcdMemberSettings) -> Result<Child, MemberError> {
    let start = |problem: String| MemberError::Start {
        program: settings.program.clone(),
        problem,
    };
    let log = open_log(&settings.folder).map_err(|error| start(format!("its log: {error}")))?;
    let errors = log.try_clone().map_err(|error| start(error.to_string()))?;
    let mut command = Command::new(&settings.program);
    command
        .args(arguments(settings))
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .kill_on_drop(true);
    for (name, _) in std::env::vars_os() {
        // They would change what the command line says.
        if name.as_encoded_bytes().starts_with(b"ETCD_") {
            command.env_remove(name);
        }
    }
    // etcd 3.4 runs on it only when told so.
    if cfg!(target_arch = "aarch64") {
        command.env("ETCD_UNSUPPORTED_ARCH", "arm64");
    }
    let child = command.spawn().map_err(|error| start(error.to_string()))?;
    let pid = child.id().unwrap_or(0).to_string();
    fs::write(pid_file(&settings.folder), pid).map_err(|error| start(error.to_string()))?;
    Ok(child)
}

fn open_log(folder: &Path) -> io::Result<File> {
    let path = log_file(folder);
    if fs::metadata(&path).is_ok_and(|metadata| metadata.len() > LOG_LEN_BYTES_MAX) {
        fs::rename(&path, folder.join("log.old"))?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

fn arguments(settings: &EtcdMemberSettings) -> Vec<String> {
    let members: Vec<String> = settings
        .members
        .iter()
        .map(|(name, url)| format!("{name}={url}"))
        .collect();
    let mut arguments: Vec<String> = Vec::new();
    let mut add = |flag: &str, value: &dyn fmt::Display| {
        arguments.extend([format!("--{flag}"), value.to_string()]);
    };
    add("name", &settings.name);
    add("data-dir", &data_folder(&settings.folder).display());
    add("listen-peer-urls", &settings.peer_url);
    add("initial-advertise-peer-urls", &settings.peer_url);
    add("listen-client-urls", &settings.client_url);
    add("advertise-client-urls", &settings.client_url);
    add("initial-cluster", &members.join(","));
    add("initial-cluster-token", &settings.cluster);
    let state = if settings.joins { "existing" } else { "new" };
    add("initial-cluster-state", &state);
    add("heartbeat-interval", &HEARTBEAT.as_millis());
    add("election-timeout", &ELECTION_TIMEOUT.as_millis());
    // The history of an hour is enough for every watch that has not lost its connection for long.
    add("auto-compaction-mode", &"periodic");
    add("auto-compaction-retention", &"1h");
    add("quota-backend-bytes", &QUOTA_LEN_BYTES);
    add("logger", &"zap");
    // A member that was cut off has counted elections up that nobody heard of. Without this it would end the leader when it
    // returns, again and again until it has the log. etcd 3.4 does it only when told so.
    arguments.push("--pre-vote".to_owned());
    let mut add = |flag: &str, value: &dyn fmt::Display| {
        arguments.extend([format!("--{flag}"), value.to_string()]);
    };
    if let Some(tls) = &settings.tls {
        add("trusted-ca-file", &tls.ca.display());
        add("cert-file", &tls.certificate.display());
        add("key-file", &tls.key.display());
        add("peer-trusted-ca-file", &tls.ca.display());
        add("peer-cert-file", &tls.certificate.display());
        add("peer-key-file", &tls.key.display());
        add("client-crl-file", &tls.revoked.display());
        add("peer-crl-file", &tls.revoked.display());
        add("peer-cert-allowed-hostname", &tls.peer_name);
        arguments.extend([
            "--client-cert-auth".to_owned(),
            "--peer-client-cert-auth".to_owned(),
            // Its requests would come with the certificate of the member.
            "--enable-grpc-gateway=false".to_owned(),
        ]);
    }
    arguments
}

/// How a process ended, with the end of its log.
fn last_words(folder: &Path, status: io::Result<ExitStatus>) -> String {
    let how = match status {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    match log_end(folder) {
        Ok(end) if !end.is_empty() => format!("{how}; its log ends: {end}"),
        _ => how,
    }
}

fn log_end(folder: &Path) -> io::Result<String> {
    let mut log = File::open(log_file(folder))?;
    let len_bytes = log.metadata()?.len();
    log.seek(SeekFrom::Start(
        len_bytes.saturating_sub(LOG_SHOWN_LEN_BYTES),
    ))?;
    let mut end = Vec::new();
    log.take(LOG_SHOWN_LEN_BYTES).read_to_end(&mut end)?;
    let end = String::from_utf8_lossy(&end);
    Ok(end.lines().last().unwrap_or("").to_owned())
}
