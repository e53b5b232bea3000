//! Answers the admin API about users and ended sessions, which are kept in the pool's state: in the pool file, or in
//! the cluster's map.
//!
//! Owns: which stamp a user has. Must not know: passwords, roles' rights, sessions (`cairn_admin`).

use cairn_admin::users::{UserControl, UserView};
use cairn_admin::{Answer, ControlError};
use cairn_config::{Logout, PasswordHash, Role, UserName, UserRecord};
use cairn_formats::pool_file::{ChangeError, PoolState};

use crate::control::{Controller, refusal};

impl Controller {
    async fn users_change(
        &self,
        change: impl FnOnce(&mut PoolState) -> Result<(), ChangeError>,
    ) -> Result<(), ControlError> {
        let changed = self.inner.pool.users_change(change).await;
        changed.map_err(refusal)
    }

    fn user_now(&self, name: UserName) -> Result<UserView, ControlError> {
        let record = self.user(&name);
        let absent = || refusal(ChangeError::NoUser(name.clone()).into());
        Ok(UserView::new(name.clone(), &record.ok_or_else(absent)?))
    }
}

impl UserControl for Controller {
    fn users(&self) -> Vec<(UserName, UserRecord)> {
        let state = self.inner.pool.state();
        let users = state.users.iter();
        users
            .map(|(name, record)| (name.clone(), record.clone()))
            .collect()
    }

    fn user(&self, name: &UserName) -> Option<UserRecord> {
        self.inner.pool.state().users.get(name).cloned()
    }

    fn user_create(&self, name: UserName, role: Role, hash: PasswordHash) -> Answer<'_, UserView> {
        Box::pin(async move {
            self.require_guarded()?;
            let now_seconds = self.inner.env.clock.now().seconds;
            let record = UserRecord {
                role,
                password: hash,
                stamp: self.inner.env.entropy.u64(),
                created_seconds: now_seconds,
                changed_seconds: now_seconds,
            };
            self.users_change(|state| state.add_user(&name, record))
                .await?;
            self.user_now(name)
        })
    }

    fn user_set(
        &self,
        name: UserName,
        role: Option<Role>,
        hash: Option<PasswordHash>,
        expected: Option<u64>,
    ) -> Answer<'_, UserView> {
        Box::pin(async move {
            self.require_guarded()?;
            let now_seconds = self.inner.env.clock.now().seconds;
            let stamp = self.inner.env.entropy.u64();
            let change = |state: &mut PoolState| {
                let user = state.user_mut(&name)?;
                if expected.is_some_and(|expected| expected != user.stamp) {
                    return Err(ChangeError::UserChanged(name.clone()));
                }
                user.role = role.unwrap_or(user.role);
                if let Some(hash) = hash {
                    user.password = hash;
                }
                (user.stamp, user.changed_seconds) = (stamp, now_seconds);
                Ok(())
            };
            self.users_change(change).await?;
            self.user_now(name)
        })
    }

    fn is_logged_out(&self, number: u64, whose: &str, ends_seconds: i64) -> bool {
        let state = self.inner.pool.state();
        state.logouts.has(number, whose, ends_seconds)
    }

    fn log_out(&self, logout: Logout) -> Answer<'_, ()> {
        Box::pin(async move {
            let now_seconds = self.inner.env.clock.now().seconds;
            let change = |state: &mut PoolState| {
                state.logouts.add(logout, now_seconds);
                Ok(())
            };
            self.users_change(change).await
        })
    }

    fn user_delete(&self, name: UserName) -> Answer<'_, ()> {
        Box::pin(async move {
            self.require_guarded()?;
            self.users_change(|state| state.delete_user(&name)).await
        })
    }
}
