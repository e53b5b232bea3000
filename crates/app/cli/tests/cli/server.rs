//! The program from the outside: real processes, real folders, real sockets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const CAIRN: &str = env!("CARGO_BIN_EXE_cairn");
/// The last line that a server prints once it serves.
const BANNER_END: &str = "  next: ";

/// A scratch folder with what one pool needs.
struct Scratch {
    folder: tempfile::TempDir,
    disk_count: usize,
}

impl Scratch {
    fn new(disk_count: usize) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            disk_count,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn disk(&self, index: usize) -> PathBuf {
        self.path(&format!("disk{index}"))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(CAIRN);
        command
            .env("CAIRN_RUNTIME_DIR", self.path("run"))
            .env("CAIRN_STATE_DIR", self.path("state"))
            .env("CAIRN_CREATE", "true")
            .env_remove("CAIRN_TOKEN")
            .env_remove("CAIRN_SERVER")
            .env("RUST_LOG", "warn")
            .current_dir(self.folder.path());
        command
    }

    fn serve_command(&self) -> Command {
        let mut command = self.command();
        command.arg("serve");
        for index in 0..self.disk_count {
            command.arg("--data").arg(self.disk(index));
        }
        command.args([
            "--listen-nfs",
            "127.0.0.1:0",
            "--listen-admin",
            "127.0.0.1:0",
        ]);
        command.arg("--disk-root").arg(self.folder.path());
        command.args(["--memory-limit", "256MiB", "--ready-file"]);
        command.arg(self.path("ready.json"));
        command
    }

    fn serve(&self) -> Server {
        Server::start(self.serve_command(), &self.path("ready.json"))
    }

    /// Runs a command and returns its exit code with what it printed.
    fn cairn(&self, arguments: &str) -> (i32, String) {
        self.cairn_words(&arguments.split_whitespace().collect::<Vec<_>>())
    }

    fn cairn_words(&self, words: &[&str]) -> (i32, String) {
        let mut command = self.command();
        finished(command.args(words).stdin(Stdio::null()).output().unwrap())
    }

    fn json(&self, arguments: &str) -> Value {
        let (code, text) = self.cairn(arguments);
        assert_eq!(code, 0, "cairn {arguments}: {text}");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments}: {error}: {text}"))
    }
}

fn finished(output: Output) -> (i32, String) {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    (output.status.code().unwrap_or(-1), text)
}

/// A server that serves; killed when it goes out of scope.
struct Server {
    child: Child,
    /// Open, so that the server can print to its end.
    _stdout: BufReader<ChildStdout>,
    banner: String,
    ready: Value,
}

