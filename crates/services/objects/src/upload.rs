//! Uploads in parts.
//!
//! Owns: a folder for each upload with a file for each part, what makes an object of them, that a part replaces the one
//! that had its number. Parts are copied into the object when it is completed.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::Ino;
use cairn_fs::{Credentials, Expected, FileKind, FsError, Placing, SetAttr};
use md5::{Digest as _, Md5};

use crate::arrivals::Arrival;
use crate::bucket::{Bucket, Condition, ObjectInfo, Published, hex};
use crate::checksums::{UploadChecksum, is_meant};
use crate::lifecycle::is_of_volume;
use crate::records::{
    ObjectError, ObjectRecord, PartInfo, PartRecord, UploadInfo, VERSION, decode, encode,
};
use crate::staging::Staged;
use crate::volume::Objects;
use crate::{PART_LEN_BYTES_MIN, PART_NUMBER_MAX};

const OF_UPLOAD: &[u8] = b"user.s3.upload";
const OF_PART: &[u8] = b"user.s3.part";
const FOLDER_PREFIX: &str = "upload-";
const PART_PREFIX: &str = "part-";
const PAGE_COUNT: usize = 1000;
/// The newest versions of a key, among which the object is looked for that an upload has become.
const COMPLETED_LOOKS_MAX: usize = 100;
/// Digits of an upload's number.
const ID_LEN: usize = 32;

/// A part on its way.
pub struct StagedPart {
    folder: Ino,
    number: u32,
    /// The algorithm of the checksum that the upload is to have.
    pub algorithm: Option<String>,
    /// Those that were made of its bytes, by algorithm, in base64.
    pub checksums: BTreeMap<String, String>,
    /// If it is not the MD5 of what is added to it.
    pub etag: Option<String>,
    pub staged: Staged,
}

/// A part that an object is to be made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedPart {
    pub number: u32,
    pub etag: String,
    /// Those that are known; they must be the part's.
    pub checksums: BTreeMap<String, String>,
}

/// An upload that is there.
struct FoundUpload {
    folder: Ino,
    name: String,
    info: UploadInfo,
}

/// What the object is to be that an upload becomes.
#[derive(Clone, Copy, Debug)]
pub struct Completion<'a> {
    /// Its parts, in order.
    pub wanted: &'a [WantedPart],
    /// Checksums of all of it that are known, by algorithm.
    pub whole: &'a BTreeMap<String, String>,
    pub condition: &'a Condition,
}

