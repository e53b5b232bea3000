//! The store against pushed values, across restarts, torn files and clocks that step.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::format::{
    DecodeError, FRAME_ROWS_MAX, decode_frame, decode_header, encode_frame, encode_header,
};

const START: i64 = 1_700_000_100;

fn table(names: &[&str]) -> Table {
    let kinds = [Kind::Mean, Kind::Max, Kind::Last];
    let each = names.iter().zip(kinds.iter().cycle());
    each.map(|(name, kind)| Series {
        name: (*name).to_owned(),
        kind: *kind,
        decimals: 0,
    })
    .collect::<Vec<_>>()
    .into()
}

fn row(seconds: i64, values: &[u64]) -> Row {
    Row {
        seconds,
        values: values.iter().copied().map(Some).collect(),
    }
}

fn small() -> Settings {
    Settings {
        file_bytes_max: 2000,
        ..Settings::default()
    }
}

fn query(store: &Store, name: &str, from: i64, to: i64, points: u64, now: i64) -> Answer {
    let query = Query {
        series: vec![name.to_owned()],
        from_seconds: from,
        to_seconds: to,
        points,
    };
    store.query(&query, now).unwrap()
}

fn values(answer: &Answer) -> Vec<Option<f64>> {
    answer.series[0]
        .as_ref()
        .map(|(_, values)| values.clone())
        .unwrap_or_default()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn headers_are_read_or_refused() {
    let header = encode_header(&table(&["a", "b"]));
    let changed = |at: usize, byte: u8| {
        let mut bytes = header.clone();
        bytes[at] = byte;
        bytes
    };
    type Read = Result<usize, DecodeError>;
    let cases: Vec<(&str, Vec<u8>, Read)> = vec![
        ("whole", header.clone(), Ok(2)),
        ("empty", Vec::new(), Err(DecodeError::Truncated)),
        (
            "short",
            header[..header.len() - 1].to_vec(),
            Err(DecodeError::Truncated),
        ),
        ("another file", changed(0, b'X'), Err(DecodeError::Magic)),
        (
            "a newer program's",
            changed(8, 2),
            Err(DecodeError::Version(2)),
        ),
        ("a huge table", changed(13, 9), Err(DecodeError::Content)),
        ("damaged", changed(20, b'z'), Err(DecodeError::Checksum)),
    ];
    for (name, bytes, want) in cases {
        let got = decode_header(&bytes).map(|(table, _)| table.len());
        assert_eq!(got, want, "{name}");
    }
}

#[test]
fn what_is_pushed_is_answered_in_steps() {
    let folder = tempfile::tempdir().unwrap();
    let table = table(&["mean", "max", "last"]);
    let mut store = Store::open(folder.path(), small(), START).unwrap();
    for index in 0..90 {
        let value = index as u64;
        let row = row(START + 10 * index, &[value, value % 7, value]);
        store.push(&table, row).unwrap();
    }
    let now = START + 900;
    // Every row, pending ones included.
    let answer = query(&store, "mean", START, now, 1000, now);
    assert_eq!((answer.step_seconds, answer.steps), (10, 90));
    let want: Vec<_> = (0..90).map(|value| Some(f64::from(value))).collect();
    assert_eq!(values(&answer), want);
    // Steps of a minute. START is no multiple of 60 s: the first step is shorter.
    let answer = query(&store, "mean", START, now, 16, now);
    assert_eq!(answer.step_seconds, 60);
    assert_eq!(answer.from_seconds % 60, 0);
    let got = values(&query(&store, "max", START, now, 16, now));
    assert_eq!(got[3], Some(6.0));
    assert_eq!(answer.series[0].as_ref().unwrap().0, Kind::Mean);
    // Nothing is made up.
    let nothing = query(&store, "none", START, now, 16, now);
    assert_eq!(nothing.series, [None]);
    let before = query(&store, "mean", START - 100, START - 10, 16, now);
    assert_eq!(before.series, [None]);
}

#[test]
fn five_minutes_become_one_row_and_survive_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let table = table(&["mean", "max", "last"]);
    let begin = START - START.rem_euclid(300);
    let mut store = Store::open(folder.path(), small(), begin).unwrap();
    for index in 0..500_i64 {
        // A restart in the midst of a step.
        if index % 17 == 0 {
            store.flush().unwrap();
            drop(store);
            store = Store::open(folder.path(), small(), begin + 10 * index).unwrap();
        }
        let value = index as u64;
        store
            .push(&table, row(begin + 10 * index, &[value, value, value]))
            .unwrap();
    }
    // So far back that only the coarse tier is asked.
    let far = 30 * 24 * 3600;
    let now = begin + 5000;
    let at = |name: &str, from: i64| {
        let answer = query(&store, name, begin - far, now, 9999, now);
        assert_eq!(answer.step_seconds, 300);
        let index = (begin + from - answer.from_seconds) / 300;
        values(&answer)[index as usize]
    };
    assert_eq!(at("mean", 0), Some(15.0), "14.5, rounded");
    assert_eq!(at("max", 0), Some(29.0));
    assert_eq!(at("last", 300), Some(59.0));
    // Of the step that is not over the fine rows count.
    assert_eq!(at("last", 4800), Some(499.0));
    let coarse = names(folder.path());
    assert!(coarse.iter().any(|name| name.starts_with("coarse")));
}

