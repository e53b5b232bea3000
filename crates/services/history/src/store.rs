//! The folder.
//!
//! Owns: which file is written and for how long, which files are deleted, how rows of ten seconds become those of five minutes,
//! how rows become an answer. Blocks.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use crate::format::{
    DecodeError, FRAME_ROWS_MAX, Kind, Row, Series, Table, decode_frame, decode_header,
    encode_frame, encode_header,
};

/// Steps of an answer at most.
pub const STEPS_MAX: u64 = 10_000;
/// Rows that lie so far in the future came of a clock that was wrong.
const FUTURE_SECONDS_MAX: i64 = 24 * 3600;
/// A clock that steps by more is not believed at once...
const STEP_SECONDS_MAX: i64 = 3600;
/// ... but after so many rows: nothing is deleted for its age by a clock that is put right within an hour.
const STEADY_ROWS: u32 = 360;
/// Files of a history at most, however often it is opened.
const FILES_MAX: usize = 4096;
/// A file that is longer is none of ours.
const FILE_LEN_BYTES_MAX: u64 = 64 << 20;

/// Numbers that people might tune.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Seconds between rows that are pushed.
    pub fine_step_seconds: u64,
    pub fine_keep_seconds: i64,
    pub fine_bytes_max: u64,
    /// Seconds that one row of the coarse tier stands for.
    pub coarse_step_seconds: u64,
    pub coarse_keep_seconds: i64,
    pub coarse_bytes_max: u64,
    /// A file that has so many bytes is followed by another.
    pub file_bytes_max: u64,
    /// Rows that are written together: those of a minute.
    pub flush_rows: usize,
    /// Coarse rows that are written together: those of an hour, of which a crash loses none, for they are made of fine
    /// ones again.
    pub coarse_flush_rows: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            fine_step_seconds: 10,
            fine_keep_seconds: 7 * 24 * 3600,
            fine_bytes_max: 72_000_000,
            coarse_step_seconds: 300,
            coarse_keep_seconds: 366 * 24 * 3600,
            coarse_bytes_max: 122_000_000,
            file_bytes_max: 2 << 20,
            flush_rows: 6,
            coarse_flush_rows: 12,
        }
    }
}

impl Settings {
    /// Bytes that the folder takes at most: each tier may be a file beyond its limit while one is written.
    pub fn bytes_max(&self) -> u64 {
        self.fine_bytes_max + self.coarse_bytes_max + 2 * self.file_bytes_max
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}")]
pub struct HistoryError {
    pub path: String,
    pub source: std::io::Error,
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> HistoryError + '_ {
    move |source| HistoryError {
        path: path.display().to_string(),
        source,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    Fine,
    Coarse,
}

impl Tier {
    fn word(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Coarse => "coarse",
        }
    }
}

/// A file that is there.
#[derive(Debug)]
struct Entry {
    tier: Tier,
    number: u64,
    path: PathBuf,
    len_bytes: u64,
    /// Up to where it can be read.
    valid_len_bytes: u64,
    table: Table,
    /// Of its rows; none if it has none.
    times: Option<(i64, i64)>,
}

/// One open file.
struct Writer {
    file: File,
    number: u64,
}

/// Values of one step in the making.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    sum: f64,
    count: u64,
    max: f64,
    last: f64,
    /// When the last one was.
    last_seconds: i64,
}

impl Sum {
    fn add(&mut self, seconds: i64, value: f64) {
        self.max = if self.count == 0 {
            value
        } else {
            self.max.max(value)
        };
        if self.count == 0 || seconds >= self.last_seconds {
            (self.last, self.last_seconds) = (value, seconds);
        }
        self.sum += value;
        self.count += 1;
    }

    fn value(&self, kind: Kind) -> Option<f64> {
        (self.count > 0).then(|| match kind {
            Kind::Mean => self.sum / self.count as f64,
            Kind::Max => self.max,
            Kind::Last => self.last,
        })
    }
}

