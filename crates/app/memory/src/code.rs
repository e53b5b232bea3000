//! The program's own code in memory.
//!
//! Owns: how pages of code that are not executed leave the process. Must not know: when.
//!
//! The kernel maps sixteen pages of a file at a time when a program executes one of them, so that a process soon has nearly all
//! of its code resident: tens of MiB of a small memory limit. Pages of code are clean, and stay in the page cache. A process that
//! lets go of them has those back that it executes within microseconds, without reading the disk.

use std::fs;
use std::ops::Range;

/// Lets go of the program's code. Threads go on: the kernel maps each page again when a thread executes it. Returns `false`, and
/// does nothing, if the system does not tell the place of the code or refuses.
pub fn let_go() -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let own = let_go as fn() -> bool as usize;
    let Some(code) = code_around(&maps, own) else {
        return false;
    };
    let address = std::ptr::with_exposed_provenance_mut(code.start);
    // SAFETY: the range is one private mapping of the program's file, and nobody may write to it. So each page equals the file,
    // and the kernel reads it from there again, also for a thread that is executing in this page.
    let advised =
        unsafe { rustix::mm::madvise(address, code.len(), rustix::mm::Advice::LinuxDontNeed) };
    advised.is_ok()
}

/// Of the lines of proc(5) `/proc/PID/maps`: the mapping of a file around `address` that can be executed and not written to.
fn code_around(maps: &str, address: usize) -> Option<Range<usize>> {
    maps.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (from, to) = fields.next()?.split_once('-')?;
        let from = usize::from_str_radix(from, 16).ok()?;
        let to = usize::from_str_radix(to, 16).ok()?;
        let is_code = fields.next()? == "r-xp" && line.contains('/');
        let mapping = from..to;
        (is_code && mapping.contains(&address)).then_some(mapping)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
5600000000-5600100000 r--p 00000000 fe:00 12 /usr/bin/cairn
5600100000-5605100000 r-xp 00100000 fe:00 12 /usr/bin/cairn
5605100000-5605200000 rw-p 05100000 fe:00 12 /usr/bin/cairn
7f00000000-7f00001000 r-xp 00000000 00:00 0 [vdso]
not a line
";

    #[test]
    fn code_alone_is_let_go_of() {
        let cases: &[(usize, Option<Range<usize>>)] = &[
            (0x56_0010_0000, Some(0x56_0010_0000..0x56_0510_0000)),
            (0x56_0510_0000 - 1, Some(0x56_0010_0000..0x56_0510_0000)),
            (0x56_0000_0000, None),
            (0x56_0510_0000, None),
            (0x7f_0000_0000, None),
            (1, None),
        ];
        for (address, want) in cases {
            assert_eq!(code_around(MAPS, *address), *want, "{address:x}");
        }
    }

    #[test]
    fn the_process_goes_on_without_its_code() {
        for _ in 0..3 {
            assert!(let_go());
        }
        assert!(crate::resident_bytes() > 0);
    }
}
