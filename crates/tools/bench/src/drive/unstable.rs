//! Whether data written unstable is still there when it is committed.
//!
//! Owns: the rule of RFC 1813, sections 3.3.7 and 3.3.21, in a few bytes for each file: a benchmark does
//! not send again what a server lost, so it need not know which ranges those are.
//! Must not know: what is written.

use bytes::Bytes;
use cairn_nfs_client::v3::{FileHandle, StableHow, WriteVerifier};
use cairn_nfs_client::{Client, Error};
use parking_lot::Mutex;

use super::Failed;

/// The unstable writes of one file since its last COMMIT.
#[derive(Default)]
pub struct Unstable(Mutex<State>);

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Nothing,
    /// All were answered with this verifier.
    Written(WriteVerifier),
    /// The server was restarted between two of them.
    Lost,
}

impl Unstable {
    fn wrote(&self, verifier: WriteVerifier) {
        let mut state = self.0.lock();
        *state = match *state {
            State::Nothing => State::Written(verifier),
            State::Written(before) if before == verifier => return,
            State::Written(_) | State::Lost => State::Lost,
        };
    }

    /// Makes what was written to `file` stable. Nothing is sent if nothing was written.
    pub async fn commit(&self, client: &Client, file: FileHandle) -> Result<(), Failed> {
        let before = std::mem::take(&mut *self.0.lock());
        if before == State::Nothing {
            return Ok(());
        }
        let verifier = client.commit(file, 0, 0).await?;
        match before == State::Written(verifier) {
            true => Ok(()),
            false => Err(Failed::Lost),
        }
    }
}

/// Writes all of `data`, in as many calls as the server wants, one after the other.
pub async fn write_all(
    client: &Client,
    file: FileHandle,
    mut offset: u64,
    mut data: Bytes,
    stable: StableHow,
    unstable: &Unstable,
) -> Result<(), Error> {
    while !data.is_empty() {
        let written = client.write(file, offset, data.clone(), stable).await?;
        if written.committed == StableHow::Unstable {
            unstable.wrote(written.verifier);
        }
        offset += u64::from(written.count_bytes);
        data = data.slice(written.count_bytes as usize..);
    }
    Ok(())
}
