// Users of the console and the API: who may log in, what they may do, and who is logged in.
import { useState } from "preact/hooks";
import { cairn, part } from "../api";
import { date } from "../format";
import { to } from "../router";
import { useSession } from "../session";
import type { OpenSession, User } from "../types";
import { ActionForm, Badge, Choice, Failure, Field, Loading, Page, Table } from "../ui";
import { usePaged } from "../paged";

type Action = { kind: "create" } | { kind: "role" | "password" | "delete"; user: User } | { kind: "end" | "end-all"; open: OpenSession };

const ROLES: [string, string][] = [
  ["viewer", "Viewer: sees everything, changes nothing"],
  ["admin", "Admin: everything"],
];
const BY: Record<string, string> = { token: "Admin token", password: "Password", oidc: "OpenID Connect" };
// What is shown in the place of a password that was typed.
const HIDDEN = "PASSWORD";

export function Users() {
  const users = usePaged<{ users: User[] }>("/users", "users");
  const sessions = usePaged<{ sessions: OpenSession[] }>("/sessions", "sessions");
  const session = useSession();
  const [action, setAction] = useState<Action>();
  const changed = () => { void users.again(); void sessions.again(); };
  return (
    <Page title="Users" actions={session.role === "admin" && <button type="button" class="primary" onClick={() => setAction({ kind: "create" })}>Create a user</button>}>
      {session.role !== "admin" && <p class="lead">You are a viewer: an admin can change users.</p>}
      <Failure error={users.error} />
      {users.filter}
      {!users.data ? <Loading /> : (<>
        <Table caption="Users" rows={users.data.users} rowKey={(user) => user.name}
          empty={users.filtered ? "No user has such a name." : "There is no user. The admin token gives all rights."}
          columns={[
            { name: "Name", show: (user) => <>{user.name} {user.name === session.user && <Badge tone="calm">You</Badge>}</> },
            { name: "Role", show: (user) => <Badge tone={user.role === "admin" ? "warn" : "calm"}>{user.role === "admin" ? "Admin" : "Viewer"}</Badge> },
            { name: "Created", show: (user) => date(user.created_seconds) },
            { name: "Changed", show: (user) => date(user.changed_seconds) },
            { name: "Audit log", show: (user) => <a href={`${to("audit")}?user=${part(user.name)}`}>Changes by {user.name}</a> },
            { name: "Actions", show: (user) => session.role === "admin" && (
              <div class="row-actions">
                <button type="button" onClick={() => setAction({ kind: "role", user })} aria-label={`Change the role of ${user.name}`}>Role</button>
                <button type="button" onClick={() => setAction({ kind: "password", user })} aria-label={`Set the password of ${user.name}`}>Password</button>
                <button type="button" class="danger-quiet" onClick={() => setAction({ kind: "delete", user })} aria-label={`Delete ${user.name}`}>Delete</button>
              </div>) },
          ]} />
        {users.pages(users.data.users.length)}
      </>)}
      <h2>Sessions</h2>
      <Failure error={sessions.error} />
      {sessions.filter}
      {!sessions.data ? <Loading /> : (<>
        <Table caption="Sessions" rows={sessions.data.sessions} rowKey={(open) => open.id}
          empty={sessions.filtered ? "No user with such a name is logged in." : "No user is logged in with a browser."}
          columns={[
            { name: "Name", show: (open) => <>{open.user} {open.is_own && <Badge tone="calm">This one</Badge>}</> },
            { name: "Role", show: (open) => <Badge tone={open.role === "admin" ? "warn" : "calm"}>{open.role === "admin" ? "Admin" : "Viewer"}</Badge> },
            { name: "By", show: (open) => BY[open.by] ?? open.by },
            { name: "From", show: (open) => open.address },
            { name: "Begun", show: (open) => date(open.begun_seconds) },
            { name: "Last used", show: (open) => date(open.used_seconds) },
            { name: "Actions", show: (open) => session.role === "admin" && (
              <div class="row-actions">
                <button type="button" onClick={() => setAction({ kind: "end", open })} aria-label={`End session ${open.id} of ${open.user}`}>End</button>
                <button type="button" class="danger-quiet" onClick={() => setAction({ kind: "end-all", open })} aria-label={`End all sessions of ${open.user}, from session ${open.id}`}>End all of {open.user}</button>
              </div>) },
          ]} />
        {sessions.pages(sessions.data.sessions.length)}
      </>)}
      <p class="hint">The list has sessions used since this server started. A session ends after 12 hours, or after an hour without use.</p>
      <p class="hint">A change of a user ends all sessions of that user. The admin token gives an admin's rights, and is not in this list.</p>
      {action && <ActionDialog action={action} onClose={() => setAction(undefined)} onDone={changed} />}
    </Page>
  );
}

