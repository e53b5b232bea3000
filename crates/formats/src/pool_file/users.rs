//! Users of the admin API.
//!
//! Owns: which there are. Must not know: what a user may do, and passwords.

use super::{ChangeError, PoolState};
use crate::settings::{USERS_MAX, UserName, UserRecord};

impl PoolState {
    /// Makes a user.
    pub fn add_user(&mut self, name: &UserName, user: UserRecord) -> Result<(), ChangeError> {
        if self.users.contains_key(name) {
            return Err(ChangeError::UserExists(name.clone()));
        }
        if self.users.len() >= USERS_MAX {
            return Err(ChangeError::TooManyUsers);
        }
        self.users.insert(name.clone(), user);
        Ok(())
    }

    pub fn user_mut(&mut self, name: &UserName) -> Result<&mut UserRecord, ChangeError> {
        let user = self.users.get_mut(name);
        user.ok_or_else(|| ChangeError::NoUser(name.clone()))
    }

    pub fn delete_user(&mut self, name: &UserName) -> Result<(), ChangeError> {
        match self.users.remove(name) {
            Some(_) => Ok(()),
            None => Err(ChangeError::NoUser(name.clone())),
        }
    }
}