impl Bucket {
    /// Begins an upload; returns its number.
    pub async fn begin_upload(
        &self,
        who: &Credentials,
        key: &str,
        object: ObjectRecord,
        checksum: Option<UploadChecksum>,
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
            checksum,
        };
        let name = format!("{FOLDER_PREFIX}{id}");
        let xattrs = [(OF_UPLOAD, Bytes::from(encode(&info)?))];
        let made = objects.enter_or_make(who, staging, name.as_bytes(), &xattrs);
        made.await?;
        Ok(id)
    }

    async fn upload(
        &self,
        who: &Credentials,
        key: &str,
        id: &str,
    ) -> Result<FoundUpload, ObjectError> {
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
            true => Ok(FoundUpload { folder, name, info }),
            false => Err(ObjectError::NoUpload),
        }
    }

    pub(crate) async fn info_of(&self, folder: Ino) -> Result<Option<UploadInfo>, ObjectError> {
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
        arrival: Arrival,
    ) -> Result<StagedPart, ObjectError> {
        if !(1..=PART_NUMBER_MAX).contains(&number) {
            return Err(ObjectError::Invalid(format!(
                "the number of a part is from 1 to {PART_NUMBER_MAX}, not {number}"
            )));
        }
        let upload = self.upload(who, key, id).await?;
        let arrival = Arc::new(arrival);
        let staged = Staged::begin(self.objects(), who, upload.folder, arrival).await?;
        let checksum = upload.info.checksum;
        Ok(StagedPart {
            folder: upload.folder,
            number,
            algorithm: checksum.map(|checksum| checksum.algorithm),
            checksums: BTreeMap::new(),
            etag: None,
            staged,
        })
    }

    /// Gives a part its place: it is durable when this is answered.
    pub async fn publish_part(&self, part: StagedPart) -> Result<PartInfo, ObjectError> {
        let StagedPart {
            folder,
            number,
            checksums,
            etag,
            staged,
            ..
        } = part;
        let record = PartRecord {
            etag: etag.unwrap_or_else(|| hex(&staged.md5().unwrap_or_default())),
            checksums,
        };
        let (who, arrival) = (staged.who().clone(), staged.arrival());
        let mut file = staged.whole().await?;
        let due = arrival.due().await?;
        let name = part_name(number);
        let placing = Placing {
            dir: folder,
            name: name.as_bytes(),
            expected: Expected::Anything,
            set: SetAttr::default(),
            xattrs: &[(OF_PART, Bytes::from(encode(&record)?))],
        };
        match file.place(&who, &placing).await {
            Ok(attr) => {
                due.done();
                Ok(PartInfo {
                    number,
                    size_bytes: attr.size_bytes,
                    etag: record.etag,
                    checksums: record.checksums,
                    mtime: attr.mtime,
                })
            }
            Err(FsError::Stale | FsError::NotFound) => Err(ObjectError::NoUpload),
            Err(error) => Err(error.into()),
        }
    }

    /// Parts after a number, in order; whether there are more; which checksum the object is to have.
    pub async fn parts(
        &self,
        who: &Credentials,
        key: &str,
        id: &str,
        after: u32,
        limit: usize,
    ) -> Result<(Vec<PartInfo>, bool, Option<UploadChecksum>), ObjectError> {
        let upload = self.upload(who, key, id).await?;
        let (parts, is_more) = self.parts_in(who, upload.folder, after, limit).await?;
        let parts = parts.into_iter().map(|(part, _)| part);
        Ok((parts.collect(), is_more, upload.info.checksum))
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
                    let record = fs.xattr(&Credentials::ROOT, entry.ino, OF_PART).await?;
                    Ok::<_, FsError>((attr, record))
                };
                match read.await {
                    Ok((attr, record)) => {
                        let record: PartRecord = decode("a part", &record)?;
                        let part = PartInfo {
                            number,
                            size_bytes: attr.size_bytes,
                            etag: record.etag,
                            checksums: record.checksums,
                            mtime: attr.mtime,
                        };
                        parts.push((part, entry.ino));
                    }
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

    /// The object that an upload has become, as long as that very version is there and is of these parts: an answer that was lost
    /// is given again.
    async fn completed(
        &self,
        who: &Credentials,
        key: &str,
        id: &str,
        wanted: &[WantedPart],
        whole: &BTreeMap<String, String>,
    ) -> Result<Option<(Published, ObjectRecord)>, ObjectError> {
        let etags = wanted.iter().map(|part| part.etag.trim_matches('"'));
        let Some(etag) = etag_of_parts(etags) else {
            return Ok(None);
        };
        let path = crate::KeyPath::parse(key.as_bytes())?;
        let is_it = |info: &ObjectInfo| {
            let of_upload = info.record.as_ref().and_then(|it| it.upload_id.as_deref());
            of_upload == Some(id) && (info.attr.uid == who.uid || who.is_root())
        };
        let mut found = self.found(who, &path).await?.filter(is_it);
        if found.is_none() && self.versioning().is_some() {
            let folder = match self.kept_folder(who, &path).await {
                // Who may not see old versions completes an upload for the first time.
                Err(ObjectError::Fs(FsError::AccessDenied)) => None,
                folder => folder?,
            };
            let kept = self.versions_of(who, None, folder, None, COMPLETED_LOOKS_MAX);
            found = kept.await?.into_iter().find(is_it);
        }
        let Some(ObjectInfo {
            record: Some(record),
            version_id,
            ..
        }) = found
        else {
            return Ok(None);
        };
        if record.etag != etag {
            return Ok(None);
        }
        agree(whole, &record.checksums, wanted.len())?;
        let published = Published {
            etag: record.etag.clone(),
            version_id,
        };
        Ok(Some((published, record)))
    }

    /// Makes an object of parts; returns what it has beside its bytes, too. A client that completes an upload again is told the same.
    pub async fn complete_upload(
        &self,
        who: &Credentials,
        key: &str,
        id: &str,
        completion: Completion<'_>,
        arrival: Arc<Arrival>,
    ) -> Result<(Published, ObjectRecord), ObjectError> {
        let Completion {
            wanted,
            whole,
            condition,
        } = completion;
        let _turn = self.objects().completion_turn(id).await;
        let done = self.completed(who, key, id, wanted, whole).await?;
        if let Some(done) = done {
            // The server ended before the parts went, or is just about to remove them.
            if let Ok(upload) = self.upload(who, key, id).await {
                self.remove_upload(&upload).await;
            }
            return Ok(done);
        }
        let upload = self.upload(who, key, id).await?;
        if wanted.is_empty() {
            return Err(ObjectError::Invalid("no part is named".to_owned()));
        }
        if !wanted.is_sorted_by(|left, right| left.number < right.number) {
            return Err(ObjectError::PartOrder);
        }
        let (there, _) = self
            .parts_in(who, upload.folder, 0, PART_NUMBER_MAX as usize)
            .await?;
        let there: BTreeMap<u32, (PartInfo, Ino)> = there
            .into_iter()
            .map(|(part, ino)| (part.number, (part, ino)))
            .collect();
        let mut parts = Vec::new();
        for wanted in wanted {
            let (part, ino) = there.get(&wanted.number).ok_or(ObjectError::WrongPart)?;
            let is_it = |(algorithm, sum): (&String, &String)| {
                let known = part.checksums.get(algorithm);
                known.is_none_or(|known| known == sum)
            };
            if part.etag != wanted.etag.trim_matches('"') || !wanted.checksums.iter().all(is_it) {
                return Err(ObjectError::WrongPart);
            }
            parts.push((part, *ino));
        }
        let but_last = parts.split_last().map_or(&[][..], |(_, before)| before);
        if but_last
            .iter()
            .any(|(part, _)| part.size_bytes < PART_LEN_BYTES_MIN)
        {
            return Err(ObjectError::PartTooSmall);
        }
        let mut checksums = BTreeMap::new();
        if let Some(checksum) = &upload.info.checksum {
            let of_parts = parts.iter().map(|(part, _)| {
                let sum = part.checksums.get(&checksum.algorithm);
                Some((sum?.as_str(), part.size_bytes))
            });
            let of_parts: Option<Vec<_>> = of_parts.collect();
            let sum = of_parts.and_then(|of_parts| checksum.of_parts(&of_parts));
            let sum = sum.ok_or(ObjectError::WrongPart)?;
            checksums.insert(checksum.algorithm.clone(), sum);
            agree(whole, &checksums, parts.len())?;
        }
        let etag = etag_of_parts(parts.iter().map(|(part, _)| part.etag.as_str()));
        let etag = etag.ok_or(ObjectError::WrongPart)?;
        let mut staged = self.stage(who, arrival).await?.unhashed();
        for (part, ino) in &parts {
            let whole = 0..part.size_bytes;
            self.append(who, &mut staged, *ino, whole).await?;
        }
        let record = ObjectRecord {
            etag,
            upload_id: Some(id.to_owned()),
            parts: parts.iter().map(|(part, _)| part.size_bytes).collect(),
            is_composite: upload
                .info
                .checksum
                .as_ref()
                .is_some_and(|checksum| checksum.is_composite),
            checksums,
            ..upload.info.object.clone()
        };
        let published = self.publish(key, staged, record.clone(), condition).await?;
        self.remove_upload(&upload).await;
        Ok((published, record))
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
    async fn remove_upload(&self, upload: &FoundUpload) {
        let who = Credentials::ROOT;
        let fs = self.objects().fs();
        let Ok(staging) = self.objects().staging().await else {
            return;
        };
        // Without this nobody finds it any more.
        let forgotten = fs.remove_xattr(&who, upload.folder, OF_UPLOAD).await;
        if let Err(error) = forgotten {
            tracing::debug!(%error, upload = upload.name, "an upload stays for now");
            return;
        }
        let objects = self.objects();
        objects
            .remove_parts(staging, upload.folder, upload.name.as_bytes())
            .await;
    }

    /// Uploads of this bucket whose keys begin with a prefix, in the order of keys and numbers: number and record.
    pub async fn uploads(
        &self,
        who: &Credentials,
        prefix: &str,
    ) -> Result<Vec<(String, UploadInfo)>, ObjectError> {
        let mut found = Vec::new();
        for (id, folder) in self.upload_folders().await? {
            if let Some(info) = self.info_of(folder).await?
                && info.directory == self.record.directory
                && info.key.starts_with(prefix)
                && (info.uid == who.uid || who.is_root())
            {
                found.push((id, info));
            }
        }
        found.sort_by(|(left_id, left), (right_id, right)| {
            (&left.key, left_id).cmp(&(&right.key, right_id))
        });
        Ok(found)
    }

    /// Uploads of all buckets: number and folder.
    pub(crate) async fn upload_folders(&self) -> Result<Vec<(String, Ino)>, ObjectError> {
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
                let name = String::from_utf8_lossy(&entry.name);
                if let (Some(id), FileKind::Directory) =
                    (name.strip_prefix(FOLDER_PREFIX), entry.kind)
                {
                    found.push((id.to_owned(), entry.ino));
                }
            }
            if page.eof {
                return Ok(found);
            }
        }
    }
}

