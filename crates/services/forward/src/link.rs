//! Signs of life of an owner to a node that forwards calls to it.
//!
//! Owns: beats and their echoes, how old bytes between two nodes are. Must not know: what those bytes are.
//!
//! The owner sends a *beat* every [`BEAT_INTERVAL`]: a number that tells when it was sent, by the owner's own clock. The other
//! node stamps bytes with the newest beat that it has, so that the owner can tell how long they were on their way at most,
//! whatever both clocks show. A node that has no fresh beat sends nothing; an owner whose beats are not echoed closes that
//! node's streams. With a beat the owner also tells which volumes it serves.
//!
//! ```text
//!  owner -> node   0..8 beat   8..12 count of volumes, or all ones: as before   12.. the volumes, 4 bytes each
//!  node -> owner   0..8 the beat that came
//! ```
//! Numbers are big-endian.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::VolumeId;
use cairn_base::env::Clock;
use cairn_base::planted::{self, Bug};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

use crate::pulse::Pulse;
use crate::{BEAT_INTERVAL, FRESH_MAX};

/// Volumes that one beat names.
const VOLUME_COUNT_MAX: u32 = 1 << 16;
const AS_BEFORE: u32 = u32::MAX;
const TIME_BITS: u32 = 48;

pub type Serving = Arc<BTreeSet<VolumeId>>;

/// When the owner sent a beat: 16 bits that tell its process from an earlier one, 48 of milliseconds of its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat(pub u64);

/// What a process tells its beats by.
#[derive(Clone)]
pub struct Beats {
    clock: Arc<dyn Clock>,
    process: u16,
}

impl Beats {
    pub fn new(clock: Arc<dyn Clock>, process: u16) -> Self {
        Self { clock, process }
    }

    fn millis(&self, time: Duration) -> u64 {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        millis & ((1 << TIME_BITS) - 1)
    }

    pub fn now(&self) -> Beat {
        Beat(u64::from(self.process) << TIME_BITS | self.millis(self.clock.boottime()))
    }

    /// How long before `at` a beat was sent; `None`: it is none of this process.
    fn age(&self, beat: Beat, at: Duration) -> Option<Duration> {
        let is_own = beat.0 >> TIME_BITS == u64::from(self.process)
            || planted::is(Bug::BeatOfOtherProcessTaken);
        let sent = beat.0 & ((1 << TIME_BITS) - 1);
        let at = self.millis(at);
        // Rounded down alike; one from the time to come is no beat of this process.
        let age = self.millis(self.clock.boottime()).checked_sub(sent)?;
        is_own.then(|| Duration::from_millis(at.saturating_sub(sent).min(age)))
    }

    /// Whether bytes that came after `at` may be taken, being stamped so.
    pub fn is_fresh(&self, beat: Beat, at: Duration) -> bool {
        let is_young = self.age(beat, at).is_some_and(|age| age <= FRESH_MAX);
        is_young || planted::is(Bug::ForwardOldBytesTaken)
    }
}

/// The owner's beats, as the forwarding node knows them.
pub struct Link {
    clock: Arc<dyn Clock>,
    newest: Mutex<Option<(Beat, Duration)>>,
    serving: watch::Sender<Option<Serving>>,
    is_over: watch::Sender<bool>,
}

impl Link {
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            clock,
            newest: Mutex::new(None),
            serving: watch::Sender::new(None),
            is_over: watch::Sender::new(false),
        })
    }

    /// The newest beat, unless the owner is silent.
    pub fn beat(&self) -> Option<Beat> {
        if *self.is_over.borrow() {
            return None;
        }
        let (beat, came) = (*self.newest.lock())?;
        let silent = self.clock.boottime().saturating_sub(came);
        (silent <= FRESH_MAX).then_some(beat)
    }

    /// Which volumes the owner serves; `None` before its first beat.
    pub fn serving(&self) -> watch::Receiver<Option<Serving>> {
        self.serving.subscribe()
    }

    /// Ready when the owner is silent.
    pub fn over(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut is_over = self.is_over.subscribe();
        async move {
            // The sender is gone when nobody follows the beats any more.
            let _ = is_over.wait_for(|is_over| *is_over).await;
        }
    }

    /// Takes beats until the owner is silent or the stream ends.
    pub async fn follow(&self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let ended = self.take_beats(stream).await;
        self.is_over.send_replace(true);
        if let Err(error) = ended {
            tracing::debug!(%error, "an owner's signs of life ended");
        }
    }

    async fn take_beats(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
        loop {
            let read = read_beat(&mut stream);
            let (beat, serving) = tokio::select! {
                biased;
                read = read => read?,
                () = self.clock.sleep(FRESH_MAX) => return Err(io::ErrorKind::TimedOut.into()),
            };
            *self.newest.lock() = Some((beat, self.clock.boottime()));
            if let Some(serving) = serving {
                self.serving.send_replace(Some(Arc::new(serving)));
            } else if self.serving.borrow().is_none() {
                return Err(invalid("the first beat names no volumes"));
            }
            stream.write_all(&beat.0.to_be_bytes()).await?;
            stream.flush().await?;
        }
    }
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Reads a beat, and the volumes that the owner serves if they are named.
pub async fn read_beat(
    from: &mut (impl AsyncRead + Unpin),
) -> io::Result<(Beat, Option<BTreeSet<VolumeId>>)> {
    let beat = Beat(from.read_u64().await?);
    let count = from.read_u32().await?;
    if count == AS_BEFORE {
        return Ok((beat, None));
    }
    if count > VOLUME_COUNT_MAX {
        return Err(invalid("a beat names too many volumes"));
    }
    let mut volumes = BTreeSet::new();
    for _ in 0..count {
        volumes.insert(VolumeId(from.read_u32().await?));
    }
    Ok((beat, Some(volumes)))
}

