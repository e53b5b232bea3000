//! Versions that nobody can change or remove until a time has come.
//!
//! Owns: who may shorten that. Must not know: how it is kept from happening (`fs` refuses it to everybody).

use cairn_base::Timestamp;
use cairn_fs::{Credentials, FsError, access};
use serde::{Deserialize, Serialize};

use crate::arrivals::Arrival;
use crate::bucket::{Bucket, ObjectInfo};
use crate::records::{ObjectError, ObjectRecord};

const DAY_SECONDS: i64 = 24 * 60 * 60;

/// Whether a lock can be taken away before its time (S3 User Guide, "Retention modes").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LockMode {
    /// By who asks for that, and may.
    Governance,
    /// By nobody.
    Compliance,
}

/// A version stays until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    pub mode: LockMode,
    /// Seconds since 1970.
    pub until_seconds: i64,
}

const HELD: &str = "the version is under a legal hold, which has to be taken off first";
const COMPLIANCE: &str = "the version is locked in compliance mode: nobody can remove it, or shorten that, before its time";
const GOVERNANCE: &str =
    "the version is locked in governance mode; who may set the bucket can ask to bypass that";

impl Retention {
    fn is_over(&self, now: Timestamp) -> bool {
        now.seconds >= self.until_seconds
    }
}

impl ObjectRecord {
    /// Until when the file is kept from everybody, in seconds since 1970; 0: it is not.
    pub(crate) fn retained_until_seconds(&self) -> u64 {
        match (self.legal_hold, &self.retention) {
            (true, _) => u64::MAX,
            (false, Some(retention)) => u64::try_from(retention.until_seconds).unwrap_or(0),
            (false, None) => 0,
        }
    }
}

/// Whether a lock can be taken away, or made weaker.
fn require_loose(
    retention: Option<&Retention>,
    bypass: bool,
    now: Timestamp,
) -> Result<(), ObjectError> {
    match retention.filter(|retention| !retention.is_over(now)) {
        None => Ok(()),
        Some(retention) if retention.mode == LockMode::Compliance => {
            Err(ObjectError::Locked(COMPLIANCE))
        }
        Some(_) if bypass => Ok(()),
        Some(_) => Err(ObjectError::Locked(GOVERNANCE)),
    }
}

impl Bucket {
    fn now(&self) -> Timestamp {
        self.objects.env.clock.now()
    }

    /// With what the bucket wants of new versions.
    pub(crate) fn locked_by_default(
        &self,
        mut record: ObjectRecord,
        now: Timestamp,
    ) -> ObjectRecord {
        let default = self.record.settings.lock.as_ref();
        if let Some(default) = default.and_then(|lock| lock.default.as_ref())
            && record.retention.is_none()
        {
            let seconds = i64::from(default.days).saturating_mul(DAY_SECONDS);
            record.retention = Some(Retention {
                mode: default.mode,
                until_seconds: now.seconds.saturating_add(seconds),
            });
        }
        record
    }

    /// Takes the lock off a version that is to be removed, or says why it stays.
    pub(crate) async fn unlock(&self, info: &ObjectInfo, bypass: bool) -> Result<(), ObjectError> {
        let Some(record) = &info.record else {
            return Ok(());
        };
        if record.legal_hold {
            return Err(ObjectError::Locked(HELD));
        }
        require_loose(record.retention.as_ref(), bypass, self.now())?;
        if record.retained_until_seconds() > 0 {
            self.objects.fs().retain(info.ino, 0).await?;
        }
        Ok(())
    }

    fn require_lockable(&self) -> Result<(), ObjectError> {
        match self.record.settings.lock {
            Some(_) => Ok(()),
            None => Err(ObjectError::NoLock),
        }
    }

    /// Locks a version until a time, or takes that away. `bypass`: also if it is weaker than a lock in governance mode.
    pub async fn set_retention(
        &self,
        who: &Credentials,
        key: &str,
        version: Option<&str>,
        wanted: Option<Retention>,
        bypass: bool,
        arrival: &Arrival,
    ) -> Result<(), ObjectError> {
        self.require_lockable()?;
        let due = arrival.due().await?;
        let _turn = self.turn(key, true).await;
        let info = self.object_or_version(who, key, version).await?;
        let before = info.record.as_ref().and_then(|record| record.retention);
        let is_stronger = before.is_none_or(|before| {
            wanted.is_some_and(|wanted| {
                wanted.until_seconds >= before.until_seconds
                    && (wanted.mode == before.mode || wanted.mode == LockMode::Compliance)
            })
        });
        if !is_stronger {
            require_loose(before.as_ref(), bypass, self.now())?;
        }
        self.lock(who, &info, |record| record.retention = wanted)
            .await?;
        due.done();
        Ok(())
    }

    /// Holds a version, or no more.
    pub async fn set_legal_hold(
        &self,
        who: &Credentials,
        key: &str,
        version: Option<&str>,
        hold: bool,
        arrival: &Arrival,
    ) -> Result<(), ObjectError> {
        self.require_lockable()?;
        let due = arrival.due().await?;
        let _turn = self.turn(key, true).await;
        let info = self.object_or_version(who, key, version).await?;
        self.lock(who, &info, |record| record.legal_hold = hold)
            .await?;
        due.done();
        Ok(())
    }

    /// What the record says holds already, or still, when it says so.
    async fn lock(
        &self,
        who: &Credentials,
        info: &ObjectInfo,
        change: impl FnOnce(&mut ObjectRecord) + Send,
    ) -> Result<(), ObjectError> {
        let fs = self.objects.fs();
        // The lock comes before the record says so: who may not write that takes none.
        if let (0, _) = fs.access(who, info.ino, access::MODIFY).await? {
            return Err(FsError::AccessDenied.into());
        }
        let before = info.record.clone().unwrap_or_default();
        let mut after = before.clone();
        change(&mut after);
        let (retention, legal_hold) = (after.retention, after.legal_hold);
        let (old, new) = (
            before.retained_until_seconds(),
            after.retained_until_seconds(),
        );
        if new > old {
            fs.retain(info.ino, new).await?;
        }
        let change = |record: &mut ObjectRecord| {
            record.retention = retention;
            record.legal_hold = legal_hold;
        };
        self.change_record_of(who, info, change).await?;
        if new < old {
            fs.retain(info.ino, new).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_hold_for_those_whom_they_are_for() {
        let lock = |mode| Retention {
            mode,
            until_seconds: 100,
        };
        let at = |seconds| Timestamp::new(seconds, 0);
        let governance = lock(LockMode::Governance);
        let compliance = lock(LockMode::Compliance);
        assert!(require_loose(None, false, at(0)).is_ok());
        assert!(require_loose(Some(&governance), false, at(99)).is_err());
        assert!(require_loose(Some(&governance), true, at(99)).is_ok());
        assert!(require_loose(Some(&compliance), true, at(99)).is_err());
        assert!(require_loose(Some(&compliance), false, at(100)).is_ok());
        let record = |retention, legal_hold| ObjectRecord {
            retention,
            legal_hold,
            ..ObjectRecord::default()
        };
        assert_eq!(record(None, false).retained_until_seconds(), 0);
        assert_eq!(
            record(Some(governance), false).retained_until_seconds(),
            100
        );
        assert_eq!(
            record(Some(governance), true).retained_until_seconds(),
            u64::MAX
        );
    }
}