impl Objects {
    /// Removes the folder of an upload that nobody finds any more.
    async fn remove_parts(&self, staging: Ino, folder: Ino, name: &[u8]) {
        let who = Credentials::ROOT;
        let fs = self.fs();
        let mut after = Vec::new();
        while let Ok(page) = fs
            .names_after(&who, folder, &after, false, PAGE_COUNT)
            .await
        {
            for entry in &page.entries {
                after = entry.name.to_vec();
                let _ = fs.remove(&who, folder, &entry.name).await;
            }
            if page.eof {
                break;
            }
        }
        if let Err(error) = fs.remove_dir(&who, staging, name).await {
            tracing::debug!(%error, "parts of an upload stay for now");
        }
    }

    /// Removes what is left of uploads that were being removed when a client went away, or the server ended.
    pub(crate) async fn remove_leftovers(&self) -> Result<(), ObjectError> {
        let Some(staging) = self.staging_if_there() else {
            return Ok(());
        };
        let (who, fs) = (Credentials::ROOT, self.fs());
        let mut after = FOLDER_PREFIX.as_bytes().to_vec();
        loop {
            let page = fs
                .names_after(&who, staging, &after, false, PAGE_COUNT)
                .await?;
            for entry in &page.entries {
                after = entry.name.to_vec();
                let is_upload = entry.name.starts_with(FOLDER_PREFIX.as_bytes());
                if !is_upload || entry.kind != FileKind::Directory {
                    continue;
                }
                // A folder has it from its first moment on.
                match fs.xattr(&who, entry.ino, OF_UPLOAD).await {
                    Err(FsError::NoAttribute) => {
                        self.remove_parts(staging, entry.ino, &entry.name).await;
                    }
                    Ok(_) | Err(FsError::Stale) => {}
                    Err(error) if is_of_volume(&error) => return Err(error.into()),
                    // One that cannot be read keeps no other.
                    Err(error) => {
                        tracing::debug!(%error, "what is left of an upload stays for now");
                    }
                }
            }
            if page.eof {
                return Ok(());
            }
        }
    }
}

