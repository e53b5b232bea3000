//! Login: who an initiator is, which target it wants, and what both agree on (RFC 7143, chapter 6).
//!
//! Owns: the steps of a login. Must not know: sockets. A request goes in, an answer comes out.

use std::sync::Arc;

use cairn_base::env::Env;
use cairn_codec_iscsi::{
    CHAP_CHALLENGE_LEN_BYTES_MAX, ChapHash, Elsewhere, Keys, LoginHeader, Negotiated, Offer,
    binary_of_text, chap_response, is_iscsi_name, login_status, same_bytes, text_of_binary,
};
use cairn_san::{Chap, Initiator, SanError};

use crate::pass::initiator_of;
use crate::target::{PORT_GROUP, Session, Target, Targets};

const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;

/// A challenge that waits for its answer.
struct Challenge {
    hash: ChapHash,
    id: u8,
    bytes: Vec<u8>,
}

enum Proof {
    /// Nothing is asked for.
    None,
    /// The initiator is to name its hashes.
    Wanted(Initiator),
    Asked(Initiator, Challenge),
    Done,
}

/// Of the secret that nobody has, in bytes.
const NOBODYS_SECRET_LEN_BYTES: usize = 16;

/// A login under way.
///
/// The answers do not tell who looks for names which initiators and targets there are (RFC 7143, section 9.2): a name that is
/// not known is asked for a secret like one that has a secret, and fails like one whose secret is wrong. Whether there is
/// such a target, or such a session, is told to who has proven its name.
pub struct Login {
    targets: Arc<Targets>,
    env: Env,
    pub initiator: String,
    pub target: Option<Arc<Target>>,
    /// The session that it is one more connection of.
    pub joins: Option<Arc<Session>>,
    pub isid: [u8; 6],
    pub is_discovery: bool,
    pub negotiated: Negotiated,
    /// The target port group of the portal.
    pub group: u16,
    /// What other nodes have for the initiator, in a discovery session, or if no node has the target.
    pub elsewhere: Elsewhere,
    /// All nodes were asked for the target, and none has it.
    pub is_nowhere: bool,
    /// The node that passed it on was told that the volume is here.
    is_passed: bool,
    proof: Proof,
    /// The status that is answered in place of success, once the initiator has proven its name.
    refusal: Option<u16>,
    /// The name is not known: no secret proves it.
    is_stranger: bool,
    /// It wants to be one more connection of a session.
    is_joining: bool,
    begun: bool,
    stage: u8,
}

/// The answer; a status but success ends the connection.
pub struct Answer {
    pub status: u16,
    pub transit: bool,
    pub stage: u8,
    pub next_stage: u8,
    pub keys: Keys,
    /// Full feature phase begins.
    pub is_done: bool,
}

impl Answer {
    pub fn failed(status: u16, stage: u8) -> Self {
        Self {
            status,
            transit: false,
            stage,
            next_stage: 0,
            keys: Keys::default(),
            is_done: false,
        }
    }
}

impl Login {
    pub fn new(targets: Arc<Targets>, is_passed: bool) -> Self {
        let env = targets.env().clone();
        Self {
            targets,
            env,
            initiator: String::new(),
            target: None,
            joins: None,
            isid: [0; 6],
            is_discovery: false,
            negotiated: Negotiated::default(),
            group: PORT_GROUP,
            elsewhere: Elsewhere::default(),
            is_nowhere: false,
            is_passed,
            proof: Proof::None,
            refusal: None,
            is_stranger: false,
            is_joining: false,
            begun: false,
            stage: SECURITY,
        }
    }

    /// Whether a request was taken.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// Whether the initiator's name is one that nothing is set for. It is answered as one whose secret is wrong.
    pub fn is_stranger(&self) -> bool {
        self.is_stranger
    }

    /// Takes one request, whose text is whole.
    pub fn step(&mut self, header: &LoginHeader, text: &[u8]) -> Answer {
        match self.try_step(header, text) {
            Ok(answer) => answer,
            Err(status) => Answer::failed(status, header.stage),
        }
    }