/// 64 disks and 32 volumes that are busy: what they have every ten seconds of a week, and every five minutes of a year.
#[test]
fn a_week_and_a_year_of_many_series_fit() {
    let bits: Vec<u32> = [[42, 20, 12].repeat(64), [40, 26].repeat(32), vec![20; 40]].concat();
    let mut random = 1_u64;
    let mut rows = |count: i64| -> Vec<Row> {
        let row = |seconds| {
            let values = bits.iter().map(|bits| {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
                // A fifth of it changes from row to row.
                let most = 1_u64 << bits;
                Some(most / 2 + (random >> 11) % (most / 5))
            });
            let values = values.collect();
            Row {
                seconds: START + 10 * seconds,
                values,
            }
        };
        (0..count).map(row).collect()
    };
    let settings = Settings::default();
    let minute = encode_frame(&rows(settings.flush_rows as i64), bits.len());
    let week = minute.len() as u64 * 7 * 24 * 60;
    assert!(week <= settings.fine_bytes_max, "{week}");
    let hour = encode_frame(&rows(settings.coarse_flush_rows as i64), bits.len());
    let year = hour.len() as u64 * 365 * 24;
    assert!(year <= settings.coarse_bytes_max, "{year}");
    assert!(settings.bytes_max() <= 200_000_000);
}

#[test]
fn old_rows_go_and_the_size_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings {
        fine_keep_seconds: 3600,
        fine_bytes_max: 20_000,
        coarse_bytes_max: 3_000,
        file_bytes_max: 500,
        ..Settings::default()
    };
    let table = table(&["a", "b", "c", "d"]);
    let mut store = Store::open(folder.path(), settings, START).unwrap();
    let on_disk = |folder: &Path| -> u64 {
        let sizes = names(folder).into_iter();
        sizes
            .map(|name| std::fs::metadata(folder.join(name)).unwrap().len())
            .sum()
    };
    let mut random = 1_u64;
    for index in 0..20_000_i64 {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
        store
            .push(&table, row(START + 10 * index, &[random; 4]))
            .unwrap();
        if index % 500 == 0 {
            assert_eq!(on_disk(folder.path()), store.stored_bytes());
            assert!(store.stored_bytes() <= settings.bytes_max());
        }
    }
    let now = START + 200_000;
    let first = store.first_seconds().unwrap();
    assert!(first < now - 3600, "the coarse tier reaches further back");
    let long = query(&store, "a", START, now, 5000, now);
    assert_eq!(long.step_seconds, 300);
    assert!(values(&long).iter().filter(|value| value.is_some()).count() > 10);
}

