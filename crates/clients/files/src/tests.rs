//! The commands against a server in memory and a scratch directory.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;

use cairn_nfs_client::testing::{Action, FakeServer};
use cairn_nfs_client::v3::{ErrorStatus, Procedure};
use clap::Parser;
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::{CatArgs, Console, CpArgs, Exit, LsArgs, RmArgs, StatArgs};

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Buffer {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock()).into_owned()
    }
}

#[derive(Parser)]
enum Command {
    Ls(LsArgs),
    Cp(CpArgs),
    Cat(CatArgs),
    Rm(RmArgs),
    Stat(StatArgs),
}

/// What a command did: exit, standard output, standard error.
type Outcome = (Exit, String, String);

async fn run(line: &[&str]) -> Outcome {
    let command = Command::try_parse_from([&["cairn"], line].concat()).expect("arguments");
    let (out, err) = (Buffer::default(), Buffer::default());
    let mut console = Console {
        out: Box::new(out.clone()),
        err: Box::new(err.clone()),
        out_is_terminal: false,
        err_is_terminal: false,
    };
    let exit = match command {
        Command::Ls(args) => crate::ls(&args, &mut console).await,
        Command::Cp(args) => crate::cp(&args, &mut console).await,
        Command::Cat(args) => crate::cat(&args, &mut console).await,
        Command::Rm(args) => crate::rm(&args, &mut console).await,
        Command::Stat(args) => crate::stat(&args, &mut console).await,
    };
    (exit, out.text(), err.text())
}

async fn run_ok(line: &[&str]) -> String {
    let (exit, out, err) = run(line).await;
    assert_eq!((exit, err.as_str()), (Exit::Ok, ""), "{line:?}");
    out
}

/// The exit and the error of a command that must not do what it says.
async fn run_failing(line: &[&str]) -> (Exit, String) {
    let (exit, _, err) = run(line).await;
    assert_ne!(exit, Exit::Ok, "{line:?}");
    (exit, err)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}

fn pattern(len_bytes: usize, seed: usize) -> Vec<u8> {
    (0..len_bytes)
        .map(|index| (index * 31 + (index >> 8) + seed) as u8 | 1)
        .collect()
}

/// Everything a copy must keep, by path. Directories have no size and links of their own.
fn describe(root: &Path) -> BTreeMap<String, String> {
    fn walk(root: &Path, dir: &Path, inodes: &mut Vec<u64>, all: &mut BTreeMap<String, String>) {
        let mut entries: Vec<_> = fs::read_dir(dir)
            .expect("listed")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        entries.sort();
        for path in entries {
            let metadata = fs::symlink_metadata(&path).expect("metadata");
            let kind = metadata.file_type();
            let contents = if kind.is_symlink() {
                format!("-> {:?}", fs::read_link(&path).expect("a target"))
            } else if kind.is_file() {
                // Names of one file share a number: the first that was seen.
                let number = inodes.iter().position(|ino| *ino == metadata.ino());
                let number = number.unwrap_or_else(|| {
                    inodes.push(metadata.ino());
                    inodes.len() - 1
                });
                let bytes = fs::read(&path).expect("read");
                let sum = bytes.iter().fold(7u64, |sum, byte| {
                    sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
                });
                format!("{} bytes, {sum:x}, file {number}", bytes.len())
            } else {
                format!("dir {} fifo {}", kind.is_dir(), kind.is_fifo())
            };
            let shown = format!(
                "{:o} {}.{:09} {contents}",
                metadata.mode()
                    & if kind.is_symlink() {
                        0o170000
                    } else {
                        0o177777
                    },
                metadata.mtime(),
                metadata.mtime_nsec(),
            );
            let name = path.strip_prefix(root).expect("inside").to_owned();
            all.insert(name.to_string_lossy().into_owned(), shown);
            if kind.is_dir() {
                walk(root, &path, inodes, all);
            }
        }
    }
    let mut all = BTreeMap::new();
    walk(root, root, &mut Vec::new(), &mut all);
    all
}

