//! Seeds of what initiators send: PDU headers, text keys, SCSI commands with their parameter lists.

use cairn_base::VolumeId;
use cairn_codec_iscsi::{Ask, Caller, Elsewhere, Frame, LocateAnswer, Proof, Secret, encode_frame};
use cairn_codec_scsi::{ROD_TOKEN_LEN_BYTES, RodToken};

use super::{Corpus, write};

const HEADER_LEN_BYTES: usize = 48;
const CDB_LEN_BYTES: usize = 16;

pub fn write_seeds(corpus: &Corpus) {
    headers(corpus);
    texts(corpus);
    commands(corpus);
    nodes(corpus);
}

/// NOP-Out, SCSI Command, Task Management, Login, Text, Data-Out, Logout, SNACK (RFC 7143, section 11.2.1.2).
const REQUESTS: [u8; 8] = [0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x10];

fn headers(corpus: &Corpus) {
    for opcode in REQUESTS {
        for (name, flags) in [
            ("final", 0x80),
            ("all", 0xff),
            ("login", 0x87),
            ("reset", 0x85),
        ] {
            let mut header = [0; HEADER_LEN_BYTES];
            header[..2].copy_from_slice(&[opcode | 0x40, flags]);
            // Data of 512 bytes, a task's tag, no transfer tag, numbers of command and status.
            header[5..8].copy_from_slice(&[0, 2, 0]);
            header[16..20].copy_from_slice(&7_u32.to_be_bytes());
            header[20..24].copy_from_slice(&u32::MAX.to_be_bytes());
            header[24..28].copy_from_slice(&3_u32.to_be_bytes());
            header[28..32].copy_from_slice(&9_u32.to_be_bytes());
            write(
                corpus,
                "iscsi_pdu",
                &format!("header-{opcode:02x}-{name}"),
                &header,
            );
        }
    }
}

fn texts(corpus: &Corpus) {
    let texts = [
        (
            "login",
            "InitiatorName=iqn.2025-11.test:host\0TargetName=iqn.2025-11.test:target\0SessionType=Normal\0",
        ),
        ("security", "AuthMethod=CHAP,None\0CHAP_A=8,7,6,5\0"),
        (
            "chap",
            "CHAP_N=host\0CHAP_R=0x00112233445566778899aabbccddeeff\0CHAP_I=7\0CHAP_C=0b/+8=\0",
        ),
        (
            "operational",
            "HeaderDigest=CRC32C,None\0DataDigest=None\0InitialR2T=No\0ImmediateData=Yes\0MaxBurstLength=1048576\0\
             FirstBurstLength=65536\0MaxRecvDataSegmentLength=0x40000\0MaxOutstandingR2T=4\0MaxConnections=8\0\
             ErrorRecoveryLevel=2\0DefaultTime2Wait=2\0DefaultTime2Retain=20\0DataPDUInOrder=Yes\0",
        ),
        ("discovery", "SendTargets=All\0"),
        ("unknown", "X-com.example.key=1\0IFMarker=Yes\0"),
        ("hexadecimal", "0x0123abCD"),
        ("base64", "0bAAEC"),
        ("name-eui", "eui.0123456789abcdef"),
    ];
    for (name, text) in texts {
        write(
            corpus,
            "iscsi_pdu",
            &format!("text-{name}"),
            text.as_bytes(),
        );
    }
}

/// Every operation that is known, and some with service actions.
const OPERATIONS: [u8; 47] = [
    0x00, 0x03, 0x08, 0x0a, 0x12, 0x15, 0x16, 0x17, 0x1a, 0x1b, 0x1d, 0x1e, 0x25, 0x28, 0x2a, 0x2e,
    0x2f, 0x34, 0x35, 0x37, 0x41, 0x42, 0x48, 0x4d, 0x55, 0x56, 0x57, 0x5a, 0x5e, 0x5f, 0x83, 0x84,
    0x88, 0x89, 0x8a, 0x8b, 0x8e, 0x8f, 0x90, 0x91, 0x93, 0x9e, 0xa0, 0xa3, 0xa4, 0xa8, 0xaa,
];

