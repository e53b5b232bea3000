//! How fast rows are encoded and rebuilt: GB/s of data bytes (10^9), for each kernel and for peers.
//!
//! "hot": one row that stays in the L2 cache, coded again and again. "cold": rows one after the
//! other through a working set much larger than the last cache. In each round every contender has
//! its turn, so that a noisy neighbour hits all; the result is the median of the rounds.

use std::hint::black_box;
use std::time::{Duration, Instant};

use cairn_erasure::{Code, Kernel, encode_with, reconstruct_with};
use serde_json::json;

const USAGE: &str = "\
Measures erasure coding; prints JSON.
  --data N          data units (4)
  --parity M        parity units (2)
  --unit-bytes B    bytes of a unit (65536)
  --set-bytes B     working set of the cold runs (536870912)
  --rounds R        rounds, of which the median counts (5)
  --seconds S       least time of one hot measurement (0.1)";

/// From some units of a code to others.
pub type Coding = fn(Code, &[&[u8]], &mut [&mut [u8]]);

/// Another library under the same test.
pub struct Peer {
    pub name: &'static str,
    /// Makes parity from data units.
    pub encode: Coding,
    /// Makes the lost data units 0..M from the others, which come in order of index.
    pub rebuild_first: Coding,
}

struct Settings {
    code: Code,
    unit_bytes: usize,
    set_bytes: usize,
    rounds: usize,
    hot_time: Duration,
}

/// Codes one row in place: the data units, one after the other, then the parity units.
type Work<'a> = Box<dyn Fn(&mut [u8]) + 'a>;

struct Contender<'a> {
    name: String,
    /// What counts as done by one call.
    bytes: usize,
    work: Work<'a>,
    /// GB/s of each round.
    hot: Vec<f64>,
    cold: Vec<f64>,
}

pub fn main(peers: &[Peer]) {
    let settings = match settings(std::env::args().skip(1)) {
        Ok(settings) => settings,
        Err(message) => {
            eprintln!("{message}\n{USAGE}");
            std::process::exit(2);
        }
    };
    let code = settings.code;
    let row_bytes = settings.unit_bytes * usize::from(code.total());
    let row_count = (settings.set_bytes / row_bytes).max(1);
    // Page aligned, like the buffers of the engine.
    let mut memory = vec![0u8; row_bytes * row_count + 4096];
    let start = memory.as_ptr().align_offset(4096);
    let memory = &mut memory[start..start + row_bytes * row_count];
    fill(memory);

    let mut contenders = contenders(&settings, peers);
    for _ in 0..settings.rounds {
        for contender in &mut contenders {
            let row = &mut memory[..row_bytes];
            let rate = hot(&settings, contender, row);
            contender.hot.push(rate);
            let rate = cold(contender, memory, row_bytes);
            contender.cold.push(rate);
        }
    }
    let results: Vec<_> = contenders
        .iter_mut()
        .map(|contender| {
            json!({
                "what": contender.name,
                "hot_gb_per_s": median(&mut contender.hot),
                "cold_gb_per_s": median(&mut contender.cold),
            })
        })
        .collect();
    let report = json!({
        "program": "encode_rate",
        "version": env!("CARGO_PKG_VERSION"),
        "machine": {
            "cpu": cpu_name(),
            "arch": std::env::consts::ARCH,
            "cpu_count": std::thread::available_parallelism().map_or(0, |count| count.get()),
        },
        "settings": {
            "code": code.to_string(),
            "unit_bytes": settings.unit_bytes,
            "set_bytes": row_bytes * row_count,
            "rounds": settings.rounds,
        },
        "results": results,
    });
    println!("{report:#}");
}

