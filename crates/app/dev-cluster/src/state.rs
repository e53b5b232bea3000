//! The state of a cluster between commands: `cluster.json` in its folder.
//!
//! Owns: the file, who may change it, who may run the cluster. Must not know: how anything is done.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::faults::{Partition, Slow};
use crate::layout::{Addresses, Layout, Network, Role, machine_name, parse_machine};
use crate::process::Process;

const FILE_NAME: &str = "cluster.json";
const LOCK_NAME: &str = "cluster.lock";
const RUNNING_NAME: &str = "running.lock";
const VERSION: u32 = 1;

/// A whole cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    version: u32,
    /// The folder, as the kernel names it.
    pub folder: PathBuf,
    /// `cairn`.
    pub program: PathBuf,
    pub layout: Layout,
    pub disks: u16,
    /// Flags of `cairn serve` beside our own.
    pub serve_flags: Vec<String>,
    pub machines: Vec<Machine>,
}

/// One node, or one member of a separate etcd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    pub role: Role,
    /// From 1, among those of its role.
    pub index: u16,
    /// It belongs to the cluster: it need not join.
    pub joined: bool,
    /// What runs on it, and how that is started again.
    pub argv: Vec<String>,
    pub process: Option<Process>,
    pub partition: Option<Partition>,
    pub slow: Option<Slow>,
}

impl Machine {
    pub fn new(role: Role, index: u16) -> Self {
        Self {
            role,
            index,
            joined: false,
            argv: Vec::new(),
            process: None,
            partition: None,
            slow: None,
        }
    }

    pub fn name(&self) -> String {
        machine_name(self.role, self.index)
    }

    /// Its process, if that runs.
    pub fn running(&self) -> Option<&Process> {
        self.process.as_ref().filter(|process| process.is_running())
    }
}

impl State {
    pub fn new(folder: PathBuf, program: PathBuf, layout: Layout, disks: u16) -> Self {
        Self {
            version: VERSION,
            folder,
            program,
            layout,
            disks,
            serve_flags: Vec::new(),
            machines: Vec::new(),
        }
    }

    pub fn of_role(&self, role: Role) -> impl Iterator<Item = &Machine> {
        self.machines
            .iter()
            .filter(move |machine| machine.role == role)
    }

    pub fn count(&self, role: Role) -> u16 {
        // There are never more than fit.
        self.of_role(role).count() as u16
    }

    pub fn addresses(&self, machine: &Machine) -> Addresses {
        self.layout.addresses(machine.role, machine.index)
    }

    /// Where a machine keeps everything.
    pub fn home(&self, machine: &Machine) -> PathBuf {
        self.folder.join(machine.name())
    }

    /// The tag of the namespaces, if there are any.
    pub fn tag(&self) -> Option<&str> {
        match &self.layout.network {
            Network::Namespaces { tag, .. } => Some(tag),
            Network::Loopback => None,
        }
    }

    /// The position of the machine that somebody names.
    pub fn find(&self, text: &str) -> Result<usize, Error> {
        let found = parse_machine(text).and_then(|(role, index)| {
            let is_it = |machine: &Machine| machine.role == role && machine.index == index;
            self.machines.iter().position(is_it)
        });
        found.ok_or_else(|| {
            let names: Vec<String> = self.machines.iter().map(Machine::name).collect();
            Error::Usage(format!(
                "there is no \"{text}\" in the cluster of {}; there are {}",
                self.folder.display(),
                names.join(", ")
            ))
        })
    }
}

/// The file, in the folder of a cluster.
pub struct Store {
    folder: PathBuf,
}

/// Held while the cluster runs, by the process that runs it.
pub struct Running {
    _lock: File,
}

impl Store {
    /// Of a folder, which is made.
    pub fn create(folder: &Path) -> Result<Self, Error> {
        std::fs::create_dir_all(folder).map_err(Error::io("making the folder", folder))?;
        Self::at(folder)
    }

