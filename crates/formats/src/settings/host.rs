//! Settings of hosts that attach LUNs.

use cairn_base::words::word_enum;

word_enum!(
    /// The operating system of the hosts of an initiator group: a hint for how LUNs describe themselves to them.
    OsType, "a type of host", "linux, windows or vmware" {
        Linux = "linux",
        Windows = "windows",
        Vmware = "vmware",
    }
);