/// A question to the history.
#[derive(Clone, Debug)]
pub struct Query {
    pub series: Vec<String>,
    pub from_seconds: i64,
    pub to_seconds: i64,
    /// Steps at most.
    pub points: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub from_seconds: i64,
    pub step_seconds: u64,
    pub steps: u64,
    /// For each series that was asked for, what it is and its values; none if there was never one.
    pub series: Vec<Option<(Kind, Vec<Option<f64>>)>>,
}

pub struct Store {
    folder: PathBuf,
    settings: Settings,
    /// By tier and number.
    entries: Vec<Entry>,
    writers: [Option<Writer>; 2],
    /// The series of pending and summed values.
    table: Table,
    /// Fine rows that are not written yet.
    pending: Vec<Row>,
    /// Coarse rows that are not written yet.
    pending_coarse: Vec<Row>,
    /// The coarse row in the making: its begin, and the sums of its series.
    bucket: Option<(i64, Vec<Sum>)>,
    next_number: u64,
    newest_seconds: i64,
    /// Rows since the clock stepped, or since the store was opened.
    steady_rows: u32,
}

impl Store {
    /// Opens the folder, which is made if it is not there. Coarse rows that a crash kept from being written are made
    /// of the fine ones.
    pub fn open(folder: &Path, settings: Settings, now_seconds: i64) -> Result<Self, HistoryError> {
        std::fs::create_dir_all(folder).map_err(failed(folder))?;
        let mut entries = Vec::new();
        let mut next_number = 1;
        for entry in std::fs::read_dir(folder).map_err(failed(folder))? {
            let path = entry.map_err(failed(folder))?.path();
            let Some((tier, number)) = parse_name(&path) else {
                continue;
            };
            next_number = next_number.max(number.saturating_add(1));
            match look(&path, tier, number)? {
                Some(entry) => entries.push(entry),
                // Not even its header is whole: it never held anything.
                None => std::fs::remove_file(&path).map_err(failed(&path))?,
            }
        }
        entries.sort_by_key(|entry| entry.number);
        let mut store = Self {
            folder: folder.to_owned(),
            settings,
            entries,
            writers: [None, None],
            table: Vec::new().into(),
            pending: Vec::new(),
            pending_coarse: Vec::new(),
            bucket: None,
            next_number,
            newest_seconds: now_seconds,
            steady_rows: 0,
        };
        store.trim()?;
        store.sum_again(now_seconds)?;
        Ok(store)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn stored_bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.len_bytes).sum()
    }

    /// The first time of which anything is kept.
    pub fn first_seconds(&self) -> Option<i64> {
        let kept = self.entries.iter().filter_map(|entry| Some(entry.times?.0));
        kept.chain(self.pending.iter().map(|row| row.seconds)).min()
    }

    /// The newest time of which anything is kept.
    pub fn last_seconds(&self) -> Option<i64> {
        let kept = self.entries.iter().filter_map(|entry| Some(entry.times?.1));
        kept.chain(self.pending.iter().map(|row| row.seconds)).max()
    }

    /// All series of which anything is kept, by name.
    pub fn series(&self) -> Vec<Series> {
        let tables = self.entries.iter().map(|entry| &entry.table);
        let mut all: Vec<Series> = tables
            .chain([&self.table])
            .flat_map(|table| table.iter().cloned())
            .collect();
        all.sort_by(|left, right| left.name.cmp(&right.name));
        all.dedup_by(|left, right| left.name == right.name);
        all
    }

    /// Takes a row of the series in `table`; writes when a minute is full.
    pub fn push(&mut self, table: &Table, row: Row) -> Result<(), HistoryError> {
        assert!(row.values.len() == table.len());
        let step = row.seconds.abs_diff(self.newest_seconds);
        self.steady_rows = match step <= STEP_SECONDS_MAX.unsigned_abs() {
            true => self.steady_rows.saturating_add(1),
            false => {
                // What lies before the step and after it is not mixed.
                self.flush()?;
                self.end_bucket()?;
                self.flush_coarse()?;
                0
            }
        };
        self.newest_seconds = row.seconds;
        self.change_table(table)?;
        self.add_to_bucket(&row)?;
        self.pending.push(row);
        if self.pending.len() >= self.settings.flush_rows.clamp(1, FRAME_ROWS_MAX) {
            self.flush()?;
        }
        Ok(())
    }

    /// Writes pending rows, durably.
    pub fn flush(&mut self) -> Result<(), HistoryError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let rows = std::mem::take(&mut self.pending);
        self.write(Tier::Fine, &rows)?;
        self.trim()
    }

    /// Other series from here on.
    fn change_table(&mut self, table: &Table) -> Result<(), HistoryError> {
        if self.table == *table {
            return Ok(());
        }
        self.flush()?;
        self.end_bucket()?;
        self.flush_coarse()?;
        self.table = Table::clone(table);
        Ok(())
    }

    fn add_to_bucket(&mut self, row: &Row) -> Result<(), HistoryError> {
        let begin = floor(row.seconds, self.settings.coarse_step_seconds);
        if self.bucket.as_ref().is_some_and(|(at, _)| *at != begin) {
            self.end_bucket()?;
        }
        let count = self.table.len();
        let (_, sums) = self
            .bucket
            .get_or_insert_with(|| (begin, vec![Sum::default(); count]));
        for (sum, value) in sums.iter_mut().zip(&row.values) {
            if let Some(value) = value {
                sum.add(row.seconds, *value as f64);
            }
        }
        Ok(())
    }

    /// Ends the coarse row in the making.
    fn end_bucket(&mut self) -> Result<(), HistoryError> {
        let Some((seconds, sums)) = self.bucket.take() else {
            return Ok(());
        };
        let values = self.table.iter().zip(&sums);
        let values = values.map(|(series, sum)| {
            // A float that is too large, or none, becomes the nearest whole number that there is.
            sum.value(series.kind).map(|value| value.round() as u64)
        });
        let row = Row {
            seconds,
            values: values.collect(),
        };
        self.pending_coarse.push(row);
        if self.pending_coarse.len() >= self.settings.coarse_flush_rows.clamp(1, FRAME_ROWS_MAX) {
            self.flush_coarse()?;
        }
        Ok(())
    }

    fn flush_coarse(&mut self) -> Result<(), HistoryError> {
        if self.pending_coarse.is_empty() {
            return Ok(());
        }
        let rows = std::mem::take(&mut self.pending_coarse);
        self.write(Tier::Coarse, &rows)
    }

    /// Sums what the fine tier has and the coarse one lacks.
    fn sum_again(&mut self, now_seconds: i64) -> Result<(), HistoryError> {
        let step = self.settings.coarse_step_seconds as i64;
        let from = match self.last_coarse(now_seconds) {
            Some(last) => last.saturating_add(step),
            None => i64::MIN,
        };
        let mut rows = Vec::new();
        self.visit(Tier::Fine, from, now_seconds, &mut |table, row| {
            rows.push((Table::clone(table), row.clone()));
        })?;
        for (table, row) in rows {
            if self.table != table {
                self.end_bucket()?;
                self.flush_coarse()?;
                self.table = table;
            }
            self.add_to_bucket(&row)?;
        }
        Ok(())
    }

    /// The last coarse row that is written; those that a wrong clock put into the future do not count.
    fn last_coarse(&self, now_seconds: i64) -> Option<i64> {
        let coarse = self
            .entries
            .iter()
            .filter(|entry| entry.tier == Tier::Coarse);
        let times = coarse.filter_map(|entry| Some(entry.times?.1));
        times
            .filter(|last| *last <= now_seconds.saturating_add(STEP_SECONDS_MAX))
            .max()
    }

    fn write(&mut self, tier: Tier, rows: &[Row]) -> Result<(), HistoryError> {
        let frame = encode_frame(rows, self.table.len());
        let seconds = rows.first().map_or(0, |row| row.seconds);
        let mut writer = self.writer(tier, seconds)?;
        let Some(entry) = self
            .entries
            .iter_mut()
            .find(|entry| entry.number == writer.number)
        else {
            return Ok(());
        };
        let written = writer
            .file
            .write_all(&frame)
            .and_then(|()| writer.file.sync_data());
        // After an error nobody knows the content of the file: the next row begins another one.
        written.map_err(failed(&entry.path))?;
        entry.len_bytes += frame.len() as u64;
        entry.valid_len_bytes = entry.len_bytes;
        for row in rows {
            let (first, last) = entry.times.unwrap_or((row.seconds, row.seconds));
            entry.times = Some((first.min(row.seconds), last.max(row.seconds)));
        }
        self.writers[tier as usize] = Some(writer);
        Ok(())
    }

    /// The file that takes rows of the table: the one that is open, the last one if it fits, or a new one. One with
    /// rows that lie in the future is not mixed with those of now, so that it can be deleted.
    fn writer(&mut self, tier: Tier, seconds: i64) -> Result<Writer, HistoryError> {
        let open = self.writers[tier as usize].take();
        let table = Table::clone(&self.table);
        let last = self
            .entries
            .iter_mut()
            .rev()
            .find(|entry| entry.tier == tier)
            .filter(|entry| {
                let is_back = entry
                    .times
                    .is_some_and(|(_, last)| last > seconds.saturating_add(STEP_SECONDS_MAX));
                entry.table == table
                    && entry.valid_len_bytes < self.settings.file_bytes_max
                    && !is_back
            });
        if let Some(entry) = last {
            if let Some(open) = open.filter(|open| open.number == entry.number) {
                return Ok(open);
            }
            // A torn row at its end must go before anything follows.
            let file = OpenOptions::new().append(true).open(&entry.path);
            let file = file.map_err(failed(&entry.path))?;
            file.set_len(entry.valid_len_bytes)
                .map_err(failed(&entry.path))?;
            entry.len_bytes = entry.valid_len_bytes;
            return Ok(Writer {
                file,
                number: entry.number,
            });
        }
        let number = self.next_number;
        self.next_number += 1;
        let path = self.folder.join(format!("{}-{number:010}", tier.word()));
        let header = encode_header(&table);
        let file = OpenOptions::new().append(true).create_new(true).open(&path);
        let mut file = file.map_err(failed(&path))?;
        let len_bytes = header.len() as u64;
        self.entries.push(Entry {
            tier,
            number,
            path: path.clone(),
            len_bytes,
            valid_len_bytes: len_bytes,
            table,
            times: None,
        });
        file.write_all(&header).map_err(failed(&path))?;
        let folder = File::open(&self.folder).and_then(|folder| folder.sync_all());
        folder.map_err(failed(&self.folder))?;
        Ok(Writer { file, number })
    }

    /// Deletes files that are older than the settings keep, or beyond their bytes.
    fn trim(&mut self) -> Result<(), HistoryError> {
        let settings = self.settings;
        let now_seconds = self.newest_seconds;
        let is_steady = self.steady_rows >= STEADY_ROWS;
        for (tier, keep_seconds, bytes_max) in [
            (
                Tier::Fine,
                settings.fine_keep_seconds,
                settings.fine_bytes_max,
            ),
            (
                Tier::Coarse,
                settings.coarse_keep_seconds,
                settings.coarse_bytes_max,
            ),
        ] {
            let written = self.writers[tier as usize].as_ref().map(|open| open.number);
            let of_tier = || self.entries.iter().filter(|entry| entry.tier == tier);
            let mut bytes: u64 = of_tier().map(|entry| entry.len_bytes).sum();
            let mut count = of_tier().count();
            let mut gone = Vec::new();
            for entry in of_tier().filter(|entry| Some(entry.number) != written) {
                let is_past = entry.times.is_some_and(|(first, last)| {
                    last < now_seconds.saturating_sub(keep_seconds)
                        || first > now_seconds.saturating_add(FUTURE_SECONDS_MAX)
                });
                if (is_past && is_steady) || bytes > bytes_max || count > FILES_MAX / 2 {
                    gone.push(entry.number);
                    bytes -= entry.len_bytes;
                    count -= 1;
                }
            }
            for number in gone {
                let Some(index) = self.entries.iter().position(|entry| entry.number == number)
                else {
                    continue;
                };
                let path = &self.entries[index].path;
                match std::fs::remove_file(path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        return Err(failed(path)(error));
                    }
                    _ => drop(self.entries.remove(index)),
                }
            }
        }
        Ok(())
    }

    /// Shows rows of a tier between two times, both included, in the order in which they were written.
    fn visit(
        &self,
        tier: Tier,
        from_seconds: i64,
        to_seconds: i64,
        show: &mut dyn FnMut(&Table, &Row),
    ) -> Result<(), HistoryError> {
        let is_in = |first: i64, last: i64| last >= from_seconds && first <= to_seconds;
        for entry in self.entries.iter().filter(|entry| entry.tier == tier) {
            if !entry.times.is_some_and(|(first, last)| is_in(first, last)) {
                continue;
            }
            let bytes = read(&entry.path, entry.valid_len_bytes)?;
            let Ok((table, mut rest)) = decode_header(&bytes) else {
                continue;
            };
            while let Ok((frame, after)) = decode_frame(rest) {
                rest = after;
                if !is_in(frame.first_seconds, frame.last_seconds) {
                    continue;
                }
                let Ok(rows) = frame.rows(table.len()) else {
                    break;
                };
                for row in rows.iter().filter(|row| is_in(row.seconds, row.seconds)) {
                    show(&table, row);
                }
            }
        }
        Ok(())
    }

    /// The tier for a span: the fine one if it reaches back so far, or as far as the coarse one does.
    fn tier_for(&self, from_seconds: i64, now_seconds: i64) -> Tier {
        let is_kept = from_seconds >= now_seconds.saturating_sub(self.settings.fine_keep_seconds);
        let first_of = |tier| {
            let tiers = self.entries.iter().filter(move |entry| entry.tier == tier);
            tiers.filter_map(|entry| Some(entry.times?.0)).min()
        };
        match (is_kept, first_of(Tier::Fine), first_of(Tier::Coarse)) {
            (false, _, _) => Tier::Coarse,
            (true, Some(fine), Some(coarse)) if fine > from_seconds && coarse < fine => {
                // A step of the coarse tier begins before the first of its rows.
                let step = self.settings.coarse_step_seconds as i64;
                if fine.saturating_sub(coarse) > step {
                    Tier::Coarse
                } else {
                    Tier::Fine
                }
            }
            (true, _, _) => Tier::Fine,
        }
    }

    /// Puts together the values of a span, pending rows included.
    pub fn query(&self, query: &Query, now_seconds: i64) -> Result<Answer, HistoryError> {
        let tier = self.tier_for(query.from_seconds, now_seconds);
        let base = match tier {
            Tier::Fine => self.settings.fine_step_seconds,
            Tier::Coarse => self.settings.coarse_step_seconds,
        }
        .max(1);
        let span = query.to_seconds.saturating_sub(query.from_seconds);
        let span = u64::try_from(span).unwrap_or(0).max(1);
        let points = query.points.clamp(1, STEPS_MAX - 1);
        let step = span.div_ceil(points).max(base).next_multiple_of(base);
        let from = floor(query.from_seconds, step);
        let reach = query.to_seconds.saturating_sub(from);
        let steps = u64::try_from(reach)
            .unwrap_or(0)
            .div_ceil(step)
            .min(STEPS_MAX);
        let mut sums: Vec<Option<(Kind, Vec<Sum>)>> = vec![None; query.series.len()];
        let mut at = None;
        let mut show = |table: &Table, row: &Row| {
            let index = row.seconds.saturating_sub(from);
            let Ok(index) = usize::try_from(index / step as i64) else {
                return;
            };
            if index as u64 >= steps || row.seconds < from {
                return;
            }
            let places = match &at {
                Some((known, places)) if Table::ptr_eq(known, table) => places,
                _ => {
                    &at.insert((Table::clone(table), places_of(table, &query.series)))
                        .1
                }
            };
            for (place, sums) in places.iter().zip(&mut sums) {
                let Some((place, series)) = place.and_then(|at| Some((at, table.get(at)?))) else {
                    continue;
                };
                let (_, sums) =
                    sums.get_or_insert_with(|| (series.kind, vec![Sum::default(); steps as usize]));
                if let (Some(Some(value)), Some(sum)) = (row.values.get(place), sums.get_mut(index))
                {
                    let value = *value as f64 / 10_f64.powi(i32::from(series.decimals));
                    sum.add(row.seconds, value);
                }
            }
        };
        let mut fine_from = from;
        if tier == Tier::Coarse {
            self.visit(Tier::Coarse, from, query.to_seconds, &mut show)?;
            // Rows that are not summed and written yet.
            let coarse_step = self.settings.coarse_step_seconds as i64;
            fine_from = self
                .last_coarse(now_seconds)
                .map_or(from, |last| from.max(last.saturating_add(coarse_step)));
        }
        self.visit(Tier::Fine, fine_from, query.to_seconds, &mut show)?;
        for row in &self.pending {
            if row.seconds >= fine_from && row.seconds <= query.to_seconds {
                show(&self.table, row);
            }
        }
        let series = sums.into_iter().map(|sums| {
            let (kind, sums) = sums?;
            Some((kind, sums.iter().map(|sum| sum.value(kind)).collect()))
        });
        Ok(Answer {
            from_seconds: from,
            step_seconds: step,
            steps,
            series: series.collect(),
        })
    }
}

