//! The numbers that people tune.
//!
//! Owns: their defaults, and what each means.
//! Must not know: where they come from.

use std::time::Duration;

/// Limits of a server. Each bounds memory or work that a client can cause (Rule 6).
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Threads that serve connections, each with a runtime of its own.
    pub threads: usize,
    /// A connection counts until it is closed and the changes that came over it are done. Otherwise a client that
    /// connects again and again could make the server hold any number of them.
    pub connection_count_max: usize,
    /// Connections of one client address, counted in the same way. Leave room for those that a client opens in
    /// place of broken ones; Linux opens up to 16 at a time.
    pub connection_count_per_client_max: usize,
    /// Calls of one connection that wait for their program.
    pub in_flight_count_max: usize,
    /// Bytes held for one connection: payloads that arrived, data asked for, replies not sent yet.
    /// Beyond it the connection is not read. One call is always let in.
    pub held_bytes_per_connection_max: usize,
    /// Held bytes of all connections together; beyond it each connection has one call at a time.
    pub held_bytes_max: usize,
    /// A connection is closed when half a record, or replies that the client does not take, made no
    /// progress for so long.
    pub stall_timeout: Duration,
    /// SO_SNDBUF and SO_RCVBUF; 0 leaves them to the kernel, which then sizes them itself.
    pub socket_buffer_bytes: usize,
    /// A thread looks for the next request for a moment before it sleeps. Good for clients that send
    /// one request after the other, if there is more than one processor.
    pub looks_before_sleep: bool,
    /// Calls slower than this are logged at debug level.
    pub slow_request: Duration,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            connection_count_max: 1024,
            connection_count_per_client_max: 256,
            in_flight_count_max: 256,
            held_bytes_per_connection_max: 32 << 20,
            held_bytes_max: 256 << 20,
            stall_timeout: Duration::from_secs(60),
            socket_buffer_bytes: 0,
            looks_before_sleep: cairn_base::looking::is_sensible(),
            slow_request: Duration::from_millis(500),
        }
    }
}