fn contenders<'a>(settings: &Settings, peers: &'a [Peer]) -> Vec<Contender<'a>> {
    let code = settings.code;
    let unit_bytes = settings.unit_bytes;
    let lost = usize::from(code.parity().min(code.data()));
    let data_bytes = usize::from(code.data()) * unit_bytes;
    let mut all: Vec<Contender<'a>> = Vec::new();
    let mut add = |name: String, bytes: usize, work: Work<'a>| {
        all.push(Contender {
            name,
            bytes,
            work,
            hot: Vec::new(),
            cold: Vec::new(),
        });
    };
    // The floor: one half of the row copied onto the other.
    add(
        "memcpy".to_owned(),
        usize::from(code.total()) * unit_bytes / 2,
        Box::new(move |row| {
            let (from, to) = row.split_at_mut(row.len() / 2);
            to[..from.len()].copy_from_slice(from);
        }),
    );
    for kernel in Kernel::available() {
        add(
            format!("encode {kernel}"),
            data_bytes,
            Box::new(move |row| {
                let (data, mut parity) = split(row, unit_bytes, usize::from(code.data()));
                encode_with(kernel, code, &data, &mut parity);
            }),
        );
        add(
            format!("rebuild {lost} {kernel}"),
            data_bytes,
            Box::new(move |row| {
                // The first units are lost; they are written over with what they held.
                let (lost_units, rest) = row.split_at_mut(lost * unit_bytes);
                let present: Vec<(u8, &[u8])> = (lost as u8..)
                    .zip(rest.chunks_exact(unit_bytes))
                    .take(usize::from(code.data()))
                    .collect();
                let mut wanted: Vec<(u8, &mut [u8])> =
                    (0..).zip(lost_units.chunks_exact_mut(unit_bytes)).collect();
                reconstruct_with(kernel, code, &present, &mut wanted).expect("enough units");
            }),
        );
    }
    for peer in peers {
        add(
            format!("encode {}", peer.name),
            data_bytes,
            Box::new(move |row| {
                let (data, mut parity) = split(row, unit_bytes, usize::from(code.data()));
                (peer.encode)(code, &data, &mut parity);
            }),
        );
        add(
            format!("rebuild {lost} {}", peer.name),
            data_bytes,
            Box::new(move |row| {
                let (lost_units, rest) = row.split_at_mut(lost * unit_bytes);
                let present: Vec<&[u8]> = rest.chunks_exact(unit_bytes).collect();
                let mut wanted: Vec<&mut [u8]> = lost_units.chunks_exact_mut(unit_bytes).collect();
                (peer.rebuild_first)(code, &present, &mut wanted);
            }),
        );
    }
    all
}

fn split(row: &mut [u8], unit_bytes: usize, data_count: usize) -> (Vec<&[u8]>, Vec<&mut [u8]>) {
    let (data, parity) = row.split_at_mut(unit_bytes * data_count);
    let data: &[u8] = data;
    (
        data.chunks_exact(unit_bytes).collect(),
        parity.chunks_exact_mut(unit_bytes).collect(),
    )
}

fn hot(settings: &Settings, contender: &Contender<'_>, row: &mut [u8]) -> f64 {
    (contender.work)(row);
    let start = Instant::now();
    let mut count = 0;
    while start.elapsed() < settings.hot_time {
        for _ in 0..16 {
            (contender.work)(black_box(row));
        }
        count += 16;
    }
    rate(count * contender.bytes, start.elapsed())
}

fn cold(contender: &Contender<'_>, memory: &mut [u8], row_bytes: usize) -> f64 {
    let start = Instant::now();
    let mut count = 0;
    for row in memory.chunks_exact_mut(row_bytes) {
        (contender.work)(black_box(row));
        count += 1;
    }
    rate(count * contender.bytes, start.elapsed())
}

fn rate(bytes: usize, time: Duration) -> f64 {
    let rate = bytes as f64 / time.as_secs_f64() / 1e9;
    (rate * 100.0).round() / 100.0
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn fill(memory: &mut [u8]) {
    let mut noise = 1u64;
    for chunk in memory.chunks_exact_mut(8) {
        noise = noise
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        chunk.copy_from_slice(&noise.to_le_bytes());
    }
}

fn cpu_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':'));
    name.map_or("unknown", |(_, name)| name.trim()).to_owned()
}

fn settings(mut args: impl Iterator<Item = String>) -> Result<Settings, String> {
    let (mut data, mut parity) = (4u8, 2u8);
    let mut settings = Settings {
        code: Code::new(data, parity).expect("4+2 is a code"),
        unit_bytes: 64 << 10,
        set_bytes: 512 << 20,
        rounds: 5,
        hot_time: Duration::from_millis(100),
    };
    while let Some(flag) = args.next() {
        let value = args.next().ok_or(format!("{flag} needs a value"))?;
        let bad = |_| format!("{flag} does not take {value:?}");
        match flag.as_str() {
            "--data" => data = value.parse().map_err(|_| bad(()))?,
            "--parity" => parity = value.parse().map_err(|_| bad(()))?,
            "--unit-bytes" => settings.unit_bytes = value.parse().map_err(|_| bad(()))?,
            "--set-bytes" => settings.set_bytes = value.parse().map_err(|_| bad(()))?,
            "--rounds" => settings.rounds = value.parse().map_err(|_| bad(()))?,
            "--seconds" => {
                let seconds: f64 = value.parse().map_err(|_| bad(()))?;
                settings.hot_time = Duration::try_from_secs_f64(seconds).map_err(|_| bad(()))?;
            }
            _ => return Err(format!("there is no flag {flag}")),
        }
    }
    settings.code = Code::new(data, parity).map_err(|error| error.to_string())?;
    let smallest = settings.unit_bytes.min(settings.rounds);
    if smallest == 0 {
        return Err("--unit-bytes and --rounds are at least 1".to_owned());
    }
    Ok(settings)
}
