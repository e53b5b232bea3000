//! File handles: what a client holds instead of a path.
//!
//! Owns: their bytes, and the signature that keeps clients from making their own.
//! Must not know: what the inode is, who may use it, protocols.
//!
//! ```text
//! 0        1      2          4         8        16            24       32
//! | format | kind | reserved | volume  | inode  | view        | SipHash-2-4 of 0..24 |
//! ```
//!
//! Numbers are little-endian. The view is the generation of a snapshot; 0 is the volume as it is now.
//! Inode numbers are never reused, so a handle is good for ever, also after a restart or failover.

use std::hash::Hasher;

use cairn_base::{Ino, View, VolumeId};
use siphasher::sip::SipHasher24;
use subtle::ConstantTimeEq;

/// Bytes of a handle.
pub const HANDLE_LEN_BYTES: usize = 32;

const FORMAT: u8 = 1;
const KIND_INODE: u8 = 1;
const KIND_PSEUDO_ROOT: u8 = 2;
const KIND_SNAPSHOTS: u8 = 3;
const SIGNED_LEN_BYTES: usize = 24;

/// What a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    Inode {
        volume: VolumeId,
        view: View,
        ino: Ino,
    },
    /// The directory of the snapshots of a directory.
    Snapshots { volume: VolumeId, dir: Ino },
    /// The read-only directory of all volumes.
    PseudoRoot,
}

/// The handle was not made by this pool, or was changed on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a file handle of this pool")]
pub struct BadHandle;

/// A handle as it is on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle([u8; HANDLE_LEN_BYTES]);

impl Handle {
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Makes and checks handles.
#[derive(Clone)]
pub struct HandleSigner(SipHasher24);

impl HandleSigner {
    pub fn new(key: &[u8; 16]) -> Self {
        Self(SipHasher24::new_with_key(key))
    }

    pub fn seal(&self, target: Target) -> Handle {
        let (kind, volume, view, ino) = match target {
            Target::Inode { volume, view, ino } => (KIND_INODE, volume.0, view.number(), ino.0),
            Target::Snapshots { volume, dir } => (KIND_SNAPSHOTS, volume.0, 0, dir.0),
            Target::PseudoRoot => (KIND_PSEUDO_ROOT, 0, 0, 0),
        };
        let mut bytes = [0; HANDLE_LEN_BYTES];
        bytes[0] = FORMAT;
        bytes[1] = kind;
        bytes[4..8].copy_from_slice(&volume.to_le_bytes());
        bytes[8..16].copy_from_slice(&ino.to_le_bytes());
        bytes[16..24].copy_from_slice(&view.to_le_bytes());
        let signature = self.sign(&bytes[..SIGNED_LEN_BYTES]);
        bytes[SIGNED_LEN_BYTES..].copy_from_slice(&signature);
        Handle(bytes)
    }

    pub fn open(&self, bytes: &[u8]) -> Result<Target, BadHandle> {
        let bytes: &[u8; HANDLE_LEN_BYTES] = bytes.try_into().map_err(|_| BadHandle)?;
        let (signed, signature) = bytes.split_at(SIGNED_LEN_BYTES);
        // Every wrong signature takes equally long, so that none can be found byte by byte.
        if !bool::from(self.sign(signed).ct_eq(signature)) {
            return Err(BadHandle);
        }
        // The signature says that this pool wrote the rest, but a newer version may have done so.
        let number = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&signed[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let head = number(0);
        match (head & 0xffff_ffff, number(16)) {
            (kind, view) if kind == u64::from(FORMAT) | u64::from(KIND_INODE) << 8 => {
                Ok(Target::Inode {
                    volume: VolumeId((head >> 32) as u32),
                    view: View::from_number(view),
                    ino: Ino(number(8)),
                })
            }
            (kind, 0)
                if kind & 0xffff_ffff == u64::from(FORMAT) | u64::from(KIND_SNAPSHOTS) << 8 =>
            {
                Ok(Target::Snapshots {
                    volume: VolumeId((head >> 32) as u32),
                    dir: Ino(number(8)),
                })
            }
            (kind, 0) if kind == u64::from(FORMAT) | u64::from(KIND_PSEUDO_ROOT) << 8 => {
                Ok(Target::PseudoRoot)
            }
            _ => Err(BadHandle),
        }
    }

    /// A keyed hash of any bytes, for tables that a client must not be able to make collide.
    pub fn digest(&self, bytes: &[u8]) -> u64 {
        let mut hasher = self.0;
        hasher.write(bytes);
        hasher.finish()
    }

    fn sign(&self, signed: &[u8]) -> [u8; 8] {
        self.digest(signed).to_le_bytes()
    }
}

impl std::fmt::Debug for HandleSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HandleSigner(secret)")
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::Generation;

    use super::*;

    #[test]
    fn handles_open_to_what_was_sealed() {
        let key = HandleSigner::new(b"0123456789abcdef");
        for target in [
            Target::PseudoRoot,
            Target::Snapshots {
                volume: VolumeId(u32::MAX),
                dir: Ino(1),
            },
            Target::Inode {
                volume: VolumeId(1),
                view: View::Live,
                ino: Ino(1),
            },
            Target::Inode {
                volume: VolumeId(1),
                view: View::Snapshot(Generation::FIRST),
                ino: Ino(1),
            },
            Target::Inode {
                volume: VolumeId(u32::MAX),
                view: View::Snapshot(Generation(u64::MAX)),
                ino: Ino(u64::MAX),
            },
        ] {
            assert_eq!(key.open(key.seal(target).as_bytes()), Ok(target));
        }
    }

    #[test]
    fn forged_handles_are_refused() {
        let key = HandleSigner::new(b"0123456789abcdef");
        let other = HandleSigner::new(b"0123456789abcdeg");
        let target = Target::Inode {
            volume: VolumeId(3),
            view: View::Live,
            ino: Ino(77),
        };
        let good = key.seal(target);
        for bit in 0..HANDLE_LEN_BYTES * 8 {
            let mut bytes = good.0;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(key.open(&bytes), Err(BadHandle), "bit {bit}");
        }
        assert_eq!(key.open(other.seal(target).as_bytes()), Err(BadHandle));
        assert_eq!(key.open(&[]), Err(BadHandle));
        assert_eq!(key.open(&good.0[..31]), Err(BadHandle));
        assert_eq!(key.open(&[0; 64]), Err(BadHandle));
    }
}
