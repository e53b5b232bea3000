//! The short form of fuzzing, which needs no special compiler: every committed input, and some thousand
//! mutations of them, through every target. What it lacks is coverage as a guide, so it finds less.
//!
//! `FUZZ_SEED=n` repeats a run; `FUZZ_MUTATIONS=n` sets how many there are of each target.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cairn_fuzz::{seeds, targets};

const MUTATIONS_DEFAULT: u64 = 50_000;
/// Mutations that are put on top of one another.
const STEPS_MAX: u64 = 4;
const INPUT_LEN_BYTES_MAX: usize = 65_536;
/// No input of that length may make a decoder take more than this for one thing.
const ALLOCATION_LEN_BYTES_MAX: usize = 32 << 20;

thread_local! {
    static LARGEST_LEN_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// Notes the largest allocation of each thread.
struct Watching;

#[global_allocator]
static ALLOCATOR: Watching = Watching;

fn note(len_bytes: usize) {
    // A thread that ends has none any more; what it then takes is not of a decoder.
    let _ = LARGEST_LEN_BYTES.try_with(|largest| largest.set(largest.get().max(len_bytes)));
}

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller keeps the rules of `alloc`, which are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `System` with this layout, as all do.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len_bytes: usize) -> *mut u8 {
        note(len_bytes);
        // SAFETY: `at` came from `System` with this layout, as all do.
        unsafe { System.realloc(at, layout, len_bytes) }
    }
}

/// Numbers that look random: SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// Numbers at which decoders go wrong.
const NUMBERS: [u64; 12] = [
    0,
    1,
    2,
    0x7f,
    0xff,
    0x100,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 62,
    i64::MAX as u64,
    u64::MAX,
];
/// Words of text formats.
const WORDS: [&str; 12] = [
    "0",
    "-1",
    "1e308",
    "18446744073709551615",
    "9223372036854775807",
    "null",
    "true",
    "\"\"",
    "[]",
    "{}",
    "\0",
    "..",
];

fn mutated(random: &mut Random, mut input: Vec<u8>, all: &[Vec<u8>]) -> Vec<u8> {
    for _ in 0..=random.next() % STEPS_MAX {
        let at = random.below(input.len() + 1);
        match random.next() % 8 {
            0 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << (random.next() % 8);
                }
            }
            1 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte = random.next() as u8;
                }
            }
            2 => {
                let number = NUMBERS[random.below(NUMBERS.len())];
                let width = 1 << random.below(4);
                let bytes = match random.next() % 2 {
                    0 => number.to_le_bytes()[..width].to_vec(),
                    _ => number.to_be_bytes()[8 - width..].to_vec(),
                };
                let end = (at + width).min(input.len());
                input.splice(at..end, bytes);
            }
            3 => {
                let word = WORDS[random.below(WORDS.len())];
                // In place of what stands there, up to where the next word could begin.
                let len = random.below(16);
                let end = (at + len).min(input.len());
                input.splice(at..end, word.bytes());
            }
            4 => {
                let end = (at + random.below(32)).min(input.len());
                input.drain(at..end);
            }
            5 => {
                let end = (at + random.below(256)).min(input.len());
                let part = input[at..end].to_vec();
                let to = random.below(input.len() + 1);
                input.splice(to..to, part);
            }
            6 => {
                let other = &all[random.below(all.len())];
                let from = random.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            _ => input.truncate(at),
        }
        input.truncate(INPUT_LEN_BYTES_MAX);
    }
    input
}

fn corpus_folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target)
}

/// The committed inputs of a target, by name.
fn corpus(target: &str) -> BTreeMap<String, Vec<u8>> {
    let folder = corpus_folder(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| {
        panic!(
            "{}: {error}; cargo run --bin seeds writes it",
            folder.display()
        )
    });
    entries
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read(&path).unwrap())
        })
        .collect()
}

/// A number from the environment.
fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
    )
}

/// Why a target did not take an input, if it did not.
fn problem(run: fn(&[u8]), input: &[u8]) -> Option<String> {
    LARGEST_LEN_BYTES.with(|largest| largest.set(0));
    if catch_unwind(AssertUnwindSafe(|| run(input))).is_err() {
        return Some("it panicked".to_owned());
    }
    let largest = LARGEST_LEN_BYTES.with(Cell::get);
    (largest > ALLOCATION_LEN_BYTES_MAX).then(|| format!("it took {largest} bytes for one thing"))
}

/// Tries a target; the number of executions, or where the input is that breaks it.
fn try_target(target: &str, run: fn(&[u8]), seed: u64, mutations: u64) -> Result<u64, String> {
    let fail = |why: String, input: &[u8]| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("broken-{target}"));
        std::fs::write(&path, input).expect("the input can be kept");
        format!(
            "{target}: {why}; seed {seed}, the input is in {}",
            path.display()
        )
    };
    let named = corpus(target);
    for (name, input) in &named {
        if let Some(why) = problem(run, input) {
            return Err(fail(format!("{why}, with {name}"), input));
        }
    }
    let inputs: Vec<Vec<u8>> = named.into_values().collect();
    let own = target.bytes().map(u64::from);
    let own = own.fold(7_u64, |sum, byte| sum.wrapping_mul(31) + byte);
    let mut random = Random(seed ^ own);
    for turn in 0..mutations {
        let from = inputs[turn as usize % inputs.len()].clone();
        let input = mutated(&mut random, from, &inputs);
        if let Some(why) = problem(run, &input) {
            return Err(fail(why, &input));
        }
    }
    Ok(inputs.len() as u64 + mutations)
}

#[test]
fn every_target_takes_every_input() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = setting("FUZZ_SEED").unwrap_or_else(|| now.map_or(0, |now| now.as_nanos() as u64));
    let mutations = setting("FUZZ_MUTATIONS").unwrap_or(MUTATIONS_DEFAULT);
    println!("fuzz: seed {seed}, {mutations} mutations of each target");
    let next = AtomicUsize::new(0);
    let problems = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((target, run)) =
                    targets::ALL.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let started = std::time::Instant::now();
                    match try_target(target, *run, seed, mutations) {
                        Ok(count) => {
                            let ms = started.elapsed().as_millis();
                            println!("fuzz: {target:15} {count:6} executions in {ms} ms");
                        }
                        Err(problem) => problems.lock().unwrap().push(problem),
                    }
                }
            });
        }
    });
    let problems = problems.into_inner().unwrap();
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

#[test]
fn the_seeds_are_those_that_are_written_now() {
    for ((target, name), bytes) in seeds::all() {
        let path = corpus_folder(target).join(&name);
        let kept = std::fs::read(&path).ok();
        assert_eq!(
            kept,
            Some(bytes),
            "{target}/{name}: cargo run --bin seeds writes it"
        );
    }
}

#[test]
fn every_target_has_a_driver_and_a_corpus() {
    let drivers = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz_targets");
    let mut found: Vec<String> = std::fs::read_dir(drivers)
        .unwrap()
        .map(|entry| {
            entry
                .unwrap()
                .path()
                .file_stem()
                .unwrap()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    found.sort();
    let names: Vec<&str> = targets::ALL.iter().map(|(name, _)| *name).collect();
    assert_eq!(found, names);
    for name in names {
        assert!(!corpus(name).is_empty(), "{name}");
    }
}
