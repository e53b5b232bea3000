// The way in: a user and a password, the admin token, or an OpenID provider.
import { useEffect, useRef, useState } from "preact/hooks";
import type { Refusal } from "../api";
import { call, get } from "../api";
import { leave } from "../oidc";
import type { LoginWays, SessionOpen } from "../types";
import { Failure, Notice } from "../ui";
import { asRefusal } from "../use";

type Way = "token" | "user";
// Which way was used last in this browser. It is no secret.
const WAY = "cairn-login";

function lastWay(): Way {
  try {
    return localStorage.getItem(WAY) === "user" ? "user" : "token";
  } catch {
    return "token";
  }
}

function keepWay(way: Way): void {
  try {
    if (way === "user") localStorage.setItem(WAY, way);
    else localStorage.removeItem(WAY);
  } catch {
    // A browser that keeps nothing asks for the token first.
  }
}

export function Login({ hasEnded, refusal, onDone }: {
  hasEnded: boolean;
  /** Why a log-in by the provider came to nothing, if one just did. */
  refusal: Refusal | undefined;
  onDone: (session: SessionOpen) => void;
}) {
  const [way, setWay] = useState(lastWay);
  const [token, setToken] = useState("");
  const [user, setUser] = useState("");
  const [password, setPassword] = useState("");
  const [error, setError] = useState(refusal);
  const [oidc, setOidc] = useState<string>();
  const [isBusy, setBusy] = useState(false);
  const secret = useRef<HTMLInputElement>(null);
  const name = useRef<HTMLInputElement>(null);
  useEffect(() => {
    document.title = "Log in · Cairn";
  }, []);
  useEffect(() => {
    // Without an answer the other ways are still there.
    get<LoginWays>("/session/ways").then((ways) => setOidc(ways.oidc ?? undefined), () => {});
  }, []);
  useEffect(() => (way === "user" ? name : secret).current?.focus(), [way]);
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      const session = await call<SessionOpen>({ method: "POST", path: "/session", body: way === "user" ? { user: user.trim(), password } : { token } });
      keepWay(way);
      onDone(session);
    } catch (failure) {
      setError(asRefusal(failure));
      setBusy(false);
      secret.current?.select();
    }
  };
  const goThere = async () => {
    setBusy(true);
    setError(undefined);
    try {
      await leave();
    } catch (failure) {
      setError(asRefusal(failure));
      setBusy(false);
    }
  };
  const choose = (next: Way) => {
    setWay(next);
    setError(undefined);
  };
  const wrong = error ? "true" : undefined;
  return (
    <main class="login" id="main">
      <form onSubmit={submit} class="card">
        <h1>
          <img src="/console/icon.svg" alt="" width="34" height="34" /> Cairn
        </h1>
        {hasEnded && !error && <Notice tone="warn" title="The session has ended.">Log in again to continue.</Notice>}
        {oidc !== undefined && (
          <>
            <button type="button" class="primary" disabled={isBusy} onClick={goThere}>
              Log in with {oidc}
            </button>
            <p class="hint">Or log in with a user or token of this server:</p>
          </>
        )}
        <div class="spans" role="group" aria-label="Log in with">
          <button type="button" aria-pressed={way === "user"} onClick={() => choose("user")}>User</button>
          <button type="button" aria-pressed={way === "token"} onClick={() => choose("token")}>Admin token</button>
        </div>
        {way === "user" ? (
          <>
            <div class="field">
              <label for="user">Name</label>
              <input ref={name} id="user" value={user} required maxLength={63} autocomplete="username" spellcheck={false} autocapitalize="none"
                aria-invalid={wrong} onInput={(event) => setUser(event.currentTarget.value)} />
            </div>
            <div class="field">
              <label for="password">Password</label>
              <input ref={secret} id="password" type="password" value={password} required autocomplete="current-password"
                aria-describedby="password-hint" aria-invalid={wrong} onInput={(event) => setPassword(event.currentTarget.value)} />
              <p class="hint" id="password-hint">
                An admin makes users with <code>cairn user create</code>, or on the page Users.
              </p>
            </div>
          </>
        ) : (
          <div class="field">
            <label for="token">Admin token</label>
            <input ref={secret} id="token" type="password" value={token} required autocomplete="off" spellcheck={false}
              aria-describedby="token-hint" aria-invalid={wrong} onInput={(event) => setToken(event.currentTarget.value)} />
            <p class="hint" id="token-hint">
              The content of the file <code>admin-token</code>, which is in the state folder of the server. <code>cairn serve</code>
              says where it is when it starts.
            </p>
          </div>
        )}
        <Failure error={error} />
        <button type="submit" class={oidc === undefined ? "primary" : undefined} disabled={isBusy}>
          {isBusy ? "One moment…" : "Log in"}
        </button>
      </form>
    </main>
  );
}
