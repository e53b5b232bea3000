//! The rules of the model: what each number follows from, in words, as a formula, with its source.
//!
//! Owns: the one table that the model cites and `cairn plan explain` prints.
//! Must not know: how the rules are computed; the modules that cite them do.

use serde::Serialize;

use crate::report::Known;

/// Names a rule, such as `ebs.instance`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct RuleId(&'static str);

impl RuleId {
    pub fn as_str(self) -> &'static str {
        self.0
    }

    pub fn rule(self) -> &'static Rule {
        RULES
            .iter()
            .find(|rule| rule.id == self)
            .expect("ids are made by the same macro as the table")
    }
}

impl std::fmt::Display for RuleId {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.0)
    }
}

impl RuleId {
    fn uncertainty(self) -> Option<&'static Uncertainty> {
        UNCERTAIN.iter().find(|it| it.rule == self)
    }

    /// How what this rule says is known: documented, if nothing else is said.
    pub fn known(self) -> Known {
        self.uncertainty().map_or(Known::Documented, |it| it.known)
    }

    /// What the rule's figure may be at least and at most, as a multiple of it.
    pub fn spread(self) -> [f64; 2] {
        self.uncertainty().map_or([1.0, 1.0], |it| it.spread)
    }

    /// Why the figure has that range; empty where it is exact.
    pub fn spread_words(self) -> &'static str {
        self.uncertainty().map_or("", |it| it.words)
    }
}

/// Figures that are not simply documented and exact.
struct Uncertainty {
    rule: RuleId,
    known: Known,
    spread: [f64; 2],
    words: &'static str,
}

const fn uncertain(
    rule: RuleId,
    known: Known,
    spread: [f64; 2],
    words: &'static str,
) -> Uncertainty {
    Uncertainty {
        rule,
        known,
        spread,
        words,
    }
}

/// A test holds the ranges against what the papers measured.
const UNCERTAIN: &[Uncertainty] = &[
    uncertain(
        NETWORK_INSTANCE,
        Known::Documented,
        [0.88, 1.06],
        "eight NFS servers reached 0.88 to 1.06 of it",
    ),
    uncertain(
        NETWORK_CLUSTER,
        Known::Derived,
        [0.88, 1.06],
        "as network.instance",
    ),
    uncertain(
        EBS_INSTANCE,
        Known::Documented,
        [0.9, 1.05],
        "EBS promises 90 %; NFS servers reached 0.93 to 1.04 of it",
    ),
    uncertain(EBS_IOPS, Known::Documented, [0.9, 1.0], "EBS promises 90 %"),
    uncertain(EBS_GP3, Known::Documented, [0.9, 1.0], "EBS promises 90 %"),
    uncertain(EBS_ST1, Known::Documented, [0.9, 1.0], "EBS promises 90 %"),
    uncertain(EBS_SC1, Known::Documented, [0.9, 1.0], "EBS promises 90 %"),
    uncertain(EBS_IO, Known::Documented, [0.9, 1.0], "EBS promises 90 %"),
    uncertain(
        EBS_ST1_IOPS,
        Known::Derived,
        [0.9, 1.0],
        "EBS promises 90 %",
    ),
    uncertain(PARITY_WRITE, Known::Derived, [1.0, 1.0], ""),
    uncertain(S3_REQUESTS, Known::Derived, [1.0, 1.0], ""),
    uncertain(PARITY_RANDOM, Known::Derived, [1.0, 1.0], ""),
    uncertain(JOURNAL_RANDOM, Known::Derived, [1.0, 1.0], ""),
    uncertain(
        DISK_HDD,
        Known::Derived,
        [0.5, 1.0],
        "\"up to\"; the inner tracks of a disk hold half as much as the outer",
    ),
    uncertain(
        DISK_HDD_RANDOM,
        Known::Derived,
        [1.0, 2.0],
        "with many requests at a time a disk chooses the nearest",
    ),
    uncertain(
        DISK_NVME,
        Known::Derived,
        [1.0, 2.0],
        "a floor: large requests are faster than those of 4 KiB",
    ),
    uncertain(
        CACHE_MEMORY,
        Known::Extrapolated,
        [0.5, 2.0],
        "half of the memory is assumed",
    ),
    uncertain(
        CAIRN_SOFTWARE,
        Known::Extrapolated,
        [1.0, 1.0],
        "least: no faster than what was measured; most: with the CPUs",
    ),
    uncertain(
        SAN_IOPS,
        Known::Documented,
        [1.0, 1.25],
        "the paper measured 1.25 of it, with its caches",
    ),
    uncertain(
        LUSTRE_DISK,
        Known::Documented,
        [1.0, 1.54],
        "the paper measured 1.04 and, in a burst, 1.53 of it",
    ),
    uncertain(
        LUSTRE_CACHE,
        Known::Documented,
        [1.0, 1.09],
        "the paper measured 1.08 and, in a burst, 1.09 of it",
    ),
    uncertain(
        LUSTRE_CREDIT,
        Known::Extrapolated,
        [0.5, 2.0],
        "the size of the bucket is assumed",
    ),
    uncertain(
        CVS_VOLUME,
        Known::Extrapolated,
        [0.97, 1.03],
        "measured in another cloud; the paper measured 1.00 to 1.02 of it",
    ),
    uncertain(
        CVS_GATEWAY,
        Known::Documented,
        [1.0, 1.15],
        "the paper measured 1.14 of it",
    ),
];

