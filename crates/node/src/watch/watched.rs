//! A disk whose answers are watched.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::disk::{Disk, DiskError, DiskFile, DiskSpace, IoFuture, OpenMode};

use super::answers::{Answers, patiently};

pub struct WatchedDisk {
    pub inner: Arc<dyn Disk>,
    pub answers: Arc<Answers>,
}

struct WatchedFile {
    inner: Arc<dyn DiskFile>,
    answers: Arc<Answers>,
}

impl WatchedDisk {
    fn watch<'a, T: Send + 'a>(
        &'a self,
        ask: impl Fn() -> IoFuture<'a, T> + Send + 'a,
    ) -> IoFuture<'a, T> {
        Box::pin(patiently(&self.answers, ask))
    }
}

impl Disk for WatchedDisk {
    fn label(&self) -> &str {
        self.inner.label()
    }

    fn open<'a>(&'a self, name: &'a str, mode: OpenMode) -> IoFuture<'a, Arc<dyn DiskFile>> {
        Box::pin(async move {
            let inner = patiently(&self.answers, || self.inner.open(name, mode)).await?;
            let answers = Arc::clone(&self.answers);
            Ok(Arc::new(WatchedFile { inner, answers }) as Arc<dyn DiskFile>)
        })
    }

    fn remove<'a>(&'a self, name: &'a str) -> IoFuture<'a, ()> {
        self.watch(move || self.inner.remove(name))
    }

    fn rename<'a>(&'a self, from: &'a str, to: &'a str) -> IoFuture<'a, ()> {
        self.watch(move || self.inner.rename(from, to))
    }

    fn list<'a>(&'a self, folder: &'a str) -> IoFuture<'a, Vec<String>> {
        self.watch(move || self.inner.list(folder))
    }

    fn sync_folder<'a>(&'a self, folder: &'a str) -> IoFuture<'a, ()> {
        self.watch(move || self.inner.sync_folder(folder))
    }

    fn space(&self) -> Result<DiskSpace, DiskError> {
        if self.answers.is_given_up() {
            return Err(self.answers.refusal());
        }
        self.inner.space()
    }

    fn recount<'a>(&'a self) -> IoFuture<'a, ()> {
        self.watch(move || self.inner.recount())
    }

    fn folder(&self) -> Option<&Path> {
        self.inner.folder()
    }
}

impl WatchedFile {
    fn watch<'a, T: Send + 'a>(
        &'a self,
        ask: impl Fn() -> IoFuture<'a, T> + Send + 'a,
    ) -> IoFuture<'a, T> {
        Box::pin(patiently(&self.answers, ask))
    }
}

impl DiskFile for WatchedFile {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }

    fn write_at<'a>(&'a self, offset: u64, parts: Vec<Bytes>) -> IoFuture<'a, ()> {
        self.watch(move || self.inner.write_at(offset, parts.clone()))
    }

    fn write_durable_at<'a>(&'a self, offset: u64, parts: Vec<Bytes>) -> IoFuture<'a, ()> {
        self.watch(move || self.inner.write_durable_at(offset, parts.clone()))
    }

    fn write_durable_here<'a>(&'a self, offset: u64, part: Bytes) -> IoFuture<'a, ()> {
        self.watch(move || self.inner.write_durable_here(offset, part.clone()))
    }

    fn read_at<'a>(&'a self, offset: u64, len_bytes: usize) -> IoFuture<'a, Bytes> {
        self.watch(move || self.inner.read_at(offset, len_bytes))
    }

    fn sync<'a>(&'a self) -> IoFuture<'a, ()> {
        self.watch(move || self.inner.sync())
    }

    fn set_len<'a>(&'a self, len_bytes: u64) -> IoFuture<'a, ()> {
        self.watch(move || self.inner.set_len(len_bytes))
    }
}