    fn try_step(&mut self, header: &LoginHeader, text: &[u8]) -> Result<Answer, u16> {
        let keys = Keys::parse(text).map_err(|_| login_status::INITIATOR_ERROR)?;
        if header.version_min > 0 {
            return Err(login_status::VERSION);
        }
        let mut answers = Keys::default();
        if !self.begun {
            self.begin(header, &keys, &mut answers)?;
            self.begun = true;
            self.stage = header.stage;
        }
        if header.stage != self.stage || !matches!(header.stage, SECURITY | OPERATIONAL) {
            return Err(login_status::INVALID_DURING_LOGIN);
        }
        if header.transit && (header.next_stage <= header.stage || header.next_stage == 2) {
            return Err(login_status::INITIATOR_ERROR);
        }
        if header.stage == SECURITY {
            self.prove(&keys, &mut answers)?;
        } else if !matches!(self.proof, Proof::None | Proof::Done) {
            return Err(login_status::AUTHENTICATION_FAILED);
        }
        let is_proven = matches!(self.proof, Proof::None | Proof::Done);
        if let Some(status) = self.refusal.filter(|_| is_proven) {
            return Err(status);
        }
        for (key, value) in keys.iter() {
            if is_of_security(key) {
                continue;
            }
            if self.is_joining && is_of_session(key) {
                answers.push(key, "Irrelevant");
                continue;
            }
            match self.negotiated.take(key, value, self.is_discovery) {
                Offer::Silent => {}
                Offer::Answer(answer) => answers.push(key, answer),
                Offer::Invalid => return Err(login_status::INITIATOR_ERROR),
            }
        }
        if header.stage == OPERATIONAL {
            self.negotiated.declare(&mut answers);
        }
        let transit = header.transit && is_proven;
        if transit {
            self.stage = header.next_stage;
        }
        let is_done = transit && header.next_stage == FULL_FEATURE;
        if is_done {
            self.negotiated.settle();
        }
        Ok(Answer {
            status: login_status::SUCCESS,
            transit,
            stage: header.stage,
            next_stage: if transit { header.next_stage } else { 0 },
            keys: answers,
            is_done,
        })
    }

    /// The first request says who asks for what.
    fn begin(&mut self, header: &LoginHeader, keys: &Keys, answers: &mut Keys) -> Result<(), u16> {
        self.isid = header.isid;
        let initiator = keys
            .get("InitiatorName")
            .ok_or(login_status::MISSING_PARAMETER)?;
        if !is_iscsi_name(initiator) {
            return Err(login_status::INITIATOR_ERROR);
        }
        self.initiator = initiator.to_owned();
        self.is_discovery = match keys.get("SessionType") {
            Some("Discovery") => true,
            Some("Normal") | None => false,
            Some(_) => return Err(login_status::SESSION_TYPE),
        };
        // Discovery needs no second connection.
        if header.tsih != 0 && self.is_discovery {
            return Err(login_status::NO_SESSION);
        }
        self.proof = match self.is_discovery {
            true => self.proof_of_name()?,
            false => {
                let name = keys
                    .get("TargetName")
                    .ok_or(login_status::MISSING_PARAMETER)?;
                let target = match self.targets.named(name) {
                    Some(target) => Some(target),
                    None if self.is_nowhere => None,
                    // In a cluster it was here a moment ago.
                    None if self.is_passed
                        || self.targets.cluster().is_some()
                        || self.targets.is_starting() =>
                    {
                        return Err(login_status::UNAVAILABLE);
                    }
                    None => None,
                };
                answers.push("TargetPortalGroupTag", self.group.to_string());
                let secret = match &target {
                    Some(target) => target.san.initiator(initiator).map_err(secret_unreadable)?,
                    None => None,
                };
                let sees = |target: &Arc<Target>| !target.san.seen_by(initiator).is_empty();
                match target.filter(sees) {
                    Some(target) => {
                        if header.tsih != 0 {
                            self.is_joining = true;
                            self.joins = self.targets.session_of(self, header.tsih, name);
                            self.refusal = self.joins.is_none().then_some(login_status::NO_SESSION);
                        }
                        self.target = Some(target);
                        secret.map_or(Proof::None, Proof::Wanted)
                    }
                    // Who sees nothing of it does not learn that it is there.
                    None => {
                        self.is_joining = header.tsih != 0;
                        self.refusal = Some(login_status::NOT_FOUND);
                        match secret {
                            Some(secret) => Proof::Wanted(secret),
                            None => self.proof_of_name()?,
                        }
                    }
                }
            }
        };
        Ok(())
    }

    /// What the initiator has to prove where no target counts: the secret that is set for its name on any volume, or nothing
    /// if some volume lets it in without one. A name that is not known is to prove a secret that nobody has.
    fn proof_of_name(&mut self) -> Result<Proof, u16> {
        let here = self.targets.initiator(&self.initiator);
        let here = here.map_err(secret_unreadable)?;
        let there = self.elsewhere.initiator.take().map(initiator_of);
        if let Some(known) = here.or(there) {
            return Ok(Proof::Wanted(known));
        }
        let sees_elsewhere = !self.elsewhere.targets.is_empty();
        if sees_elsewhere || !self.targets.seen_by(&self.initiator).is_empty() {
            return Ok(Proof::None);
        }
        self.is_stranger = true;
        self.targets.reveal_nobody();
        let mut random = [0; NOBODYS_SECRET_LEN_BYTES];
        self.env.entropy.fill(&mut random);
        let secret = text_of_binary(&random);
        let user = self.initiator.clone();
        Ok(Proof::Wanted(Initiator {
            chap: Chap { user, secret },
            mutual: None,
        }))
    }

