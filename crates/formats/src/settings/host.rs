//! What is known of hosts that attach LUNs.

use cairn_base::words::word_enum;

word_enum!(
    /// What runs on the hosts of a group of initiators: a hint for what LUNs say of themselves to them.
    OsType, "a type of host", "linux, windows or vmware" {
        Linux = "linux",
        Windows = "windows",
        Vmware = "vmware",
    }
);