/// A torn or damaged end costs what follows it, and nothing before.
#[test]
fn a_file_that_ends_anywhere_is_read_up_to_there_and_written_on() {
    let made = tempfile::tempdir().unwrap();
    let table = table(&["a", "b"]);
    let mut store = Store::open(made.path(), Settings::default(), START).unwrap();
    for index in 0..12 {
        let value = index as u64;
        store
            .push(&table, row(START + 10 * index, &[value, value]))
            .unwrap();
    }
    let name = names(made.path())
        .into_iter()
        .find(|name| name.starts_with("fine"))
        .unwrap();
    let whole = std::fs::read(made.path().join(&name)).unwrap();
    let header_len = encode_header(&table).len();
    let frame_len = (whole.len() - header_len) / 2;
    for is_damaged in [false, true] {
        for cut in 0..=whole.len() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(&name);
            let mut bytes = whole.clone();
            if !is_damaged {
                bytes.truncate(cut);
            } else if let Some(byte) = bytes.get_mut(cut) {
                *byte ^= 0x40;
            } else {
                continue;
            }
            // A file of another version is left alone.
            let is_newer = is_damaged && (8..10).contains(&cut);
            std::fs::write(&path, bytes).unwrap();
            let now = START + 120;
            let mut store = Store::open(folder.path(), Settings::default(), now).unwrap();
            let known = match cut.checked_sub(header_len) {
                _ if is_newer => 0,
                None => 0,
                Some(cut) => 6 * (cut / frame_len).min(2),
            };
            let got = values(&query(&store, "b", START, now, 1000, now));
            let got: Vec<f64> = got.into_iter().flatten().collect();
            let want: Vec<f64> = (0..known).map(|value| value as f64).collect();
            assert_eq!(got, want, "cut at {cut}, {is_damaged}");
            for index in 12..18 {
                store
                    .push(&table, row(START + 10 * index, &[7, 7]))
                    .unwrap();
            }
            let store = Store::open(folder.path(), Settings::default(), now).unwrap();
            let got = values(&query(&store, "b", START, START + 180, 1000, START + 180));
            assert_eq!(got.into_iter().flatten().count(), known + 6, "cut at {cut}");
            assert_eq!(path.exists(), is_newer || cut >= header_len);
        }
    }
}

#[test]
fn a_clock_that_steps_costs_no_rows_to_come() {
    let folder = tempfile::tempdir().unwrap();
    let table = table(&["a"]);
    let year = 366 * 24 * 3600;
    let mut store = Store::open(folder.path(), small(), START).unwrap();
    for index in 0..600 {
        store
            .push(&table, row(START + year + 10 * index, &[1]))
            .unwrap();
    }
    let mut at = START;
    let push = |store: &mut Store, at: &mut i64| {
        store.push(&table, row(*at, &[2])).unwrap();
        *at += 10;
    };
    for _ in 0..200 {
        push(&mut store, &mut at);
    }
    // Perhaps it was right before: nothing is deleted yet, also not by a restart.
    store.flush().unwrap();
    let mut store = Store::open(folder.path(), small(), at).unwrap();
    assert!(store.last_seconds().unwrap() > START + year);
    for _ in 0..400 {
        push(&mut store, &mut at);
    }
    assert!(store.last_seconds().unwrap() < START + year);
    let got = values(&query(&store, "a", START, at, 1000, at));
    assert_eq!(got.into_iter().flatten().count(), 600);
}

fn any_row(series_count: usize) -> impl Strategy<Value = Row> {
    let value = proptest::option::of(prop_oneof![0..1000_u64, any::<u64>()]);
    (
        -1000_i64..1_000_000,
        proptest::collection::vec(value, series_count),
    )
        .prop_map(|(seconds, values)| Row { seconds, values })
}

