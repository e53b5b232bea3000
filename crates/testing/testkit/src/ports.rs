//! Ports of the loopback address for programs that tests start.

use std::net::TcpListener;
use std::ops::Range;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// The kernel assigns ports from 32768 on (`ip_local_port_range`) to sockets that request any.
const PORTS: Range<u32> = 20_000..32_000;

/// `count` ports of 127.0.0.1 without a listener, none of them returned before by this process.
///
/// They stay free until the program listens, and while it is restarted: the kernel gives them to no other connection.
/// Panics if there are not enough.
pub fn free_ports(count: usize) -> Vec<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Other processes begin elsewhere.
    let first = process::id().wrapping_mul(97);
    let mut listeners: Vec<TcpListener> = Vec::new();
    for _ in PORTS {
        if listeners.len() == count {
            break;
        }
        let nth = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + nth % (PORTS.end - PORTS.start);
        let port = u16::try_from(port).expect("a port");
        listeners.extend(TcpListener::bind(("127.0.0.1", port)));
    }
    assert_eq!(listeners.len(), count, "there are free ports");
    let port = |listener: &TcpListener| listener.local_addr().expect("an address").port();
    listeners.iter().map(port).collect()
}
