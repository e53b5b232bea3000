// The console: who is logged in, and which page an address is.
import { render } from "preact";
import { useCallback, useEffect, useState } from "preact/hooks";
import type { Refusal } from "./api";
import { call, get, whenLoggedOut } from "./api";
import { LiveProvider, useLive } from "./live";
import { Audit } from "./pages/audit";
import { Benchmarks } from "./pages/benchmarks";
import { Classes } from "./pages/classes";
import { Events } from "./pages/events";
import { Login } from "./pages/login";
import { Nodes } from "./pages/nodes";
import { Overview } from "./pages/overview";
import { PlanPage } from "./pages/plan";
import { Pool } from "./pages/pool";
import { VolumePage } from "./pages/volume";
import { Volumes } from "./pages/volumes";
import { Luns } from "./pages/luns";
import { Buckets } from "./pages/buckets";
import { Tiers } from "./pages/tiers";
import { OwnPassword, Users } from "./pages/users";
import { comeBack } from "./oidc";
import { Router, go, to, usePlace } from "./router";
import { SessionContext, useSession } from "./session";
import type { SessionOpen } from "./types";
import { Badge, Notice, Page, Sayings, useSay } from "./ui";
import { asRefusal } from "./use";
import "./style.css";

const PAGES: [name: string, text: string][] = [
  ["", "Overview"],
  ["pool", "Pool"],
  // In a cluster alone.
  ["nodes", "Nodes"],
  ["volumes", "Volumes"],
  ["luns", "LUNs"],
  ["buckets", "Buckets"],
  ["classes", "Classes"],
  ["tiers", "Tiers"],
  ["plan", "Plan"],
  ["benchmarks", "Benchmarks"],
  ["events", "Events"],
  ["users", "Users"],
  ["audit", "Audit"],
];

function Content() {
  const { parts } = usePlace();
  const [first, second, ...more] = parts;
  if (first === undefined) return <Overview />;
  if (first === "volumes" && second !== undefined && more.length === 0) return <VolumePage key={second} name={second} />;
  if (second === undefined) {
    if (first === "pool") return <Pool />;
    if (first === "nodes") return <Nodes />;
    if (first === "volumes") return <Volumes />;
    if (first === "luns") return <Luns />;
    if (first === "buckets") return <Buckets />;
    if (first === "classes") return <Classes />;
    if (first === "tiers") return <Tiers />;
    if (first === "plan") return <PlanPage />;
    if (first === "benchmarks") return <Benchmarks />;
    if (first === "events") return <Events />;
    if (first === "users") return <Users />;
    if (first === "audit") return <Audit />;
  }
  return (
    <Page title="No such page">
      <p>
        This page does not exist. <a href={to("")}>Go to the overview.</a>
      </p>
    </Page>
  );
}

function Connection() {
  const { isConnected, isRestarted, live } = useLive();
  const [isSeen, setSeen] = useState(false);
  if (!isConnected) {
    return (
      <Notice tone="bad" title="The server does not answer.">
        The page shows the state {live ? "at its last answer" : "before that"}, and retries by itself.
      </Notice>
    );
  }
  if (isRestarted && !isSeen) {
    return (
      <Notice tone="warn" title="The server restarted.">
        The page is connected again.{" "}
        <button type="button" class="quiet" onClick={() => setSeen(true)}>
          Dismiss
        </button>
      </Notice>
    );
  }
  return null;
}

function Frame({ onLogout, onEnded }: { onLogout: () => Promise<void>; onEnded: () => void }) {
  const { parts } = usePlace();
  const session = useSession();
  const [isChanging, setChanging] = useState(false);
  const { live } = useLive();
  const say = useSay();
  // Whoever leaves the machine must know whether the session is still open.
  const leave = () => onLogout().catch((failure) => say(`You are still logged in: ${asRefusal(failure).message}`));
  return (
    <>
      <a class="skip" href="#main">
        Skip to the content
      </a>
      <div class="frame">
        <header class="top">
          <a class="brand" href={to("")}>
            <img src="/console/icon.svg" alt="" width="26" height="26" /> Cairn
          </a>
          <nav aria-label="Pages">
            <ul>
              {PAGES.filter(([name]) => (name === "nodes" ? live?.node != null : !live?.missing_parts?.includes(name))).map(([name, text]) => (
                <li key={name}>
                  <a href={to(...(name ? [name] : [""]))} aria-current={(parts[0] ?? "") === name ? "page" : undefined}>
                    {text}
                  </a>
                </li>
              ))}
            </ul>
          </nav>
          <div class="top-end">
            {live && <span class="version">{live.version}</span>}
            <span class="who">
              <span class="unseen">Logged in: </span>
              {session.user === "token" ? "admin token" : session.user} <Badge tone="calm">{session.role === "admin" ? "Admin" : "Viewer"}</Badge>
            </span>
            {session.by === "password" && (
              <button type="button" class="quiet" onClick={() => setChanging(true)}>
                Change password
              </button>
            )}
            <button type="button" class="quiet" onClick={leave}>
              Log out
            </button>
          </div>
        </header>
        <div class="content">
          <Connection />
          <Content />
          {isChanging && <OwnPassword user={session.user} onClose={() => setChanging(false)} onDone={onEnded} />}
        </div>
      </div>
    </>
  );
}

type State = "unknown" | "out" | "ended" | "in";

function App() {
  const [state, setState] = useState<State>("unknown");
  const [session, setSession] = useState<SessionOpen>();
  const [refusal, setRefusal] = useState<Refusal>();
  const look = useCallback(async () => {
    const back = await comeBack();
    if (back && "session" in back) {
      go(back.before, true);
      setSession(back.session);
      setState("in");
      return;
    }
    if (back) {
      setRefusal(back.refusal);
      setState("out");
      return;
    }
    try {
      setSession(await get<SessionOpen>("/session"));
      setState("in");
    } catch {
      // A server that does not answer now may do so when the token is typed.
      setState("out");
    }
  }, []);
  useEffect(() => {
    whenLoggedOut(() => setState((before) => (before === "in" ? "ended" : "out")));
    void look();
  }, [look]);
  if (state === "unknown") return null;
  if (state !== "in" || !session) {
    const entered = (opened: SessionOpen) => {
      setRefusal(undefined);
      if (location.pathname === "/console/login") go(to(""), true);
      setSession(opened);
      setState("in");
    };
    return <Login hasEnded={state === "ended"} refusal={refusal} onDone={entered} />;
  }
  const logout = async () => {
    try {
      await call({ method: "DELETE", path: "/session" });
    } catch (failure) {
      if (asRefusal(failure).kind !== "unauthorized") throw failure;
    }
    setState("out");
  };
  return (
    <SessionContext.Provider value={session}>
      <LiveProvider>
        <Sayings>
          <Frame onLogout={logout} onEnded={() => setState("ended")} />
        </Sayings>
      </LiveProvider>
    </SessionContext.Provider>
  );
}

render(
  <Router>
    <App />
  </Router>,
  document.getElementById("app")!,
);
