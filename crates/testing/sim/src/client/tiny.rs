//! Files so small that the metadata holds their bytes: written, grown, truncated and punched near that limit.
//!
//! Owns: the choice of files and changes. Must not know: where their bytes are.

use cairn_base::Ino;
use cairn_fs::Stability;
use cairn_meta::INLINE_LEN_BYTES_MAX;

use super::Client;
use crate::model::WORD_BYTES;
use crate::tree::{Kind, NodeId};

const TINY_WORDS_MAX: u64 = INLINE_LEN_BYTES_MAX as u64 / WORD_BYTES;

impl Client {
    /// Changes a file whose size is near the limit for bytes in the metadata.
    pub(super) async fn change_tiny_file(&mut self) {
        let Some((node, ino, words)) = self.pick_tiny() else {
            return;
        };
        let first = self.more.below(TINY_WORDS_MAX);
        // One in a few exceeds the limit.
        let beyond = self.more.below(2) * 4;
        let count = 1 + self.more.below(TINY_WORDS_MAX - first + beyond);
        match self.more.below(8) {
            0 => {
                let size_bytes = self.more.below(words + 2) * WORD_BYTES;
                self.cut_to(node, ino, size_bytes).await;
            }
            1 => self.punch_words(node, ino, first, count).await,
            at => {
                let stability = match at {
                    2 | 3 => Stability::Stable,
                    _ => Stability::Unstable,
                };
                let tag = self.life.model.lock().new_tag();
                let range = (first.min(words), count);
                self.write_words(node, ino, range, tag, stability).await;
            }
        }
    }

    fn pick_tiny(&mut self) -> Option<(NodeId, Ino, u64)> {
        let model = self.life.model.lock();
        let mut known = model.known(|kind| matches!(kind, Kind::File));
        known.retain(|node| model.size_bytes(*node) <= (TINY_WORDS_MAX + 4) * WORD_BYTES);
        if known.is_empty() {
            return None;
        }
        let node = *known.get(self.more.below(known.len() as u64) as usize)?;
        let words = model.size_bytes(node) / WORD_BYTES;
        Some((node, Ino(model.ino(node)?), words))
    }
}
