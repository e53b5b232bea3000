//! The pseudo root: a read-only directory of the volumes that a client may see, for those who mount
//! `SERVER:/`.
//!
//! Owns: its attributes and listing.
//! Must not know: what is in the volumes.
//!
//! Each volume has its own fsid, and this directory yet another, so that a Linux client makes a
//! mount of its own for each volume that is entered (as it does below an `fsid=0` export of the
//! kernel's server with `crossmnt`).

use std::sync::Arc;

use cairn_base::{Timestamp, View};
use cairn_codec_nfs::v3::{
    self, AccessOk, Call, ErrorStatus, Failure, FileAttr, FileType, LinkWcc, LookupOk, PostOpAttr,
    RenameWcc, WccData, access, readdir::DirWriter,
};
use cairn_exports::Target;
use cairn_fs::NAME_LEN_BYTES_MAX;
use cairn_rpc_server::{Reply, Started};

use crate::procedures::{finish_page, fs_info, path_conf, reply};
use crate::session::Session;
use crate::v3_values;

/// No volume has this fsid: their ids have 32 bits.
const FSID: u64 = 1 << 32;
const FILEID: u64 = 1;
/// `.` and `..` come before the volumes.
const DOT_COUNT: u64 = 2;

/// Serves a call whose first handle is the pseudo root's.
pub fn start(session: &Arc<Session>, xid: u32, call: &Call<'_>) -> Started {
    let here = Some(attr(session));
    let unchanged = WccData {
        before: None,
        after: here,
    };
    let fail = |status| reply(xid, &Err::<(), _>(Failure::new(status, here)));
    let fail_wcc = |status| reply(xid, &Err::<(), _>(Failure::new(status, unchanged)));
    Started::Ready(match call {
        Call::Null => Reply::success(xid, &()),
        Call::GetAttr(_) => reply(xid, &Ok::<_, Failure<()>>(attr(session))),
        Call::Lookup(args) => return lookup(session, xid, args.name.0),
        Call::Access(args) => reply(
            xid,
            &Ok::<_, Failure<PostOpAttr>>(AccessOk {
                attributes: here,
                access: args.access & (access::READ | access::LOOKUP | access::EXECUTE),
            }),
        ),
        Call::ReadDir(args) => Reply::listing(xid, |to| {
            let mut writer = DirWriter::readdir(to, &here, [0; 8], args.count_bytes)?;
            let entries = entries(session, args.cookie);
            let fitted = entries.iter().take_while(|(fileid, name, cookie)| {
                writer.push(&v3::Entry {
                    fileid: *fileid,
                    name: name.as_slice().into(),
                    cookie: *cookie,
                })
            });
            let fitted = fitted.count();
            finish_page(writer, fitted, entries.len(), true)
        })
        .unwrap_or_else(|| fail(ErrorStatus::TooSmall)),
        Call::ReadDirPlus(args) => Reply::listing(xid, |to| {
            let (dir_count, max_count) = (args.dir_count_bytes, args.max_count_bytes);
            let mut writer = DirWriter::readdirplus(to, &here, [0; 8], dir_count, max_count)?;
            let entries = entries(session, args.cookie);
            let fitted = entries.iter().take_while(|(fileid, name, cookie)| {
                // Attributes and handles of volumes are left to LOOKUP.
                writer.push_plus(&v3::EntryPlus {
                    fileid: *fileid,
                    name: name.as_slice().into(),
                    cookie: *cookie,
                    attributes: None,
                    handle: None,
                })
            });
            let fitted = fitted.count();
            finish_page(writer, fitted, entries.len(), true)
        })
        .unwrap_or_else(|| fail(ErrorStatus::TooSmall)),
        Call::FsStat(_) => reply(
            xid,
            &Ok::<_, Failure<PostOpAttr>>(v3::FsStatOk {
                attributes: here,
                total_bytes: 0,
                free_bytes: 0,
                available_bytes: 0,
                total_files: 0,
                free_files: 0,
                available_files: 0,
                invariant_seconds: 0,
            }),
        ),
        Call::FsInfo(_) => reply(xid, &Ok::<_, Failure<PostOpAttr>>(fs_info(here))),
        Call::PathConf(_) => reply(xid, &Ok::<_, Failure<PostOpAttr>>(path_conf(here))),
        Call::ReadLink(_) => fail(ErrorStatus::Inval),
        Call::Read(_) => fail(ErrorStatus::IsDir),
        Call::Write(_) => refuse_write(session, xid),
        Call::Commit(_) => fail_wcc(ErrorStatus::IsDir),
        Call::SetAttr(_)
        | Call::Create(_)
        | Call::MkDir(_)
        | Call::SymLink(_)
        | Call::MkNod(_)
        | Call::Remove(_)
        | Call::RmDir(_) => fail_wcc(ErrorStatus::RoFs),
        Call::Rename(_) => {
            let body = RenameWcc {
                from_dir: unchanged,
                to_dir: WccData::default(),
            };
            reply(xid, &Err::<(), _>(Failure::new(ErrorStatus::RoFs, body)))
        }
        Call::Link(_) => {
            let body = LinkWcc {
                attributes: here,
                dir_wcc: WccData::default(),
            };
            reply(xid, &Err::<(), _>(Failure::new(ErrorStatus::RoFs, body)))
        }
    })
}

