//! What a host types to use LUNs of one or more systems as one disk: a script.
//!
//! Owns: the commands, their order, and the numbers in them. A pure function of what the systems say. Must not know: how they
//! are asked.
//!
//! The script is for bash, says what it does, can be run again, and has no secret in it or in an argument of what it runs.

use std::fmt::Write as _;

use cairn_config::AccessPattern;
use clap::ValueEnum;

/// A LUN, as its system tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanLun {
    /// `VOLUME/NAME`.
    pub path: String,
    pub size_bytes: u64,
    /// 16 hexadecimal digits.
    pub naa: String,
    pub target: String,
    pub portals: Vec<String>,
    pub access_pattern: AccessPattern,
    /// The user that the host proves to be, and the one that the target does, where that is set.
    pub chap: Option<(String, Option<String>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FileSystem {
    Xfs,
    Ext4,
    /// Leave the volume as it is
    None,
}

/// How the LUNs are to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPlan {
    pub luns: Vec<PlanLun>,
    /// Of the host.
    pub initiator: String,
    pub sessions: u32,
    /// Of the volume group, and of the logical volume in it.
    pub group: String,
    pub volume: String,
    pub file_system: FileSystem,
    pub mount: Option<String>,
    pub stripe_len_bytes: Option<u64>,
}

/// Least and most that LVM takes (lvcreate(8)): a page, and the extents that volume groups are made with here.
pub const STRIPE_LEN_BYTES_MIN: u64 = 4 << 10;
pub const STRIPE_LEN_BYTES_MAX: u64 = 4 << 20;
/// What one command moves best, from page B0.
const OPTIMAL_KIB: u64 = 1024;

/// What one LUN gets of the data before the next one does. Small accesses touch one LUN, whole records of it, and long ones all.
pub fn stripe_len_bytes(luns: &[PlanLun]) -> u64 {
    let of = |pattern: AccessPattern| match pattern {
        // Four records of 16 KiB.
        AccessPattern::Random => 64 << 10,
        // Two records of 128 KiB.
        AccessPattern::Concurrent => 256 << 10,
        // One record of 1 MiB.
        AccessPattern::Streaming => 1 << 20,
    };
    let all = luns.iter().map(|lun| of(lun.access_pattern));
    all.min().unwrap_or(256 << 10)
}

/// The name of a multipath device for people: that of the LUN, and what tells it from one of another system.
fn alias(lun: &PlanLun) -> String {
    let plain = |letter: char| match letter {
        '/' => '-',
        letter => letter,
    };
    let name: String = lun.path.chars().map(plain).collect();
    let end = lun.naa.get(lun.naa.len().saturating_sub(6)..).unwrap_or("");
    format!("{name}-{end}")
}

/// How multipath names a LUN: by its NAA designator or, where rules of udev do not know it, by vendor and serial number, which
/// is the end of that.
fn wwids(lun: &PlanLun) -> [String; 2] {
    let serial = lun.naa.get(lun.naa.len().saturating_sub(16)..);
    [
        format!("3{}", lun.naa),
        format!("1CAIRN_{}", serial.unwrap_or(&lun.naa)),
    ]
}

/// In single quotes, for bash.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

impl HostPlan {
    fn stripe(&self) -> u64 {
        self.stripe_len_bytes
            .unwrap_or_else(|| stripe_len_bytes(&self.luns))
    }

    /// Each target once, with its portals and what is to be proven to it.
    fn targets(&self) -> Vec<&PlanLun> {
        let mut targets: Vec<&PlanLun> = Vec::new();
        for lun in &self.luns {
            if !targets.iter().any(|known| known.target == lun.target) {
                targets.push(lun);
            }
        }
        targets
    }

    fn device(&self) -> String {
        format!("/dev/{}/{}", self.group, self.volume)
    }

    /// The whole script.
    pub fn script(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, to: &mut String) -> std::fmt::Result {
        self.write_head(to)?;
        self.write_logins(to)?;
        self.write_multipath(to)?;
        self.write_udev(to)?;
        self.write_stripe(to)?;
        self.write_file_system(to)
    }

