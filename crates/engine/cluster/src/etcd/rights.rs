//! Who may do what in an etcd that Cairn runs itself.
//!
//! Owns: users and roles of etcd, and that it asks for them.
//! Must not know: which nodes there are, who is to have which rights.
//!
//! etcd takes the common name of a client's certificate for the user (`--client-cert-auth`). Users have no password, so that
//! nothing but a certificate makes one. Each step here may be repeated; one that was done already is no error.
//! A user without all rights has two roles: one that all such users have, and one of its own for what it alone writes.

use std::collections::BTreeSet;

use etcd_client::{Permission, PermissionType, RoleRevokePermissionOptions, UserAddOptions};

use super::{Etcd, Repeat, errors};
use crate::coordinator::{CoordinatorError, KeyRange};

/// The user that etcd wants before it asks for users; it acts in its name when leases end. No certificate has this name.
const ROOT_USER: &str = "root";
/// etcd's own role, which may do all.
const ROOT_ROLE: &str = "root";
/// Reads the keys of the cluster, and changes those that all nodes write.
const KEYS_ROLE: &str = "cairn";

/// The role of one user alone.
fn own_role(user: &str) -> String {
    format!("{KEYS_ROLE}-{user}")
}

/// A right as etcd keeps it: its kind, the first key, and the first one that is beyond it, or none for one key.
type Grant = (PermissionType, Vec<u8>, Vec<u8>);

fn grant_of(kind: PermissionType, range: &KeyRange) -> Grant {
    match range {
        KeyRange::One(key) => (kind, key.as_str().as_bytes().to_vec(), Vec::new()),
        KeyRange::Prefix(prefix) => {
            let first = prefix.as_bytes().to_vec();
            let mut end = first.clone();
            // Prefixes end with a slash.
            if let Some(last) = end.last_mut() {
                *last = last.saturating_add(1);
            }
            (kind, first, end)
        }
    }
}

/// A right as etcd reports it.
type Kept = (i32, Vec<u8>, Vec<u8>);

fn kept(permission: &Permission) -> Kept {
    let (key, end) = (permission.key(), permission.range_end());
    (permission.get_type(), key.to_vec(), end.to_vec())
}

