//! The expected names of a small POSIX file system.
//!
//! Owns: the effect of each change on names, links, modes and attributes, and the error that refuses it. Must not know:
//! file bytes, durability, the engine.

use std::collections::BTreeMap;

use cairn_fs::FsError;

/// Names an inode of the model; the engine's number is unknown before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

pub const ROOT: NodeId = NodeId(0);

pub type Name = Vec<u8>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Dir(BTreeMap<Name, NodeId>),
    Symlink(Vec<u8>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub kind: Kind,
    pub nlink: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub parent: NodeId,
    pub xattrs: BTreeMap<Name, Vec<u8>>,
}

/// One change of names or attributes. `node` is the node that a creation makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Create {
        dir: NodeId,
        name: Name,
        node: NodeId,
        mode: u32,
    },
    /// A file comes with its bytes and an attribute, and replaces the present entry of this name.
    Put {
        dir: NodeId,
        name: Name,
        node: NodeId,
        /// Requires that the name is unused.
        absent: bool,
        words: u64,
        tag: u32,
        xattr: (Name, Vec<u8>),
    },
    MakeDir {
        dir: NodeId,
        name: Name,
        node: NodeId,
        mode: u32,
    },
    Symlink {
        dir: NodeId,
        name: Name,
        node: NodeId,
        target: Vec<u8>,
    },
    Remove {
        dir: NodeId,
        name: Name,
    },
    RemoveDir {
        dir: NodeId,
        name: Name,
    },
    Rename {
        from: NodeId,
        from_name: Name,
        to: NodeId,
        to_name: Name,
    },
    Link {
        node: NodeId,
        dir: NodeId,
        name: Name,
    },
    Chmod {
        node: NodeId,
        mode: u32,
    },
    /// Only the given fields.
    Chown {
        node: NodeId,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    /// Truncates a file; its effect on bytes is outside of the tree.
    Cut {
        node: NodeId,
        size_bytes: u64,
    },
    SetXattr {
        node: NodeId,
        name: Name,
        value: Vec<u8>,
    },
    RemoveXattr {
        node: NodeId,
        name: Name,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    pub nodes: BTreeMap<NodeId, Node>,
}

impl Default for Tree {
    fn default() -> Self {
        let root = Node::new(Kind::Dir(BTreeMap::new()), 0o755, ROOT);
        Self {
            nodes: BTreeMap::from([(ROOT, root)]),
        }
    }
}

impl Node {
    fn new(kind: Kind, mode: u32, parent: NodeId) -> Self {
        let nlink = if matches!(kind, Kind::Dir(_)) { 2 } else { 1 };
        Self {
            kind,
            nlink,
            mode,
            uid: 0,
            gid: 0,
            parent,
            xattrs: BTreeMap::new(),
        }
    }

    pub fn is_dir(&self) -> bool {
        matches!(self.kind, Kind::Dir(_))
    }
}

impl Tree {
    pub fn get(&self, node: NodeId) -> Result<&Node, FsError> {
        self.nodes.get(&node).ok_or(FsError::Stale)
    }

    fn node(&mut self, node: NodeId) -> Result<&mut Node, FsError> {
        self.nodes.get_mut(&node).ok_or(FsError::Stale)
    }

    pub fn entries(&self, dir: NodeId) -> Result<&BTreeMap<Name, NodeId>, FsError> {
        match &self.get(dir)?.kind {
            Kind::Dir(entries) => Ok(entries),
            _ => Err(FsError::NotDirectory),
        }
    }

    fn entries_mut(&mut self, dir: NodeId) -> Result<&mut BTreeMap<Name, NodeId>, FsError> {
        match &mut self.node(dir)?.kind {
            Kind::Dir(entries) => Ok(entries),
            _ => Err(FsError::NotDirectory),
        }
    }

    pub fn lookup(&self, dir: NodeId, name: &[u8]) -> Result<NodeId, FsError> {
        self.entries(dir)?
            .get(name)
            .copied()
            .ok_or(FsError::NotFound)
    }

    /// The expected answer of the engine, and whether the change has an effect.
    pub fn expect(&self, change: &Change) -> Result<bool, FsError> {
        let mut after = self.clone();
        after.apply(change)?;
        // A cut and a change of mode or owner are always written, even without a difference.
        let is_attribute = matches!(
            change,
            Change::Chmod { .. } | Change::Chown { .. } | Change::Cut { .. }
        );
        let is_xattr = matches!(change, Change::SetXattr { .. });
        Ok(is_attribute || is_xattr || after != *self)
    }

    pub fn apply(&mut self, change: &Change) -> Result<(), FsError> {
        match change {
            Change::Create {
                dir,
                name,
                node,
                mode,
            } => self.add(*dir, name, *node, Kind::File, *mode),
            Change::Put {
                dir,
                name,
                node,
                absent,
                xattr,
                ..
            } => self.put(*dir, name, *node, *absent, xattr),
            Change::MakeDir {
                dir,
                name,
                node,
                mode,
            } => self.add(*dir, name, *node, Kind::Dir(BTreeMap::new()), *mode),
            Change::Symlink {
                dir,
                name,
                node,
                target,
            } => self.add(*dir, name, *node, Kind::Symlink(target.clone()), 0o777),
            Change::Remove { dir, name } => self.remove(*dir, name, false),
            Change::RemoveDir { dir, name } => self.remove(*dir, name, true),
            Change::Rename {
                from,
                from_name,
                to,
                to_name,
            } => self.rename(*from, from_name, *to, to_name),
            Change::Link { node, dir, name } => self.link(*node, *dir, name),
            Change::Chmod { node, mode } => {
                self.node(*node)?.mode = *mode;
                Ok(())
            }
            Change::Chown { node, uid, gid } => {
                let node = self.node(*node)?;
                node.uid = uid.unwrap_or(node.uid);
                node.gid = gid.unwrap_or(node.gid);
                Ok(())
            }
            Change::Cut { node, .. } => match self.get(*node)?.kind {
                Kind::File => Ok(()),
                Kind::Dir(_) => Err(FsError::IsDirectory),
                Kind::Symlink(_) => Err(FsError::Invalid),
            },
            Change::SetXattr { node, name, value } => {
                let node = self.node(*node)?;
                if matches!(node.kind, Kind::Symlink(_)) {
                    return Err(FsError::NotOwner);
                }
                node.xattrs.insert(name.clone(), value.clone());
                Ok(())
            }
            Change::RemoveXattr { node, name } => {
                let node = self.node(*node)?;
                if matches!(node.kind, Kind::Symlink(_)) {
                    return Err(FsError::NotOwner);
                }
                let removed = node.xattrs.remove(name);
                removed.map(|_| ()).ok_or(FsError::NoAttribute)
            }
        }
    }

    fn add(
        &mut self,
        dir: NodeId,
        name: &[u8],
        node: NodeId,
        kind: Kind,
        mode: u32,
    ) -> Result<(), FsError> {
        if self.entries(dir)?.contains_key(name) {
            return Err(FsError::Exists);
        }
        let is_dir = matches!(kind, Kind::Dir(_));
        self.entries_mut(dir)?.insert(name.to_vec(), node);
        self.nodes.insert(node, Node::new(kind, mode, dir));
        if is_dir {
            self.node(dir)?.nlink += 1;
        }
        Ok(())
    }

    fn put(
        &mut self,
        dir: NodeId,
        name: &[u8],
        node: NodeId,
        absent: bool,
        xattr: &(Name, Vec<u8>),
    ) -> Result<(), FsError> {
        if let Some(there) = self.entries(dir)?.get(name).copied() {
            if absent {
                return Err(FsError::Exists);
            }
            if self.get(there)?.is_dir() {
                return Err(FsError::IsDirectory);
            }
            self.entries_mut(dir)?.remove(name);
            self.unlink(there)?;
        }
        self.add(dir, name, node, Kind::File, 0o644)?;
        let (name, value) = xattr.clone();
        self.node(node)?.xattrs.insert(name, value);
        Ok(())
    }

    fn remove(&mut self, dir: NodeId, name: &[u8], directory: bool) -> Result<(), FsError> {
        let child = self.lookup(dir, name)?;
        match (directory, self.get(child)?.is_dir()) {
            (true, false) => return Err(FsError::NotDirectory),
            (false, true) => return Err(FsError::IsDirectory),
            (true, true) if !self.entries(child)?.is_empty() => return Err(FsError::NotEmpty),
            _ => {}
        }
        self.entries_mut(dir)?.remove(name);
        if directory {
            self.node(dir)?.nlink -= 1;
        }
        self.unlink(child)
    }

    fn unlink(&mut self, child: NodeId) -> Result<(), FsError> {
        let node = self.node(child)?;
        node.nlink -= 1;
        if node.nlink == 0 || node.is_dir() {
            self.nodes.remove(&child);
        }
        Ok(())
    }

    fn is_below(&self, mut node: NodeId, above: NodeId) -> Result<bool, FsError> {
        loop {
            if node == above {
                return Ok(true);
            }
            if node == ROOT {
                return Ok(false);
            }
            node = self.get(node)?.parent;
        }
    }

    fn rename(
        &mut self,
        from: NodeId,
        from_name: &[u8],
        to: NodeId,
        to_name: &[u8],
    ) -> Result<(), FsError> {
        self.entries(from)?;
        self.entries(to)?;
        let moved = self.lookup(from, from_name)?;
        let target = self.entries(to)?.get(to_name).copied();
        let is_dir = self.get(moved)?.is_dir();
        if is_dir && from != to && self.is_below(to, moved)? {
            return Err(FsError::Invalid);
        }
        if target == Some(moved) {
            return Ok(());
        }
        if let Some(target) = target {
            match (is_dir, self.get(target)?.is_dir()) {
                (true, false) => return Err(FsError::NotDirectory),
                (false, true) => return Err(FsError::IsDirectory),
                (true, true) if !self.entries(target)?.is_empty() => {
                    return Err(FsError::NotEmpty);
                }
                _ => {}
            }
            self.unlink(target)?;
        }
        self.entries_mut(from)?.remove(from_name);
        self.entries_mut(to)?.insert(to_name.to_vec(), moved);
        if is_dir {
            self.node(from)?.nlink -= 1;
            if target.is_none() {
                self.node(to)?.nlink += 1;
            }
        }
        self.node(moved)?.parent = to;
        Ok(())
    }

    fn link(&mut self, node: NodeId, dir: NodeId, name: &[u8]) -> Result<(), FsError> {
        // A removed inode is refused before the directory is checked.
        let is_dir = self.get(node)?.is_dir();
        self.get(dir)?;
        if is_dir {
            return Err(FsError::NotOwner);
        }
        if self.entries(dir)?.contains_key(name) {
            return Err(FsError::Exists);
        }
        self.entries_mut(dir)?.insert(name.to_vec(), node);
        self.node(node)?.nlink += 1;
        Ok(())
    }
}

/// A whole file system as read from the engine.
#[derive(Clone, Debug, Default)]
pub struct FoundTree {
    pub nodes: BTreeMap<u64, FoundNode>,
}

impl FoundTree {
    /// Bytes of all readable files.
    pub fn file_bytes(&self) -> u64 {
        let sizes = self.nodes.values().map(|node| match &node.kind {
            FoundKind::File { bytes, .. } => bytes.as_ref().map_or(0, |bytes| bytes.len() as u64),
            _ => 0,
        });
        sizes.sum()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundNode {
    pub kind: FoundKind,
    pub nlink: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub xattrs: BTreeMap<Name, Vec<u8>>,
}

impl FoundNode {
    /// Whether both are equal, as far as they were readable.
    pub fn is_like(&self, other: &Self) -> bool {
        let mut node = self.clone();
        if let (
            FoundKind::File { bytes, .. },
            FoundKind::File {
                bytes: other_bytes, ..
            },
        ) = (&mut node.kind, &other.kind)
            && (bytes.is_none() || other_bytes.is_none())
        {
            bytes.clone_from(other_bytes);
        }
        node == *other
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundKind {
    /// The bytes; `None` if they were unreadable, which is sometimes allowed.
    File {
        size_bytes: u64,
        bytes: Option<Vec<u8>>,
    },
    Dir(BTreeMap<Name, u64>),
    Symlink(Vec<u8>),
}

/// Compares names, links, modes and attributes; returns the inode of each node. `known` are the inodes that the engine
/// named before; others must not be in `used`.
pub fn match_tree(
    tree: &Tree,
    found: &FoundTree,
    root: u64,
    known: &BTreeMap<NodeId, u64>,
    is_used: impl Fn(u64) -> bool,
) -> Result<BTreeMap<NodeId, u64>, String> {
    let mut inos = BTreeMap::from([(ROOT, root)]);
    let mut back = BTreeMap::from([(root, ROOT)]);
    let mut todo = vec![(ROOT, root, "/".to_owned())];
    while let Some((node_id, ino, path)) = todo.pop() {
        let node = tree
            .get(node_id)
            .map_err(|error| format!("{path}: {error}"))?;
        let is = found
            .nodes
            .get(&ino)
            .ok_or_else(|| format!("{path}: inode {ino} was not found"))?;
        if is.nlink != node.nlink {
            return Err(format!("{path}: {} links, want {}", is.nlink, node.nlink));
        }
        if is.mode != node.mode {
            return Err(format!("{path}: mode {:o}, want {:o}", is.mode, node.mode));
        }
        if (is.uid, is.gid) != (node.uid, node.gid) {
            return Err(format!(
                "{path}: owner {}:{}, want {}:{}",
                is.uid, is.gid, node.uid, node.gid
            ));
        }
        if is.xattrs != node.xattrs {
            return Err(format!("{path}: extended attributes differ"));
        }
        let entries = match (&node.kind, &is.kind) {
            (Kind::File, FoundKind::File { .. }) => continue,
            (Kind::Symlink(want), FoundKind::Symlink(is)) if want == is => continue,
            (Kind::Dir(want), FoundKind::Dir(is)) => (want, is),
            _ => return Err(format!("{path}: another kind or target")),
        };
        let (want, is) = entries;
        if !want.keys().eq(is.keys()) {
            let text = |names: Vec<&Name>| {
                let names: Vec<_> = names
                    .iter()
                    .map(|name| String::from_utf8_lossy(name).into_owned())
                    .collect();
                names.join(" ")
            };
            return Err(format!(
                "{path}: has the names [{}], want [{}]",
                text(is.keys().collect()),
                text(want.keys().collect())
            ));
        }
        for ((name, child), ino) in want.iter().zip(is.values()) {
            let path = format!("{path}{}/", String::from_utf8_lossy(name));
            if known.get(child).is_some_and(|known| known != ino) {
                return Err(format!("{path}: is inode {ino}, not the one it was"));
            }
            if !known.contains_key(child) && is_used(*ino) {
                return Err(format!("{path}: inode {ino} was used before"));
            }
            let fresh = inos.insert(*child, *ino);
            let fresh_back = back.insert(*ino, *child);
            if fresh.is_some_and(|other| other != *ino)
                || fresh_back.is_some_and(|other| other != *child)
            {
                return Err(format!("{path}: names an inode that it should not share"));
            }
            if fresh.is_none() {
                todo.push((*child, *ino, path));
            }
        }
    }
    Ok(inos)
}