impl Server {
    fn start(mut command: Command, ready_file: &Path) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut banner = String::new();
        loop {
            let start = banner.len();
            let len = stdout.read_line(&mut banner).unwrap();
            assert!(
                len > 0,
                "the server ended early: {banner} {:?}",
                child.wait()
            );
            if banner[start..].starts_with(BANNER_END) {
                break;
            }
        }
        let ready = std::fs::read(ready_file).expect("the ready file is there once it serves");
        Self {
            child,
            _stdout: stdout,
            banner,
            ready: serde_json::from_slice(&ready).unwrap(),
        }
    }

    fn nfs_url(&self, path: &str) -> String {
        format!("nfs://127.0.0.1:{}{path}", self.ready["nfs"]["port"])
    }

    /// Ends it as `kill` does; returns its exit code.
    fn terminate(self) -> i32 {
        self.end(Signal::TERM)
    }

    /// Ends it as a crash does.
    fn crash(self) {
        self.end(Signal::KILL);
    }

    fn end(mut self, signal: Signal) -> i32 {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.child.wait().unwrap().code().unwrap_or(-1)
    }

    /// GET over plain HTTP: status line, headers and body.
    fn get(&self, path: &str, token: Option<&str>) -> String {
        let url = self.ready["admin"]["url"].as_str().unwrap();
        let address = url.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        let authorization = token
            .map(|token| format!("Authorization: Bearer {token}\r\n"))
            .unwrap_or_default();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{authorization}\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn token(&self) -> String {
        let path = self.ready["token_file"].as_str().unwrap();
        std::fs::read_to_string(path).unwrap().trim().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_first_start_makes_a_pool_and_a_restart_keeps_it() {
    let scratch = Scratch::new(1);
    let server = scratch.serve();
    for part in [
        "NO REDUNDANCY",
        "mount -t nfs",
        "macOS",
        "Windows",
        "127.0.0.1:/main",
        "token",
        "config",
        "stop",
    ] {
        assert!(
            server.banner.contains(part),
            "{part} is missing: {}",
            server.banner
        );
    }
    assert_eq!(server.ready["volumes"][0], "main");
    assert_eq!(server.ready["pid"], server.child.id());

    // A second server on the same disk is refused and names the first.
    let (code, text) = finished(scratch.serve_command().output().unwrap());
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains(&format!("process {}", server.child.id())),
        "{text}"
    );

    let status = scratch.json("status --json");
    assert_eq!(status["health"], "no_redundancy");
    assert_eq!(status["volumes"][0]["name"], "main");
    assert_eq!(status["memory"]["limit_bytes"], 256 << 20);
    for view in ["status", "disk list", "volume list"] {
        assert!(scratch.cairn(view).1.contains("NO REDUNDANCY"), "{view}");
    }
    let exports = scratch.json("export list --json");
    assert_eq!(exports["exports"][0]["rules"][0]["client"], "127.0.0.0/8");
    let pool = status["pool"]["id"].clone();

    assert_eq!(
        scratch
            .cairn("volume create kept --compression zstd:5 --size-limit 1GiB")
            .0,
        0
    );
    assert_eq!(
        scratch.cairn("export set kept --client 10.0.0.0/8 --ro").0,
        0
    );
    assert_eq!(server.terminate(), 0);
    assert!(!scratch.path("ready.json").exists());
    assert_eq!(scratch.cairn("status").0, 3);

    let server = scratch.serve();
    assert_eq!(scratch.json("status --json")["pool"]["id"], pool);
    let kept = scratch.json("volume show kept --json");
    assert_eq!(kept["compression"], "zstd:5");
    assert_eq!(kept["size_limit"], "1 GiB");
    assert_eq!(
        scratch.json("export list --json")["exports"][1]["rules"][0]["access"],
        "ro"
    );
    assert_eq!(server.end(Signal::INT), 0);
}

/// As on a file system that is full, or with a reader of the log that is gone.
#[test]
fn a_standard_error_that_takes_nothing_ends_nothing() {
    let scratch = Scratch::new(2);
    let mut command = scratch.serve_command();
    let full = std::fs::File::create("/dev/full").unwrap();
    command.env("RUST_LOG", "info").stderr(full);
    let server = Server::start(command, &scratch.path("ready.json"));
    let (code, output) = scratch.cairn("volume create one");
    assert_eq!(code, 0, "{output}");
    let (code, output) = scratch.cairn("volume show one");
    assert_eq!(code, 0, "{output}");
    assert_eq!(server.terminate(), 0);
}

#[test]
fn volumes_and_exports_are_managed() {
    let scratch = Scratch::new(3);
    let server = scratch.serve();
    let no_server = scratch.path("none");
    let wrong_token = scratch.path("wrong-token");
    std::fs::write(&wrong_token, "0123456789abcdef0123456789abcdef").unwrap();
    let wrong_token = format!("volume list --token-file {}", wrong_token.display());
    let no_token = format!("volume list --token-file {}", no_server.display());
    let cases: &[(&str, i32, &str)] = &[
        ("volume create one", 0, "3 mirrors"),
        ("volume create one", 4, "there is a volume"),
        (
            "volume create two --protection 2x --json",
            0,
            "\"layout\": \"2 mirrors\"",
        ),
        ("volume create wide --protection +4n", 4, "disks"),
        ("volume create a/b", 2, "volume name"),
        ("volume show one", 0, "3 mirrors"),
        ("volume show none", 1, "no volume"),
        ("volume set one", 2, "no setting to change"),
        (
            "volume set one --access-pattern streaming --compression none",
            0,
            "streaming",
        ),
        ("volume set one --protection none", 0, "NO REDUNDANCY"),
        ("volume list", 0, "streaming"),
        ("volume list --json", 0, "\"volumes\""),
        ("disk list --json", 0, "\"disks\""),
        (
            "export set one --client 10.0.0.0/8 --client ::1 --squash all --anonuid 99",
            0,
            "99:65534",
        ),
        ("export set one --client 10.1.2.3/8 --ro", 0, "ro"),
        ("export set none --client 10.0.0.0/8", 1, "no volume"),
        ("export remove one --client 10.0.0.1", 1, "no rule"),
        ("export remove one --client ::1", 0, "10.0.0.0/8"),
        ("export list", 0, "/two"),
        ("volume delete one", 2, "--yes"),
        ("volume delete one --yes", 4, "exported"),
        ("volume delete one --yes --force", 0, "deleted"),
        ("volume delete one --yes", 1, "no volume"),
        ("volume delete two --yes --json", 0, "\"deleted\": \"two\""),
        (&wrong_token, 4, "not this server's"),
        (&no_token, 4, "token"),
        ("status --server http://127.0.0.1:9", 3, "no answer"),
        ("status --server https://127.0.0.1", 2, "--ca"),
        ("status --server 127.0.0.1", 2, "https://127.0.0.1"),
        ("status --server http://192.0.2.1:9", 2, "--insecure"),
        ("status --server ftp://127.0.0.1", 2, "http://"),
    ];
    for (line, code, part) in cases {
        let (got, text) = scratch.cairn(line);
        assert_eq!(got, *code, "cairn {line}: {text}");
        assert!(text.contains(part), "cairn {line}: {text}");
    }
    // Nothing is left of deleted volumes: 1 is main, 2 and 3 are gone.
    for disk in 0..3 {
        for id in ["00000002", "00000003"] {
            assert!(!scratch.disk(disk).join("volumes").join(id).is_dir());
        }
    }
    assert_eq!(server.terminate(), 0);
}

#[test]
fn config_files_are_checked() {
    let scratch = Scratch::new(1);
    let cases: &[(&str, i32, &[&str])] = &[
        ("data = [\"a\"]\n", 0, &["no errors"]),
        ("", 0, &["no errors", "needs --data"]),
        (
            "listen_nsf = \"x\"\nthreads = 0\n",
            2,
            &[
                "line 1: unknown key \"listen_nsf\"; did you mean \"listen_nfs\"?",
                "line 2: threads: 0 is not between 1 and 256",
            ],
        ),
        ("data = [\"a\", \"a\"]\n", 2, &["given twice"]),
    ];
    let file = scratch.path("c.toml");
    for (content, want, parts) in cases {
        std::fs::write(&file, content).unwrap();
        let (code, text) = scratch.cairn("config check c.toml");
        assert_eq!(code, *want, "{content:?}: {text}");
        for part in *parts {
            assert!(text.contains(part), "{content:?}: {text}");
        }
        let mut command = scratch.command();
        let output = command
            .args(["config", "check", "c.toml", "--json"])
            .output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(*want));
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let problems = json["problems"].as_array().unwrap();
        assert_eq!(problems.is_empty(), *want == 0, "{json}");
    }
    for (line, part) in [
        ("config check none.toml", "No such file"),
        ("config check .", "directory"),
        ("config check /dev/zero", "no config file is that large"),
        ("serve --config none.toml", "No such file"),
        ("serve --config c.toml", "given twice"),
        ("serve", "--data DIR"),
        (
            "serve --data new --ready-file missing/ready.json",
            "the folder missing does not exist",
        ),
    ] {
        let (code, text) = scratch.cairn(line);
        assert_eq!(code, 2, "{line}: {text}");
        assert!(text.contains(part), "{line}: {text}");
    }
    assert!(!scratch.path("new").exists(), "nothing is made before that");
}