fn commands(corpus: &Corpus) {
    for operation in OPERATIONS {
        for action in [0x00, 0x05, 0x07, 0x0c, 0x10, 0x11, 0x12] {
            let mut command = [0; CDB_LEN_BYTES];
            command[..2].copy_from_slice(&[operation, action]);
            // Eight blocks, or bytes, at most places where commands have a length.
            (command[4], command[8], command[13]) = (8, 8, 8);
            write(
                corpus,
                "scsi_command",
                &format!("command-{operation:02x}-{action:02x}"),
                &command,
            );
        }
    }
    let list = |name: &str, list: &[u8]| {
        let mut bytes = vec![0; CDB_LEN_BYTES];
        bytes.extend(list);
        write(corpus, "scsi_command", name, &bytes);
    };
    // Two ranges to unmap.
    let mut unmap = vec![0, 38, 0, 32, 0, 0, 0, 0];
    for block in [0_u64, 1 << 33] {
        unmap.extend(block.to_be_bytes());
        unmap.extend(128_u32.to_be_bytes());
        unmap.extend([0; 4]);
    }
    list("unmap", &unmap);
    // A reservation key, and the one to register; APTPL.
    let mut reservation = vec![0; 24];
    (reservation[7], reservation[15], reservation[20]) = (1, 2, 1);
    list("reservation", &reservation);
    list("port-groups", &[0, 0, 0, 0, 0, 0, 0, 1]);
    // The caching and the control page, for MODE SELECT 6 and 10.
    let caching: &[u8] = &[
        0x08, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    let control: &[u8] = &[0x0a, 10, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    list("mode-6", &[&[0; 4], caching, control].concat());
    list("mode-10", &[&[0; 8], caching, control].concat());
    // Two targets by their identity, and one segment, block to block.
    let mut copy = vec![1, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0];
    for last in [1, 2] {
        let mut target = [0; 32];
        (target[0], target[4], target[5], target[7]) = (0xe4, 1, 3, 8);
        (target[8], target[15], target[29], target[30]) = (0x30, last, 0, 2);
        copy.extend(target);
    }
    let mut segment = [0; 28];
    (segment[0], segment[3], segment[7], segment[11]) = (2, 24, 1, 8);
    copy.extend(segment);
    list("copy", &copy);
    // Two ranges to make a token of, and to write the token to; the same with the token of zeros.
    let mut ranges = Vec::new();
    for block in [0_u64, 4096] {
        ranges.extend(block.to_be_bytes());
        ranges.extend(128_u32.to_be_bytes());
        ranges.extend([0; 4]);
    }
    let mut populate = vec![0, 46, 2, 0, 0, 0, 0, 60, 0, 0x80, 0, 0, 0, 0, 0, 32];
    populate.extend(&ranges);
    list("populate-token", &populate);
    let token = RodToken {
        id: 7,
        naa: [0x6c, 0xa1, 0xa0, 0, 0, 0, 0, 0, 0x30, 0, 0, 0, 0, 0, 0, 1],
        block_len_bytes: 512,
        len_bytes: 128 << 10,
        secret: [0xa5; 32],
    };
    let mut zeros = [0; ROD_TOKEN_LEN_BYTES];
    zeros[..8].copy_from_slice(&[0xff, 0xff, 0, 1, 0, 0, 1, 0xf8]);
    for (name, token) in [("made", token.encode()), ("zeros", zeros)] {
        let mut write = vec![2, 0x36, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        write.extend(token);
        write.extend([0, 0, 0, 0, 0, 0, 0, 32]);
        write.extend(&ranges);
        list(&format!("write-using-token-{name}"), &write);
    }
}

fn nodes(corpus: &Corpus) {
    let frame = |name: &str, frame: Vec<u8>| write(corpus, "iscsi_nodes", name, &frame);
    fn of(value: &impl Frame) -> Vec<u8> {
        encode_frame(value).expect("a seed fits into a frame")
    }
    let name = || "iqn.2025-11.test:name".to_owned();
    let secret = |user: &str| Secret {
        user: user.to_owned(),
        secret: "a secret of a host".to_owned(),
    };
    let caller = Caller {
        volume: VolumeId(7),
        local: ([0xfe80, 0, 0, 0, 0, 0, 0, 1], 3260).into(),
        group: 3,
        status_number: 2,
    };
    frame("targets", of(&Ask::Targets { initiator: name() }));
    frame(
        "find",
        of(&Ask::Find {
            target: name(),
            volumes: vec![VolumeId(7)],
        }),
    );
    frame("serve", of(&Ask::Serve(caller)));
    let elsewhere = Elsewhere {
        targets: vec![name(), "eui.0123456789abcdef".to_owned()],
        initiator: Some(Proof {
            chap: secret("host"),
            mutual: Some(secret("target")),
        }),
    };
    frame("elsewhere", of(&elsewhere));
    frame("nothing-elsewhere", of(&Elsewhere::default()));
    for (name, volume) in [("found", Some(VolumeId(7))), ("not-found", None)] {
        let is_sure = volume.is_none();
        frame(name, of(&LocateAnswer { volume, is_sure }));
    }
    frame("served", of(&true));
}