    fn write_head(&self, to: &mut String) -> std::fmt::Result {
        writeln!(to, "#!/bin/bash")?;
        writeln!(
            to,
            "# LUNs of {} targets as one disk:",
            self.targets().len()
        )?;
        for lun in &self.luns {
            let gib = lun.size_bytes as f64 / (1_u64 << 30) as f64;
            writeln!(to, "#   {} ({gib:.1} GiB) of {}", lun.path, lun.target)?;
        }
        writeln!(
            to,
            "# As root on the host, as often as you like: what is done already stays.\n\
             # Needs open-iscsi, multipath-tools, lvm2{}.\n\
             set -euo pipefail\n\
             umask 022\n\
             has_systemd() {{ [ -d /run/systemd/system ]; }}\n\n\
             # 1. Who this host is. The systems let in {}.",
            match self.file_system {
                FileSystem::Xfs => ", xfsprogs",
                FileSystem::Ext4 => ", e2fsprogs",
                FileSystem::None => "",
            },
            self.initiator
        )?;
        writeln!(
            to,
            "if ! grep -qxF {} /etc/iscsi/initiatorname.iscsi; then\n\
             \x20   echo 'this host has another name; see /etc/iscsi/initiatorname.iscsi' >&2\n\
             \x20   exit 1\n\
             fi",
            quoted(&format!("InitiatorName={}", self.initiator))
        )
    }

    fn write_logins(&self, to: &mut String) -> std::fmt::Result {
        if self.luns.iter().any(|lun| lun.chap.is_some()) {
            writeln!(
                to,
                "\n# Secrets are asked for, or read from the file that CHAP_SECRETS names: USER, a tab and the secret in each line.\n\
                 # They are kept in iscsid's own files, which only root reads, and are in no argument.\n\
                 secret() {{\n\
                 \x20   local line=\n\
                 \x20   if [ -n \"${{CHAP_SECRETS:-}}\" ]; then\n\
                 \x20       while IFS= read -r line; do\n\
                 \x20           if [ \"${{line%%$'\\t'*}}\" = \"$1\" ]; then printf %s \"${{line#*$'\\t'}}\"; return; fi\n\
                 \x20       done <\"$CHAP_SECRETS\"\n\
                 \x20       echo \"$CHAP_SECRETS has no secret of $1\" >&2\n\
                 \x20       return 1\n\
                 \x20   fi\n\
                 \x20   read -rsp \"secret of $1: \" line\n\
                 \x20   echo >&2\n\
                 \x20   printf %s \"$line\"\n\
                 }}\n\
                 # chap USER [TARGET'S USER]: what iscsid takes for the targets that are found next.\n\
                 chap() {{\n\
                 \x20   local kept own other\n\
                 \x20   kept=$(sed '/^# begin cairn$/,/^# end cairn$/d' /etc/iscsi/iscsid.conf)\n\
                 \x20   chmod 600 /etc/iscsi/iscsid.conf\n\
                 \x20   {{\n\
                 \x20       printf '%s\\n' \"$kept\" '# begin cairn'\n\
                 \x20       if [ -n \"${{1:-}}\" ]; then\n\
                 \x20           own=$(secret \"$1\")\n\
                 \x20           for kind in node.session discovery.sendtargets; do\n\
                 \x20               printf '%s\\n' \"$kind.auth.authmethod = CHAP\" \"$kind.auth.username = $1\" \"$kind.auth.password = $own\"\n\
                 \x20           done\n\
                 \x20       fi\n\
                 \x20       if [ -n \"${{2:-}}\" ]; then\n\
                 \x20           other=$(secret \"$2\")\n\
                 \x20           for kind in node.session discovery.sendtargets; do\n\
                 \x20               printf '%s\\n' \"$kind.auth.username_in = $2\" \"$kind.auth.password_in = $other\"\n\
                 \x20           done\n\
                 \x20       fi\n\
                 \x20       printf '%s\\n' '# end cairn'\n\
                 \x20   }} >/etc/iscsi/iscsid.conf.new\n\
                 \x20   chmod 600 /etc/iscsi/iscsid.conf.new\n\
                 \x20   mv /etc/iscsi/iscsid.conf.new /etc/iscsi/iscsid.conf\n\
                 }}"
            )?;
        }
        writeln!(
            to,
            "\n# 2. Paths: each portal of each target, {} at a time. A path that is lost fails its commands after 5 s, and multipath\n\
             #    sends them over another one.\n\
             has_systemd && systemctl enable --now iscsid multipathd\n\
             paths() {{\n\
             \x20   local target=$1 portal\n\
             \x20   shift\n\
             \x20   for portal; do\n\
             \x20       iscsiadm -m discovery -t sendtargets -p \"$portal\" >/dev/null && break\n\
             \x20   done\n\
             \x20   for setting in node.startup=automatic node.session.nr_sessions={} node.session.timeo.replacement_timeout=5 \\\n\
             \x20       node.conn[0].timeo.noop_out_interval=5 node.conn[0].timeo.noop_out_timeout=5; do\n\
             \x20       iscsiadm -m node -T \"$target\" -o update -n \"${{setting%%=*}}\" -v \"${{setting#*=}}\"\n\
             \x20   done\n\
             \x20   # 15: there is such a session already.\n\
             \x20   iscsiadm -m node -T \"$target\" --login || [ $? = 15 ]\n\
             }}",
            match self.sessions {
                1 => "one session".to_owned(),
                count => format!("{count} sessions"),
            },
            self.sessions
        )?;
        let has_chap = self.luns.iter().any(|lun| lun.chap.is_some());
        for lun in self.targets() {
            if has_chap {
                let (user, mutual) = lun.chap.clone().unwrap_or_default();
                let users = [user, mutual.unwrap_or_default()].map(|user| quoted(&user));
                writeln!(to, "chap {}", users.join(" "))?;
            }
            let portals: Vec<String> = lun.portals.iter().map(|portal| quoted(portal)).collect();
            writeln!(to, "paths {} {}", quoted(&lun.target), portals.join(" "))?;
        }
        if has_chap {
            writeln!(
                to,
                "# Each target's own settings have its secret now.\nchap"
            )?;
        }
        Ok(())
    }