/// One rule, as `cairn plan explain` shows it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rule {
    pub id: RuleId,
    pub words: &'static str,
    /// Empty where the rule is a condition, not a formula.
    pub formula: &'static str,
    pub source: &'static str,
}

macro_rules! rules {
    ($($name:ident = $id:literal, $words:literal, $formula:literal, $source:expr;)*) => {
        $(pub const $name: RuleId = RuleId($id);)*
        /// All rules, in the order in which `explain` shows them.
        pub const RULES: &[Rule] = &[
            $(Rule { id: $name, words: $words, formula: $formula, source: $source },)*
        ];
    };
}

const APEX: &str = "Introduction to APEX File Storage for AWS, H19642, May 2023";
const ALCES: &str = "NFS Storage Solutions on AWS with Alces Flight Compute, 2016.2, May 2016";
const SAN: &str = "SAN: A million IOPs in AWS from Amazon FSx NetApp ONTAP";
const LUSTRE: &str = "Optimize price and performance with Amazon FSx for Lustre; FSx for Lustre user guide, \
                      Performance characteristics of SSD and HDD storage classes";
const CVS: &str =
    "The Real Baseline Performance Story: NetApp Cloud Volumes Service for AWS, August 2019";
const EC2: &str = "EC2 DescribeInstanceTypes (EbsInfo, NetworkInfo)";
const EBS: &str = "EC2 user guide, Amazon EBS volume types";
const EFS: &str = "EFS user guide, Amazon EFS performance specifications";
const S3: &str = "S3 user guide, Best practices design patterns: optimizing Amazon S3 performance";
const CAIRN: &str = "this project: README.md, docs/results/performance.md";