/// The ETag of an object that is made of parts: the MD5 of theirs, and their count. `None`: one of them is none.
fn etag_of_parts<'a>(etags: impl Iterator<Item = &'a str>) -> Option<String> {
    let (mut sums, mut count) = (Md5::new(), 0_usize);
    for etag in etags {
        sums.update(unhex(etag)?);
        count += 1;
    }
    (count > 0).then(|| format!("{}-{count}", hex(&sums.finalize())))
}

/// Refuses checksums of a whole that are not those that it has.
fn agree(
    given: &BTreeMap<String, String>,
    known: &BTreeMap<String, String>,
    part_count: usize,
) -> Result<(), ObjectError> {
    let is_wrong = |(algorithm, given): (&String, &String)| {
        let known = known.get(algorithm);
        known.is_some_and(|known| !is_meant(given, known, part_count))
    };
    match given.iter().any(is_wrong) {
        true => Err(ObjectError::Checksum),
        false => Ok(()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_etag_of_an_object_is_that_of_its_parts() {
        // As AWS makes it: the MD5 of the bytes of the parts' MD5s.
        let part = "d41d8cd98f00b204e9800998ecf8427e";
        let whole = hex(&Md5::digest(unhex(part).unwrap()));
        assert_eq!(
            etag_of_parts([part].into_iter()),
            Some(format!("{whole}-1"))
        );
        assert_eq!(etag_of_parts([part, "no digits"].into_iter()), None);
        assert_eq!(etag_of_parts([].into_iter()), None);
    }

    #[test]
    fn checksums_of_the_whole_agree_or_are_refused() {
        let sums = |given: &[(&str, &str)]| -> BTreeMap<String, String> {
            let pairs = given.iter();
            pairs
                .map(|(algorithm, sum)| ((*algorithm).to_owned(), (*sum).to_owned()))
                .collect()
        };
        let known = sums(&[("crc32c", "y/Q5Jg==-2")]);
        for (given, is_taken) in [
            (&[][..], true),
            (&[("crc32c", "y/Q5Jg==-2")], true),
            (&[("crc32c", "y/Q5Jg==")], true),
            (&[("sha1", "other")], true),
            (&[("crc32c", "AAAAAA==")], false),
        ] {
            assert_eq!(
                agree(&sums(given), &known, 2).is_ok(),
                is_taken,
                "{given:?}"
            );
        }
    }
}
