//! The login: who we are, that we know the secret, what both sides can do (RFC 7143, chapters 6, 12 and 13).

use bytes::BytesMut;
use cairn_codec_iscsi::{
    BURST_LEN_BYTES_MAX, CHAP_CHALLENGE_LEN_BYTES_MAX, ChapHash, FIRST_BURST_LEN_BYTES_MAX,
    HEADER_LEN_BYTES, Header, Keys, LoginHeader, Numbers, Reply, Request, binary_of_text,
    chap_response, login_status, text_of_binary,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::error::Error;
use crate::wire::Agreed;

const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL: u8 = 3;
/// What we receive in one data segment.
pub(crate) const RECEIVE_SEGMENT_LEN_BYTES: u32 = 1 << 20;
const TEXT_LEN_BYTES_MAX: usize = 16 << 10;
/// Exchanges of one stage; a target that goes on asking is none.
const ROUNDS_MAX: usize = 8;
/// What a target that says nothing takes (RFC 7143, section 13.12).
const SEGMENT_LEN_BYTES_DEFAULT: u32 = 8192;
const FIRST_BURST_LEN_BYTES_DEFAULT: u32 = 64 << 10;
const SEGMENT_LEN_BYTES_MIN: u32 = 512;
const SEGMENT_LEN_BYTES_MAX: u32 = 0xff_ffff;

pub(crate) struct Who<'a> {
    pub initiator: &'a str,
    pub target: &'a str,
    /// User and secret.
    pub chap: Option<(&'a str, &'a [u8])>,
    pub isid: [u8; 6],
    pub lun: [u8; 8],
}

struct Login<'a> {
    stream: &'a mut TcpStream,
    who: &'a Who<'a>,
    expected_status: u32,
    max_command: u32,
}

/// The number of the first command: logins take none.
const FIRST_COMMAND: u32 = 1;

pub(crate) async fn login(stream: &mut TcpStream, who: &Who<'_>) -> Result<Agreed, Error> {
    let mut login = Login {
        stream,
        who,
        expected_status: 0,
        max_command: FIRST_COMMAND,
    };
    let mut names = Keys::default();
    names.push("InitiatorName", who.initiator);
    names.push("SessionType", "Normal");
    names.push("TargetName", who.target);
    if let Some((user, secret)) = who.chap {
        login.prove(names, user, secret).await?;
        names = Keys::default();
    }
    login.agree(names).await
}