    fn write_multipath(&self, to: &mut String) -> std::fmt::Result {
        writeln!(
            to,
            "\n# 3. One device of all paths of a LUN. Those to the node that has the volume come first (ALUA); while there is no path\n\
             #    at all, commands wait.\n\
             mkdir -p /etc/multipath/conf.d\n\
             cat >/etc/multipath/conf.d/cairn-{}.conf <<'END'\n\
             devices {{\n\
             \x20   device {{\n\
             \x20       vendor \"CAIRN\"\n\
             \x20       product \"LUN\"\n\
             \x20       path_grouping_policy group_by_prio\n\
             \x20       prio alua\n\
             \x20       hardware_handler \"1 alua\"\n\
             \x20       path_checker tur\n\
             \x20       path_selector \"service-time 0\"\n\
             \x20       failback immediate\n\
             \x20       no_path_retry queue\n\
             \x20       fast_io_fail_tmo 5\n\
             \x20       dev_loss_tmo infinity\n\
             \x20   }}\n\
             }}\n\
             multipaths {{",
            self.group
        )?;
        for lun in &self.luns {
            for wwid in wwids(lun) {
                writeln!(
                    to,
                    "    multipath {{\n        wwid {wwid}\n        alias {}\n    }}",
                    alias(lun)
                )?;
            }
        }
        writeln!(
            to,
            "}}\nEND\n\
             for wwid in {}; do multipath -a \"$wwid\" >/dev/null; done\n\
             multipathd reconfigure >/dev/null 2>&1 || true\n\
             multipath -r >/dev/null\n\
             devices=({})\n\
             for device in \"${{devices[@]}}\"; do\n\
             \x20   for _ in $(seq 120); do [ -b \"$device\" ] && break; sleep 0.5; done\n\
             \x20   [ -b \"$device\" ] || {{ echo \"$device does not come: see multipath -ll and iscsiadm -m session\" >&2; exit 1; }}\n\
             done",
            self.luns
                .iter()
                .flat_map(wwids)
                .collect::<Vec<_>>()
                .join(" "),
            self.luns
                .iter()
                .map(|lun| format!("/dev/mapper/{}", alias(lun)))
                .collect::<Vec<_>>()
                .join(" ")
        )
    }

