//! Reservations of one logical unit: persistent ones (SPC-4, section 5.12) and those of RESERVE and RELEASE (SPC-2).
//!
//! Owns: who may do what meanwhile, and what a change does to others. Does no I/O and tells no time: the caller keeps the
//! state where it survives, and delivers the effects.

use std::collections::BTreeMap;

use cairn_codec_scsi::{
    Code, Command, PersistentOut, PersistentOutAction, PersistentParameters, Sense, code,
};
use serde::{Deserialize, Serialize};

use crate::unit::Nexus;

/// Registrations of one logical unit.
const REGISTRATION_COUNT_MAX: usize = 256;

const WRITE_EXCLUSIVE: u8 = 1;
const EXCLUSIVE: u8 = 3;
const WRITE_EXCLUSIVE_REGISTRANTS: u8 = 5;
const EXCLUSIVE_REGISTRANTS: u8 = 6;
const WRITE_EXCLUSIVE_ALL: u8 = 7;
const EXCLUSIVE_ALL: u8 = 8;

/// Why a command is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    Conflict,
    Sense(Sense),
}

impl From<Sense> for Refused {
    fn from(sense: Sense) -> Self {
        Self::Sense(sense)
    }
}

/// What a change does to other nexuses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    pub attentions: Vec<(Nexus, Code)>,
    /// Whose tasks are aborted.
    pub aborted: Vec<Nexus>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct HeldReservation {
    /// Who reserved; of a reservation of all registrants, the first one that did.
    holder: Nexus,
    kind: u8,
}

impl HeldReservation {
    fn is_of_all(&self) -> bool {
        matches!(self.kind, WRITE_EXCLUSIVE_ALL | EXCLUSIVE_ALL)
    }

    fn lets_registrants_in(&self) -> bool {
        !matches!(self.kind, WRITE_EXCLUSIVE | EXCLUSIVE)
    }

