//! The machine that the load runs on.

use crate::result::Machine;

/// What `/proc` says; what it does not say is empty or 0.
pub fn machine() -> Machine {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    Machine {
        cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_default(),
        cpus: std::thread::available_parallelism()
            .ok()
            .and_then(|count| u32::try_from(count.get()).ok())
            .unwrap_or(0),
        memory_bytes: field(&read("/proc/meminfo"), "MemTotal")
            .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok())
            .and_then(|kib| kib.checked_mul(1024))
            .unwrap_or(0),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        os: os_name(&read("/etc/os-release")).unwrap_or_else(|| std::env::consts::OS.to_owned()),
    }
}

/// The name of this machine.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "this machine".to_owned(),
        name => name.to_owned(),
    }
}

/// The value of the first line `NAME : VALUE`.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

/// Source: os-release(5).
fn os_name(text: &str) -> Option<String> {
    text.lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))
        .map(|name| name.trim().trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_understood() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz\n\nmodel name\t: other\n";
        assert_eq!(
            field(cpuinfo, "model name").as_deref(),
            Some("Fast CPU @ 3 GHz")
        );
        assert_eq!(field("", "model name"), None);
        let release = "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12\"\n";
        assert_eq!(os_name(release).as_deref(), Some("Debian GNU/Linux 12"));
        let here = machine();
        assert!(here.cpus > 0 && here.memory_bytes > 0, "{here:?}");
    }
}