    fn write_udev(&self, to: &mut String) -> std::fmt::Result {
        writeln!(
            to,
            "\n# 4. Commands of up to 1 MiB, which is what a LUN moves best; no scheduler beside that of the LUN; patience for a takeover.\n\
             cat >/etc/udev/rules.d/60-cairn.rules <<'END'\n\
             ACTION==\"add|change\", SUBSYSTEM==\"block\", KERNEL==\"sd*[!0-9]\", ATTRS{{vendor}}==\"CAIRN   \", ATTRS{{model}}==\"LUN             \", \
             ATTR{{queue/scheduler}}=\"none\", ATTR{{queue/max_sectors_kb}}=\"{OPTIMAL_KIB}\", ATTR{{device/timeout}}=\"60\"\n\
             ACTION==\"add|change\", SUBSYSTEM==\"block\", ENV{{DM_UUID}}==\"mpath-33*|mpath-1CAIRN_*\", ATTR{{queue/max_sectors_kb}}=\"{OPTIMAL_KIB}\"\n\
             END\n\
             udevadm control --reload && udevadm trigger --subsystem-match=block || true"
        )
    }

    fn write_stripe(&self, to: &mut String) -> std::fmt::Result {
        let count = self.luns.len();
        writeln!(
            to,
            "\n# 5. A stripe over all {count}: {} KiB of each in turn, so that small accesses touch one LUN and long ones all of them.\n\
             if ! vgs {group} >/dev/null 2>&1; then\n\
             \x20   pvcreate --quiet --dataalignment 1m \"${{devices[@]}}\"\n\
             \x20   vgcreate --quiet --physicalextentsize 4m {group} \"${{devices[@]}}\"\n\
             fi\n\
             lvs {group}/{volume} >/dev/null 2>&1 ||\n\
             \x20   lvcreate --quiet --yes --name {volume} --extents 100%FREE --stripes {count} --stripesize {}k {group}",
            self.stripe() >> 10,
            self.stripe() >> 10,
            group = self.group,
            volume = self.volume,
        )
    }

