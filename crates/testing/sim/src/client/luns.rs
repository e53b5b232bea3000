//! The effects of SCSI commands on the file of a LUN: holes, and writes that depend on present contents.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use cairn_base::Ino;
use cairn_fs::{Compared, FsError, Stability};
use parking_lot::Mutex;

use super::{Client, change_time, observe};
use crate::model::{self, WORD_BYTES};
use crate::tree::{Kind, NodeId};
use crate::world::WHO;

impl Client {
    /// Any file, and its number of words.
    fn pick_lun(&mut self) -> Option<(NodeId, Ino, u64)> {
        let model = self.life.model.lock();
        let known = model.known(|kind| matches!(kind, Kind::File));
        let node = *known.get(self.more.below(known.len() as u64) as usize)?;
        let ino = Ino(model.ino(node)?);
        Some((node, ino, model.size_bytes(node) / WORD_BYTES))
    }

    /// UNMAP and WRITE SAME of zeros: a hole in the file of a LUN, stable when it is answered.
    pub(super) async fn punch(&mut self) {
        let Some((node, ino, words)) = self.pick_lun() else {
            return;
        };
        let first = self.more.below(words + 1);
        let count = match self.more.below(4) {
            0 => 1 + self.more.below(20_000),
            1 => 512 * (1 + self.more.below(4)),
            _ => 1 + self.more.below(700),
        };
        self.punch_words(node, ino, first, count).await;
    }

    pub(super) async fn punch_words(&mut self, node: NodeId, ino: Ino, first: u64, count: u64) {
        let life = self.life.clone();
        let fs = self.fs.clone();
        let effect = Mutex::new(None);
        let range = first * WORD_BYTES..(first + count) * WORD_BYTES;
        let result = observe(
            fs.punch(&WHO, ino, range),
            || change_time(&fs, ino),
            || {
                let seq = life.model.lock().punch(node, first, count);
                tracing::debug!(node = node.0, first, count, ?seq, "hole takes effect");
                *effect.lock() = seq;
            },
        )
        .await;
        let effect = effect.into_inner();
        tracing::debug!(node = node.0, %ino, first, count, effect, error = ?result.as_ref().err(), "hole made");
        match (result, effect) {
            (Ok(()), Some(seq)) => life.model.lock().write_is_durable(node, seq),
            // There was nothing to punch.
            (Ok(()), None) => {}
            (Err(error), effect) => {
                let is_gone = error == FsError::Stale && self.is_gone(node);
                if is_gone || self.is_excused(&error, effect.is_some()) {
                    life.ops_refused.fetch_add(1, Ordering::Relaxed);
                } else {
                    life.fail(format!("a hole in node {} failed: {error}", node.0));
                }
            }
        }
    }

    /// COMPARE AND WRITE: a write, if the file has the contents that the client expects. Sometimes the client expects a
    /// wrong word.
    pub(super) async fn compare_and_write(&mut self) {
        let Some((node, ino, words)) = self.pick_lun() else {
            return;
        };
        if words == 0 || !self.life.model.lock().is_sure(node) {
            return;
        }
        let first = self.more.below(words);
        let count = (1 + self.more.below(700)).min(words - first);
        let (offset, len) = (first * WORD_BYTES, count * WORD_BYTES);
        let is_wrong = self.more.below(3) == 0;
        let wrong_at = self.more.below(count) as usize;
        let (there, believed, tag, begun) = {
            let mut model = self.life.model.lock();
            let there = model.expected_read(node, offset, len);
            let mut believed = there.clone();
            if is_wrong && let Some(word) = believed.get_mut(wrong_at) {
                // No write uses this tag.
                *word = model.new_tag();
            }
            (there, believed, model.new_tag(), model.seq())
        };
        let expected: Vec<u8> = (first..)
            .zip(&believed)
            .flat_map(|(index, tag)| model::word(*tag, index))
            .collect();
        let data = Bytes::from(model::content(tag, first, count));
        let stability = match self.more.below(4) {
            0 => Stability::Unstable,
            _ => Stability::Stable,
        };
        let (life, fs) = (self.life.clone(), self.fs.clone());
        let effect = Mutex::new(None);
        let result = observe(
            fs.compare_and_write(&WHO, ino, offset, &expected, data, stability),
            || change_time(&fs, ino),
            || {
                let mut model = life.model.lock();
                if model.expected_read(node, offset, len) != believed {
                    life.fail(format!(
                        "a compare-and-write to node {} took effect although not all was there that it expects",
                        node.0
                    ));
                }
                let seq = model.write(node, first, count, tag);
                tracing::debug!(node = node.0, first, count, tag, seq, "compare-and-write takes effect");
                *effect.lock() = Some(seq);
            },
        )
        .await;
        let effect = effect.into_inner();
        tracing::debug!(node = node.0, %ino, first, count, tag, is_wrong, effect, ?result, "compared");
        let has_changed = |from: u64, to: u64| {
            let model = self.life.model.lock();
            model.has_changed(node, from..to, begun)
        };
        match (result, effect) {
            (Ok(Compared::Written(written)), Some(seq)) => {
                if written.stable {
                    life.model.lock().write_is_durable(node, seq);
                    life.answered();
                }
            }
            (Ok(Compared::Written(_)), None) => {
                life.fail("a compare-and-write succeeded without effect");
            }
            (Ok(Compared::Differs(_)), Some(_)) => {
                life.fail("a compare-and-write took effect and was answered as one that did not");
            }
            (Ok(Compared::Differs(_)), None) if !life.may_answer() || self.has_stopped() => {}
            (Ok(Compared::Differs(at)), None) => {
                let word = at / WORD_BYTES;
                let differed = there.get(word as usize) != believed.get(word as usize);
                if !differed && !has_changed(first + word, first + word + 1) {
                    life.fail(format!(
                        "a compare-and-write to node {} found word {} to differ, which did not",
                        node.0,
                        first + word
                    ));
                }
            }
            // The file was truncated, or changes all the time.
            (Err(FsError::Invalid), None) if has_changed(first, first + count) => {}
            (Err(FsError::TryLater), None) if has_changed(0, words) => {}
            (Err(error), effect) => {
                let is_gone = error == FsError::Stale && self.is_gone(node);
                let is_full = error == FsError::NoSpace && self.is_excused(&error, false);
                if is_gone || is_full || self.is_excused(&error, effect.is_some()) {
                    life.ops_refused.fetch_add(1, Ordering::Relaxed);
                } else {
                    life.fail(format!(
                        "a compare-and-write to node {} failed: {error}",
                        node.0
                    ));
                }
            }
        }
    }
}
