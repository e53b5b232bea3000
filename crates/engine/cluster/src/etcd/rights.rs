//! Who may do what in an etcd that Cairn runs itself.
//!
//! Owns: users and roles of etcd, and that it asks for them.
//! Must not know: which nodes there are, who is to have which rights.
//!
//! etcd takes the common name of a client's certificate for the user (`--client-cert-auth`). Users have no password, so that
//! nothing but a certificate makes one. Each step here may be repeated; one that was done already is no error.

use std::collections::BTreeSet;

use etcd_client::{Permission, UserAddOptions};

use super::{Etcd, Repeat, errors};
use crate::coordinator::CoordinatorError;

/// The user that etcd wants before it asks for users; it acts in its name when leases end. No certificate has this name.
const ROOT_USER: &str = "root";
/// etcd's own role, which may do all.
const ROOT_ROLE: &str = "root";
/// Reads and changes the keys of the cluster.
const KEYS_ROLE: &str = "cairn";

/// What a user may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UserRights {
    /// Read and change the cluster's keys.
    Keys,
    /// All, also with users and members of etcd.
    All,
}

impl UserRights {
    const fn role(self) -> &'static str {
        match self {
            Self::Keys => KEYS_ROLE,
            Self::All => ROOT_ROLE,
        }
    }
}

/// Nothing was to be done.
fn unless(
    done: Result<(), CoordinatorError>,
    is_done_already: impl Fn(&CoordinatorError) -> bool,
) -> Result<(), CoordinatorError> {
    match done {
        Err(error) if is_done_already(&error) => Ok(()),
        done => done,
    }
}

impl Etcd {
    /// Makes what there has to be before users are asked for: etcd's own user, and the role for keys below a prefix.
    pub async fn prepare_rights(&self, prefix: &str) -> Result<(), CoordinatorError> {
        let what = "adding the role of nodes";
        let added = self.call(what, Repeat::Harmless, |mut client| async move {
            client.role_add(KEYS_ROLE).await.map(drop)
        });
        unless(
            added.await.map_err(|failure| failure.error),
            errors::is_there_already,
        )?;
        let granted = self.call(what, Repeat::Harmless, |mut client| {
            let permission = Permission::read_write(prefix).with_prefix();
            async move {
                let granted = client.role_grant_permission(KEYS_ROLE, permission);
                granted.await.map(drop)
            }
        });
        granted.await.map_err(|failure| failure.error)?;
        self.add_user(ROOT_USER).await?;
        self.grant(ROOT_USER, ROOT_ROLE).await
    }

    /// Has etcd ask for users from now on. Whoever does this has to be one with all rights, else nobody is who mends it.
    pub async fn ask_for_users(&self) -> Result<(), CoordinatorError> {
        let what = "having etcd ask for users";
        let enabled = self.call(what, Repeat::Harmless, |mut client| async move {
            client.auth_enable().await.map(drop)
        });
        enabled.await.map_err(|failure| failure.error)
    }

    /// The users that there are, but for etcd's own.
    pub async fn users(&self) -> Result<BTreeSet<String>, CoordinatorError> {
        let what = "asking for its users";
        let asked = self.call(what, Repeat::Harmless, |mut client| async move {
            client.user_list().await
        });
        let reply = asked.await.map_err(|failure| failure.error)?;
        let users = reply.users().iter().filter(|user| *user != ROOT_USER);
        Ok(users.cloned().collect())
    }

    /// Makes somebody a user with these rights, or changes those of one.
    pub async fn set_user(&self, name: &str, rights: UserRights) -> Result<(), CoordinatorError> {
        self.add_user(name).await?;
        let what = "asking for the rights of a user";
        let asked = self.call(what, Repeat::Harmless, |mut client| {
            let name = name.to_owned();
            async move { client.user_get(name).await }
        });
        let found = asked.await.map_err(|failure| failure.error)?;
        if !found.roles().iter().any(|role| role == rights.role()) {
            self.grant(name, rights.role()).await?;
        }
        // Second: in between it has more, and never nothing.
        for role in found.roles().iter().filter(|role| *role != rights.role()) {
            let revoked = self.call("taking rights back", Repeat::Harmless, |mut client| {
                let (name, role) = (name.to_owned(), role.clone());
                async move { client.user_revoke_role(name, role).await.map(drop) }
            });
            unless(
                revoked.await.map_err(|failure| failure.error),
                errors::is_not_there,
            )?;
        }
        Ok(())
    }

    /// Takes all rights of a user: it reads and changes nothing with the next request. What it watches already it goes on to see
    /// until its connection ends.
    pub async fn remove_user(&self, name: &str) -> Result<(), CoordinatorError> {
        let removed = self.call("removing a user", Repeat::Harmless, |mut client| {
            let name = name.to_owned();
            async move { client.user_delete(name).await.map(drop) }
        });
        unless(
            removed.await.map_err(|failure| failure.error),
            errors::is_not_there,
        )
    }

    async fn add_user(&self, name: &str) -> Result<(), CoordinatorError> {
        let added = self.call("adding a user", Repeat::Harmless, |mut client| {
            let name = name.to_owned();
            let options = UserAddOptions::new().with_no_pwd();
            async move { client.user_add(name, "", Some(options)).await.map(drop) }
        });
        unless(
            added.await.map_err(|failure| failure.error),
            errors::is_there_already,
        )
    }

    async fn grant(&self, name: &str, role: &'static str) -> Result<(), CoordinatorError> {
        let granted = self.call("giving rights to a user", Repeat::Harmless, |mut client| {
            let name = name.to_owned();
            async move { client.user_grant_role(name, role).await.map(drop) }
        });
        granted.await.map_err(|failure| failure.error)
    }
}
