//! What a logical unit says of itself: INQUIRY data and its vital product data pages (SPC-4, sections 6.6 and 7.8; SBC-3, 6.6).

/// Eight characters, as the field has them.
pub const VENDOR: &[u8; 8] = b"CAIRN   ";
/// Sixteen characters.
pub const PRODUCT: &[u8; 16] = b"LUN             ";

/// The pages that there are, in order.
pub const VPD_PAGES: &[u8] = &[0x00, 0x80, 0x83, 0x86, 0x87, 0x88, 0x8f, 0xb0, 0xb1, 0xb2];
/// Of an NAA designator of the format IEEE Registered Extended (SPC-4, section 7.8.6.6.5).
pub const NAA_LEN_BYTES: usize = 16;

/// Who a logical unit is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Four characters of the version.
    pub revision: [u8; 4],
    /// NAA designator: its first four bits are 6.
    pub naa: [u8; NAA_LEN_BYTES],
    /// Printable; the same for ever.
    pub serial: String,
    /// The name of the target, in a session of which it is asked for.
    pub target_name: String,
    pub port: PortGroup,
}

/// The port through which it is asked, and the group that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortGroup {
    pub port: u16,
    pub group: u16,
}

/// Who changes the states of target port groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alua {
    /// Initiators may, by SET TARGET PORT GROUPS, beside the target.
    pub explicit: bool,
}

/// What fits into one command, in logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub block_len_bytes: u32,
    pub transfer_blocks: u32,
    pub optimal_blocks: u32,
    pub granularity_blocks: u16,
    pub compare_and_write_blocks: u8,
    pub unmap_blocks: u32,
    pub unmap_descriptors: u32,
    pub write_same_blocks: u64,
}

/// Versions of the standards that it follows (SPC-4, table 145): SAM-5, SPC-4, SBC-3, iSCSI.
const VERSIONS: [u16; 4] = [0x00a0, 0x0460, 0x04c0, 0x0960];

/// INQUIRY data, 96 bytes. `is_there`: of a logical unit that there is; else of one that cannot be here.
pub fn standard_inquiry(revision: &[u8; 4], is_there: bool, alua: Alua) -> Vec<u8> {
    let mut bytes = vec![0; 96];
    // A direct access block device, or "not capable of supporting one here".
    bytes[0] = if is_there { 0x00 } else { 0x7f };
    bytes[2] = 0x06;
    // LUNs are addressed in the hierarchical way; the response has format 2.
    bytes[3] = 0x12;
    bytes[4] = 91;
    // Implicit ALUA, and explicit; copies by the target itself.
    bytes[5] = if alua.explicit { 0x38 } else { 0x18 };
    // More than one port.
    bytes[6] = 0x10;
    // Commands are queued.
    bytes[7] = 0x02;
    bytes[8..16].copy_from_slice(VENDOR);
    bytes[16..32].copy_from_slice(PRODUCT);
    bytes[32..36].copy_from_slice(revision);
    for (index, version) in VERSIONS.iter().enumerate() {
        let at = 58 + 2 * index;
        bytes[at..at + 2].copy_from_slice(&version.to_be_bytes());
    }
    bytes
}

fn page(code: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, code];
    bytes.extend((body.len() as u16).to_be_bytes());
    bytes.extend(body);
    bytes
}

/// Page 00.
pub fn supported_pages() -> Vec<u8> {
    page(0x00, VPD_PAGES)
}

/// Page 80.
pub fn unit_serial(identity: &Identity) -> Vec<u8> {
    page(0x80, identity.serial.as_bytes())
}

/// Page 86, extended INQUIRY data: which task attributes there are.
pub fn extended_inquiry() -> Vec<u8> {
    let mut body = [0; 60];
    body[1] = 0x07;
    page(0x86, &body)
}

// Code sets of designators.
const BINARY: u8 = 1;
const ASCII: u8 = 2;
const UTF8: u8 = 3;
/// Associations, with the bit that says that there is a protocol identifier.
const OF_PORT: u8 = 0x90;
const OF_TARGET: u8 = 0xa0;
/// That of iSCSI.
const PROTOCOL: u8 = 0x50;
/// The type of SCSI name strings.
const NAME: u8 = 0x08;