/// A tree with one of everything.
fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("sub/deep/empty")).expect("made");
    fs::create_dir(root.join("many")).expect("made");
    for index in 0..300 {
        fs::write(root.join(format!("many/{index}")), pattern(index, index)).expect("written");
    }
    fs::write(root.join("small"), b"hello").expect("written");
    fs::write(root.join("nothing"), b"").expect("written");
    fs::write(root.join("large"), pattern(3_000_001, 5)).expect("written");
    fs::write(root.join("sub/edge"), pattern(64 << 10, 3)).expect("written");
    fs::write(root.join("sub/past"), pattern((64 << 10) + 1, 4)).expect("written");
    fs::hard_link(root.join("large"), root.join("sub/deep/large-too")).expect("linked");
    std::os::unix::fs::symlink("../small", root.join("sub/link")).expect("linked");
    std::os::unix::fs::symlink("nowhere", root.join("dangling")).expect("linked");
    let fifo = rustix::fs::FileType::Fifo;
    let mode = rustix::fs::Mode::from_raw_mode(0o620);
    rustix::fs::mknodat(rustix::fs::CWD, root.join("fifo"), fifo, mode, 0).expect("made");
    let sparse = fs::File::create(root.join("sparse")).expect("made");
    sparse.write_all_at(b"begin", 0).expect("written");
    sparse.write_all_at(b"middle", 1 << 20).expect("written");
    sparse.set_len(3 << 20).expect("extended");
    for (path, mode) in [("small", 0o4751), ("sub/edge", 0o400), ("sub/deep", 0o1711)] {
        fs::set_permissions(root.join(path), fs::Permissions::from_mode(mode)).expect("set");
    }
    for (path, seconds) in [
        ("small", 1_000_000_000),
        ("nothing", 7),
        ("sub", 1_500_000_000),
    ] {
        let time = std::time::UNIX_EPOCH + std::time::Duration::new(seconds, 123_456_789);
        let file = fs::File::open(root.join(path)).expect("opened");
        file.set_modified(time).expect("set");
    }
}

#[tokio::test]
async fn a_tree_goes_there_across_and_back_and_is_the_same() {
    let (server, other) = (FakeServer::start().await, FakeServer::start().await);
    let scratch = TempDir::new().expect("a scratch directory");
    let source = scratch.path().join("source");
    make_tree(&source);
    let (there, across) = (server.url("/tree"), other.url("/tree"));
    run_ok(&["cp", "-r", text(&source), &there]).await;
    run_ok(&["cp", "-r", "--jobs", "3", &there, &across]).await;
    let back = scratch.path().join("back");
    run_ok(&["cp", "-r", &across, text(&back)]).await;
    let (want, got) = (describe(&source), describe(&back));
    for (path, want) in &want {
        assert_eq!(got.get(path), Some(want), "{path}");
    }
    assert_eq!(got.len(), want.len());
    // Holes stayed holes on each side.
    let used = |server: &FakeServer| server.attributes("tree/sparse").map(|it| it.used_bytes);
    assert!(used(&server) <= Some(256 << 10), "{:?}", used(&server));
    assert!(used(&other) <= Some(256 << 10), "{:?}", used(&other));
    let blocks = fs::metadata(back.join("sparse")).expect("there").blocks();
    assert!(blocks * 512 <= 256 << 10, "{blocks}");
    // Everything was committed.
    assert_eq!(
        server.stable("tree/large").map(|it| it.len()),
        Some(3_000_001)
    );
    // Again, over what is there.
    run_ok(&["cp", "-r", &format!("{}/.", text(&source)), &there]).await;
    run_ok(&["cp", "-r", &there, text(scratch.path())]).await;
    assert_eq!(describe(&scratch.path().join("tree")), want);
}

#[tokio::test]
async fn names_at_the_destination_are_those_of_cp() {
    let server = FakeServer::start().await;
    let scratch = TempDir::new().expect("a scratch directory");
    let file = scratch.path().join("file");
    fs::write(&file, b"x").expect("written");
    let dir = scratch.path().join("dir");
    fs::create_dir(&dir).expect("made");
    fs::write(dir.join("inside"), b"y").expect("written");
    let (root, new) = (server.url(""), server.url("/new"));
    run_ok(&["cp", text(&file), &root]).await;
    run_ok(&["cp", text(&file), &new]).await;
    run_ok(&["cp", "-r", text(&dir), &root]).await;
    run_ok(&["cp", "-r", text(&dir), &server.url("/copy/")]).await;
    run_ok(&[
        "cp",
        "-r",
        &format!("{}/.", text(&dir)),
        &server.url("/copy/"),
    ])
    .await;
    run_ok(&["cp", "-r", text(&dir), &server.url("/copy")]).await;
    run_ok(&["cp", text(&file), &new, &server.url("/copy/")]).await;
    assert_eq!(server.names(""), ["copy", "dir", "file", "new"]);
    assert_eq!(server.names("copy"), ["dir", "file", "inside", "new"]);
    assert_eq!(server.names("copy/dir"), ["inside"]);
}

