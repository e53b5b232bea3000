//! What a server holds for those who have not logged in.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cairn_activity::Activities;
use cairn_iscsi::{PortalCore, Running, Settings, Targets};
use cairn_qos::Shaper;
use socket2::{Domain, Socket, Type};

/// Of one connection: a few answers, and one more.
const UNSENT_BYTES_MAX: usize = 8 << 10;
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Nothing of a flood was taken for so long: the server waits until its answers are.
const BLOCKED: Duration = Duration::from_millis(500);

/// Takes little of what comes, so that answers stay at the server.
fn connect(address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(2048).unwrap();
    socket.connect(&address.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_write_timeout(Some(BLOCKED)).unwrap();
    stream
}

/// A login request whose text goes on: each is answered.
fn login_pdu() -> [u8; 48] {
    let mut pdu = [0; 48];
    pdu[0] = 0x43;
    pdu[1] = 0x40;
    pdu[8] = 0x40;
    pdu[13] = 1;
    pdu
}

#[test]
fn answers_before_a_login_are_few_until_they_are_taken() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let env = cairn_base::real::env(runtime.handle().clone());
    let targets = Targets::new(env.clone(), Shaper::new(&env), Activities::new(&env), None);
    let shared = PortalCore::new(targets, Settings::default(), || true);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let running = {
        let _inside = runtime.enter();
        Running::start(Arc::clone(&shared), vec![listener]).unwrap()
    };
    let unsent = || shared.unsent_bytes.load(Ordering::Relaxed);
    let burst = login_pdu().repeat(1000);
    let mut streams: Vec<TcpStream> = (0..4).map(|_| connect(address)).collect();
    let mut most = 0;
    let begun = Instant::now();
    // Again if the server did not run meanwhile, and has not answered yet.
    while most == 0 {
        assert!(begun.elapsed() < WAIT_MAX, "nothing waited to be sent");
        for stream in &mut streams {
            // Until nothing more is taken, or the connection is cut off for its time.
            while stream.write(&burst).is_ok() {
                most = most.max(unsent());
            }
            most = most.max(unsent());
        }
    }
    assert!(most <= 4 * UNSENT_BYTES_MAX, "{most}");
    drop(streams);
    let begun = Instant::now();
    while unsent() > 0 {
        assert!(
            begun.elapsed() < WAIT_MAX,
            "{} bytes are counted still",
            unsent()
        );
        std::thread::yield_now();
    }
    runtime.block_on(running.stop(WAIT_MAX));
}
