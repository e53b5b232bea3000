//! What a request pays for being counted: `cargo run --release -p cairn-activity --example note_cost`.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use cairn_activity::{Activities, Client, Done, File, Operation, Protocol, Work};
use cairn_base::{Ino, VolumeId};
use cairn_testkit::test_env;

const COUNT: u64 = 5_000_000;

/// How many clients and files come in turn.
struct Mix {
    what: &'static str,
    clients: u64,
    files: u64,
}

const MIXES: [Mix; 4] = [
    Mix {
        what: "one client, one file",
        clients: 1,
        files: 1,
    },
    Mix {
        what: "one client, 50 files",
        clients: 1,
        files: 50,
    },
    Mix {
        what: "one client, a million files",
        clients: 1,
        files: 1_000_000,
    },
    Mix {
        what: "1000 clients, a million files",
        clients: 1000,
        files: 1_000_000,
    },
];

fn client(number: u64) -> Client {
    let address = Ipv4Addr::from_bits(0x0a00_0000 + number as u32);
    Client::address(Protocol::Nfs, IpAddr::V4(address))
}

/// Some work of which nothing is known before, for each request: the difference is the result.
fn request(number: u64) -> u64 {
    black_box(number)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(17)
}

fn main() {
    let activities = Activities::new(&test_env());
    for mix in &MIXES {
        for threads in [1, 2] {
            let activity = activities.of(VolumeId(1));
            let clients: Vec<Client> = (0..mix.clients).map(client).collect();
            let run = |is_counted: bool| {
                let begun = Instant::now();
                std::thread::scope(|scope| {
                    for _ in 0..threads {
                        scope.spawn(|| {
                            for number in 0..COUNT {
                                let random = request(number);
                                let operation = Operation {
                                    protocol: Protocol::Nfs,
                                    number: (random % 8) as u8,
                                    name: "x",
                                };
                                let client = &clients[(random >> 8) as usize % clients.len()];
                                let file = File::inode(Ino((random >> 20) % mix.files));
                                let done = black_box(Done {
                                    operation,
                                    client,
                                    file: Some(&file),
                                    work: Work {
                                        read_bytes: 4096,
                                        ..Work::ONE
                                    },
                                    latency: Some(Duration::from_micros(50)),
                                });
                                if is_counted {
                                    activity.note(&done);
                                }
                            }
                        });
                    }
                });
                begun.elapsed().as_secs_f64() * 1e9 / COUNT as f64
            };
            let (without, with) = (run(false), run(true));
            let what = mix.what;
            println!(
                "{what}, {threads} threads: {without:.1} ns without, {with:.1} ns with, {:.1} ns for each request of a thread",
                with - without
            );
        }
    }
}
