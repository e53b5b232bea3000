//! `cairn serve`: from flags and file to a server that runs until it is told to stop.

use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use cairn_admin::api::{Health, ReadyFile, Status};
use cairn_base::printable;
use cairn_config::{
    CONFIG_FILE_LEN_BYTES_MAX, Config, ConfigError, LogFormat, Settings, parse_file,
};
use cairn_node::cluster::guardian;
use cairn_node::{Ended, Node, NodeError, NodeErrorKind, NodeExtras, ready};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Levels of the log unless RUST_LOG names others. `s3s` takes each request that it refuses for an error of ours.
const LOGGED: &str = "info,s3s=off";

use crate::args::{ConfigCheckArgs, ServeArgs};
use crate::exit::Failure;
use crate::print;

/// What a shell reports of a program that an interrupt ended.
const EXIT_INTERRUPTED: i32 = 130;

pub fn run(args: ServeArgs) -> Result<(), Failure> {
    let config = load(args.settings, args.config.as_deref())?;
    check_ready_file(&config)?;
    start_logging(config.log_format);
    // Data, keys and the token are for the server's user only.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    raise_descriptor_limit();
    let node = Node::start(config, extras()).map_err(start_failure)?;
    // Also after an upgrade has put another program in its place.
    node.guard_lease(PathBuf::from("/proc/self/exe"));
    // Before anyone hears that it serves: who waits for that may stop it at once.
    let (mut terminate, mut interrupt) = node.block_on(async { signals() })?;
    let ready = node.ready();
    announce(&node, &ready)?;
    print::text(&banner(&node, &ready, args.config.as_deref()))?;
    notify(&[NotifyState::Ready]);

    let over = node.block_on(async {
        let over = tokio::select! {
            () = wait(&mut terminate, &mut interrupt) => None,
            over = node.over() => {
                // A closed output must not keep it from ending.
                let _ = print::text(&format!("{over}. It serves no longer"));
                Some(over)
            }
        };
        tokio::spawn(async move {
            wait(&mut terminate, &mut interrupt).await;
            // Nothing is lost that was promised: the next start recovers as after a crash.
            std::process::exit(EXIT_INTERRUPTED);
        });
        over
    });
    notify(&[NotifyState::Stopping]);
    // A closed output must not keep the stop from going on.
    let _ = print::text("stopping: finishing requests and writing everything to disk");
    node.unannounce();
    node.stop();
    match over {
        // The next start of this one is refused, too.
        Some(twin @ Ended::Twin { .. }) => Err(Failure::refused(twin.to_string())),
        Some(Ended::Removed) | None => print::text("stopped"),
    }
}

/// The parts that this program was built with.
fn extras() -> NodeExtras {
    NodeExtras {
        #[cfg(feature = "plan")]
        plans: Some(cairn_plan_control::Planner::start),
        #[cfg(not(feature = "plan"))]
        plans: None,
        #[cfg(feature = "plan")]
        prices: Some(&cairn_plan_control::EmbeddedPrices),
        #[cfg(not(feature = "plan"))]
        prices: None,
        #[cfg(feature = "bench")]
        benchmarks: Some(cairn_bench_control::Benchmarks::start),
        #[cfg(not(feature = "bench"))]
        benchmarks: None,
    }
}

pub fn guard_lease() -> Result<(), Failure> {
    guardian::run().map_err(|error| Failure::failed(error.to_string()))
}

/// Takes as many file descriptors as the system lets us have: the usual limit of 1024 is that of programs
/// with `select`, and disks and clients need more.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, wanted) {
        tracing::warn!("raising the limit of file descriptors: {error}");
    }
}

pub fn config_check(args: &ConfigCheckArgs) -> Result<(), Failure> {
    let mut without_data = false;
    let checked = read_file(&args.file)?.and_then(|mut settings| {
        without_data = settings.data.is_empty();
        if without_data {
            // The folders may come from flags; everything else is checked all the same.
            settings.data.push(PathBuf::from("data"));
        }
        settings.resolve(cpu_count())
    });
    if args.json {
        print::json(&check_json(&args.file, checked.as_ref().err()))?;
    }
    checked.map_err(|error| wrong_config(Some(&args.file), &error))?;
    if args.json {
        return Ok(());
    }
    let note = if without_data {
        "; it names no data folder, so `cairn serve` also needs --data"
    } else {
        ""
    };
    print::text(&format!("{}: no errors{note}", args.file.display()))
}

