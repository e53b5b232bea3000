//! The memory limit of a process: what it has, what has it, and what gives way near the limit.
//!
//! Owns: the decision ([`Governor`]), what is counted of parts ([`Meters`]), how the process is measured ([`resident_bytes`]), the
//! settings of both allocators ([`allocator`]), the program's own code ([`code`]).
//! Must not know: caches, volumes, protocols. The owner of a part registers how it is read, and carries out the decisions.
//!
//! Parts of the limit that are handed out at the start (`cairn_config::MemoryBudget`) bound what is asked of the allocators, not
//! what the process has: fragments, memory that allocators keep, stacks and tables come on top. So the process is measured, and
//! what can give way does:
//!
//! ```text
//! 0 ......... 82% ....... 88% .. 90% ...... 96% .. 98% ... 100% .... 105%
//!   caches     as they are  |     |           |      |                |
//!   grow                    |     freed memory goes  |                status says so
//!                           |     back, then caches  callers wait
//!                           |     shrink to here     while that frees memory
//!                           |                 |
//!                           +-----------------+ less data waits for its flush
//! ```

pub mod allocator;
pub mod code;
mod divide;
mod governor;
mod meters;
mod process;

pub use divide::{Share, divide};
pub use governor::{Governor, MemorySample, Orders, TICK};
pub use meters::{Meter, Meters, OTHER, with_other};
pub use process::resident_bytes;