#[test]
fn the_admin_api_answers_over_http() {
    let scratch = Scratch::new(2);
    let server = scratch.serve();
    let token = server.token();
    assert!(server.get("/healthz", None).starts_with("HTTP/1.1 200"));
    assert!(
        server
            .get("/api/v1/openapi.json", None)
            .contains("/api/v1/volumes/{name}")
    );
    assert!(
        server
            .get("/api/v1/status", None)
            .starts_with("HTTP/1.1 401")
    );
    let status = server.get("/api/v1/status", Some(&token));
    assert!(
        status.starts_with("HTTP/1.1 200") && status.contains("\"2 mirrors\""),
        "{status}"
    );
    assert!(server.get("/metrics", None).starts_with("HTTP/1.1 401"));
    let metrics = server.get("/metrics", Some(&token));
    for name in [
        "cairn_nfs_request_duration_seconds",
        "cairn_nfs_read_bytes_total",
        "cairn_volume_dirty_bytes{volume=\"main\"}",
        "cairn_disk_healthy",
        "cairn_cache_bytes",
        "cairn_gc_segments_removed_total",
        "cairn_log_syncs_total",
        "process_resident_memory_bytes",
    ] {
        assert!(metrics.contains(name), "{name} is missing: {metrics}");
    }
    assert_eq!(server.terminate(), 0);
}