    fn write_file_system(&self, to: &mut String) -> std::fmt::Result {
        let (count, stripe) = (self.luns.len() as u64, self.stripe());
        let device = self.device();
        let (kind, make) = match self.file_system {
            FileSystem::None => {
                return writeln!(to, "\necho {} is there", quoted(&device));
            }
            // Blocks that were never written need no discarding.
            FileSystem::Xfs => (
                "xfs",
                format!("mkfs.xfs -q -K -d su={}k,sw={count} {device}", stripe >> 10),
            ),
            FileSystem::Ext4 => (
                "ext4",
                format!(
                    "mkfs.ext4 -q -E nodiscard,stride={},stripe_width={} {device}",
                    stripe / 4096,
                    stripe / 4096 * count
                ),
            ),
        };
        writeln!(
            to,
            "\n# 6. A file system that knows of the stripe. fstrim gives back what is deleted.\n\
             blkid {device} >/dev/null || {make}"
        )?;
        let Some(mount) = &self.mount else {
            return writeln!(to, "echo {} is there", quoted(&device));
        };
        let at = quoted(mount);
        let line = quoted(&format!("{device} {mount} {kind} _netdev,noatime 0 0"));
        writeln!(
            to,
            "mkdir -p {at}\n\
             grep -qsF {} /etc/fstab || echo {line} >>/etc/fstab\n\
             mountpoint -q {at} || mount {at}\n\
             has_systemd && systemctl enable --now fstrim.timer\n\
             df -h {at}",
            quoted(&format!("{device} {mount} "))
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lun(index: u64, pattern: AccessPattern, chap: bool) -> PlanLun {
        PlanLun {
            path: format!("v{index}/data"),
            size_bytes: 1 << 30,
            naa: format!("3{index:015x}"),
            target: format!("iqn.2025-11.storage.cairn:v{index}"),
            portals: vec!["10.0.0.1:3260".to_owned(), "10.0.0.2:3260".to_owned()],
            access_pattern: pattern,
            chap: chap.then(|| ("host".to_owned(), Some("it's".to_owned()))),
        }
    }

    fn plan(luns: Vec<PlanLun>, file_system: FileSystem) -> HostPlan {
        HostPlan {
            luns,
            initiator: "iqn.1993-08.org.debian:01:abc".to_owned(),
            sessions: 2,
            group: "cairn".to_owned(),
            volume: "data".to_owned(),
            file_system,
            mount: Some("/srv/data".to_owned()),
            stripe_len_bytes: None,
        }
    }

    #[test]
    fn a_stripe_is_what_the_volumes_keep_as_one_or_a_few() {
        use AccessPattern::*;
        for (patterns, want) in [
            (&[Random][..], 64 << 10),
            (&[Concurrent], 256 << 10),
            (&[Streaming, Streaming], 1 << 20),
            (&[Streaming, Random], 64 << 10),
        ] {
            let luns: Vec<_> = patterns
                .iter()
                .map(|pattern| lun(1, *pattern, false))
                .collect();
            let stripe = stripe_len_bytes(&luns);
            assert_eq!(stripe, want);
            assert!((STRIPE_LEN_BYTES_MIN..=STRIPE_LEN_BYTES_MAX).contains(&stripe));
        }
    }

    #[test]
    fn the_script_has_the_numbers_of_the_stripe() {
        let luns = (0..10).map(|index| lun(index, AccessPattern::Random, false));
        let text = plan(luns.collect(), FileSystem::Xfs).script();
        for want in [
            "--stripes 10 --stripesize 64k cairn",
            "mkfs.xfs -q -K -d su=64k,sw=10 /dev/cairn/data",
            "node.session.nr_sessions=2",
            "paths 'iqn.2025-11.storage.cairn:v3' '10.0.0.1:3260' '10.0.0.2:3260'",
            "wwid 33000000000000009",
            "wwid 1CAIRN_3000000000000009",
            "'/dev/cairn/data /srv/data xfs _netdev,noatime 0 0'",
        ] {
            assert!(text.contains(want), "{want}\n{text}");
        }
        assert!(!text.contains("chap"), "{text}");
        let text = plan(
            vec![lun(1, AccessPattern::Concurrent, false); 1],
            FileSystem::Ext4,
        )
        .script();
        assert!(text.contains("stride=64,stripe_width=64"), "{text}");
    }

    #[test]
    fn bash_takes_the_script_and_quotes_hold() {
        let all = plan(
            vec![
                lun(1, AccessPattern::Random, true),
                lun(2, AccessPattern::Random, false),
            ],
            FileSystem::None,
        );
        let text = all.script();
        assert!(text.contains(r"chap 'host' 'it'\''s'"), "{text}");
        // A target that wants none is found without what the one before wanted.
        assert!(
            text.contains("chap '' ''\npaths 'iqn.2025-11.storage.cairn:v2'"),
            "{text}"
        );
        for text in [
            text,
            plan(vec![lun(1, AccessPattern::Random, true)], FileSystem::Xfs).script(),
        ] {
            let mut bash = std::process::Command::new("bash")
                .arg("-n")
                .stdin(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            std::io::Write::write_all(&mut bash.stdin.take().unwrap(), text.as_bytes()).unwrap();
            assert!(bash.wait().unwrap().success(), "{text}");
        }
    }
}
