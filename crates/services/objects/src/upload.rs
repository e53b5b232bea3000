//! Uploads in parts.
//!
//! Owns: a folder for each upload with a file for each part, what makes an object of them, that a part replaces the one
//! that had its number. Parts are copied into the object when it is completed.

use bytes::Bytes;
use cairn_base::Ino;
use cairn_fs::{Credentials, FileKind, FsError, TRANSFER_LEN_BYTES_MAX, XattrMode};
use md5::{Digest as _, Md5};

use crate::bucket::{Bucket, Condition, Published, hex};
use crate::records::{ObjectError, ObjectRecord, PartInfo, UploadInfo, VERSION, decode, encode};
use crate::staging::Staged;
use crate::{PART_LEN_BYTES_MIN, PART_NUMBER_MAX};

const OF_UPLOAD: &[u8] = b"user.s3.upload";
const OF_PART: &[u8] = b"user.s3.part";
const FOLDER_PREFIX: &str = "upload-";
const PART_PREFIX: &str = "part-";
const PAGE_COUNT: usize = 1000;
/// Digits of an upload's number.
const ID_LEN: usize = 32;

/// An upload that is there.
struct Found {
    folder: Ino,
    name: String,
    info: UploadInfo,
}

impl Bucket {
    /// Begins an upload; returns its number.
    pub async fn begin_upload(
        &self,
        who: &Credentials,
        key: &str,
        object: ObjectRecord,
    ) -> Result<String, ObjectError> {
        let path = crate::KeyPath::parse(key.as_bytes())?;
        if path.is_directory {
            return Err(ObjectError::Invalid(
                "a key that ends with a slash is a directory, which has no bytes".to_owned(),
            ));
        }
        let objects = self.objects();
        let staging = objects.staging().await?;
        let id = objects.unique();
        let info = UploadInfo {
            version: VERSION,
            directory: self.record.directory,
            bucket: self.name.clone(),
            key: key.to_owned(),
            uid: who.uid,
            created_seconds: objects.env.clock.now().seconds,
            object,
        };
        let name = format!("{FOLDER_PREFIX}{id}");
        let (folder, _) = objects.enter_or_make(who, staging, name.as_bytes()).await?;
        objects
            .fs()
            .set_xattr(who, folder, OF_UPLOAD, &encode(&info)?, XattrMode::Any)
            .await?;
        Ok(id)
    }

    async fn upload(&self, who: &Credentials, key: &str, id: &str) -> Result<Found, ObjectError> {
        let is_number = id.len() == ID_LEN && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_number {
            return Err(ObjectError::NoUpload);
        }
        let objects = self.objects();
        let name = format!("{FOLDER_PREFIX}{id}");
        let staging = objects.staging().await?;
        let folder = match objects.fs().lookup(who, staging, name.as_bytes()).await {
            Ok((attr, _)) => attr.ino,
            Err(FsError::NotFound | FsError::Stale) => return Err(ObjectError::NoUpload),
            Err(error) => return Err(error.into()),
        };
        let info = self.info_of(folder).await?.ok_or(ObjectError::NoUpload)?;
        let is_it = info.directory == self.record.directory
            && info.key == key
            && (info.uid == who.uid || who.is_root());
        match is_it {
            true => Ok(Found { folder, name, info }),
            false => Err(ObjectError::NoUpload),
        }
    }

