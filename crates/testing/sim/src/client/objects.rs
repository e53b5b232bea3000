//! The steps of an S3 server that puts an object: bytes into a file without a name, then one conditional batch that
//! names it.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::Poll;

use bytes::Bytes;
use cairn_fs::{Expected, FsError, Placing, SetAttr, Unnamed};

use super::Client;
use crate::model;
use crate::tree::Change;
use crate::world::WHO;

/// The bytes come in pieces of this many words.
const STEP_WORDS: u64 = 20_000;
const OF_OBJECT: &[u8] = b"user.put";

impl Client {
    /// Puts an object, sometimes only if there is none (If-None-Match). It takes effect as a whole: name, bytes,
    /// attributes, and the removal of the previous object.
    pub(super) async fn put(&mut self) {
        let Some((dir, ino)) = self.pick_any_dir() else {
            return;
        };
        let name = format!("n{}", self.more.below(super::NAME_COUNT)).into_bytes();
        let absent = self.more.below(3) == 0;
        let words = match self.more.below(4) {
            0 => self.more.below(2),
            1 => self.more.below(700),
            2 => self.more.below(12_000),
            _ => self.more.below(40_000),
        };
        let value = self.more.below(1000).to_string().into_bytes();
        let (node, tag) = {
            let mut model = self.life.model.lock();
            (model.new_node(), model.new_tag())
        };
        let mut file = match self.filled(tag, words).await {
            Ok(file) => file,
            Err(error) => {
                if self.is_excused(&error, false) {
                    self.life.ops_refused.fetch_add(1, Ordering::Relaxed);
                } else {
                    let what = format!("bytes of an object were refused: {error}");
                    self.life.fail(what);
                }
                return;
            }
        };
        let change = Change::Put {
            dir,
            name: name.clone(),
            node,
            absent,
            words,
            tag,
            xattr: (OF_OBJECT.to_vec(), value.clone()),
        };
        let xattrs = [(OF_OBJECT, Bytes::from(value))];
        let placing = Placing {
            dir: ino,
            name: &name,
            expected: match absent {
                true => Expected::Nothing,
                false => Expected::Anything,
            },
            set: SetAttr {
                mode: Some(0o644),
                ..SetAttr::default()
            },
            xattrs: &xattrs,
        };
        self.place(change, &mut file, &placing).await;
    }

    async fn filled(&self, tag: model::Tag, words: u64) -> Result<Unnamed, FsError> {
        let mut file = self.fs.make_unnamed(&WHO)?;
        let mut first = 0;
        while first < words {
            let count = STEP_WORDS.min(words - first);
            let step = Bytes::from(model::content(tag, first, count));
            file.append(step).await?;
            first += count;
        }
        Ok(file)
    }

    async fn place(&mut self, change: Change, file: &mut Unnamed, placing: &Placing<'_>) {
        let (life, fs) = (self.life.clone(), self.fs.clone());
        let (Change::Put { node, .. }, ino) = (&change, file.ino()) else {
            return;
        };
        // Larger objects wait for their bytes first, and other clients make and remove the name meanwhile: any of these
        // refusals is right.
        let mut refusals = Vec::new();
        let mut effect = None;
        let result = {
            let mut placing = pin!(file.place(&WHO, placing));
            poll_fn(|context| {
                if effect.is_none()
                    && let Err(refusal) = life.model.lock().tree.expect(&change)
                {
                    refusals.push(refusal);
                }
                let polled = placing.as_mut().poll(context);
                let has_name = fs.attr_under_way(ino).is_ok_and(|attr| attr.nlink > 0);
                if effect.is_none() && has_name {
                    match life.model.lock().apply(&change) {
                        Ok(seq) => effect = Some(seq),
                        Err(error) => {
                            life.fail(format!("{change:?} took effect, want: {error}"));
                            return Poll::Ready(Err(error));
                        }
                    }
                }
                polled
            })
            .await
        };
        tracing::debug!(?change, ?effect, error = ?result.as_ref().err(), "put");
        match (result, effect) {
            (Ok(_), Some(seq)) => {
                life.model.lock().change_is_durable(seq);
                life.answered();
                self.learn(*node, ino);
            }
            (Ok(_), None) => life.fail(format!("{change:?} succeeded without effect")),
            (Err(error), None) if refusals.contains(&error) => {}
            (Err(error), effect) if self.is_excused(&error, effect.is_some()) => {
                life.ops_refused.fetch_add(1, Ordering::Relaxed);
                let is_told = error == FsError::Fenced && !life.shape.forgets_starts;
                if let Some(seq) = effect.filter(|_| is_told && self.is_reopening()) {
                    life.model.lock().change_is_refused(seq);
                    life.changes_refused.fetch_add(1, Ordering::Relaxed);
                }
            }
            (Err(error), effect) => life.fail(format!(
                "{change:?}: {error}, effect {effect:?}, refusals {refusals:?}"
            )),
        }
    }
}
