//! A connection between two nodes whose bytes anybody on the network can read, and nobody can change.
//!
//! Owns: how bytes are cut into pieces, the keyed checksum of each.
//! Must not know: how the ends have proved who they are, where their keys come from.
//!
//! A piece is its length (4 bytes, little endian), so many bytes, and the checksum of both: AEGIS-128L as a MAC
//! (draft-irtf-cfrg-aegis-aead, section 4.2.6) with 16 bytes, under the key of its direction and the number of the piece.
//! A piece that is left out, repeated or moved has another number, so its checksum is wrong. The empty piece is the end.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use aegis::aegis128l::Aegis128LMac;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub(crate) const KEY_LEN_BYTES: usize = 16;
const LEN_LEN_BYTES: usize = 4;
const TAG_LEN_BYTES: usize = 16;
/// A piece is checked as a whole before any of it is used, so it is to fit into the processor's cache.
const PIECE_LEN_BYTES_MAX: usize = 128 << 10;
/// The kernel is asked for several pieces at a time.
const RECEIVED_LEN_BYTES: usize = 2 * PIECE_LEN_BYTES_MAX;
/// Most parts of what is written that one piece takes.
const SLICES_MAX: usize = 64;

/// The keys of both directions.
pub(crate) struct Keys {
    pub(crate) sent: [u8; KEY_LEN_BYTES],
    pub(crate) received: [u8; KEY_LEN_BYTES],
}

/// The checksums of one direction.
struct Checksums {
    key: [u8; KEY_LEN_BYTES],
    /// Of the next piece.
    number: u64,
}

impl Checksums {
    fn of_next<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]>) -> [u8; TAG_LEN_BYTES] {
        let mac = self.mac(parts);
        self.number += 1;
        mac.finalize()
    }

    fn mac<'a>(&self, parts: impl Iterator<Item = &'a [u8]>) -> Aegis128LMac<TAG_LEN_BYTES> {
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&self.number.to_le_bytes());
        let mut mac = Aegis128LMac::new_with_nonce(&self.key, &nonce);
        for part in parts {
            mac.update(part);
        }
        mac
    }

    fn is_of_next(&mut self, bytes: &[u8], tag: &[u8; TAG_LEN_BYTES]) -> bool {
        let mac = self.mac(std::iter::once(bytes));
        self.number += 1;
        mac.verify(tag).is_ok()
    }
}

/// Bytes that came and are not taken yet.
struct Received {
    bytes: Box<[u8]>,
    /// Those from here on came.
    begin: usize,
    end: usize,
    /// Of those so many are checked, and ready for the reader.
    checked: usize,
    has_ended: bool,
    /// A checksum was wrong: nothing that follows is used.
    is_forged: bool,
}

/// Both directions of a connection.
pub(crate) struct Clear<S> {
    carrier: S,
    sent_sums: Checksums,
    received_sums: Checksums,
    received: Received,
    /// What the kernel has not taken yet of pieces that were accepted.
    unsent: Vec<u8>,
    unsent_from: usize,
    has_sent_end: bool,
}

impl<S> Clear<S> {
    pub(crate) fn new(carrier: S, keys: Keys) -> Self {
        let sums = |key| Checksums { key, number: 0 };
        Self {
            carrier,
            sent_sums: sums(keys.sent),
            received_sums: sums(keys.received),
            received: Received {
                bytes: vec![0; RECEIVED_LEN_BYTES].into(),
                begin: 0,
                end: 0,
                checked: 0,
                has_ended: false,
                is_forged: false,
            },
            unsent: Vec::new(),
            unsent_from: 0,
            has_sent_end: false,
        }
    }

    /// Takes the next piece of what came, if all of it is there. Whether there is one.
    fn check_next(&mut self) -> io::Result<bool> {
        let received = &mut self.received;
        let came = &received.bytes[received.begin..received.end];
        let Some(len) = came.first_chunk::<LEN_LEN_BYTES>() else {
            return Ok(false);
        };
        let len_bytes = u32::from_le_bytes(*len) as usize;
        if len_bytes > PIECE_LEN_BYTES_MAX {
            return Err(forged());
        }
        let summed_len_bytes = LEN_LEN_BYTES + len_bytes;
        let Some(tag) = came
            .get(summed_len_bytes..)
            .and_then(|rest| rest.first_chunk::<TAG_LEN_BYTES>())
        else {
            return Ok(false);
        };
        if !self
            .received_sums
            .is_of_next(&came[..summed_len_bytes], tag)
        {
            return Err(forged());
        }
        received.begin += LEN_LEN_BYTES;
        received.checked = len_bytes;
        received.has_ended = len_bytes == 0;
        Ok(true)
    }

    /// Gives checked bytes to the reader.
    fn give(&mut self, into: &mut ReadBuf<'_>) {
        let received = &mut self.received;
        let given = received.checked.min(into.remaining());
        into.put_slice(&received.bytes[received.begin..received.begin + given]);
        received.begin += given;
        received.checked -= given;
        if received.checked == 0 {
            received.begin += TAG_LEN_BYTES;
        }
    }