    fn lets_reads_in(&self) -> bool {
        matches!(
            self.kind,
            WRITE_EXCLUSIVE | WRITE_EXCLUSIVE_REGISTRANTS | WRITE_EXCLUSIVE_ALL
        )
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservations {
    generation: u32,
    /// Kept over restarts.
    persists: bool,
    #[serde(with = "as_pairs")]
    registrations: BTreeMap<Nexus, u64>,
    held: Option<HeldReservation>,
    /// Of RESERVE.
    #[serde(skip)]
    simple: Option<Nexus>,
}

/// JSON has only texts as keys of maps.
mod as_pairs {
    use super::*;
    use serde::{Deserializer, Serializer};

    pub fn serialize<S: Serializer>(map: &BTreeMap<Nexus, u64>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(map)
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<BTreeMap<Nexus, u64>, D::Error> {
        Ok(Vec::<(Nexus, u64)>::deserialize(from)?
            .into_iter()
            .collect())
    }
}

impl Reservations {
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Nobody is registered.
    pub fn is_empty(&self) -> bool {
        self.registrations.is_empty()
    }

    pub fn persists(&self) -> bool {
        self.persists
    }

    pub fn keys(&self) -> Vec<u64> {
        self.registrations.values().copied().collect()
    }

    /// The key and type of the reservation. One of all registrants has no key.
    pub fn held(&self) -> Option<(u64, u8)> {
        let held = self.held.as_ref()?;
        let key = match held.is_of_all() {
            true => 0,
            false => self.registrations.get(&held.holder).copied().unwrap_or(0),
        };
        Some((key, held.kind))
    }

    /// Each registration: who, its key, and the type if it holds the reservation.
    pub fn registrations(&self) -> Vec<(Nexus, u64, Option<u8>)> {
        let kind = |nexus: &Nexus| {
            self.held
                .as_ref()
                .filter(|_| self.is_holder(nexus))
                .map(|held| held.kind)
        };
        self.registrations
            .iter()
            .map(|(nexus, key)| (nexus.clone(), *key, kind(nexus)))
            .collect()
    }

    fn is_holder(&self, nexus: &Nexus) -> bool {
        self.held
            .as_ref()
            .is_some_and(|held| match held.is_of_all() {
                true => self.registrations.contains_key(nexus),
                false => held.holder == *nexus,
            })
    }

    /// Whether a nexus may do this now.
    pub fn check(&self, nexus: &Nexus, command: &Command) -> Result<(), Refused> {
        if let Some(simple) = &self.simple
            && simple != nexus
            && !matches!(
                command,
                Command::Inquiry { .. }
                    | Command::ReportLuns { .. }
                    | Command::RequestSense { .. }
                    | Command::Release
            )
        {
            return Err(Refused::Conflict);
        }
        let Some(held) = &self.held else {
            return Ok(());
        };
        let is_registered = self.registrations.contains_key(nexus);
        if self.is_holder(nexus) || (is_registered && held.lets_registrants_in()) {
            return Ok(());
        }
        let is_allowed = match command {
            Command::Read { .. }
            | Command::Verify { .. }
            | Command::Prefetch { .. }
            | Command::GetLbaStatus { .. }
            | Command::ReadDefectData { .. }
            | Command::PopulateToken { .. } => held.lets_reads_in(),
            Command::Write { .. }
            | Command::WriteAndVerify { .. }
            | Command::WriteSame { .. }
            | Command::Unmap { .. }
            | Command::CompareAndWrite { .. }
            | Command::OrWrite { .. }
            | Command::Sanitize { .. }
            | Command::SynchronizeCache { .. }
            | Command::ExtendedCopy { .. }
            | Command::WriteUsingToken { .. }
            | Command::ModeSelect { .. }
            | Command::StartStop { .. }
            | Command::SendDiagnostic { .. }
            | Command::SetTargetPortGroups { .. }
            | Command::Reserve
            | Command::Release => false,
            Command::PreventAllow { prevent } => *prevent == 0,
            Command::TestUnitReady
            | Command::RequestSense { .. }
            | Command::Inquiry { .. }
            | Command::ReadCapacity10
            | Command::ReadCapacity16 { .. }
            | Command::ModeSense { .. }
            | Command::ReportLuns { .. }
            | Command::ReportOpcodes { .. }
            | Command::ReportTaskManagement { .. }
            | Command::ReportTargetPortGroups { .. }
            | Command::LogSense { .. }
            | Command::PersistentIn { .. }
            | Command::PersistentOut(_)
            | Command::CopyStatus { .. }
            | Command::CopyOperatingParameters { .. }
            | Command::RodTokenInformation { .. } => true,
        };
        match is_allowed {
            true => Ok(()),
            false => Err(Refused::Conflict),
        }
    }

    /// RESERVE.
    pub fn reserve(&mut self, nexus: &Nexus) -> Result<(), Refused> {
        // With registrations it does nothing for registrants, and is refused to others (SPC-4, section 5.12.3).
        if !self.registrations.is_empty() {
            return match self.registrations.contains_key(nexus) {
                true => Ok(()),
                false => Err(Refused::Conflict),
            };
        }
        self.simple = Some(nexus.clone());
        Ok(())
    }

    /// RELEASE; of somebody else's it does nothing.
    pub fn release(&mut self, nexus: &Nexus) -> Result<(), Refused> {
        if !self.registrations.is_empty() && !self.registrations.contains_key(nexus) {
            return Err(Refused::Conflict);
        }
        if self.simple.as_ref() == Some(nexus) {
            self.simple = None;
        }
        Ok(())
    }

    /// The nexus is gone: what it had by RESERVE is, too.
    pub fn nexus_lost(&mut self, nexus: &Nexus) {
        if self.simple.as_ref() == Some(nexus) {
            self.simple = None;
        }
    }

    /// The logical unit is reset.
    pub fn reset(&mut self) {
        self.simple = None;
    }

    /// PERSISTENT RESERVE OUT. Changes nothing if it is refused.
    pub fn out(
        &mut self,
        nexus: &Nexus,
        command: &PersistentOut,
        given: &PersistentParameters,
    ) -> Result<Effects, Refused> {
        use PersistentOutAction as Action;
        if self.simple.as_ref().is_some_and(|simple| simple != nexus) {
            return Err(Refused::Conflict);
        }
        if given.specifies_initiators || given.all_ports {
            return Err(Sense::list_field(20).into());
        }
        let own = self.registrations.get(nexus).copied();
        if !matches!(command.action, Action::Register | Action::RegisterAndIgnore)
            && own != Some(given.key)
        {
            return Err(Refused::Conflict);
        }
        let needs_kind = matches!(
            command.action,
            Action::Reserve | Action::Release | Action::Preempt | Action::PreemptAndAbort
        );
        let is_kind = matches!(command.kind, 1 | 3 | 5 | 6 | 7 | 8);
        if needs_kind && (command.scope != 0 || !is_kind) {
            return Err(Sense::cdb_field(2, None).into());
        }
        match command.action {
            Action::Register | Action::RegisterAndIgnore => {
                let is_checked = command.action == Action::Register;
                if is_checked && own.unwrap_or(0) != given.key {
                    return Err(Refused::Conflict);
                }
                self.register(nexus, own.is_some(), given)
            }
            Action::Reserve => self.take(nexus, command.kind),
            Action::Release => self.give_back(nexus, command.kind),
            Action::Clear => {
                let mut effects = Effects::default();
                self.held = None;
                for other in std::mem::take(&mut self.registrations).into_keys() {
                    if other != *nexus {
                        effects
                            .attentions
                            .push((other, code::RESERVATIONS_PREEMPTED));
                    }
                }
                self.generation = self.generation.wrapping_add(1);
                Ok(effects)
            }
            Action::Preempt | Action::PreemptAndAbort => {
                let mut effects = self.preempt(nexus, command.kind, given.action_key)?;
                if command.action == Action::Preempt {
                    effects.aborted.clear();
                }
                Ok(effects)
            }
        }
    }

    fn register(
        &mut self,
        nexus: &Nexus,
        was_there: bool,
        given: &PersistentParameters,
    ) -> Result<Effects, Refused> {
        let mut effects = Effects::default();
        if given.action_key == 0 {
            if !was_there {
                return Ok(effects);
            }
            let held_it = self.is_holder(nexus);
            self.registrations.remove(nexus);
            if held_it {
                effects = self.after_unregistering();
            }
        } else {
            if !was_there && self.registrations.len() >= REGISTRATION_COUNT_MAX {
                return Err(Sense::illegal(code::INSUFFICIENT_REGISTRATIONS).into());
            }
            self.registrations.insert(nexus.clone(), given.action_key);
        }
        self.persists = given.persists;
        self.generation = self.generation.wrapping_add(1);
        Ok(effects)
    }

    /// A holder's registration went: so does the reservation, unless others hold it, too.
    fn after_unregistering(&mut self) -> Effects {
        let mut effects = Effects::default();
        let Some(held) = &self.held else {
            return effects;
        };
        if held.is_of_all() && !self.registrations.is_empty() {
            return effects;
        }
        if matches!(
            held.kind,
            WRITE_EXCLUSIVE_REGISTRANTS | EXCLUSIVE_REGISTRANTS
        ) {
            let others = self.registrations.keys().cloned();
            effects.attentions = others
                .map(|other| (other, code::RESERVATIONS_RELEASED))
                .collect();
        }
        self.held = None;
        effects
    }

    fn take(&mut self, nexus: &Nexus, kind: u8) -> Result<Effects, Refused> {
        match &self.held {
            Some(held) if !self.is_holder(nexus) || held.kind != kind => Err(Refused::Conflict),
            Some(_) => Ok(Effects::default()),
            None => {
                self.held = Some(HeldReservation {
                    holder: nexus.clone(),
                    kind,
                });
                Ok(Effects::default())
            }
        }
    }

    fn give_back(&mut self, nexus: &Nexus, kind: u8) -> Result<Effects, Refused> {
        let mut effects = Effects::default();
        if !self.is_holder(nexus) {
            return Ok(effects);
        }
        let Some(held) = self.held.take() else {
            return Ok(effects);
        };
        if held.kind != kind {
            self.held = Some(held);
            return Err(Sense::illegal(code::INVALID_RELEASE).into());
        }
        if held.lets_registrants_in() {
            let others = self.registrations.keys().filter(|other| *other != nexus);
            effects.attentions = others
                .map(|other| (other.clone(), code::RESERVATIONS_RELEASED))
                .collect();
        }
        Ok(effects)
    }

    fn preempt(&mut self, nexus: &Nexus, kind: u8, key: u64) -> Result<Effects, Refused> {
        let of_all = self.held.as_ref().is_some_and(HeldReservation::is_of_all);
        if key == 0 && !of_all {
            return Err(Sense::list_field(8).into());
        }
        let takes_it = match &self.held {
            Some(_) if of_all => key == 0,
            Some(held) => self.registrations.get(&held.holder) == Some(&key),
            None => false,
        };
        let victims: Vec<Nexus> = self
            .registrations
            .iter()
            .filter(|(other, theirs)| *other != nexus && (**theirs == key || (takes_it && of_all)))
            .map(|(other, _)| other.clone())
            .collect();
        if victims.is_empty() && !takes_it {
            return Err(Refused::Conflict);
        }
        let mut effects = Effects::default();
        for victim in &victims {
            self.registrations.remove(victim);
            effects
                .attentions
                .push((victim.clone(), code::REGISTRATIONS_PREEMPTED));
        }
        effects.aborted = victims;
        if takes_it {
            let before = self.held.replace(HeldReservation {
                holder: nexus.clone(),
                kind,
            });
            if before.is_some_and(|held| held.kind != kind) {
                let others = self.registrations.keys().filter(|other| *other != nexus);
                let released = others.map(|other| (other.clone(), code::RESERVATIONS_RELEASED));
                effects.attentions.extend(released);
            }
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(effects)
    }
}

#[cfg(test)]
mod tests {
    use cairn_codec_scsi::Blocks;

    use super::*;

    fn nexus(name: &str) -> Nexus {
        Nexus::new(name, [0; 6], 1)
    }

    fn given(key: u64, action_key: u64) -> PersistentParameters {
        PersistentParameters {
            key,
            action_key,
            specifies_initiators: false,
            all_ports: false,
            persists: false,
        }
    }

    fn out(action: PersistentOutAction, kind: u8) -> PersistentOut {
        PersistentOut {
            action,
            scope: 0,
            kind,
            list_len_bytes: 24,
        }
    }

    const BLOCKS: Blocks = Blocks { lba: 0, count: 1 };
    const READ: Command = Command::Read {
        blocks: BLOCKS,
        fua: false,
    };
    const WRITE: Command = Command::Write {
        blocks: BLOCKS,
        fua: false,
    };

    /// Who may read and write under each type: the holder, another registrant, anybody else.
    #[test]
    fn each_type_lets_in_whom_it_should() {
        use PersistentOutAction::*;
        let cases: &[(u8, [bool; 2], [bool; 2])] = &[
            (WRITE_EXCLUSIVE, [true, false], [true, false]),
            (EXCLUSIVE, [false, false], [false, false]),
            (WRITE_EXCLUSIVE_REGISTRANTS, [true, true], [true, false]),
            (EXCLUSIVE_REGISTRANTS, [true, true], [false, false]),
            (WRITE_EXCLUSIVE_ALL, [true, true], [true, false]),
            (EXCLUSIVE_ALL, [true, true], [false, false]),
        ];
        for (kind, registrant, stranger) in cases {
            let (a, b, c) = (nexus("iqn.a"), nexus("iqn.b"), nexus("iqn.c"));
            let mut state = Reservations::default();
            for (who, key) in [(&a, 1), (&b, 2)] {
                state.out(who, &out(Register, 0), &given(0, key)).unwrap();
            }
            state.out(&a, &out(Reserve, *kind), &given(1, 0)).unwrap();
            for (who, want) in [(&a, [true, true]), (&b, *registrant), (&c, *stranger)] {
                let may = [READ, WRITE].map(|command| state.check(who, &command).is_ok());
                assert_eq!(may, want, "type {kind}, {who}");
            }
            // It survives being written down.
            let kept = serde_json::to_vec(&state).unwrap();
            assert_eq!(
                serde_json::from_slice::<Reservations>(&kept).unwrap(),
                state
            );
        }
    }

    #[test]
    fn what_a_holder_leaves_is_free_and_what_is_preempted_is_told() {
        use PersistentOutAction::*;
        let (a, b) = (nexus("iqn.a"), nexus("iqn.b"));
        let mut state = Reservations::default();
        assert_eq!(
            state.out(&a, &out(Register, 0), &given(5, 1)),
            Err(Refused::Conflict)
        );
        state.out(&a, &out(Register, 0), &given(0, 1)).unwrap();
        state
            .out(&b, &out(RegisterAndIgnore, 0), &given(9, 2))
            .unwrap();
        assert_eq!(
            state.out(&a, &out(Reserve, 2), &given(1, 0)),
            Err(Sense::cdb_field(2, None).into())
        );
        assert_eq!(
            state.out(&a, &out(Reserve, 3), &given(7, 0)),
            Err(Refused::Conflict)
        );
        state.out(&a, &out(Reserve, 3), &given(1, 0)).unwrap();
        assert_eq!(
            state.out(&b, &out(Reserve, 3), &given(2, 0)),
            Err(Refused::Conflict)
        );
        assert_eq!(
            state.out(&a, &out(Release, 1), &given(1, 0)),
            Err(Sense::illegal(code::INVALID_RELEASE).into())
        );
        let effects = state
            .out(&b, &out(PreemptAndAbort, 1), &given(2, 1))
            .unwrap();
        assert_eq!(
            effects.attentions,
            [(a.clone(), code::REGISTRATIONS_PREEMPTED)]
        );
        assert_eq!(effects.aborted, std::slice::from_ref(&a));
        assert_eq!(state.held(), Some((2, 1)));
        assert_eq!(state.check(&a, &WRITE), Err(Refused::Conflict));
        state.out(&b, &out(Register, 0), &given(2, 0)).unwrap();
        assert_eq!((state.held(), state.keys()), (None, vec![]));
        assert_eq!(state.check(&a, &WRITE), Ok(()));
    }

    #[test]
    fn a_simple_reservation_goes_with_its_nexus() {
        let (a, b) = (nexus("iqn.a"), nexus("iqn.b"));
        let mut state = Reservations::default();
        state.reserve(&a).unwrap();
        assert_eq!(
            state.check(&b, &Command::TestUnitReady),
            Err(Refused::Conflict)
        );
        state.release(&b).unwrap();
        assert_eq!(state.check(&b, &READ), Err(Refused::Conflict));
        state.nexus_lost(&a);
        assert_eq!(state.check(&b, &READ), Ok(()));
    }
}
