//! The numbers that people tune.

use std::time::Duration;

use crate::handle::HandleKey;

/// Limits and keys of a server. Every limit bounds memory or work that a client can cause (Rule 6).
#[derive(Clone, Debug)]
pub struct Settings {
    /// Threads that serve connections, each with a runtime of its own.
    pub threads: usize,
    /// Secret of the pool: file handles are signed with it, so it must stay the same for ever.
    pub handle_key: HandleKey,
    /// A connection counts until the changes that came over it are done, also when it is gone before: what
    /// they hold would be without a limit for those who connect again and again.
    pub connection_count_max: usize,
    /// Connections of one client address, counted in the same way. There must be room for those that a client
    /// makes in place of broken ones; Linux makes up to 16 at a time.
    pub connection_count_per_client_max: usize,
    /// Requests of one connection that wait for the file system.
    pub in_flight_count_max: usize,
    /// Bytes held for one connection: payloads that arrived, data asked for, replies not yet sent.
    /// Beyond it the connection is not read. One request is always let in.
    pub held_bytes_per_connection_max: usize,
    /// The same for all connections together; beyond it each has one request at a time.
    pub held_bytes_max: usize,
    /// A connection is closed when half a record, or replies that the client does not take, made no
    /// progress for so long.
    pub stall_timeout: Duration,
    /// Replies kept so that a request sent again is answered as the first time; so many of WRITE, and so
    /// many of all others.
    pub duplicate_count_max: usize,
    pub duplicate_bytes_max: usize,
    /// Mounts remembered for MOUNT DUMP (`showmount -a`).
    pub mount_list_count_max: usize,
    /// SO_SNDBUF and SO_RCVBUF; 0 leaves them to the kernel, which then sizes them itself.
    pub socket_buffer_bytes: usize,
    /// A thread looks for the next request for a moment before it sleeps; good for clients that send
    /// one request after the other, if there is more than one processor.
    pub looks_before_sleep: bool,
    /// Requests slower than this are logged at debug level.
    pub slow_request: Duration,
}

impl Settings {
    /// The defaults, with the pool's secret.
    pub fn new(handle_key: HandleKey) -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            handle_key,
            connection_count_max: 1024,
            connection_count_per_client_max: 256,
            in_flight_count_max: 256,
            held_bytes_per_connection_max: 32 << 20,
            held_bytes_max: 256 << 20,
            stall_timeout: Duration::from_secs(60),
            duplicate_count_max: 16_384,
            duplicate_bytes_max: 8 << 20,
            mount_list_count_max: 1024,
            socket_buffer_bytes: 0,
            looks_before_sleep: std::thread::available_parallelism()
                .is_ok_and(|count| count.get() > 1),
            slow_request: Duration::from_millis(500),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_not_shown() {
        let settings = Settings::new(HandleKey::new(&[0xa7; 16]));
        let shown = format!("{settings:?} {settings:#?}");
        assert!(shown.contains("HandleKey(secret)"), "{shown}");
        for number in [0xa7_u128, 0xa7a7_a7a7_a7a7_a7a7] {
            for text in [format!("{number}"), format!("{number:x}")] {
                assert!(!shown.to_lowercase().contains(&text), "{text} in {shown}");
            }
        }
    }
}