    /// Room for more behind what came.
    fn make_room(&mut self) -> &mut [u8] {
        let received = &mut self.received;
        if received.begin == received.end {
            (received.begin, received.end) = (0, 0);
        } else if received.begin > 0
            && received.bytes.len() - received.begin < whole(came_len(received))
        {
            received.bytes.copy_within(received.begin..received.end, 0);
            received.end -= received.begin;
            received.begin = 0;
        }
        &mut received.bytes[received.end..]
    }
}

/// Bytes of the piece that began to come, as far as its length is known.
fn came_len(received: &Received) -> usize {
    let came = &received.bytes[received.begin..received.end];
    came.first_chunk::<LEN_LEN_BYTES>()
        .map_or(PIECE_LEN_BYTES_MAX, |len| u32::from_le_bytes(*len) as usize)
}

/// Bytes of a piece on the network.
fn whole(len_bytes: usize) -> usize {
    LEN_LEN_BYTES + len_bytes + TAG_LEN_BYTES
}

fn forged() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "a checksum is wrong: somebody, or a fault of the network, has changed what came",
    )
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Clear<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let clear = self.get_mut();
        loop {
            if clear.received.has_ended || into.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            if clear.received.checked > 0 {
                clear.give(into);
                return Poll::Ready(Ok(()));
            }
            let checked = match clear.received.is_forged {
                true => Err(forged()),
                false => clear.check_next(),
            };
            clear.received.is_forged = checked.is_err();
            if checked? {
                continue;
            }
            clear.make_room();
            let received = &mut clear.received;
            let mut room = ReadBuf::new(&mut received.bytes[received.end..]);
            ready!(Pin::new(&mut clear.carrier).poll_read(context, &mut room))?;
            let read = room.filled().len();
            if read == 0 {
                let cut = "the connection ended without a word";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, cut)));
            }
            received.end += read;
        }
    }
}

impl<S: AsyncWrite + Unpin> Clear<S> {
    fn poll_unsent(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.unsent_from < self.unsent.len() {
            let rest = &self.unsent[self.unsent_from..];
            match ready!(Pin::new(&mut self.carrier).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.unsent_from += written,
            }
        }
        self.unsent.clear();
        self.unsent_from = 0;
        Poll::Ready(Ok(()))
    }