impl Login<'_> {
    /// CHAP (RFC 7143, section 12.1.3): the target asks, we answer.
    async fn prove(&mut self, mut keys: Keys, user: &str, secret: &[u8]) -> Result<(), Error> {
        keys.push("AuthMethod", "CHAP");
        let (_, answer) = self.exchange(SECURITY, None, &keys).await?;
        if answer.get("AuthMethod") != Some("CHAP") {
            return Err(Error::Authentication("it does not speak CHAP"));
        }
        let mut keys = Keys::default();
        keys.push("CHAP_A", "7,6,5");
        let (_, asked) = self.exchange(SECURITY, None, &keys).await?;
        let missing = Error::Authentication("its challenge is not whole");
        let get = |key| asked.get(key).ok_or(missing.clone());
        let hash = ChapHash::numbered(get("CHAP_A")?).ok_or(missing.clone())?;
        let id: u8 = get("CHAP_I")?.trim().parse().map_err(|_| missing.clone())?;
        let challenge = binary_of_text(get("CHAP_C")?, CHAP_CHALLENGE_LEN_BYTES_MAX);
        let challenge = challenge.ok_or(missing.clone())?;
        let mut keys = Keys::default();
        keys.push("CHAP_N", user);
        let response = chap_response(hash, id, secret, &challenge);
        keys.push("CHAP_R", text_of_binary(&response));
        let mut rounds = 0;
        while self.exchange(SECURITY, Some(OPERATIONAL), &keys).await?.0 != Some(OPERATIONAL) {
            keys = Keys::default();
            rounds += 1;
            if rounds == ROUNDS_MAX {
                return Err(Error::Nonsense("a login that does not end"));
            }
        }
        Ok(())
    }

    async fn agree(&mut self, mut keys: Keys) -> Result<Agreed, Error> {
        let (first, burst) = (
            FIRST_BURST_LEN_BYTES_MAX.to_string(),
            BURST_LEN_BYTES_MAX.to_string(),
        );
        let segment = RECEIVE_SEGMENT_LEN_BYTES.to_string();
        for (key, value) in [
            ("HeaderDigest", "None"),
            ("DataDigest", "None"),
            ("MaxRecvDataSegmentLength", segment.as_str()),
            ("MaxBurstLength", &burst),
            ("FirstBurstLength", &first),
            ("InitialR2T", "Yes"),
            ("ImmediateData", "Yes"),
            ("MaxOutstandingR2T", "4"),
            ("MaxConnections", "1"),
            ("DataPDUInOrder", "Yes"),
            ("DataSequenceInOrder", "Yes"),
            ("DefaultTime2Wait", "2"),
            ("DefaultTime2Retain", "0"),
            ("ErrorRecoveryLevel", "0"),
        ] {
            keys.push(key, value);
        }
        // What holds where the target says nothing.
        let mut immediate_data = true;
        let mut first_burst = FIRST_BURST_LEN_BYTES_DEFAULT;
        let mut segment = SEGMENT_LEN_BYTES_DEFAULT;
        for _ in 0..ROUNDS_MAX {
            let (stage, answer) = self.exchange(OPERATIONAL, Some(FULL), &keys).await?;
            for (key, value) in answer.iter() {
                let number = || value.parse::<u32>().ok();
                match key {
                    "ImmediateData" => immediate_data = value == "Yes",
                    "FirstBurstLength" => {
                        let most = FIRST_BURST_LEN_BYTES_MAX;
                        first_burst = number().unwrap_or(0).min(most);
                    }
                    "MaxRecvDataSegmentLength" => {
                        let range = SEGMENT_LEN_BYTES_MIN..=SEGMENT_LEN_BYTES_MAX;
                        let number = number().filter(|number| range.contains(number));
                        segment = number.ok_or(Error::Nonsense("the length of its segments"))?;
                    }
                    "HeaderDigest" | "DataDigest" if value != "None" => {
                        return Err(Error::Nonsense(
                            "it insists on digests, which we do not speak",
                        ));
                    }
                    _ => {}
                }
            }
            if stage == Some(FULL) {
                return Ok(Agreed {
                    immediate_data,
                    first_burst_len_bytes: first_burst as usize,
                    send_segment_len_bytes: segment as usize,
                    lun: self.who.lun,
                    next_command: FIRST_COMMAND,
                    max_command: self.max_command,
                    expected_status: self.expected_status,
                });
            }
            keys = Keys::default();
        }
        Err(Error::Nonsense("a login that does not end"))
    }

    /// One request and its answer: the stage that the target goes on to, and its keys.
    async fn exchange(
        &mut self,
        stage: u8,
        wanted: Option<u8>,
        keys: &Keys,
    ) -> Result<(Option<u8>, Keys), Error> {
        let text = keys.encode();
        let request = Request::Login(LoginHeader {
            transit: wanted.is_some(),
            continues: false,
            stage,
            next_stage: wanted.unwrap_or(0),
            version_min: 0,
            isid: self.who.isid,
            tsih: 0,
            tag: 0,
            connection: 0,
            numbers: Numbers {
                command: FIRST_COMMAND,
                expected_status: self.expected_status,
            },
        });
        let mut bytes = BytesMut::new();
        bytes.extend_from_slice(&request.header(text.len(), true, self.expected_status));
        bytes.extend_from_slice(&text);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let lost = |error: std::io::Error| Error::Lost(error.kind());
        self.stream.write_all(&bytes).await.map_err(lost)?;

        let mut header = [0; HEADER_LEN_BYTES];
        self.stream.read_exact(&mut header).await.map_err(lost)?;
        let header = Header(header);
        let len_bytes = header.data_len_bytes();
        if len_bytes > TEXT_LEN_BYTES_MAX || header.additional_len_bytes() > 0 {
            return Err(Error::Nonsense("a login's answer that is too long"));
        }
        let mut text = vec![0; len_bytes.next_multiple_of(4)];
        self.stream.read_exact(&mut text).await.map_err(lost)?;
        text.truncate(len_bytes);
        let (reply, numbers) = header
            .reply()
            .map_err(|_| Error::Nonsense("a PDU that no target sends"))?;
        let Reply::Login {
            transit,
            continues,
            next_stage,
            status,
            ..
        } = reply
        else {
            return Err(Error::Nonsense("something else than a login's answer"));
        };
        if status != login_status::SUCCESS {
            return Err(Error::Refused { status });
        }
        if continues {
            return Err(Error::Nonsense("a login's answer in pieces"));
        }
        self.expected_status = numbers.status.wrapping_add(1);
        self.max_command = numbers.max_command;
        let keys = Keys::parse(&text).map_err(|_| Error::Nonsense("the text of its login"))?;
        Ok((transit.then_some(next_stage), keys))
    }
}
