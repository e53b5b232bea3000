//! What a request pays at the gate: `cargo run --release -p cairn-qos --example gate_cost`.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_base::env::{BoxFuture, Clock};
use cairn_base::{Timestamp, VolumeId};
use cairn_formats::settings::{ClassSpec, PartLimit, RateSpec};
use cairn_qos::{Client, Limits, Operation, Part, PartRates, Shaper};
use cairn_testkit::test_env;

const COUNT: u32 = 2_000_000;

struct RealClock(Instant);

impl Clock for RealClock {
    fn now(&self) -> Timestamp {
        Timestamp::default()
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, _duration: Duration) -> BoxFuture<()> {
        Box::pin(std::future::pending())
    }
}

fn main() {
    let mut env = test_env();
    env.clock = Arc::new(RealClock(Instant::now()));
    let shaper = Shaper::new(&env);
    let gate = shaper.gate(VolumeId(1));
    let client = Client::named("x").of(Part::lun("1"));
    let measure = |what: &str, threads: usize| {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    for _ in 0..COUNT {
                        let pass = gate.admit(black_box(client), black_box(Operation::read(4096)));
                        assert!(pass.is_none());
                    }
                });
            }
        });
        let each = begun.elapsed().as_secs_f64() * 1e9 / f64::from(COUNT);
        println!("{what}, {threads} threads: {each:.1} ns for each request of a thread");
    };
    measure("no limit", 1);
    measure("no limit", 2);
    // Far away, so that nobody waits.
    let far = RateSpec {
        fixed: 1 << 49,
        ..RateSpec::per_tib(0)
    };
    let spec = ClassSpec {
        throughput: Some(far),
        iops: Some(far),
        ..ClassSpec::default()
    };
    let class = "far".parse().expect("a name");
    shaper.set(BTreeMap::from([(
        VolumeId(1),
        Limits::of(&class, &spec, None),
    )]));
    measure("a limit that is far away", 1);
    measure("a limit that is far away", 2);
    for count in [4, 256] {
        let mut limits = Limits::of(&class, &spec, None);
        let parts = (0..count).map(|number| PartLimit {
            part: format!("lun/{number}").parse().expect("a part"),
            throughput: Some(1 << 49),
            read_throughput: None,
            write_throughput: None,
            iops: None,
        });
        limits.parts = parts.map(|limit| PartRates::from(&limit)).collect();
        shaper.set(BTreeMap::from([(VolumeId(1), limits)]));
        measure(&format!("the same, and limits of {count} parts"), 1);
    }
}