fn check_json(file: &Path, error: Option<&ConfigError>) -> serde_json::Value {
    let problems = error.map(|error| &error.problems[..]).unwrap_or_default();
    let problems: Vec<_> = problems
        .iter()
        .map(|problem| serde_json::json!({ "line": problem.line, "what": problem.what }))
        .collect();
    serde_json::json!({ "file": file.to_string_lossy(), "problems": problems })
}

fn load(flags: Settings, file: Option<&Path>) -> Result<Config, Failure> {
    let settings = match file {
        Some(path) => {
            let below = read_file(path)?.map_err(|error| wrong_config(file, &error))?;
            flags.or(below)
        }
        None => flags,
    };
    // A problem here may come from flags, the file or both.
    settings
        .resolve(cpu_count())
        .map_err(|error| wrong_config(None, &error))
}

fn cpu_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// All problems, one per line below one another.
fn wrong_config(file: Option<&Path>, error: &ConfigError) -> Failure {
    let mut lines: Vec<String> = error.problems.iter().map(ToString::to_string).collect();
    if let Some(path) = file {
        lines.insert(0, format!("the config file {} has errors:", path.display()));
    }
    Failure::usage(lines.join("\n       "))
}

/// Reads a config file; the inner error says what is wrong in it.
fn read_file(path: &Path) -> Result<Result<Settings, ConfigError>, Failure> {
    let failed = |error: std::io::Error| {
        Failure::usage(format!(
            "reading the config file {}: {error}",
            path.display()
        ))
    };
    let mut content = String::new();
    // Bounded by what is read, not by what the system says: devices have no length.
    File::open(path)
        .map_err(failed)?
        .take(CONFIG_FILE_LEN_BYTES_MAX + 1)
        .read_to_string(&mut content)
        .map_err(failed)?;
    if content.len() as u64 > CONFIG_FILE_LEN_BYTES_MAX {
        return Err(Failure::usage(format!(
            "the config file {} has more than {CONFIG_FILE_LEN_BYTES_MAX} bytes: no config file is that large",
            path.display()
        )));
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    Ok(parse_file(&content, folder))
}

/// Standard error, for one event of the log at a time.
///
/// Names that clients chose are in events: a line feed in one would make a line that nobody logged, here and in a syslog that
/// reads this, and a control character would command the terminal on which an administrator reads it.
struct LogLine {
    format: LogFormat,
    /// Colours are escape sequences, which `tracing_subscriber` takes out of the values itself then.
    has_colours: bool,
}

impl LogLine {
    fn shown<'a>(&self, event: &'a str) -> std::borrow::Cow<'a, str> {
        match self.format {
            LogFormat::Json => printable::in_json(event),
            LogFormat::Text => printable::log_line(event, self.has_colours),
        }
    }
}

impl Write for LogLine {
    fn write(&mut self, event: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let shown = self.shown(&text);
        std::io::stderr().lock().write_all(shown.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

/// Logs to standard error, as much as RUST_LOG says.
pub fn start_logging(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOGGED));
    let has_colours = format == LogFormat::Text && std::io::stderr().is_terminal();
    let logging = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // A standard error that takes nothing (a full file system, a reader that is gone) would else end in a panic of
        // the thread that logs.
        .log_internal_errors(false)
        .with_writer(move || LogLine {
            format,
            has_colours,
        })
        .with_ansi(has_colours);
    match format {
        LogFormat::Text => logging.init(),
        LogFormat::Json => logging.json().init(),
    }
}

fn start_failure(error: NodeError) -> Failure {
    match error.kind() {
        NodeErrorKind::Refused => Failure::refused(error.to_string()),
        NodeErrorKind::Failed => Failure::failed(error.to_string()),
    }
}

/// Refuses a ready file in a folder that is not there, before anything is made on disks. Folders that
/// the server makes itself may still be missing.
fn check_ready_file(config: &Config) -> Result<(), Failure> {
    let Some(path) = &config.ready_file else {
        return Ok(());
    };
    let folder = ready::folder_of(path);
    let runtime = ready::runtime_folder();
    let mut made_later = config.data.iter().chain(&runtime);
    if folder.is_dir() || made_later.any(|made| made == folder) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "the ready file {}: the folder {} does not exist; create it first",
        path.display(),
        folder.display()
    )))
}