    /// Of a folder that has a cluster.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        if !folder.join(FILE_NAME).exists() {
            return Err(Error::Usage(format!(
                "{} has no cluster: start one with `cairn dev-cluster --dir {}`, or name its folder with --dir",
                folder.display(),
                folder.display()
            )));
        }
        Self::at(folder)
    }

    fn at(folder: &Path) -> Result<Self, Error> {
        let folder = std::fs::canonicalize(folder).map_err(Error::io("finding", folder))?;
        Ok(Self { folder })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Says that this process runs the cluster; refused if another does.
    pub fn run(&self) -> Result<Running, Error> {
        let lock = self.lock_file(RUNNING_NAME)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Running { _lock: lock }),
            Err(Errno::WOULDBLOCK) => Err(Error::Refused(format!(
                "the cluster of {} is running: end that `cairn dev-cluster` first, or take another folder with --dir",
                self.folder.display()
            ))),
            Err(error) => Err(self.lock_failed(error)),
        }
    }

    /// Whether some process runs the cluster.
    pub fn is_run(&self) -> Result<bool, Error> {
        let lock = self.lock_file(RUNNING_NAME)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(error) => Err(self.lock_failed(error)),
        }
    }

    fn lock_file(&self, name: &str) -> Result<File, Error> {
        let path = self.folder.join(name);
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        options.open(&path).map_err(Error::io("opening", &path))
    }

    fn lock_failed(&self, error: Errno) -> Error {
        Error::Io {
            what: format!("locking the cluster of {}", self.folder.display()),
            source: error.into(),
        }
    }

    /// The state; `None` before the first start.
    pub fn read(&self) -> Result<Option<State>, Error> {
        let path = self.folder.join(FILE_NAME);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("reading", &path)(error)),
        };
        let state: State = serde_json::from_slice(&text).map_err(|error| {
            Error::Failed(format!(
                "{} cannot be understood ({error}): remove the whole folder to begin anew",
                path.display()
            ))
        })?;
        if state.version != VERSION || state.folder != self.folder {
            return Err(Error::Refused(format!(
                "{} is of a cluster in {}, version {}; this is {}, version {VERSION}: a cluster cannot be moved or copied",
                path.display(),
                state.folder.display(),
                state.version,
                self.folder.display()
            )));
        }
        Ok(Some(state))
    }

    /// The state of a cluster that was started; an error if none was.
    pub fn known(&self) -> Result<State, Error> {
        self.read()?.ok_or_else(|| {
            Error::Usage(format!(
                "{} has no cluster yet: start it with `cairn dev-cluster`",
                self.folder.display()
            ))
        })
    }

    /// Changes what is known; one process at a time, which does what it writes down.
    pub fn change<T>(
        &self,
        change: impl FnOnce(&mut State) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let lock = self.lock_file(LOCK_NAME)?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)
            .map_err(|error| self.lock_failed(error))?;
        let mut state = self.known()?;
        // Steps that were done before a failure are written down as well.
        let changed = change(&mut state);
        self.write(&state)?;
        changed
    }

    /// Writes the file whole or not at all.
    pub fn write(&self, state: &State) -> Result<(), Error> {
        let path = self.folder.join(FILE_NAME);
        let failed = |error: std::io::Error| Error::io("writing", &path)(error);
        let mut file = tempfile::Builder::new()
            .prefix(".cluster")
            .tempfile_in(&self.folder)
            .map_err(failed)?;
        serde_json::to_writer_pretty(&mut file, state).map_err(|error| failed(error.into()))?;
        file.write_all(b"\n").map_err(failed)?;
        file.persist(&path).map_err(|error| failed(error.error))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::BASE_PORT_DEFAULT;

    fn state(folder: &Path) -> State {
        let layout = Layout {
            network: Network::Namespaces {
                tag: "cairn-012345".to_owned(),
                net: "10.213.7.0/24".parse().unwrap(),
            },
            base_port: BASE_PORT_DEFAULT,
        };
        let mut state = State::new(folder.to_owned(), "/usr/bin/cairn".into(), layout, 2);
        state.machines = vec![Machine::new(Role::Node, 1), Machine::new(Role::Etcd, 1)];
        state
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Store::open(folder.path()).is_err(), "no cluster yet");
        let store = Store::create(&folder.path().join("new")).unwrap();
        assert_eq!(store.read().unwrap(), None);
        assert!(store.change(|_| Ok(())).is_err(), "nothing to change yet");
        let mut state = state(store.folder());
        state.machines[0].process = Process::of_this();
        state.machines[0].slow = Some(Slow::default());
        state.machines[1].partition = Some(Partition::default());
        store.write(&state).unwrap();
        let store = Store::open(store.folder()).unwrap();
        assert_eq!(store.known().unwrap(), state);
        assert!(state.machines[0].running().is_some());
        // Also if the change failed in the end.
        let failed: Result<(), Error> = store.change(|state| {
            state.machines[0].joined = true;
            Err(Error::Failed("in the end".to_owned()))
        });
        assert!(failed.is_err());
        assert!(store.known().unwrap().machines[0].joined);
    }

    #[test]
    fn a_file_of_another_folder_or_version_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::create(folder.path()).unwrap();
        let good = state(store.folder());
        let moved = state(Path::new("/elsewhere"));
        let newer = State {
            version: VERSION + 1,
            ..good.clone()
        };
        for (state, want) in [(good, true), (moved, false), (newer, false)] {
            store.write(&state).unwrap();
            assert_eq!(store.read().is_ok(), want, "{state:?}");
        }
        std::fs::write(store.folder().join(FILE_NAME), "{}").unwrap();
        assert!(store.read().is_err());
    }

    #[test]
    fn one_process_runs_a_cluster() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::create(folder.path()).unwrap();
        assert!(!store.is_run().unwrap());
        let running = store.run().unwrap();
        assert!(store.is_run().unwrap());
        assert!(matches!(store.run(), Err(Error::Refused(_))));
        drop(running);
        store.run().unwrap();
    }

    #[test]
    fn machines_are_found_by_name() {
        let state = state(Path::new("/srv"));
        for (text, want) in [
            ("1", Some(0)),
            ("node1", Some(0)),
            ("etcd1", Some(1)),
            ("node2", None),
        ] {
            assert_eq!(state.find(text).ok(), want, "{text}");
        }
        assert_eq!(state.count(Role::Node), 1);
        assert_eq!(state.home(&state.machines[0]), Path::new("/srv/node1"));
    }
}