/// Where the named series are in a table.
fn places_of(table: &Table, names: &[String]) -> Vec<Option<usize>> {
    let place = |name: &String| table.iter().position(|series| series.name == *name);
    names.iter().map(place).collect()
}

fn floor(seconds: i64, step: u64) -> i64 {
    let step = i64::try_from(step.max(1)).unwrap_or(i64::MAX);
    seconds.saturating_sub(seconds.rem_euclid(step))
}

fn parse_name(path: &Path) -> Option<(Tier, u64)> {
    let (word, number) = path.file_name()?.to_str()?.split_once('-')?;
    let tiers = [Tier::Fine, Tier::Coarse];
    let tier = tiers.into_iter().find(|tier| tier.word() == word)?;
    Some((tier, number.parse().ok()?))
}

fn read(path: &Path, len_bytes_max: u64) -> Result<Vec<u8>, HistoryError> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed(path))?;
    let mut file = file.take(len_bytes_max.min(FILE_LEN_BYTES_MAX));
    file.read_to_end(&mut bytes).map_err(failed(path))?;
    Ok(bytes)
}

/// What a file has; none if it has not even a header.
fn look(path: &Path, tier: Tier, number: u64) -> Result<Option<Entry>, HistoryError> {
    let len_bytes = std::fs::metadata(path).map_err(failed(path))?.len();
    let bytes = read(path, FILE_LEN_BYTES_MAX)?;
    let mut entry = Entry {
        tier,
        number,
        path: path.to_owned(),
        len_bytes,
        valid_len_bytes: 0,
        table: Vec::new().into(),
        times: None,
    };
    let (table, mut rest) = match decode_header(&bytes) {
        Ok(found) => found,
        // Kept, for the program that wrote it; it counts, and goes when it is the oldest of too much.
        Err(DecodeError::Version(_)) => {
            entry.valid_len_bytes = u64::MAX;
            return Ok(Some(entry));
        }
        Err(_) => return Ok(None),
    };
    while let Ok((frame, after)) = decode_frame(rest) {
        if frame.rows(table.len()).is_err() {
            break;
        }
        rest = after;
        let (first, last) = entry
            .times
            .unwrap_or((frame.first_seconds, frame.last_seconds));
        entry.times = Some((first.min(frame.first_seconds), last.max(frame.last_seconds)));
    }
    entry.table = table;
    entry.valid_len_bytes = (bytes.len() - rest.len()) as u64;
    Ok(Some(entry))
}