/// What a user may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UserRights {
    /// Read the cluster's keys, and change those that such users write.
    Keys,
    /// All, also with users and members of etcd.
    All,
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
    /// Makes what there has to be before users are asked for: etcd's own user, and the role of those without all rights, see
    /// [`Self::set_shared_rights`].
    pub async fn prepare_rights(
        &self,
        prefix: &str,
        writes: &[KeyRange],
    ) -> Result<(), CoordinatorError> {
        self.set_shared_rights(prefix, writes).await?;
        self.add_user(ROOT_USER).await?;
        self.grant(ROOT_USER, ROOT_ROLE).await
    }

    /// Has all users without all rights read what begins with `prefix`, change what is in `writes`, and nothing else that all of them
    /// share.
    pub async fn set_shared_rights(
        &self,
        prefix: &str,
        writes: &[KeyRange],
    ) -> Result<(), CoordinatorError> {
        let reads = KeyRange::Prefix(prefix.to_owned());
        let reads = std::iter::once(grant_of(PermissionType::Read, &reads));
        let writes = writes
            .iter()
            .map(|range| grant_of(PermissionType::Write, range));
        self.set_role(KEYS_ROLE, reads.chain(writes).collect())
            .await
    }

    /// Has a role be of these rights and no others. Nothing is asked of etcd to change that is so already: each change has it look at
    /// the rights of all requests anew that are under way.
    async fn set_role(&self, role: &str, wanted: Vec<Grant>) -> Result<(), CoordinatorError> {
        let what = "asking for the rights of a role";
        let asked = self.call(what, Repeat::Harmless, |mut client| {
            let role = role.to_owned();
            async move { client.role_get(role).await }
        });
        let found: Vec<Permission> = match asked.await {
            Ok(reply) => reply.permissions(),
            Err(failure) if errors::is_not_there(&failure.error) => {
                self.add_role(role).await?;
                Vec::new()
            }
            Err(failure) => return Err(failure.error),
        };
        let there: Vec<Kept> = found.iter().map(kept).collect();
        let is_same =
            |(kind, key, end): &Grant, it: &Kept| (*kind as i32, key, end) == (it.0, &it.1, &it.2);
        let missing = wanted
            .iter()
            .filter(|grant| !there.iter().any(|it| is_same(grant, it)));
        for (kind, key, end) in missing {
            let what = "giving rights to a role";
            let granted = self.call(what, Repeat::Harmless, |mut client| {
                let permission = Permission::new(*kind, key.clone()).with_range_end(end.clone());
                let role = role.to_owned();
                async move {
                    let granted = client.role_grant_permission(role, permission);
                    granted.await.map(drop)
                }
            });
            granted.await.map_err(|failure| failure.error)?;
        }
        // One of the same keys and of another kind was replaced by what was given.
        let is_wanted = |it: &Kept| {
            wanted
                .iter()
                .any(|(_, key, end)| (key, end) == (&it.1, &it.2))
        };
        for (_, key, end) in there.iter().filter(|it| !is_wanted(it)) {
            let what = "taking rights back from a role";
            let revoked = self.call(what, Repeat::Harmless, |mut client| {
                let (role, key) = (role.to_owned(), key.clone());
                let options = RoleRevokePermissionOptions::new().with_range_end(end.clone());
                async move {
                    let revoked = client.role_revoke_permission(role, key, Some(options));
                    revoked.await.map(drop)
                }
            });
            unless(
                revoked.await.map_err(|failure| failure.error),
                errors::is_not_there,
            )?;
        }
        Ok(())
    }

    async fn add_role(&self, role: &str) -> Result<(), CoordinatorError> {
        let added = self.call("adding a role", Repeat::Harmless, |mut client| {
            let role = role.to_owned();
            async move { client.role_add(role).await.map(drop) }
        });
        unless(
            added.await.map_err(|failure| failure.error),
            errors::is_there_already,
        )
    }

    /// Has etcd ask for users from now on. The caller needs all rights, else nobody can mend it.
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

    /// Makes somebody a user with these rights, or changes those of one. `own`: what it writes beside what all such users write;
    /// who may do all needs none of that.
    pub async fn set_user(
        &self,
        name: &str,
        rights: UserRights,
        own: &[KeyRange],
    ) -> Result<(), CoordinatorError> {
        self.add_user(name).await?;
        let wanted = match rights {
            UserRights::All => vec![ROOT_ROLE.to_owned()],
            UserRights::Keys => {
                let role = own_role(name);
                let writes = own
                    .iter()
                    .map(|range| grant_of(PermissionType::Write, range));
                self.set_role(&role, writes.collect()).await?;
                vec![KEYS_ROLE.to_owned(), role]
            }
        };
        let what = "asking for the rights of a user";
        let asked = self.call(what, Repeat::Harmless, |mut client| {
            let name = name.to_owned();
            async move { client.user_get(name).await }
        });
        let found = asked.await.map_err(|failure| failure.error)?;
        for role in wanted.iter().filter(|role| !found.roles().contains(*role)) {
            self.grant(name, role).await?;
        }
        // Second: in between it has more, and never nothing.
        for role in found.roles().iter().filter(|role| !wanted.contains(*role)) {
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
        )?;
        let removed = self.call("removing a role", Repeat::Harmless, |mut client| {
            let role = own_role(name);
            async move { client.role_delete(role).await.map(drop) }
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

    async fn grant(&self, name: &str, role: &str) -> Result<(), CoordinatorError> {
        let granted = self.call("giving rights to a user", Repeat::Harmless, |mut client| {
            let (name, role) = (name.to_owned(), role.to_owned());
            async move { client.user_grant_role(name, role).await.map(drop) }
        });
        granted.await.map_err(|failure| failure.error)
    }
}