    /// Sends one piece; what the kernel does not take of it is kept. Nothing is kept from before.
    fn send(&mut self, context: &mut Context<'_>, parts: &[&[u8]]) -> io::Result<()> {
        let len_bytes: usize = parts.iter().map(|part| part.len()).sum();
        let len = (len_bytes as u32).to_le_bytes();
        let summed = std::iter::once(&len[..]).chain(parts.iter().copied());
        let tag = self.sent_sums.of_next(summed.clone());
        let all = summed.chain(std::iter::once(&tag[..]));
        let mut slices = [IoSlice::new(&[]); SLICES_MAX + 2];
        let mut count = 0;
        for (slice, part) in slices.iter_mut().zip(all.clone()) {
            *slice = IoSlice::new(part);
            count += 1;
        }
        let carrier = Pin::new(&mut self.carrier);
        let mut written = match carrier.poll_write_vectored(context, &slices[..count]) {
            Poll::Ready(written) => written?,
            Poll::Pending => 0,
        };
        for part in all {
            let skipped = written.min(part.len());
            written -= skipped;
            self.unsent.extend_from_slice(&part[skipped..]);
        }
        Ok(())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Clear<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let clear = self.get_mut();
        ready!(clear.poll_unsent(context))?;
        if clear.has_sent_end {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let mut parts: [&[u8]; SLICES_MAX] = [&[]; SLICES_MAX];
        let (mut count, mut len_bytes) = (0, 0);
        for slice in slices.iter().filter(|slice| !slice.is_empty()) {
            if count == SLICES_MAX || len_bytes == PIECE_LEN_BYTES_MAX {
                break;
            }
            let part = &slice[..slice.len().min(PIECE_LEN_BYTES_MAX - len_bytes)];
            parts[count] = part;
            (count, len_bytes) = (count + 1, len_bytes + part.len());
        }
        if len_bytes > 0 {
            clear.send(context, &parts[..count])?;
        }
        Poll::Ready(Ok(len_bytes))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let clear = self.get_mut();
        ready!(clear.poll_unsent(context))?;
        Pin::new(&mut clear.carrier).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let clear = self.get_mut();
        ready!(clear.poll_unsent(context))?;
        if !clear.has_sent_end {
            clear.has_sent_end = true;
            clear.send(context, &[])?;
            ready!(clear.poll_unsent(context))?;
        }
        Pin::new(&mut clear.carrier).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn keys() -> (Keys, Keys) {
        let (one, other) = ([1; KEY_LEN_BYTES], [2; KEY_LEN_BYTES]);
        let mirrored = Keys {
            sent: other,
            received: one,
        };
        (
            Keys {
                sent: one,
                received: other,
            },
            mirrored,
        )
    }

    fn pair(room_bytes: usize) -> (Clear<DuplexStream>, Clear<DuplexStream>) {
        let (near, far) = duplex(room_bytes);
        let (near_keys, far_keys) = keys();
        (Clear::new(near, near_keys), Clear::new(far, far_keys))
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(future)
    }

    /// What a side puts on the network for these writes, and for its end.
    async fn on_the_network(writes: &[&[u8]], ends: bool) -> Vec<u8> {
        let (near, mut far) = duplex(1 << 20);
        let mut clear = Clear::new(near, keys().0);
        for bytes in writes {
            clear.write_all(bytes).await.unwrap();
        }
        clear.flush().await.unwrap();
        if ends {
            clear.shutdown().await.unwrap();
        }
        drop(clear);
        let mut all = Vec::new();
        far.read_to_end(&mut all).await.unwrap();
        all
    }

    /// What the other side reads of such bytes, and how that ended.
    async fn read(bytes: &[u8]) -> (Vec<u8>, io::Result<()>) {
        let (mut near, far) = duplex(1 << 20);
        near.write_all(bytes).await.unwrap();
        drop(near);
        let mut clear = Clear::new(far, keys().1);
        let mut all = Vec::new();
        let ended = clear.read_to_end(&mut all).await.map(drop);
        if ended.is_err() {
            assert!(clear.read_u8().await.is_err(), "nothing behind it is used");
        }
        (all, ended)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            lens in prop::collection::vec(0usize..300_000, 0..6),
            room_bytes in prop::sample::select(vec![1usize, 100, 4096, 65_536, 1 << 20]),
            asked in prop::sample::select(vec![1_000usize, 4096, 100_000, 1 << 20]),
        ) {
            let lens: Vec<usize> = match room_bytes {
                // Byte by byte.
                1 => lens.into_iter().map(|len| len / 100).collect(),
                _ => lens,
            };
            let sent: Vec<u8> = (0..lens.iter().sum::<usize>()).map(|at| (at * 7 + at / 251) as u8).collect();
            let received = block_on(async {
                let (mut near, mut far) = pair(room_bytes);
                let writing = async {
                    let mut at = 0;
                    for len in &lens {
                        near.write_all(&sent[at..at + len]).await.unwrap();
                        at += len;
                    }
                    near.shutdown().await.unwrap();
                };
                let reading = async {
                    let (mut all, mut buffer) = (Vec::new(), vec![0; asked]);
                    loop {
                        match far.read(&mut buffer).await.unwrap() {
                            0 => return all,
                            count => all.extend_from_slice(&buffer[..count]),
                        }
                    }
                };
                futures_util::future::join(writing, reading).await.1
            });
            prop_assert!(received == sent);
        }

        #[test]
        fn a_changed_bit_is_noticed_and_nothing_behind_it_is_read(at in 0usize..1000, bit in 0u8..8) {
            block_on(async {
                let (first, second) = ([1u8; 300], [2u8; 400]);
                let mut bytes = on_the_network(&[&first, &second], true).await;
                let at = at % bytes.len();
                bytes[at] ^= 1 << bit;
                let (all, ended) = read(&bytes).await;
                assert!(ended.is_err());
                let whole = match at {
                    ..320 => 0,
                    320..740 => 300,
                    _ => 700,
                };
                assert_eq!(all.len(), whole, "{at}");
            });
        }
    }

    #[test]
    fn what_is_left_out_repeated_moved_or_cut_off_is_noticed() {
        block_on(async {
            let bytes = on_the_network(&[&[1; 10], &[2; 10], &[3; 10]], true).await;
            let piece = |index: usize| &bytes[index * 30..index * 30 + 30];
            let end = &bytes[90..];
            assert_eq!(end.len(), 20);
            let (all, ended) = read(&bytes).await;
            assert_eq!((all.len(), ended.is_ok()), (30, true));
            for (pieces, whole) in [
                (vec![piece(1), piece(2), end], 0),
                (vec![piece(0), piece(0)], 10),
                (vec![piece(0), piece(2), piece(1), end], 10),
                (vec![piece(0), piece(1), end], 20),
                (vec![piece(0), piece(1), piece(2)], 30),
                (vec![piece(0), &piece(1)[..29]], 10),
                (vec![piece(0), &piece(1)[..3]], 10),
            ] {
                let (all, ended) = read(&pieces.concat()).await;
                assert_eq!((all.len(), ended.is_err()), (whole, true), "{pieces:?}");
            }
            // Nor does the other direction accept what this one sent.
            let (mut near, far) = duplex(1 << 20);
            near.write_all(&bytes).await.unwrap();
            let mut clear = Clear::new(far, keys().0);
            let read = clear.read_to_end(&mut Vec::new()).await;
            assert_eq!(read.unwrap_err().kind(), io::ErrorKind::InvalidData);
        });
    }

    #[test]
    fn a_piece_that_is_too_long_is_refused_before_it_comes() {
        block_on(async {
            let len = (PIECE_LEN_BYTES_MAX as u32 + 1).to_le_bytes();
            let (all, ended) = read(&len).await;
            assert!(all.is_empty());
            assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::InvalidData);
        });
    }
}