function ActionDialog({ action, onClose, onDone }: { action: Action; onClose: () => void; onDone: () => void }) {
  const common = { onClose, onDone };
  const [name, setName] = useState("");
  const [role, setRole] = useState(action.kind === "role" ? action.user.role : "viewer");
  const [password, setPassword] = useState("");
  const passwordField = <Field label="Password" type="password" autocomplete="new-password" value={password} onValue={setPassword} required minLength={10} hint="At least 10 characters." />;
  const roleField = <Choice label="Role" value={role} onValue={setRole} choices={ROLES} />;
  switch (action.kind) {
    case "create":
      return (
        <ActionForm {...common} title="Create a user" submit="Create" done={`User ${name} is created.`}
          request={{ method: "POST", path: "/users", body: { name, role, password } }} shown={{ method: "POST", path: "/users", body: { name, role, password: HIDDEN } }}
          command={cairn("user", "create", name || "NAME", "--role", role)}>
          <Field label="Name" value={name} onValue={setName} required maxLength={63} hint="Letters, digits, '.', '_' and '-'." />
          {roleField}
          {passwordField}
        </ActionForm>
      );
    case "role": {
      const request = { method: "PATCH" as const, path: `/users/${part(action.user.name)}`, body: { role } };
      return (
        <ActionForm {...common} title={`The role of ${action.user.name}`} submit="Change" done={`${action.user.name} has the role ${role}.`}
          request={request} command={cairn("user", "set", action.user.name, "--role", role)}>
          {roleField}
        </ActionForm>
      );
    }
    case "password": {
      const path = `/users/${part(action.user.name)}`;
      return (
        <ActionForm {...common} title={`The password of ${action.user.name}`} submit="Set" done={`The password of ${action.user.name} is changed.`}
          request={{ method: "PATCH", path, body: { password } }} shown={{ method: "PATCH", path, body: { password: HIDDEN } }}
          command={cairn("user", "password", action.user.name)}>
          {passwordField}
        </ActionForm>
      );
    }
    case "end":
      return (
        <ActionForm {...common} title={`End a session of ${action.open.user}`} submit="End" isDangerous done={`A session of ${action.open.user} has ended.`}
          request={{ method: "DELETE", path: `/sessions/${part(action.open.id)}` }} command={cairn("user", "logout", "--session", action.open.id)}>
          <p>The browser at {action.open.address} is logged out at once. {action.open.user} can log in again.</p>
        </ActionForm>
      );
    case "end-all":
      return (
        <ActionForm {...common} title={`End all sessions of ${action.open.user}`} submit="End all" isDangerous done={`All sessions of ${action.open.user} have ended.`}
          request={{ method: "DELETE", path: `/sessions?user=${part(action.open.user)}` }} command={cairn("user", "logout", action.open.user)}>
          <p>All browsers of {action.open.user} are logged out at once, on all nodes. {action.open.user} can log in again: delete the user, or take the group away at the provider, to prevent that.</p>
        </ActionForm>
      );
    case "delete":
      return (
        <ActionForm {...common} title={`Delete ${action.user.name}`} submit="Delete" isDangerous done={`User ${action.user.name} is deleted.`}
          request={{ method: "DELETE", path: `/users/${part(action.user.name)}` }} command={cairn("user", "delete", action.user.name)}>
          <p>All sessions of {action.user.name} end at once. What {action.user.name} changed stays in the audit log.</p>
        </ActionForm>
      );
  }
}

/** A user sets another password for themselves. */
export function OwnPassword({ user, onClose, onDone }: { user: string; onClose: () => void; onDone: () => void }) {
  const [password, setPassword] = useState("");
  const [next, setNext] = useState("");
  const path = "/session/password";
  return (
    <ActionForm title="Change your password" submit="Change" done="Your password is changed: log in with it." onClose={onClose} onDone={onDone}
      request={{ method: "PUT", path, body: { password, new_password: next } }} shown={{ method: "PUT", path, body: { password: HIDDEN, new_password: HIDDEN } }}
      command={cairn("user", "password", user, "--login", user)}>
      <Field label="Current password" type="password" autocomplete="current-password" value={password} onValue={setPassword} required />
      <Field label="New password" type="password" autocomplete="new-password" value={next} onValue={setNext} required minLength={10} hint="At least 10 characters. All your sessions end, including this one." />
    </ActionForm>
  );
}