/// The reply to a WRITE here, whatever it would write.
pub fn refuse_write(session: &Session, xid: u32) -> Reply {
    let unchanged = WccData {
        before: None,
        after: Some(attr(session)),
    };
    reply(
        xid,
        &Err::<(), _>(Failure::new(ErrorStatus::IsDir, unchanged)),
    )
}

fn lookup(session: &Arc<Session>, xid: u32, name: &[u8]) -> Started {
    let here = Some(attr(session));
    let fail = move |status| reply(xid, &Err::<(), _>(Failure::new(status, here)));
    if name == b"." || name == b".." {
        return Started::Ready(reply(
            xid,
            &Ok::<_, Failure<PostOpAttr>>(LookupOk {
                object: session.seal(Target::PseudoRoot),
                attributes: here,
                dir_attributes: here,
            }),
        ));
    }
    if name.len() > NAME_LEN_BYTES_MAX {
        return Started::Ready(fail(ErrorStatus::NameTooLong));
    }
    let Some(grant) = session.exports.by_name(name).cloned() else {
        let status = match session.exports.failed_by_name(name) {
            Some(_) => ErrorStatus::JukeBox,
            None => ErrorStatus::NoEnt,
        };
        return Started::Ready(fail(status));
    };
    let session = Arc::clone(session);
    Started::Running(Box::pin(async move {
        let ino = grant.fs.root();
        match grant.fs.attr(ino).await {
            Ok(root) => reply(
                xid,
                &Ok::<_, Failure<PostOpAttr>>(LookupOk {
                    object: session.seal(Target::Inode {
                        volume: grant.volume,
                        view: View::Live,
                        ino,
                    }),
                    attributes: Some(v3_values::attr(grant.volume, &root)),
                    dir_attributes: here,
                }),
            ),
            // The client asks again; by then it is clear who owns the volume.
            Err(cairn_fs::FsError::Fenced) => fail(ErrorStatus::JukeBox),
            Err(error) => fail(v3_values::status(&error)),
        }
    }))
}

fn attr(session: &Session) -> FileAttr {
    let started = session.service.started;
    // A later table of exports has a later time, so that clients read the listing again.
    let nanos = (session.exports.table().version() % 1_000_000_000) as u32;
    let changed = v3_values::time(Timestamp::new(started.seconds, nanos));
    let volume_count = session.exports.grants().len() + session.exports.failed().len();
    FileAttr {
        file_type: FileType::Directory,
        mode: 0o555,
        nlink: 2 + volume_count as u32,
        uid: 0,
        gid: 0,
        size_bytes: 4096,
        used_bytes: 0,
        device: v3::DeviceNumber::default(),
        fsid: FSID,
        fileid: FILEID,
        atime: changed,
        mtime: changed,
        ctime: changed,
    }
}

/// Id, name and cookie of everything after `cookie`. A volume's cookie is made of its id, and
/// volumes come in the order of their ids, so a listing during which the exports change
/// neither repeats nor skips one.
fn entries(session: &Session, cookie: u64) -> Vec<(u64, Vec<u8>, u64)> {
    let dots = [(FILEID, b".".to_vec(), 1), (FILEID, b"..".to_vec(), 2)];
    let exports = &session.exports;
    let served = exports.grants().iter();
    let served = served.map(|grant| (grant.volume, grant.fs.name()));
    // A volume that cannot be opened now is not gone.
    let failed = exports.failed().iter();
    let failed = failed.map(|failed| (failed.volume, failed.name.as_str()));
    let volumes = served.chain(failed).map(|(volume, name)| {
        let id = u64::from(volume.0);
        (FSID + 1 + id, name.as_bytes().to_vec(), DOT_COUNT + 1 + id)
    });
    let mut entries: Vec<_> = dots.into_iter().chain(volumes).collect();
    entries.sort_by_key(|(_, _, cookie)| *cookie);
    entries.retain(|(_, _, at)| *at > cookie);
    entries
}