#[test]
fn data_survives_a_crash_and_two_lost_disks() {
    let scratch = Scratch::new(6);
    let tree = scratch.path("tree");
    make_tree(&tree);
    let server = scratch.serve();
    // Its six folders are on one drive.
    assert_eq!(scratch.json("status --json")["health"], "no_redundancy");
    let copied = scratch.cairn_words(&[
        "cp",
        "-r",
        "-q",
        tree.to_str().unwrap(),
        &server.nfs_url("/main/tree"),
    ]);
    assert_eq!(copied.0, 0, "{}", copied.1);
    server.crash();
    std::fs::remove_dir_all(scratch.disk(1)).unwrap();
    std::fs::remove_dir_all(scratch.disk(4)).unwrap();

    let server = scratch.serve();
    assert!(server.banner.contains("MISSING"), "{}", server.banner);
    assert!(!scratch.disk(1).exists(), "a lost disk is not made anew");
    let status = scratch.json("status --json");
    assert_eq!(status["health"], "degraded", "{status}");
    let back = scratch.path("back");
    let copied = scratch.cairn_words(&[
        "cp",
        "-r",
        "-q",
        &server.nfs_url("/main/tree"),
        back.to_str().unwrap(),
    ]);
    assert_eq!(copied.0, 0, "{}", copied.1);
    assert_eq!(contents(&tree), contents(&back));
    assert_eq!(server.terminate(), 0);

    // The third is one too many.
    std::fs::remove_dir_all(scratch.disk(0)).unwrap();
    let (code, text) = finished(scratch.serve_command().output().unwrap());
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("disk0") && text.contains("disk4"), "{text}");
}

fn make_tree(root: &Path) {
    std::fs::create_dir_all(root.join("folder/deeper")).unwrap();
    let mut number = 1u32;
    for (name, len) in [
        ("empty", 0),
        ("small", 100),
        ("folder/some", 200_000),
        ("folder/deeper/large", 5 << 20),
    ] {
        let bytes: Vec<u8> = (0..len)
            .map(|_| {
                number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (number >> 24) as u8
            })
            .collect();
        std::fs::write(root.join(name), bytes).unwrap();
    }
    for index in 0..100 {
        std::fs::write(
            root.join(format!("folder/file{index}")),
            format!("file {index}"),
        )
        .unwrap();
    }
}