/// As it is kept: the greatest number stands for the one before.
fn kept(mut row: Row) -> Row {
    for value in row.values.iter_mut().flatten() {
        *value = (*value).min(u64::MAX - 1);
    }
    row
}

proptest! {
    #[test]
    fn frames_come_back(rows in proptest::collection::vec(any_row(3), 1..FRAME_ROWS_MAX), after in any::<[u8; 3]>()) {
        let mut bytes = encode_frame(&rows, 3);
        bytes.extend(after);
        let (frame, rest) = decode_frame(&bytes).unwrap();
        prop_assert_eq!(rest, after);
        let want: Vec<Row> = rows.into_iter().map(kept).collect();
        prop_assert_eq!(frame.rows(3).unwrap(), want);
        // Of another table it makes no sense, or at least it does not panic.
        let _ = frame.rows(2);
        prop_assert!(frame.rows(4).is_err());
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), series_count in 0..5_usize) {
        let _ = decode_header(&bytes);
        if let Ok((frame, _)) = decode_frame(&bytes) {
            let _ = frame.rows(series_count);
        }
    }

    /// Whatever is pushed, and wherever the store is reopened: flushed values are answered as a plain list answers.
    #[test]
    fn the_store_answers_as_a_list_does(
        steps in proptest::collection::vec((1..40_i64, proptest::option::of(0..1000_u64), 0..20_u8), 1..120),
        step in 10..400_u64,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let one = table(&["a"]);
        let two = table(&["b", "c", "a"]);
        let mut store = Store::open(folder.path(), small(), START).unwrap();
        let (mut flushed, mut pending): (Vec<(i64, Option<u64>)>, Vec<_>) = Default::default();
        let mut now = START;
        let mut is_one = true;
        for (after, value, action) in steps {
            now += after;
            if action == 0 {
                // As a crash does.
                store = Store::open(folder.path(), small(), now).unwrap();
                pending.clear();
            }
            if action == 1 {
                is_one = !is_one;
            }
            let (table, values) = if is_one { (&one, vec![value]) } else { (&two, vec![None, Some(1), value]) };
            if action == 1 {
                flushed.append(&mut pending);
            }
            store.push(table, Row { seconds: now, values }).unwrap();
            pending.push((now, value));
            if pending.len() == small().flush_rows {
                flushed.extend(std::mem::take(&mut pending).into_iter());
            }
        }
        let all = flushed.iter().chain(&pending);
        let points = (now - START).unsigned_abs() / step + 1;
        let answer = query(&store, "a", START, now, points, now);
        let got = values(&answer);
        for index in 0..answer.steps as i64 {
            let begin = answer.from_seconds + index * answer.step_seconds as i64;
            let end = begin + answer.step_seconds as i64;
            let within: Vec<u64> = all
                .clone()
                .filter(|(seconds, _)| (begin..end).contains(seconds) && *seconds <= now)
                .filter_map(|(_, value)| *value)
                .collect();
            let got = got.get(index as usize).copied().flatten();
            // "a" is a mean in one table and the last value in the other.
            match (got, within.iter().min(), within.iter().max()) {
                (None, None, None) => {}
                (Some(got), Some(least), Some(most)) => {
                    prop_assert!((*least as f64..=*most as f64).contains(&got), "{got} of {within:?}");
                }
                (got, _, _) => prop_assert!(false, "{got:?} of {within:?}"),
            }
        }
    }
}

#[test]
fn names_that_are_none_of_ours_stay() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("notes"), "mine").unwrap();
    std::fs::write(folder.path().join("fine-x"), "mine").unwrap();
    let store = Store::open(folder.path(), Settings::default(), START).unwrap();
    assert_eq!(names(folder.path()), ["fine-x", "notes"]);
    assert_eq!(store.stored_bytes(), 0);
    assert_eq!(store.series(), []);
    let _: Arc<[Series]> = table(&[]);
}