fn designator(set: u8, kind: u8, name: &[u8]) -> Vec<u8> {
    let set = match kind & 0x80 {
        0 => set,
        _ => PROTOCOL | set,
    };
    let mut bytes = vec![set, kind, 0, name.len() as u8];
    bytes.extend(name);
    bytes
}

/// A SCSI name string: NUL-terminated, padded to a multiple of four (SPC-4, section 7.8.6.11).
fn name_string(text: &str) -> Vec<u8> {
    let mut name = text.as_bytes().to_vec();
    name.push(0);
    name.resize(name.len().next_multiple_of(4), 0);
    name
}

/// The name of a target port, which is that of its target and its group (RFC 7143, section 4.2.7.1).
fn port_name(target_name: &str, port: u16) -> Vec<u8> {
    name_string(&format!("{target_name},t,0x{port:04x}"))
}

/// Page 87, mode page policy: all of them are those of the logical unit, for all initiators and ports (SPC-4, section 7.8.9).
pub fn mode_page_policy() -> Vec<u8> {
    page(0x87, &[0x3f, 0xff, 0, 0])
}

/// Page 88, the ports of the target, by their relative identifiers (SPC-4, section 7.8.14).
pub fn scsi_ports(target_name: &str, ports: &[u16]) -> Vec<u8> {
    let mut body = Vec::new();
    for port in ports {
        body.extend([0, 0]);
        body.extend(port.to_be_bytes());
        // It is no initiator port as well.
        body.extend([0; 6]);
        let name = designator(UTF8, OF_PORT | NAME, &port_name(target_name, *port));
        body.extend((name.len() as u16).to_be_bytes());
        body.extend(name);
    }
    page(0x88, &body)
}

/// Page 83: the logical unit's names, then those of port, group and target.
pub fn device_identification(identity: &Identity) -> Vec<u8> {
    let mut body = Vec::new();
    let mut add = |set: u8, kind: u8, name: &[u8]| body.extend(designator(set, kind, name));
    add(BINARY, 0x03, &identity.naa);
    let mut vendor = VENDOR.to_vec();
    vendor.extend(identity.serial.as_bytes());
    add(ASCII, 0x01, &vendor);
    let number = |number: u16| u32::from(number).to_be_bytes();
    add(BINARY, OF_PORT | 0x04, &number(identity.port.port));
    add(BINARY, OF_PORT | 0x05, &number(identity.port.group));
    let port = port_name(&identity.target_name, identity.port.port);
    add(UTF8, OF_PORT | NAME, &port);
    let target = name_string(&identity.target_name);
    add(UTF8, OF_TARGET | NAME, &target);
    page(0x83, &body)
}

/// Page B0.
pub fn block_limits(limits: &Limits) -> Vec<u8> {
    let mut body = [0; 60];
    // WRITE SAME of no blocks is refused: nobody means the whole rest.
    body[0] = 1;
    body[1] = limits.compare_and_write_blocks;
    body[2..4].copy_from_slice(&limits.granularity_blocks.to_be_bytes());
    body[4..8].copy_from_slice(&limits.transfer_blocks.to_be_bytes());
    body[8..12].copy_from_slice(&limits.optimal_blocks.to_be_bytes());
    body[12..16].copy_from_slice(&limits.transfer_blocks.to_be_bytes());
    body[16..20].copy_from_slice(&limits.unmap_blocks.to_be_bytes());
    body[20..24].copy_from_slice(&limits.unmap_descriptors.to_be_bytes());
    body[24..28].copy_from_slice(&u32::from(limits.granularity_blocks).to_be_bytes());
    // The alignment is valid, and zero.
    body[28..32].copy_from_slice(&0x8000_0000_u32.to_be_bytes());
    body[32..40].copy_from_slice(&limits.write_same_blocks.to_be_bytes());
    page(0xb0, &body)
}

/// Page B1: nothing rotates.
pub fn device_characteristics() -> Vec<u8> {
    let mut body = [0; 60];
    body[1] = 1;
    // Erased blocks read without an error.
    body[3] = 0x40;
    page(0xb1, &body)
}

/// Page B2: unmapping by UNMAP and both WRITE SAMEs, unmapped blocks read as zeros, thin. `threshold_exponent`: the blocks of
/// a threshold set, as a power of two (SBC-3, section 6.6.7).
pub fn logical_block_provisioning(threshold_exponent: u8) -> Vec<u8> {
    page(0xb2, &[threshold_exponent, 0xe4, 0x02, 0])
}