rules! {
    CAPACITY_RAW = "capacity.raw",
        "Raw capacity is what all disks or volumes hold together.",
        "raw = nodes x volumes x size", APEX;
    CAPACITY_PROTECTION = "capacity.protection",
        "N+M protection keeps N units of data and M of parity; the share N/(N+M) of the raw capacity holds data.",
        "usable = raw x N / (N + M)", APEX;
    CAPACITY_JOINED = "capacity.joined",
        "Disks or volumes joined by LVM hold data on all of them and have no redundancy of their own.",
        "usable = raw", ALCES;
    CAPACITY_SERVICE = "capacity.service",
        "A managed service is bought by its usable capacity; its own redundancy is inside the price.",
        "usable = what is provisioned", LUSTRE;

    CLUSTER_NODES = "cluster.nodes",
        "A cluster has 4 to 6 nodes.", "4 <= nodes <= 6", "H19642, Table 1";
    CLUSTER_SAME = "cluster.same",
        "All nodes have the same instance size, volume type, volume count and volume size.", "", "H19642, Table 1";
    CLUSTER_INSTANCE = "cluster.instance",
        "Nodes are m5dn.8xlarge, 12xlarge, 16xlarge or 24xlarge.", "", "H19642, Table 2";
    CLUSTER_PROTECTION = "cluster.protection",
        "+2n protection: 4 nodes 2+2, 5 nodes 3+2, 6 nodes 4+2; any two nodes or two drives may be lost.",
        "N = nodes - 2, M = 2", "H19642, Table 3";
    CLUSTER_SSD_VOLUMES = "cluster.ssd.volumes",
        "SSD nodes have 5, 6, 10, 12, 15, 18 or 20 gp3 volumes each.", "", "H19642, Tables 1 and 8";
    CLUSTER_SSD_SIZE = "cluster.ssd.size",
        "SSD volumes are 1 to 16 TiB, less where the cluster would exceed 1 PiB raw; Table 8 cuts to a tenth of a TiB.",
        "size <= min(16 TiB, floor to 0.1 of 1024 TiB / (nodes x volumes))", "H19642, Table 8";
    CLUSTER_SSD_RAW = "cluster.ssd.raw",
        "SSD clusters have 20 TiB to 1 PiB raw. Table 1 says 24 TiB at least, but Table 8 lists 4 nodes x 5 x 1 TiB = 20 TiB as supported: we follow Table 8.",
        "20 TiB <= raw <= 1024 TiB", "H19642, Tables 1 and 8";
    CLUSTER_SSD_PROVISIONED = "cluster.ssd.provisioned",
        "The cluster's gp3 is that of its time: at most 16,000 IOPS and 1,000 MiB/s a volume.",
        "IOPS <= 16,000; MiB/s <= 1,000", "H19642, May 2023; EC2 user guide of 2023, Amazon EBS volume types";
    CLUSTER_HDD_VOLUMES = "cluster.hdd.volumes",
        "HDD nodes have 5 or 6 st1 volumes each.", "", "H19642, Tables 1 and 9";
    CLUSTER_HDD_SIZE = "cluster.hdd.size",
        "HDD volumes are 4 or 10 TiB.", "size = 4 TiB or 10 TiB", "H19642, Tables 1 and 9";
    CLUSTER_HDD_RAW = "cluster.hdd.raw",
        "HDD clusters have 80 to 360 TiB raw.", "80 TiB <= raw <= 360 TiB", "H19642, Tables 1 and 9";
    CLUSTER_VOLUME_TYPE = "cluster.volume-type",
        "Data volumes are gp3 (SSD) or st1 (HDD).", "", "H19642, Table 1";

    NFS_CAPACITY = "nfs.capacity",
        "One NFS server is for less than 48 TiB: the largest instance store of its time is 24 disks of 2 TB.",
        "capacity < 48 TiB", ALCES;
    NFS_THROUGHPUT = "nfs.throughput",
        "One NFS server is for less than 1 GB/s: the network of the largest instance of its time is 10 Gb/s, 1,250 MB/s.",
        "throughput < 1 GB/s", ALCES;
    NFS_CLIENTS = "nfs.clients",
        "One NFS server is for fewer than 32 clients: they share its one network; 32 of them get less than 40 MB/s each of 1,250 MB/s.",
        "clients < 32", ALCES;

    NETWORK_INSTANCE = "network.instance",
        "All that clients read leaves, and all that they write enters, through the instance's network. Smaller sizes have a baseline and a peak that lasts while credits do.",
        "rate <= network Gb/s / 8", EC2;
    NETWORK_CLUSTER = "network.cluster",
        "External and internal traffic share a node's network. A client reads through one node, and (nodes-1)/nodes of each stripe comes from other nodes.",
        "read a node <= network / (1 + (nodes-1)/nodes); write a node <= network / (1 + (N+M)/N x (nodes-1)/nodes)",
        "H19642: network bandwidth is shared by the internal and the external network";
    EBS_INSTANCE = "ebs.instance",
        "An instance has so much bandwidth to all its EBS volumes together; smaller sizes have a baseline and a maximum for 30 minutes a day.",
        "storage <= EBS bandwidth of the instance", EC2;
    EBS_IOPS = "ebs.instance-iops",
        "An instance does so many EBS operations per second, of 16 KiB or less.",
        "IOPS <= EBS IOPS of the instance", EC2;
    EBS_GP3 = "ebs.gp3",
        "A gp3 volume does 125 MiB/s and 3,000 IOPS; more is provisioned.",
        "storage <= volumes x MiB/s of each", EBS;
    EBS_ST1 = "ebs.st1",
        "An st1 volume does 40 MiB/s per TiB, and bursts to 250 MiB/s per TiB, at most 500 MiB/s, while its bucket of 1 TiB of credit per TiB lasts.",
        "baseline = 40 MiB/s x TiB; burst = min(250 MiB/s x TiB, 500 MiB/s)", EBS;
    EBS_SC1 = "ebs.sc1",
        "An sc1 volume does 12 MiB/s per TiB, and bursts to 80 MiB/s per TiB, at most 250 MiB/s, while its bucket of 1 TiB of credit per TiB lasts.",
        "baseline = 12 MiB/s x TiB; burst = min(80 MiB/s x TiB, 250 MiB/s)", EBS;
    EBS_IO = "ebs.io",
        "An io1 or io2 volume does the IOPS that are provisioned. io2: 0.256 MiB/s with each, up to 4,000 MiB/s; io1: 0.25 up to 500 MiB/s, and 1/64 beyond 32,000 IOPS, up to 1,000 MiB/s.",
        "storage <= volumes x min(IOPS x MiB/s each, most)", EBS;
    EBS_COUNT = "ebs.count",
        "An instance takes so many EBS volumes; its root volume, network interfaces and NVMe disks count, too.",
        "1 <= data volumes <= attachments left", "EC2 user guide, Amazon EBS volume limits for Amazon EC2 instances; DescribeInstanceTypes";
    EBS_TYPE = "ebs.type",
        "Data volumes are of a type that EBS sells and the planner has limits of: gp3, st1, sc1, io1 or io2.", "", EBS;
    EBS_SIZE = "ebs.size",
        "gp3 volumes have 1 GiB to 64 TiB (16 TiB before September 2025), st1 and sc1 125 GiB to 16 TiB, io1 4 GiB to 16 TiB, io2 4 GiB to 64 TiB.",
        "least <= size <= most", EBS;
    EBS_PROVISIONED = "ebs.provisioned",
        "gp3 is provisioned with 3,000 to 80,000 IOPS and 125 to 2,000 MiB/s (16,000 and 1,000 before September 2025), io1 with 100 to 64,000 IOPS, io2 with 100 to 256,000; without Nitro io1 and io2 have at most 32,000. st1 and sc1 have nothing to provision.",
        "least <= provisioned <= most", "EBS user guide, Amazon EBS volume types; EC2 API reference, CreateVolume";
    EBS_IOPS_PER_GIB = "ebs.iops-per-gib",
        "Provisioned IOPS are bound by the size: gp3 500 per GiB, io1 50, io2 1,000. The 3,000 of gp3 come with every size.",
        "IOPS <= GiB x ratio", EBS;
    EBS_MIB_S_PER_IOPS = "ebs.mib-s-per-iops",
        "gp3 has at most 0.25 MiB/s for each provisioned operation: 1,000 MiB/s need 4,000 IOPS.",
        "MiB/s <= 0.25 x IOPS", "EBS user guide, General Purpose SSD volumes";
    EBS_ST1_IOPS = "ebs.st1-iops",
        "st1 counts a small random operation as 1 MiB of its throughput.",
        "IOPS = MiB/s", EBS;
    LATENCY_EBS = "latency.ebs",
        "gp3 and io1 answer in single-digit milliseconds, io2 in less than half a millisecond for 16 KiB: the least that a random operation takes. The network to the server, parity and queues come on top.",
        "latency >= 1 ms (gp3, io1), 0.5 ms (io2)", "EBS user guide, Amazon EBS volume types and EBS optimization";
    EBS_SLOWEST = "ebs.slowest",
        "EBS volumes deliver at least 90 % of what is provisioned for 99 % of the time. A stripe is written when its slowest unit is, so a striped write is planned with the 90 %.",
        "striped write <= 0.9 x storage bandwidth x N / (N + M)",
        "EBS user guide, Amazon EBS optimization: \"at least 90% of their provisioned performance 99% of the time\"";
    PARITY_WRITE = "parity.write",
        "Each N units written cost N+M units to the disks.",
        "write = storage x N / (N + M)", "arithmetic of N+M";
    PARITY_RANDOM = "parity.random",
        "A small write reads and writes one data unit and M parity units; joined disks write it once.",
        "random write = IOPS / (2 x (1 + M))", "arithmetic of N+M with update in place";
    JOURNAL_RANDOM = "journal.random",
        "Cairn appends a small stable write to M+1 copies of its log and folds it into full stripes later.",
        "random write = IOPS / (1 + M + (N + M) / N)", "ARCHITECTURE.md, The life of a write";
    DISK_HDD = "disk.hdd",
        "24 local hard disks of a d2.8xlarge do 3.5 GB/s of reads and 3.1 GB/s of writes; we count the 24th part for each disk, for later disks too.",
        "storage = disks x 145.8 MB/s (read), 129.2 MB/s (write)",
        "EC2 D2 instance documentation: \"up to 3.5 GB/s read performance and 3.1 GB/s write performance with a 2 MiB block size\"";
    DISK_HDD_RANDOM = "disk.hdd-random",
        "A 7,200 rpm disk needs half a turn (4.2 ms) and a seek (8.5 ms) for each random operation.",
        "IOPS = disks x 79", "arithmetic of 7,200 rpm with a seek of 8.5 ms";
    DISK_NVME = "disk.nvme",
        "Local NVMe: the IOPS of 4 KiB that the cloud states for the whole instance; times 4 KiB they are a floor of the sequential rate, which is not stated.",
        "storage >= IOPS x 4 KiB", "EC2 user guide, Storage optimized instances, SSD I/O performance";
    CACHE_MEMORY = "cache.memory",
        "What memory holds is read at the speed of the network. We count half of the memory as cache.",
        "hot data <= servers x memory / 2",
        "the papers' own reads above the limit of their disks; the half is our caution";
    CAIRN_SOFTWARE = "cairn.software",
        "With 2 CPUs Cairn wrote 1,086 MB/s of new files and read 1,986 MB/s cold in 4+2 over six disks, and 1,553 and 1,814 MB/s with one disk. More CPUs, other codes and more servers are extrapolated from that.",
        "4+2: read <= 993 MB/s x vCPU, write <= 543 MB/s x vCPU", CAIRN;
    CAIRN_CODES = "cairn.codes",
        "Cairn protects with N+M, N from 1 to 16 and M from 0 to 4, over as many disks or nodes as N+M at least.",
        "1 <= N <= 16, M <= 4, N + M <= disks", CAIRN;
    CAIRN_FEATURES = "cairn.features",
        "What this version of Cairn has and what is planned is listed with it (data/cairn.toml).", "", CAIRN;

    SAN_STRIPE = "san.stripe",
        "The host joins the LUNs of all systems with LVM and puts one file system on top: rates add up, and one host uses it.",
        "array = systems x each", SAN;
    SAN_THROUGHPUT = "san.throughput",
        "A first-generation file system has at most 2 GB/s of throughput capacity.",
        "read <= systems x throughput", SAN;
    SAN_WRITE = "san.write",
        "A first-generation Single-AZ file system writes at most 750 MB/s, whatever its throughput capacity, because each write is copied to the partner.",
        "write <= systems x min(throughput, 750 MB/s)",
        "FSx for ONTAP user guide, Performance (write throughput of first-generation Single-AZ file systems)";
    SAN_IOPS = "san.iops",
        "A first-generation file system has at most 80,000 SSD IOPS; 3 per GiB are included. Its caches answer beyond that.",
        "IOPS <= systems x SSD IOPS", SAN;
    SAN_IOPS_THROUGHPUT = "san.iops-throughput",
        "The throughput capacity bounds the SSD IOPS: 80,000 need 2,048 MB/s, up to 1,024 MB/s there are 40,000. 3 per GiB are the least.",
        "3 x GiB <= IOPS <= most of the throughput capacity",
        "FSx for ONTAP user guide, Impact of throughput capacity on performance; FSx API reference, DiskIopsConfiguration";
    SAN_LEVEL = "san.level",
        "A first-generation file system has a throughput capacity of 128, 256, 512, 1,024 or 2,048 MB/s; 1 and 2 GB/s are the last two.", "",
        "FSx API reference, CreateFileSystemOntapConfiguration, ThroughputCapacityPerHAPair";
    SAN_SYSTEMS = "san.systems",
        "An array has at most 20 file systems: the most that the paper sizes.", "1 <= systems <= 20", SAN;
    SAN_SIZE = "san.size",
        "A file system has 1,024 GiB to 196 TB of SSD.", "1,024 GiB <= SSD <= 196 TB",
        "SAN: A million IOPs in AWS from Amazon FSx NetApp ONTAP; FSx API reference, CreateFileSystem, StorageCapacity";
    SAN_CLIENT = "san.client",
        "The host's network carries all of the array's data.",
        "read <= network of the host", SAN;

    LUSTRE_NETWORK = "lustre.network",
        "The servers' network grows with the capacity: persistent-12 has 40 MB/s per TiB and bursts to 375, persistent-40 has 150 and bursts to 1,300.",
        "network = capacity TiB x level", LUSTRE;
    LUSTRE_DISK = "lustre.disk",
        "The disks' throughput grows with the capacity: persistent-12 has 12 MB/s per TiB and bursts to 80 (read) and 50 (write), persistent-40 has 40, 250 and 150.",
        "disk = capacity TiB x level", LUSTRE;
    LUSTRE_CACHE = "lustre.cache",
        "The SSD read cache is 20 % of the capacity. Cached reads do 200 MB/s of disk per TiB of cache, and by network 200 bursting to 1,900 (persistent-12) or 750 bursting to 6,500 (persistent-40).",
        "cached read = 0.2 x capacity TiB x level", LUSTRE;
    LUSTRE_CREDIT = "lustre.credit",
        "Use below the baseline earns credit, which a burst spends. How large the bucket is, is not published: charts assume one that lasts half an hour.",
        "burst lasts bucket / (burst - baseline)", LUSTRE;
    LUSTRE_SIZE = "lustre.size",
        "HDD file systems come in steps of 6,000 GiB (persistent-12) or 1,800 GiB (persistent-40). The service's TiB, by which rates are stated, is 1,000 GiB. We plan up to 1 PiB, the largest that any of the papers shows.",
        "capacity = n x step", "FSx API reference, CreateFileSystem, StorageCapacity";
    LUSTRE_LEVEL = "lustre.level",
        "HDD file systems are PERSISTENT_1 with 12 or 40 MB/s per TiB: persistent-12 and persistent-40.", "",
        "FSx API reference, CreateFileSystemLustreConfiguration, PerUnitStorageThroughput";

    CVS_LEVEL = "cvs.level",
        "A volume's throughput follows its level and quota: standard 16 KB/s per GB, premium 64, extreme 128.",
        "rate = quota GB x level", "Cloud Volumes Service for AWS documentation, list of September 2018";
    CVS_QUOTA = "cvs.quota",
        "A volume has a quota of 1 GB to 100 TB.", "1 GB <= quota <= 100 TB",
        "Cloud Volumes Service for AWS documentation, list of September 2018";
    CVS_VOLUME = "cvs.volume",
        "One volume of this storage system does about 4,500 MiB/s of sequential reads and 1,600 MiB/s of writes, 460,000 random reads and 130,000 random writes of 4 KiB per second: measured by others, in another cloud.",
        "rate <= 4,500 MiB/s a volume",
        "Azure NetApp Files performance benchmarks for Linux, September 2021";
    CVS_GATEWAY = "cvs.gateway",
        "The service is reached through a gateway: an instance with 32 vCPUs or more uses half of its network there, a smaller one at most 5 Gb/s.",
        "client <= network / 2 (or 5 Gb/s)",
        "EC2 user guide, Amazon EC2 instance network bandwidth: Direct Connect and gateways, \"up to 50%\"";
    CVS_FLOW = "cvs.flow",
        "One TCP flow carries 10 Gb/s inside a placement group and 5 Gb/s outside; nconnect opens up to 16.",
        "client <= flows x 5 Gb/s", CVS;
    EFS_THROUGHPUT = "efs.throughput",
        "EFS writes 50 MiB/s for each TiB stored, and bursts to 100 (at least 100 in all); more is provisioned. Reads are metered at a third. A file system has 3 GiB/s of reads and 1 GiB/s of writes at most, in some regions more.",
        "write = max(50 MiB/s x TiB, provisioned) <= 1 GiB/s; read = 3 x write <= 3 GiB/s", EFS;
    EFS_IOPS = "efs.iops",
        "An EFS file system does 35,000 reads and 7,000 writes per second; regional with provisioned throughput 55,000 and 25,000. Each counts as 4 KiB of its throughput at least.",
        "IOPS <= most; IOPS <= throughput / 4 KiB", EFS;
    EFS_LEVEL = "efs.level",
        "An EFS file system is regional or in one zone, holds at least 1 GiB, and is provisioned with 1 to 1,024 MiB/s.", "", EFS;
    EFS_LATENCY = "efs.latency",
        "EFS writes take 2.7 ms at least (regional), or 1.6 ms (one zone).", "latency >= 2.7 ms, 1.6 ms", EFS;
    EFS_CLIENT = "efs.client",
        "One client gets at most 500 MiB/s of an EFS file system with provisioned or bursting throughput.",
        "rate <= clients x 500 MiB/s", EFS;
    S3_REQUESTS = "s3.requests",
        "S3 answers at least 5,500 reads and 3,500 writes per second for each prefix. We count one prefix, with requests of 8 MiB for streams; more prefixes do more. An object is never changed in part: a random write writes it whole.",
        "read = 5,500 x 8 MiB, write = 3,500 x 8 MiB", S3;
    S3_LATENCY = "s3.latency",
        "S3 takes 100 to 200 ms for a small object.", "latency >= 100 ms", S3;
    S3_OBJECTS = "s3.objects",
        "S3 stores objects, not files: no directories, no changes in place, no mount. It counts where --protocols asks for s3.", "", S3;
    SERVICE_REDUNDANCY = "service.redundancy",
        "A managed service replaces its failed servers and disks by itself; data is kept more than once inside the zone.",
        "", "FSx user guides, Deployment options";
    EBS_SURVIVES = "ebs.survives",
        "An EBS volume outlives the instance; a volume that is lost itself (0.1 to 0.2 % a year) takes what has no parity with it.",
        "", EBS;
    LOSS_UNITS = "loss.units",
        "Data of N+M is lost when M + 1 of its volumes, disks or nodes fail before the first is rebuilt. Failures are counted as independent; mistakes of people and software and the loss of a zone come on top. The rates, with their sources, are in data/reliability.toml.",
        "losses a year = units x rate x product over i = 1..M of ((units - i) x rate x repair time)",
        "arithmetic of N+M; EBS user guide, Amazon EBS volume types (0.1 to 0.2 % of volumes a year); drive statistics";
    OUTAGE_SERVER = "outage.server",
        "A single server is out at each restart and until its volumes are on another after a failure; what is lost is restored as fast as the design writes. How often servers stop is our assumption: the cloud states none.",
        "hours = servers x (restarts x 6 minutes + stops x 30 minutes) + losses x restore",
        "our assumption (data/reliability.toml); Amazon Compute SLA, instance level: 99.5 %";
    OUTAGE_CLUSTER = "outage.cluster",
        "Clients of a cluster wait while the work of a node moves to others. How long is our assumption.",
        "hours = nodes x (restarts + stops) x 1 minute + losses x restore",
        "our assumption (data/reliability.toml)";
    SERVICE_STATED = "service.stated",
        "Of a managed service counts what its vendor documents; where nothing is documented the answer says so.",
        "", "data/reliability.toml: FSx, EFS and S3 user guides and service level agreements";
    STORE_LOST = "disk.instance-store",
        "Instance store is gone when the instance stops, hibernates or fails.", "",
        "EC2 user guide, Storage optimized instances";

    DEPLOY_REGION = "deploy.region",
        "The region exists, or a price list has it.", "", "AWS general reference, Regions and zones, November 2025 (commercial partition)";
    DEPLOY_INSTANCE = "deploy.instance",
        "The instance type exists and its limits are known (data/instances.toml).", "", EC2;
    DEPLOY_COUNT = "deploy.count",
        "A design has at least one server, system or volume, and at most 10,000.", "1 <= count <= 10,000",
        "our bound: far above any design";
    DISK_COUNT = "disk.count",
        "Local disks are as many and as large as the instance has.", "1 <= disks <= disks of the instance", EC2;

    COST_HOURS = "cost.hours",
        "A month has 730 hours, a year 12 months.", "month = hour x 730", "AWS pricing calculator";
    COST_HOURS_2016 = "cost.hours-2016",
        "The NFS paper's months have 30.4 days: 729.6 hours.", "month = hour x 729.6", "solved from the paper's own totals";
    COST_INSTANCE = "cost.instance",
        "Every server pays the instance's price per hour.", "instances x USD/hour", "price list";
    COST_VOLUME = "cost.volume",
        "Volumes pay per GiB and month, and gp3 for IOPS over 3,000 and MiB/s over 125. The NFS paper counts GB.",
        "volumes x (GiB x price + IOPS over 3,000 x price + MiB/s over 125 x price)", "price list";
    COST_SERVICE = "cost.service",
        "A managed service pays per GB and month of what is provisioned, plus what the price list names.",
        "GB x price (+ throughput, IOPS)", "price list";
    COST_RESERVED = "cost.reserved",
        "Reserved instances: the price of the whole term, where the price list has it; volumes pay as before.",
        "", "price list";
}

/// The rule of this id, for `explain`.
pub fn find(id: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.id.as_str() == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_every_rule_has_words_and_a_source() {
        for (index, rule) in RULES.iter().enumerate() {
            assert!(
                !rule.words.is_empty() && !rule.source.is_empty(),
                "{}",
                rule.id
            );
            assert!(
                RULES[index + 1..].iter().all(|other| other.id != rule.id),
                "{} twice",
                rule.id
            );
            assert_eq!(rule.id.rule().words, rule.words);
        }
    }
}
