//! `cairn user`: who may use the admin API and the console, and who is logged in.

use std::path::PathBuf;

use cairn_admin::users::{
    OPEN_SESSION_LIST, OpenSession, PasswordChange, SESSION_END, SESSIONS_END, SessionNumber,
    SessionsOf, USER_CREATE, USER_DELETE, USER_LIST, USER_SET, USER_SHOW, UserCreate, UserSet,
    UserView,
};
use cairn_config::{Role, UserName};
use clap::{Args, Subcommand};

use crate::args::{ServerArgs, ViewArgs};
use crate::exit::Failure;
use crate::print::{self, Align, Column};
use crate::{access, audit, secret};

#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// List all users
    List(ViewArgs),
    /// Show one user
    Show(UserShowArgs),
    /// Create a user; the command asks for the password, or reads it from standard input or a file
    ///
    /// Example: cairn user create alice --role viewer
    Create(UserCreateArgs),
    /// Change a user's role; all sessions of the user end
    Set(UserSetArgs),
    /// Change a user's password; all sessions of the user end
    ///
    /// An admin changes the password of any user. With --login, users change their own: `cairn user password alice --login alice`.
    Password(UserPasswordArgs),
    /// Delete a user; all sessions of the user end
    Delete(UserDeleteArgs),
    /// List browser sessions: of users, of users of the OpenID provider, and of the admin token
    ///
    /// The list contains sessions used since the server started; in a cluster, only those of the node that answers.
    Sessions(ViewArgs),
    /// End sessions: all sessions of a user, or one session by its number
    ///
    /// Example: cairn user logout alice@example.org --by oidc
    Logout(UserLogoutArgs),
}

#[derive(Debug, Args)]
pub struct UserLogoutArgs {
    /// The user; `token` for the admin token
    #[arg(required_unless_present = "session")]
    pub name: Option<String>,
    /// Only sessions with this kind of log-in
    #[arg(long, value_name = "password|oidc", requires = "name", value_parser = ["password", "oidc"])]
    pub by: Option<String>,
    /// Number of the session to end, from `cairn user sessions`
    #[arg(long, value_name = "NUMBER", conflicts_with = "name")]
    pub session: Option<String>,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Args)]
pub struct UserShowArgs {
    pub name: UserName,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct UserCreateArgs {
    /// 1 to 63 letters, digits, '.', '_' or '-'
    pub name: UserName,
    /// admin: everything; viewer: see everything, change nothing
    #[arg(long, value_name = "admin|viewer")]
    pub role: Role,
    /// File with the password as its only line; - for standard input
    #[arg(long, value_name = "PATH")]
    pub password_file: Option<PathBuf>,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct UserSetArgs {
    pub name: UserName,
    /// admin: everything; viewer: see everything, change nothing
    #[arg(long, value_name = "admin|viewer")]
    pub role: Role,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct UserPasswordArgs {
    pub name: UserName,
    /// File with the new password as its only line; - for standard input
    #[arg(long, value_name = "PATH")]
    pub password_file: Option<PathBuf>,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct UserDeleteArgs {
    pub name: UserName,
    #[command(flatten)]
    pub server: ServerArgs,
}

pub fn user(command: &UserCommand) -> Result<(), Failure> {
    match command {
        UserCommand::List(view) => {
            let list = access::client(&view.server)?.ask(USER_LIST, &())?;
            match view.json {
                true => print::json(&list),
                false => print::text(&table(&list.users)),
            }
        }
        UserCommand::Show(args) => {
            let user = access::client(&args.view.server)?.ask(USER_SHOW, &args.name)?;
            shown(&args.view, &user)
        }
        UserCommand::Create(args) => {
            let client = access::client(&args.view.server)?;
            let password = secret::new_password(args.password_file.as_deref(), args.name.as_str())?;
            let create = UserCreate {
                name: args.name.clone(),
                role: args.role,
                password,
            };
            shown(&args.view, &client.tell(USER_CREATE, &(), &create)?)
        }
        UserCommand::Set(args) => {
            let set = UserSet {
                role: Some(args.role),
                password: None,
            };
            let user = access::client(&args.view.server)?.tell(USER_SET, &args.name, &set)?;
            shown(&args.view, &user)
        }
        UserCommand::Password(args) => password(args),
        UserCommand::Delete(args) => {
            access::client(&args.server)?.ask(USER_DELETE, &args.name)?;
            print::text(&format!("user {} is deleted", args.name))
        }
        UserCommand::Sessions(view) => {
            let list = access::client(&view.server)?.ask(OPEN_SESSION_LIST, &())?;
            match view.json {
                true => print::json(&list),
                false => print::text(&sessions(&list.sessions)),
            }
        }
        UserCommand::Logout(args) => logout(args),
    }
}

fn logout(args: &UserLogoutArgs) -> Result<(), Failure> {
    let client = access::client(&args.server)?;
    if let Some(id) = &args.session {
        client.ask(SESSION_END, &SessionNumber(id.to_owned()))?;
        return print::text(&format!("session {id} has ended"));
    }
    let name = args.name.as_deref().unwrap_or_default();
    let whose = SessionsOf {
        user: name.to_owned(),
        by: args.by.clone(),
    };
    client.ask(SESSIONS_END, &whose)?;
    let by = args.by.as_ref();
    let by = by.map_or_else(String::new, |by| format!(" with log-in by {by}"));
    print::text(&format!("all sessions of {name}{by} have ended"))
}

fn sessions(sessions: &[OpenSession]) -> String {
    const COLUMNS: &[Column] = &[
        ("USER", Align::Left),
        ("ROLE", Align::Left),
        ("BY", Align::Left),
        ("FROM", Align::Left),
        ("BEGUN", Align::Left),
        ("LAST USED", Align::Left),
        ("SESSION", Align::Left),
    ];
    let rows = sessions.iter().map(|session| {
        vec![
            session.user.clone(),
            session.role.to_string(),
            session.by.clone(),
            session.address.clone(),
            audit::time(session.begun_seconds),
            audit::time(session.used_seconds),
            session.id.clone(),
        ]
    });
    print::table(COLUMNS, rows.collect())
}

fn password(args: &UserPasswordArgs) -> Result<(), Failure> {
    let (client, own) = access::client_and_password(&args.view.server)?;
    let new = secret::new_password(args.password_file.as_deref(), args.name.as_str())?;
    let is_own = args.view.server.login.as_ref() == Some(&args.name);
    let user = match own.filter(|_| is_own) {
        Some(password) => client.password_change(&PasswordChange {
            password,
            new_password: new,
        }),
        None => client.tell(
            USER_SET,
            &args.name,
            &UserSet {
                role: None,
                password: Some(new),
            },
        ),
    };
    shown(&args.view, &user?)
}

fn shown(view: &ViewArgs, user: &UserView) -> Result<(), Failure> {
    match view.json {
        true => print::json(user),
        false => print::text(&table(std::slice::from_ref(user))),
    }
}

fn table(users: &[UserView]) -> String {
    const COLUMNS: &[Column] = &[
        ("USER", Align::Left),
        ("ROLE", Align::Left),
        ("CREATED", Align::Left),
        ("CHANGED", Align::Left),
    ];
    let rows = users.iter().map(|user| {
        vec![
            user.name.to_string(),
            user.role.to_string(),
            audit::time(user.created_seconds),
            audit::time(user.changed_seconds),
        ]
    });
    print::table(COLUMNS, rows.collect())
}