fn encode_beat(beat: Beat, serving: Option<&Serving>) -> Vec<u8> {
    let mut bytes = beat.0.to_be_bytes().to_vec();
    match serving {
        None => bytes.extend(AS_BEFORE.to_be_bytes()),
        Some(serving) => {
            let named = serving.iter().take(VOLUME_COUNT_MAX as usize);
            bytes.extend((named.len() as u32).to_be_bytes());
            bytes.extend(named.flat_map(|volume| volume.0.to_be_bytes()));
        }
    }
    bytes
}

/// Sends beats to a node until it does not echo them any more.
pub async fn send_beats(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    beats: &Beats,
    pulse: &Pulse,
    mut serving: watch::Receiver<Serving>,
) -> io::Result<()> {
    let (mut from, mut to) = tokio::io::split(stream);
    let clock = Arc::clone(&beats.clock);
    let echoed = Mutex::new(clock.boottime());
    let echoing = async {
        loop {
            let beat = Beat(from.read_u64().await?);
            let now = clock.boottime();
            // An echo proves that the node was there when the beat was sent, not when the echo came.
            let age = beats.age(beat, now).ok_or_else(|| invalid("no echo"))?;
            let was_there = match planted::is(Bug::EchoCountsWhenItCame) {
                true => now,
                false => now.saturating_sub(age),
            };
            let mut echoed = echoed.lock();
            *echoed = (*echoed).max(was_there);
        }
    };
    let sending = async {
        let mut told: Option<Serving> = None;
        loop {
            let generation = pulse.generation();
            let silent = clock.boottime().saturating_sub(*echoed.lock());
            if silent > FRESH_MAX {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let now = serving.borrow_and_update().clone();
            let is_told = told.is_some() && planted::is(Bug::BeatTellsServingOnce);
            let news = (told.as_ref() != Some(&now) && !is_told).then_some(&now);
            let bytes = encode_beat(beats.now(), news);
            told = Some(now);
            to.write_all(&bytes).await?;
            to.flush().await?;
            tokio::select! {
                biased;
                // An error means that the server ends.
                changed = serving.changed() => changed.map_err(|_| io::ErrorKind::ConnectionAborted)?,
                () = clock.sleep(BEAT_INTERVAL) => {}
            }
            if pulse.generation() != generation {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
    };
    tokio::select! {
        biased;
        ended = echoing => ended,
        ended = sending => ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beats(clock: &cairn_testkit::ManualClock, process: u16) -> Beats {
        Beats::new(Arc::new(clock.clone()), process)
    }

    #[test]
    fn bytes_are_as_old_as_their_beat() {
        let clock = cairn_testkit::ManualClock::default();
        clock.advance(Duration::from_secs(100));
        let (own, earlier) = (beats(&clock, 7), beats(&clock, 6));
        let beat = own.now();
        let at = |ms: u64| Duration::from_secs(100) + Duration::from_millis(ms);
        // The bytes came after the moment when the owner had read all that was there.
        for (drained, want) in [(0, true), (1000, true), (1001, false), (90_000, false)] {
            clock.advance(at(drained).saturating_sub(clock.boottime()));
            assert_eq!(own.is_fresh(beat, at(drained)), want, "{drained}");
            assert!(!earlier.is_fresh(beat, at(drained)), "another process");
        }
        // The owner was busy and left the bytes where they were: that makes nothing old.
        assert!(own.is_fresh(beat, at(500)));
        let to_come = Beat(own.now().0 + 10_000);
        assert!(!own.is_fresh(to_come, at(90_000)));
    }

    #[test]
    fn mistakes_with_beats_are_noticed() {
        let test: fn() = bytes_are_as_old_as_their_beat;
        for bug in [Bug::BeatOfOtherProcessTaken, Bug::ForwardOldBytesTaken] {
            assert!(planted::is_noticed_by(bug, test), "{bug:?}");
        }
    }

    #[tokio::test]
    async fn beats_are_read_as_they_are_sent_or_refused() {
        let serving: Serving = Arc::new([3, 5, 70_000].map(VolumeId).into());
        for news in [None, Some(&serving)] {
            let bytes = encode_beat(Beat(9), news);
            let (beat, named) = read_beat(&mut &bytes[..]).await.unwrap();
            assert_eq!(beat, Beat(9));
            assert_eq!(named.as_ref(), news.map(|serving| &**serving));
            for len in 0..bytes.len() {
                assert!(read_beat(&mut &bytes[..len]).await.is_err(), "{len}");
            }
        }
        let mut many = encode_beat(Beat(9), Some(&serving));
        many[8..12].copy_from_slice(&(VOLUME_COUNT_MAX + 1).to_be_bytes());
        assert!(read_beat(&mut &many[..]).await.is_err());
    }
}