/// Every file below `root` with its bytes, sorted.
fn contents(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().to_owned();
                found.push((name, std::fs::read(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// The file by which commands found the first one was taken over by the second, and went with it.
#[test]
fn servers_of_one_machine_are_found_whichever_of_them_ends() {
    let (one, other) = (Scratch::new(1), Scratch::new(1));
    let beside_one = |scratch: &Scratch| {
        let mut command = scratch.serve_command();
        command.env("CAIRN_RUNTIME_DIR", one.path("run"));
        Server::start(command, &scratch.path("ready.json"))
    };
    let found = || {
        let status = one.json("status --json");
        status["pid"].as_u64().unwrap()
    };
    let first = beside_one(&one);
    let second = beside_one(&other);
    let (first_pid, second_pid) = (first.ready["pid"].as_u64(), second.ready["pid"].as_u64());
    assert_eq!(Some(found()), first_pid);
    // Refused: somebody has its disk.
    let mut refused = other.serve_command();
    refused.env("CAIRN_RUNTIME_DIR", one.path("run"));
    let (code, text) = finished(refused.output().unwrap());
    assert_ne!(code, 0, "{text}");
    assert_eq!(Some(found()), first_pid);
    assert_eq!(first.terminate(), 0);
    assert_eq!(Some(found()), second_pid);
    // The next one has the usual place again; what ends takes only its own.
    let third = beside_one(&one);
    assert_eq!(second.terminate(), 0);
    assert_eq!(Some(found()), third.ready["pid"].as_u64());
    assert_eq!(third.terminate(), 0);
    let left = std::fs::read_dir(one.path("run")).unwrap().count();
    assert_eq!(left, 0);
}

/// The token goes with no disk, and comes with none.
#[test]
fn the_token_is_on_no_disk() {
    let scratch = Scratch::new(3);
    let server = scratch.serve();
    let token = server.token();
    let path = scratch.path("state/admin-token");
    let same = |path: &Path| path.canonicalize().unwrap();
    let told = PathBuf::from(server.ready["token_file"].as_str().unwrap());
    assert_eq!(same(&told), same(&path));
    let added = format!("disk add {}", scratch.path("added").display());
    let (code, text) = scratch.cairn(&added);
    assert_eq!(code, 0, "{text}");
    let removed = format!("disk remove {}", scratch.disk(0).display());
    let (code, text) = scratch.cairn(&removed);
    assert_eq!(code, 0, "{text}");
    for disk in [scratch.disk(1), scratch.disk(2), scratch.path("added")] {
        for name in ["admin-token", "server.json"] {
            assert!(!disk.join(name).exists(), "{name} in {}", disk.display());
        }
    }
    assert_eq!(server.terminate(), 0);

    let server = scratch.serve();
    assert_eq!(server.token(), token);
    assert_eq!(server.terminate(), 0);

    // Another one that the operator puts there.
    let other = "another-token-of-the-operator";
    std::fs::write(&path, other).unwrap();
    let server = scratch.serve();
    assert_eq!(server.token(), other);
    assert_eq!(scratch.cairn("volume list").0, 0);
    assert_eq!(server.terminate(), 0);

    // On a disk it is refused, before anything is made.
    let fresh = Scratch::new(1);
    for flag in ["--token-file", "--state-dir"] {
        let mut command = fresh.serve_command();
        command.arg(flag).arg(fresh.disk(0).join("secrets"));
        let (code, text) = finished(command.output().unwrap());
        assert_eq!(code, 4, "{text}");
        assert!(text.contains("data disk"), "{text}");
    }
}

#[test]
fn wrong_folders_and_ports_are_refused() {
    let scratch = Scratch::new(1);
    std::fs::create_dir_all(scratch.disk(0)).unwrap();
    std::fs::write(scratch.disk(0).join("thesis.tex"), "precious").unwrap();
    let (code, text) = finished(scratch.serve_command().output().unwrap());
    assert_eq!(code, 4, "{text}");
    assert!(text.contains("thesis.tex"), "{text}");
    std::fs::remove_file(scratch.disk(0).join("thesis.tex")).unwrap();

    let server = scratch.serve();
    // A port that is taken: say which flag helps.
    let other = Scratch::new(1);
    let mut command = other.serve_command();
    let taken = format!("127.0.0.1:{}", server.ready["nfs"]["port"]);
    let mut words: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let place = words
        .iter()
        .position(|word| word == "--listen-nfs")
        .unwrap();
    words[place + 1] = taken.into();
    command = other.command();
    let (code, text) = finished(command.args(words).output().unwrap());
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("--listen-nfs"), "{text}");
    assert!(
        !other.disk(0).exists(),
        "nothing is made when the start fails"
    );
    server.crash();

    // Its address may be anybody's by now: nothing is asked there, and no token sent.
    let (code, text) = scratch.cairn("status");
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("is no longer running"), "{text}");

    // A folder that is not a member of the pool.
    let mut command = scratch.serve_command();
    command.arg("--data").arg(scratch.path("stranger"));
    let (code, text) = finished(command.output().unwrap());
    assert_eq!(code, 4, "{text}");
    assert!(text.contains("stranger is not a disk of pool"), "{text}");
    assert!(!scratch.path("stranger").exists());
}

#[test]
fn configs_are_read_and_checked() {
    let scratch = Scratch::new(0);
    let file = scratch.path("cairn.toml");
    let check = format!("config check {}", file.display());
    std::fs::write(
        &file,
        "listen_nsf = \"127.0.0.1:0\"\nmemory_limit = \"1 MiB\"\n",
    )
    .unwrap();
    let (code, text) = scratch.cairn(&check);
    assert_eq!(code, 2, "{text}");
    assert!(
        text.contains("line 1") && text.contains("did you mean \"listen_nfs\""),
        "{text}"
    );
    std::fs::write(&file, "memory_limit = \"1 MiB\"\n").unwrap();
    assert_eq!(scratch.cairn(&check).0, 2);
    let good = "data = [\"pool/a\", \"pool/b\"]\nlisten_nfs = \"127.0.0.1:1\"\n\
                listen_admin = \"127.0.0.1:0\"\nready_file = \"ready.json\"\n";
    std::fs::write(&file, good).unwrap();
    let (code, text) = scratch.cairn(&check);
    assert_eq!((code, text.contains("no errors")), (0, true), "{text}");

    // Flags win: with the file's port 1 it could not start as a normal user, nor twice as root.
    let mut command = scratch.command();
    command
        .args(["serve", "--listen-nfs", "127.0.0.1:0", "--config"])
        .arg(&file);
    let server = Server::start(command, &scratch.path("ready.json"));
    assert!(server.banner.contains("2 mirrors"), "{}", server.banner);
    assert!(scratch.path("pool/b/cairn-disk").exists());
    assert_eq!(server.terminate(), 0);
    assert_eq!(scratch.cairn("serve").0, 2);
}

#[test]
fn documents_are_printed() {
    let scratch = Scratch::new(0);
    let pages = scratch.path("man");
    let cases: &[(&str, &str)] = &[
        ("completions bash", "_cairn()"),
        ("completions zsh", "#compdef cairn"),
        ("completions fish", "complete -c cairn"),
        ("man", "Exit codes"),
        ("openapi", "\"openapi\""),
        ("--help", "Exit codes"),
        ("--version", "cairn "),
    ];
    for (line, part) in cases {
        let (code, text) = scratch.cairn(line);
        assert_eq!(code, 0, "{line}: {text}");
        assert!(text.contains(part), "{line}: {text}");
    }
    assert_eq!(
        scratch.cairn(&format!("man --out {}", pages.display())).0,
        0
    );
    for page in ["cairn.1", "cairn-serve.1", "cairn-volume-create.1"] {
        assert!(pages.join(page).exists(), "{page}");
    }
}