#[tokio::test]
async fn what_makes_no_sense_is_refused() {
    let server = FakeServer::start().await;
    let scratch = TempDir::new().expect("a scratch directory");
    let here = text(scratch.path());
    let file = scratch.path().join("file");
    fs::write(&file, b"x").expect("written");
    let file = text(&file);
    let root = server.url("");
    let (at_file, at_dir) = (server.url("/file"), server.url("/dir"));
    run_ok(&["cp", file, &at_file]).await;
    run_ok(&["cp", "-r", here, &at_dir]).await;
    let gone = server.url("/gone");
    let gone_dir = server.url("/gone/");
    let in_file = server.url("/file/");
    let in_gone = server.url("/gone/x");
    let into_itself = server.url("/dir/copy");
    // Bound and dropped: nobody listens there.
    let unused = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let nobody = format!("nfs://{}/main", unused.expect("a free port"));
    let cases: Vec<(Vec<&str>, Exit, &str)> = vec![
        (vec!["cp", here, &root], Exit::Failed, "copy it with -r"),
        (vec!["cp", &root, here], Exit::Failed, "copy it with -r"),
        (vec!["cp", file, here], Exit::Usage, "both here"),
        (vec!["cp", "nfs://", here], Exit::Usage, "names no host"),
        (vec!["cp", &gone, here], Exit::Failed, "no such file"),
        (vec!["cp", file, &gone_dir], Exit::Failed, "not a directory"),
        (vec!["cp", file, &in_file], Exit::Failed, "not a directory"),
        (vec!["cp", file, &in_gone], Exit::Failed, "no such file"),
        (vec!["cp", file, file, &gone], Exit::Failed, "several files"),
        (
            vec!["cp", &at_file, &at_file],
            Exit::Failed,
            "the same file",
        ),
        (
            vec!["cp", "-r", &at_dir, &root],
            Exit::Failed,
            "same directory",
        ),
        (
            vec!["cp", "-r", &at_dir, &into_itself],
            Exit::Failed,
            "that the copies go to",
        ),
        (
            vec!["cp", "-r", here, &at_file],
            Exit::Failed,
            "something else",
        ),
        (vec!["rm", &root], Exit::Usage, "whole export"),
        (vec!["rm", &at_dir], Exit::Failed, "with -r"),
        (vec!["rm", &gone], Exit::Failed, "no such file"),
        (vec!["cat", &at_dir], Exit::Failed, "is a directory"),
        (vec!["ls", &gone], Exit::Failed, "no such file"),
        (vec!["stat", "file"], Exit::Usage, "not an NFS URL"),
        (vec!["ls", &nobody], Exit::Unreachable, "no connection"),
        (vec!["ls", &nobody, "x"], Exit::Usage, "no connection"),
        (vec!["ls", &gone, &nobody], Exit::Failed, "no connection"),
    ];
    for (line, want_exit, want) in cases {
        let (exit, error) = run_failing(&line).await;
        assert_eq!(exit, want_exit, "{line:?}: {error}");
        assert!(error.contains(want), "{line:?}: {error}");
    }
    assert_eq!(server.stable("file"), Some(b"x".to_vec()));
}