    fn prove(&mut self, keys: &Keys, answers: &mut Keys) -> Result<(), u16> {
        let failed = login_status::AUTHENTICATION_FAILED;
        match std::mem::replace(&mut self.proof, Proof::None) {
            Proof::None => {
                if let Some(methods) = keys.get("AuthMethod") {
                    if !methods.split(',').any(|method| method == "None") {
                        // It insists on proving itself, and there is nothing to compare with.
                        return Err(failed);
                    }
                    answers.push("AuthMethod", "None");
                }
            }
            Proof::Done => self.proof = Proof::Done,
            Proof::Wanted(initiator) => {
                if let Some(methods) = keys.get("AuthMethod") {
                    if !methods.split(',').any(|method| method == "CHAP") {
                        return Err(failed);
                    }
                    answers.push("AuthMethod", "CHAP");
                }
                let Some(list) = keys.get("CHAP_A") else {
                    self.proof = Proof::Wanted(initiator);
                    return Ok(());
                };
                let hash = ChapHash::first_of(list).ok_or(failed)?;
                let mut id = [0];
                let mut bytes = vec![0; hash.len_bytes()];
                self.env.entropy.fill(&mut id);
                self.env.entropy.fill(&mut bytes);
                let [id] = id;
                answers.push("CHAP_A", hash.number().to_string());
                answers.push("CHAP_I", id.to_string());
                answers.push("CHAP_C", text_of_binary(&bytes));
                self.proof = Proof::Asked(initiator, Challenge { hash, id, bytes });
            }
            Proof::Asked(initiator, challenge) => {
                let user = keys.get("CHAP_N").ok_or(failed)?;
                let answer = keys
                    .get("CHAP_R")
                    .and_then(|text| binary_of_text(text, 64))
                    .ok_or(failed)?;
                let secret = initiator.chap.secret.as_bytes();
                let wanted = chap_response(challenge.hash, challenge.id, secret, &challenge.bytes);
                let is_user = same_bytes(user.as_bytes(), initiator.chap.user.as_bytes());
                if !same_bytes(&answer, &wanted) || !is_user {
                    return Err(failed);
                }
                self.answer(&initiator, &challenge, keys, answers)?;
                self.proof = Proof::Done;
            }
        }
        Ok(())
    }

    /// The initiator wants to know who the target is.
    fn answer(
        &self,
        initiator: &Initiator,
        ours: &Challenge,
        keys: &Keys,
        answers: &mut Keys,
    ) -> Result<(), u16> {
        let failed = login_status::AUTHENTICATION_FAILED;
        let (id, theirs) = match (keys.get("CHAP_I"), keys.get("CHAP_C")) {
            (None, None) => return Ok(()),
            (Some(id), Some(theirs)) => (id, theirs),
            _ => return Err(failed),
        };
        let id: u8 = id.parse().map_err(|_| failed)?;
        let theirs = binary_of_text(theirs, CHAP_CHALLENGE_LEN_BYTES_MAX).ok_or(failed)?;
        // Our own challenge is not answered: somebody would pass the answer on (RFC 7143, section 12.1.3).
        if theirs == ours.bytes {
            return Err(failed);
        }
        let mutual = initiator.mutual.as_ref().ok_or(failed)?;
        let answer = chap_response(ours.hash, id, mutual.secret.as_bytes(), &theirs);
        answers.push("CHAP_N", mutual.user.as_str());
        answers.push("CHAP_R", text_of_binary(&answer));
        Ok(())
    }
}

/// What an initiator has to prove cannot be read, so that it is not let in. It comes again when an operator has given the
/// server its master key.
fn secret_unreadable(error: SanError) -> u16 {
    tracing::debug!(%error, "a login is refused");
    login_status::UNAVAILABLE
}

/// What the first connection of a session has agreed on for all of them (RFC 7143, chapter 13: "leading only").
fn is_of_session(key: &str) -> bool {
    const KEYS: [&str; 11] = [
        "MaxConnections",
        "InitialR2T",
        "ImmediateData",
        "MaxBurstLength",
        "FirstBurstLength",
        "MaxOutstandingR2T",
        "DataPDUInOrder",
        "DataSequenceInOrder",
        "ErrorRecoveryLevel",
        "DefaultTime2Wait",
        "DefaultTime2Retain",
    ];
    KEYS.contains(&key)
}

fn is_of_security(key: &str) -> bool {
    const KEYS: [&str; 12] = [
        "AuthMethod",
        "CHAP_A",
        "CHAP_I",
        "CHAP_C",
        "CHAP_N",
        "CHAP_R",
        "InitiatorName",
        "TargetName",
        "SessionType",
        "TargetPortalGroupTag",
        "TargetAlias",
        "TargetAddress",
    ];
    KEYS.contains(&key)
}