/// Writes the files that tell where the server is, which are removed at the end.
fn announce(node: &Node, ready: &ReadyFile) -> Result<(), Failure> {
    let mut files = Vec::new();
    if let Some(folder) = ready::runtime_folder() {
        let path = ready::server_file(&folder);
        let made = std::fs::create_dir_all(ready::folder_of(&path));
        match made.and_then(|()| ready::write(&path, ready)) {
            Ok(()) => files.push(path),
            // Commands then need --server; that is no reason not to serve.
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot say where the server is")
            }
        }
    }
    if let Some(path) = &node.config().ready_file {
        ready::write(path, ready).map_err(|error| {
            files.iter().for_each(|file| ready::remove(file));
            Failure::failed(format!(
                "writing the ready file {}: {error}",
                path.display()
            ))
        })?;
        files.push(path.clone());
    }
    node.announced(&files);
    Ok(())
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "telling systemd failed");
    }
}

/// SIGTERM and SIGINT.
pub fn signals() -> Result<(Signal, Signal), Failure> {
    let failed = |error: std::io::Error| Failure::failed(format!("waiting for signals: {error}"));
    Ok((
        signal(SignalKind::terminate()).map_err(failed)?,
        signal(SignalKind::interrupt()).map_err(failed)?,
    ))
}

async fn wait(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// What a newcomer needs to go on.
fn banner(node: &Node, ready: &ReadyFile, config_file: Option<&Path>) -> String {
    let status = node.status();
    let mut lines = vec![format!(
        "cairn {} serves {} {}",
        status.version,
        if node.created() {
            "the new pool"
        } else {
            "pool"
        },
        status.pool.id
    )];
    lines.push(String::new());
    lines.push(format!("  protection  {}", protection(&status)));
    for warning in &status.warnings {
        lines.push(format!("  warning     {warning}"));
    }
    for disk in &status.disks {
        lines.push(format!("  disk        {} ({})", disk.label, disk.state));
    }
    for volume in &status.volumes {
        let to_nobody = if volume.exported { "" } else { "  (to nobody)" };
        lines.push(format!(
            "  export      {}:/{}{to_nobody}",
            ready.nfs.address, volume.name
        ));
    }
    lines.extend(mount_lines(ready, status.nfs.rpcbind));
    lines.push(format!("  admin       {}", status.admin.url));
    lines.push(format!(
        "  console     {}/console/  (asks for what is in the file below, or for a user)",
        status.admin.url
    ));
    lines.push(format!("  token       {}", ready.token_file));
    lines.push(match config_file {
        Some(path) => format!("  config      {}", path.display()),
        None => "  config      none (flags only); --config FILE reads one".to_owned(),
    });
    lines.push(format!(
        "  stop        Ctrl-C, or kill {} (waits until everything is on disk)",
        ready.pid
    ));
    lines.push(String::new());
    lines.push(
        "  next: cairn status, cairn volume create NAME, cairn export set main --client CIDR"
            .to_owned(),
    );
    lines.join("\n")
}

fn protection(status: &Status) -> String {
    match status.health {
        // The layout of one disk says it already.
        Health::NoRedundancy => status.summary.clone(),
        Health::Healthy | Health::Degraded | Health::Failed => {
            format!("{} ({})", status.summary, status.health)
        }
    }
}

/// How to mount the first volume from the systems that can.
fn mount_lines(ready: &ReadyFile, rpcbind: bool) -> Vec<String> {
    let Some(volume) = ready.volumes.first() else {
        return Vec::new();
    };
    let (address, port) = (&ready.nfs.address, ready.nfs.port);
    let host = if address.contains(':') {
        format!("[{address}]")
    } else {
        address.clone()
    };
    let ports = if rpcbind && port == 2049 {
        String::new()
    } else {
        format!(",port={port},mountport={port}")
    };
    let mut lines = vec![
        format!(
            "  Linux       sudo mount -t nfs -o vers=3,proto=tcp,nolock{ports} {host}:/{volume} /mnt"
        ),
        format!(
            "  macOS       sudo mount -t nfs -o vers=3,nolocks,resvport{ports} {host}:/{volume} /private/mnt"
        ),
        format!("  Windows     mount -o nolock,mtype=hard,anon \\\\{address}\\{volume} Z:"),
    ];
    if !rpcbind || port != 2049 {
        lines.push(
            "              (Windows asks port 111 for the others: start with --rpcbind, port 2049 and an \
             address that it reaches)"
                .to_owned(),
        );
    }
    lines
}