#[tokio::test]
async fn one_failure_does_not_stop_the_others_and_leaves_nothing_half() {
    let server = FakeServer::start().await;
    let scratch = TempDir::new().expect("a scratch directory");
    for index in 0..10 {
        let path = scratch.path().join(index.to_string());
        fs::write(path, pattern(200_000, index)).expect("written");
    }
    let mut actions: VecDeque<Action> = [Action::Answer, Action::Fail(ErrorStatus::NoSpc)].into();
    server.script(move |procedure| match procedure {
        Procedure::Write => actions.pop_front().unwrap_or(Action::Answer),
        _ => Action::Answer,
    });
    let (exit, error) =
        run_failing(&["cp", "-r", text(scratch.path()), &server.url("/copy")]).await;
    assert_eq!(exit, Exit::Failed);
    assert!(error.contains("no space left on the volume"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert_eq!(server.names("copy").len(), 9);
}

/// One server has two addresses: what is copied is not emptied, and no folder is copied into itself.
#[tokio::test]
async fn a_file_is_known_under_another_address_of_its_server() {
    let server = FakeServer::start().await;
    let other = server.other_address().await;
    let scratch = TempDir::new().expect("a scratch directory");
    let (file, data) = (scratch.path().join("file"), pattern(300_000, 1));
    fs::write(&file, &data).expect("written");
    run_ok(&["cp", text(&file), &server.url("/file")]).await;
    let (_, error) = run_failing(&["cp", &server.url("/file"), &other.url("/file")]).await;
    assert!(error.contains("the same file"), "{error}");
    assert_eq!(server.stable("file"), Some(data));

    fs::create_dir_all(scratch.path().join("dir/sub")).expect("made");
    let dir = scratch.path().join("dir");
    run_ok(&["cp", "-r", text(&dir), &server.url("/dir")]).await;
    let (from, to) = (server.url("/dir"), other.url("/dir/copy"));
    let (_, error) = run_failing(&["cp", "-r", &from, &to]).await;
    assert!(error.contains("that the copies go to"), "{error}");
    let (_, error) = run_failing(&["cp", "-r", &server.url("/dir/."), &other.url("/dir")]).await;
    assert!(error.contains("the same directory"), "{error}");
    assert_eq!(server.names("dir/copy"), ["sub"]);
}

/// What one name stands for cannot be read: the others are listed, copied and removed.
#[tokio::test]
async fn one_name_that_cannot_be_looked_at_stops_no_others() {
    let server = FakeServer::start().await;
    server.without_readdirplus();
    let scratch = TempDir::new().expect("a scratch directory");
    let dir = scratch.path().join("dir");
    fs::create_dir(&dir).expect("made");
    for index in 0..40 {
        fs::write(dir.join(format!("{index:02}")), pattern(9, index)).expect("written");
    }
    run_ok(&["cp", "-r", text(&dir), &server.url("/dir")]).await;
    let fail_one = || {
        let mut count = 0;
        server.script(move |procedure| {
            count += u32::from(procedure == Procedure::Lookup);
            // The first is that of the folder.
            match count == 7 && procedure == Procedure::Lookup {
                true => Action::Fail(ErrorStatus::Io),
                false => Action::Answer,
            }
        });
    };
    fail_one();
    let (exit, out, error) = run(&["ls", "-l", &server.url("/dir")]).await;
    assert_eq!((exit, out.lines().count()), (Exit::Failed, 39), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    fail_one();
    let copy = scratch.path().join("copy");
    let (exit, error) = run_failing(&["cp", "-r", &server.url("/dir"), text(&copy)]).await;
    assert_eq!((exit, error.lines().count()), (Exit::Failed, 1), "{error}");
    assert_eq!(fs::read_dir(&copy).expect("there").count(), 39);
    fail_one();
    run_ok(&["rm", "-r", &server.url("/dir")]).await;
    assert_eq!(server.names(""), Vec::<String>::new());
}

#[tokio::test]
async fn a_restart_of_the_server_in_the_middle_of_a_copy_loses_nothing() {
    let server = FakeServer::start().await;
    let scratch = TempDir::new().expect("a scratch directory");
    let file = scratch.path().join("file");
    let data = pattern(4_000_000, 1);
    fs::write(&file, &data).expect("written");
    let mut count = 0;
    server.script(move |procedure| {
        count += u32::from(procedure == Procedure::Write);
        match count == 20 && procedure == Procedure::Write {
            true => Action::RestartBefore,
            false => Action::Answer,
        }
    });
    run_ok(&["cp", text(&file), &server.url("/f")]).await;
    assert_eq!(server.stable("f"), Some(data));
}

#[tokio::test]
async fn names_in_urls_command_no_terminal() {
    let server = FakeServer::start().await;
    let scratch = TempDir::new().expect("a scratch directory");
    let file = scratch.path().join("file");
    fs::write(&file, "text").expect("written");
    let odd = server.url("/odd\u{1b}]0;x\u{7}\nrow");
    run_ok(&["cp", text(&file), &odd]).await;
    for line in [
        vec!["stat", &odd],
        vec!["ls", &odd, &odd],
        vec!["ls", "-l", &odd, &odd],
    ] {
        let out = run_ok(&line).await;
        let heading = out
            .lines()
            .find(|line| line.contains(":") && line.contains("odd"));
        let heading = heading.expect("the URL");
        assert!(heading.contains("odd\\u{1b}]0;x\\u{7}\\nrow"), "{out:?}");
        if line[0] == "stat" {
            assert!(!out.contains('\u{1b}'), "{out:?}");
        }
    }
}

#[tokio::test]
async fn files_are_listed_shown_and_removed() {
    let server = FakeServer::start().await;
    let scratch = TempDir::new().expect("a scratch directory");
    make_tree(&scratch.path().join("t"));
    let tree = server.url("/t");
    run_ok(&["cp", "-r", text(&scratch.path().join("t")), &tree]).await;

    let names = "dangling\nfifo\nlarge\nmany\nnothing\nsmall\nsparse\nsub\n";
    assert_eq!(run_ok(&["ls", &tree]).await, names);
    let mut unsorted: Vec<String> = run_ok(&["ls", "-U", &tree])
        .await
        .lines()
        .map(str::to_owned)
        .collect();
    unsorted.sort();
    assert_eq!(unsorted.join("\n") + "\n", names);
    let long = run_ok(&["ls", "-l", &tree]).await;
    let small = long.lines().find(|line| line.ends_with(" small"));
    let small = small.expect("listed");
    assert!(small.starts_with("-rwsr-x--x   1 "), "{small}");
    assert!(small.ends_with("5 2001-09-09 01:46 small"), "{small}");
    assert!(long.contains("dangling -> nowhere\n"), "{long}");
    let json: serde_json::Value =
        serde_json::from_str(&run_ok(&["ls", "--json", &tree]).await).expect("JSON");
    assert_eq!(json.as_array().map(Vec::len), Some(8));
    assert_eq!(json[5]["name"], "small");
    assert_eq!(json[5]["size_bytes"], 5);
    assert_eq!(json[5]["modified"], "2001-09-09T01:46:40.123456789Z");
    assert_eq!(json[0]["link_target"], "nowhere");
    assert_eq!(run_ok(&["ls", "-d", &tree]).await, "t\n");

    let small = format!("{tree}/small");
    let stat = run_ok(&["stat", &small]).await;
    assert!(stat.contains("Size: 5 bytes"), "{stat}");
    let stat = run_ok(&["stat", "--json", &small]).await;
    let stat: serde_json::Value = serde_json::from_str(&stat).expect("JSON");
    assert_eq!(
        (&stat["type"], &stat["mode"]),
        (&"file".into(), &"4751".into())
    );
    assert_eq!(
        run_ok(&["cat", &small, &format!("{tree}/sub/link")]).await,
        "hellohello"
    );

    run_ok(&["rm", &format!("{tree}/dangling"), &small]).await;
    run_ok(&["rm", "-f", &small]).await;
    run_ok(&["rm", "-r", &tree]).await;
    assert_eq!(server.names(""), Vec::<String>::new());
}

#[tokio::test]
async fn a_server_does_not_choose_where_a_copy_goes() {
    for name in ["../outside", "/OUTSIDE", "sub/../../outside"] {
        let server = FakeServer::start().await;
        let scratch = TempDir::new().expect("a scratch directory");
        let (outside, copy) = (scratch.path().join("outside"), scratch.path().join("copy"));
        let source = scratch.path().join("source");
        fs::write(&source, "new").expect("written");
        run_ok(&["cp", text(&source), &server.url("/file")]).await;
        fs::write(&outside, "old").expect("written");
        let name = name.replace("/OUTSIDE", text(&outside));
        server.plant("file", name.as_bytes());
        let (_, error) = run_failing(&["cp", "-r", &server.url("/"), text(&copy)]).await;
        assert!(error.contains("slash"), "{name}: {error}");
        assert_eq!(fs::read(&outside).expect("there"), b"old", "{name}");
    }
}

#[tokio::test]
async fn a_link_in_the_place_of_a_file_is_not_followed() {
    let server = FakeServer::start().await;
    let scratch = TempDir::new().expect("a scratch directory");
    let (target, source) = (scratch.path().join("target"), scratch.path().join("source"));
    fs::write(&target, "old").expect("written");
    let before = fs::metadata(&target).expect("there").permissions();
    // One name twice: the link to a file of this machine, and a file with another mode.
    std::os::unix::fs::symlink(&target, &source).expect("made");
    run_ok(&["cp", "-r", text(&source), &server.url("/link")]).await;
    fs::remove_file(&source).expect("removed");
    fs::write(&source, "new").expect("written");
    fs::set_permissions(&source, fs::Permissions::from_mode(0o777)).expect("set");
    run_ok(&["cp", "-p", text(&source), &server.url("/file")]).await;
    for (first, second) in [("link", "file"), ("file", "link")] {
        server.plant(first, b"twice");
        server.plant(second, b"twice");
        let copy = scratch.path().join(format!("copy-{first}"));
        let _ = run(&["cp", "-rp", &server.url("/"), text(&copy)]).await;
        assert_eq!(fs::read(&target).expect("there"), b"old");
        assert_eq!(fs::metadata(&target).expect("there").permissions(), before);
    }
}