    async fn info_of(&self, folder: Ino) -> Result<Option<UploadInfo>, ObjectError> {
        let fs = self.objects().fs();
        match fs.xattr(&Credentials::ROOT, folder, OF_UPLOAD).await {
            Ok(value) => Ok(Some(decode("an upload", &value)?)),
            Err(FsError::NoAttribute | FsError::Stale) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Begins a part.
    pub async fn stage_part(
        &self,
        who: &Credentials,
        key: &str,
        id: &str,
        number: u32,
    ) -> Result<Staged, ObjectError> {
        if !(1..=PART_NUMBER_MAX).contains(&number) {
            return Err(ObjectError::Invalid(format!(
                "the number of a part is from 1 to {PART_NUMBER_MAX}, not {number}"
            )));
        }
        let upload = self.upload(who, key, id).await?;
        let name = format!("new-{number:05}-{}", self.objects().unique());
        Staged::begin(self.objects(), who, upload.folder, name).await
    }

    /// Gives a part its place: it is durable when this is answered.
    pub async fn publish_part(
        &self,
        number: u32,
        mut staged: Staged,
    ) -> Result<PartInfo, ObjectError> {
        let etag = hex(&staged.md5());
        let whole = staged.finish().await?;
        let fs = self.objects().fs();
        let who = staged.who().clone();
        fs.set_xattr(&who, whole.ino, OF_PART, etag.as_bytes(), XattrMode::Any)
            .await?;
        let (folder, name) = staged.place();
        let to = part_name(number);
        let moved = fs.rename(&who, folder, name.as_bytes(), folder, to.as_bytes());
        match moved.await {
            Ok(_) => {}
            Err(FsError::Stale | FsError::NotFound) => return Err(ObjectError::NoUpload),
            Err(error) => return Err(error.into()),
        }
        staged.take();
        Ok(PartInfo {
            number,
            size_bytes: whole.attr.size_bytes,
            etag,
            mtime: whole.attr.mtime,
        })
    }

    /// Parts after a number, in order; whether there are more.
    pub async fn parts(
        &self,
        who: &Credentials,
        key: &str,
        id: &str,
        after: u32,
        limit: usize,
    ) -> Result<(Vec<PartInfo>, bool), ObjectError> {
        let upload = self.upload(who, key, id).await?;
        let parts = self.parts_in(who, upload.folder, after, limit).await?;
        Ok((parts.0.into_iter().map(|(part, _)| part).collect(), parts.1))
    }

    async fn parts_in(
        &self,
        who: &Credentials,
        folder: Ino,
        after: u32,
        limit: usize,
    ) -> Result<(Vec<(PartInfo, Ino)>, bool), ObjectError> {
        let fs = self.objects().fs();
        let mut from = match after {
            0 => PART_PREFIX.to_owned().into_bytes(),
            after => part_name(after).into_bytes(),
        };
        let mut parts = Vec::new();
        loop {
            let page = fs
                .names_after(who, folder, &from, false, PAGE_COUNT)
                .await?;
            for entry in &page.entries {
                from = entry.name.to_vec();
                let Some(number) = number_of(&entry.name) else {
                    continue;
                };
                if parts.len() == limit {
                    return Ok((parts, true));
                }
                let read = async {
                    let attr = fs.attr(entry.ino).await?;
                    let etag = fs.xattr(&Credentials::ROOT, entry.ino, OF_PART).await?;
                    Ok::<_, FsError>((attr, etag))
                };
                match read.await {
                    Ok((attr, etag)) => parts.push((
                        PartInfo {
                            number,
                            size_bytes: attr.size_bytes,
                            etag: String::from_utf8_lossy(&etag).into_owned(),
                            mtime: attr.mtime,
                        },
                        entry.ino,
                    )),
                    // Another took its number.
                    Err(FsError::Stale) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if page.eof {
                return Ok((parts, false));
            }
        }
    }

    /// Makes an object of parts: their numbers and ETags, in order.
    pub async fn complete_upload(
        &self,
        who: &Credentials,
        key: &str,
        id: &str,
        wanted: &[(u32, String)],
        condition: &Condition,
    ) -> Result<Published, ObjectError> {
        let upload = self.upload(who, key, id).await?;
        if wanted.is_empty() {
            return Err(ObjectError::Invalid("no part is named".to_owned()));
        }
        if !wanted.is_sorted_by(|(left, _), (right, _)| left < right) {
            return Err(ObjectError::PartOrder);
        }
        let (there, _) = self
            .parts_in(who, upload.folder, 0, PART_NUMBER_MAX as usize)
            .await?;
        let there: std::collections::BTreeMap<u32, (PartInfo, Ino)> = there
            .into_iter()
            .map(|(part, ino)| (part.number, (part, ino)))
            .collect();
        let mut parts = Vec::new();
        for (number, etag) in wanted {
            match there.get(number) {
                Some((part, ino)) if part.etag == etag.trim_matches('"') => {
                    parts.push((part, *ino))
                }
                _ => return Err(ObjectError::WrongPart),
            }
        }
        let but_last = parts.split_last().map_or(&[][..], |(_, before)| before);
        if but_last
            .iter()
            .any(|(part, _)| part.size_bytes < PART_LEN_BYTES_MIN)
        {
            return Err(ObjectError::PartTooSmall);
        }
        let mut staged = self.stage(who).await?;
        let mut sums = Md5::new();
        for (part, ino) in &parts {
            let sum = unhex(&part.etag).ok_or(ObjectError::WrongPart)?;
            sums.update(sum);
            self.append(who, &mut staged, *ino, part.size_bytes).await?;
        }
        let record = ObjectRecord {
            etag: format!("{}-{}", hex(&sums.finalize()), parts.len()),
            parts: parts.iter().map(|(part, _)| part.size_bytes).collect(),
            ..upload.info.object.clone()
        };
        let published = self.publish(key, staged, record, condition).await?;
        self.remove_upload(&upload).await;
        Ok(published)
    }

    /// Adds all bytes of a file.
    pub async fn append(
        &self,
        who: &Credentials,
        staged: &mut Staged,
        ino: Ino,
        size_bytes: u64,
    ) -> Result<(), ObjectError> {
        self.append_range(who, staged, ino, 0..size_bytes).await
    }

    /// Adds some bytes of a file.
    pub async fn append_range(
        &self,
        who: &Credentials,
        staged: &mut Staged,
        ino: Ino,
        range: std::ops::Range<u64>,
    ) -> Result<(), ObjectError> {
        let mut at = range.start;
        while at < range.end {
            let len_bytes = (range.end - at).min(u64::from(TRANSFER_LEN_BYTES_MAX));
            let parts: Vec<Bytes> = self.read(who, ino, at, len_bytes).await?;
            let count: u64 = parts.iter().map(|part| part.len() as u64).sum();
            if count == 0 {
                return Err(ObjectError::Invalid(
                    "the file became shorter meanwhile".to_owned(),
                ));
            }
            for part in parts {
                staged.add(part).await?;
            }
            at += count;
        }
        Ok(())
    }

    pub async fn abort_upload(
        &self,
        who: &Credentials,
        key: &str,
        id: &str,
    ) -> Result<(), ObjectError> {
        let upload = self.upload(who, key, id).await?;
        self.remove_upload(&upload).await;
        Ok(())
    }

    /// What cannot be removed now can be aborted again.
    async fn remove_upload(&self, upload: &Found) {
        let who = Credentials::ROOT;
        let fs = self.objects().fs();
        let Ok(staging) = self.objects().staging().await else {
            return;
        };
        // Without this nobody finds it any more.
        let forgotten = fs.remove_xattr(&who, upload.folder, OF_UPLOAD).await;
        let mut after = Vec::new();
        while let Ok(page) = fs
            .names_after(&who, upload.folder, &after, false, PAGE_COUNT)
            .await
        {
            for entry in &page.entries {
                after = entry.name.to_vec();
                let _ = fs.remove(&who, upload.folder, &entry.name).await;
            }
            if page.eof {
                break;
            }
        }
        let removed = fs.remove_dir(&who, staging, upload.name.as_bytes()).await;
        if let (Err(error), _) | (_, Err(error)) = (forgotten, removed) {
            tracing::debug!(%error, upload = upload.name, "parts of an upload stay for now");
        }
    }

    /// Uploads of this bucket whose keys begin with a prefix, in the order of keys and numbers: number and record.
    pub async fn uploads(
        &self,
        who: &Credentials,
        prefix: &str,
    ) -> Result<Vec<(String, UploadInfo)>, ObjectError> {
        let staging = self.objects().staging().await?;
        let fs = self.objects().fs();
        let mut found = Vec::new();
        let mut after = FOLDER_PREFIX.as_bytes().to_vec();
        loop {
            let page = fs
                .names_after(&Credentials::ROOT, staging, &after, false, PAGE_COUNT)
                .await?;
            for entry in &page.entries {
                after = entry.name.to_vec();
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                let (Some(id), FileKind::Directory) =
                    (name.strip_prefix(FOLDER_PREFIX), entry.kind)
                else {
                    continue;
                };
                if let Some(info) = self.info_of(entry.ino).await?
                    && info.directory == self.record.directory
                    && info.key.starts_with(prefix)
                    && (info.uid == who.uid || who.is_root())
                {
                    found.push((id.to_owned(), info));
                }
            }
            if page.eof {
                found.sort_by(|(left_id, left), (right_id, right)| {
                    (&left.key, left_id).cmp(&(&right.key, right_id))
                });
                return Ok(found);
            }
        }
    }
}

fn part_name(number: u32) -> String {
    format!("{PART_PREFIX}{number:05}")
}

fn number_of(name: &[u8]) -> Option<u32> {
    let digits = name.strip_prefix(PART_PREFIX.as_bytes())?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = (0..text.len()).step_by(2);
    pairs
        .map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok())
        .collect()
}
