//! Rules of volumes: who may mount one, and the rates of its parts.

use super::{ChangeError, PoolState};
use crate::settings::{
    CLIENTS_PER_EXPORT_MAX, ClientNet, ExportRule, PART_LIMITS_MAX, PartLimit, VolumeName,
    VolumePart,
};

impl PoolState {
    /// Gives a part of a volume rates of its own, in the place of those that it had.
    pub fn set_limit(&mut self, name: &VolumeName, limit: PartLimit) -> Result<(), ChangeError> {
        if let Some(problem) = limit.problem() {
            let part = limit.part;
            return Err(ChangeError::LimitProblem { part, problem });
        }
        let volume = self.volume_mut(name)?;
        volume.limits.retain(|there| there.part != limit.part);
        if volume.limits.len() >= PART_LIMITS_MAX {
            return Err(ChangeError::TooManyLimits);
        }
        volume.limits.push(limit);
        volume
            .limits
            .sort_by(|one, other| one.part.cmp(&other.part));
        Ok(())
    }

    /// Takes the rates of a part of a volume away.
    pub fn clear_limit(&mut self, name: &VolumeName, part: &VolumePart) -> Result<(), ChangeError> {
        let volume = self.volume_mut(name)?;
        let before = volume.limits.len();
        volume.limits.retain(|there| there.part != *part);
        if volume.limits.len() < before {
            return Ok(());
        }
        let (volume, part) = (name.clone(), part.clone());
        Err(ChangeError::NoLimit { volume, part })
    }

    /// Adds rules; each replaces the one that has the same client.
    pub fn set_rules(
        &mut self,
        name: &VolumeName,
        rules: &[ExportRule],
    ) -> Result<(), ChangeError> {
        let volume = self.volume_mut(name)?;
        for rule in rules {
            match volume
                .exports
                .iter_mut()
                .find(|there| there.client == rule.client)
            {
                Some(there) => *there = rule.clone(),
                None => volume.exports.push(rule.clone()),
            }
        }
        if volume.exports.len() > CLIENTS_PER_EXPORT_MAX {
            return Err(ChangeError::TooManyRules);
        }
        volume.exports.sort_by_key(|rule| rule.client);
        Ok(())
    }

    /// Removes the rules of these clients; all rules when there is none in the list.
    pub fn remove_rules(
        &mut self,
        name: &VolumeName,
        clients: &[ClientNet],
    ) -> Result<(), ChangeError> {
        let volume = self.volume_mut(name)?;
        if clients.is_empty() {
            volume.exports.clear();
        }
        for client in clients {
            let place = volume
                .exports
                .iter()
                .position(|rule| rule.client == *client);
            let place = place.ok_or_else(|| ChangeError::NoRule {
                volume: name.clone(),
                client: *client,
            })?;
            volume.exports.remove(place);
        }
        Ok(())
    }
}
