// The way in: the admin token.
import { useEffect, useRef, useState } from "preact/hooks";
import type { Refusal } from "../api";
import { call } from "../api";
import { Failure, Notice } from "../ui";
import { asRefusal } from "../use";

export function Login({ hasEnded, onDone }: { hasEnded: boolean; onDone: () => void }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState<Refusal>();
  const [isBusy, setBusy] = useState(false);
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => {
    document.title = "Log in · Cairn";
    input.current?.focus();
  }, []);
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      await call({ method: "POST", path: "/session", body: { token } });
      onDone();
    } catch (failure) {
      setError(asRefusal(failure));
      setBusy(false);
      input.current?.select();
    }
  };
  return (
    <main class="login" id="main">
      <form onSubmit={submit} class="card">
        <h1>
          <img src="/console/icon.svg" alt="" width="34" height="34" /> Cairn
        </h1>
        {hasEnded && !error && <Notice tone="warn" title="The session has ended.">Log in again to go on.</Notice>}
        <div class="field">
          <label for="token">Admin token</label>
          <input ref={input} id="token" type="password" value={token} required autocomplete="current-password" spellcheck={false}
            aria-describedby="token-hint" aria-invalid={error ? "true" : undefined}
            onInput={(event) => setToken(event.currentTarget.value)} />
          <p class="hint" id="token-hint">
            The content of the file <code>admin-token</code>, which is in each data folder. <code>cairn serve</code> says where
            it is when it starts.
          </p>
        </div>
        <Failure error={error} />
        <button type="submit" class="primary" disabled={isBusy}>
          {isBusy ? "One moment…" : "Log in"}
        </button>
      </form>
    </main>
  );
}
