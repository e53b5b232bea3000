// Who changed what and when.
import { useEffect, useState } from "preact/hooks";
import type { Refusal } from "../api";
import { cairn, get } from "../api";
import { date } from "../format";
import { go, to, usePlace } from "../router";
import type { AuditEntry, AuditPage } from "../types";
import { Badge, Check, Choice, Failure, Field, Loading, Notice, Page, Same, Table, useSay } from "../ui";
import { asRefusal, useApi } from "../use";

const SPANS: [value: string, text: string][] = [
  ["", "All that is kept"],
  ["1h", "The last hour"],
  ["1d", "The last day"],
  ["7d", "The last week"],
  ["30d", "The last 30 days"],
];
const SECONDS: Record<string, number> = { "1h": 3600, "1d": 86_400, "7d": 604_800, "30d": 2_592_000 };
const EXPORT_LIMIT = 1000;

/** The filter, as the address of the page has it. */
interface Filter {
  user: string;
  path: string;
  since: string;
  refused: boolean;
}

function filterOf(query: URLSearchParams): Filter {
  const since = query.get("since") ?? "";
  return { user: query.get("user") ?? "", path: query.get("path") ?? "", since: since in SECONDS ? since : "", refused: query.get("refused") === "true" };
}

function addressOf({ user, path, since, refused }: Filter): string {
  const query = new URLSearchParams({ ...(user && { user }), ...(path && { path }), ...(since && { since }), ...(refused && { refused: "true" }) });
  return `${to("audit")}${query.size > 0 ? `?${query}` : ""}`;
}

function apiPath({ user, path, since, refused }: Filter, more: Record<string, string> = {}): string {
  const seconds = SECONDS[since];
  // Spaces as %20: the API takes no plus for one.
  const pairs = Object.entries({ ...(user && { user }), ...(path && { path }), ...(seconds && { from: `-${seconds}` }), ...(refused && { refused: "true" }), ...more });
  const query = pairs.map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&");
  return `/audit${query && `?${query}`}`;
}

const command = (words: string[], { user, path, since, refused }: Filter): string =>
  cairn("audit", ...words, ...(user ? ["--by", user] : []), ...(path ? ["--path", path] : []), ...(since ? ["--since", since] : []), refused && "--refused");

export function Audit() {
  const { query } = usePlace();
  const filter = filterOf(query);
  const address = addressOf(filter);
  // What is typed becomes the filter with Enter, or when the field is left.
  const [user, setUser] = useState(filter.user);
  const [path, setPath] = useState(filter.path);
  useEffect(() => {
    setUser(filter.user);
    setPath(filter.path);
  }, [address]);
  const newest = useApi<AuditPage>(apiPath(filter));
  const [older, setOlder] = useState<{ address: string; entries: AuditEntry[]; next: number | null }>();
  const [error, setError] = useState<Refusal>();
  const [isBusy, setBusy] = useState(false);
  const say = useSay();

  const set = (change: Partial<Filter>) => go(addressOf({ ...filter, user: user.trim(), path: path.trim(), ...change }), true);
  const apply = (event: Event) => {
    event.preventDefault();
    set({});
  };
  // The first page comes anew every ten seconds; entries between it and the older ones move there with it.
  const extra = older?.address === address ? older : undefined;
  const first = newest.data?.entries ?? [];
  const seen = new Set(first.map((entry) => entry.id));
  const rows = [...first, ...(extra?.entries ?? []).filter((entry) => !seen.has(entry.id))];
  const next = extra ? extra.next : (newest.data?.next_before ?? null);

  const showOlder = async () => {
    if (next === null) return;
    setBusy(true);
    try {
      const page = await get<AuditPage>(apiPath(filter, { before: String(next) }));
      // Those of the first page as it is now: it moves on.
      setOlder({ address, entries: [...rows, ...page.entries], next: page.next_before ?? null });
      setError(undefined);
    } catch (failure) {
      setError(asRefusal(failure));
    }
    setBusy(false);
  };
  const save = async (format: "csv" | "json") => {
    setBusy(true);
    try {
      const all: AuditEntry[] = [];
      let before: number | null | undefined;
      do {
        const page: AuditPage = await get<AuditPage>(apiPath(filter, { limit: String(EXPORT_LIMIT), ...(before ? { before: String(before) } : {}) }));
        all.push(...page.entries);
        before = page.next_before;
      } while (before);
      download(`cairn-audit.${format}`, format === "csv" ? asCsv(all) : all.map((entry) => `${JSON.stringify(entry)}\n`).join(""));
      say(`${all.length} changes are saved.`);
      setError(undefined);
    } catch (failure) {
      setError(asRefusal(failure));
    }
    setBusy(false);
  };

  return (
    <Page title="Audit" actions={<>
      <button type="button" disabled={isBusy} onClick={() => void save("csv")}>Save as CSV</button>
      <button type="button" disabled={isBusy} onClick={() => void save("json")}>Save as JSON</button>
    </>}>
      <form class="filter" role="search" aria-label="Filter" onSubmit={apply} onFocusOut={() => { if (user.trim() !== filter.user || path.trim() !== filter.path) set({}); }}>
        <Field label="User" value={user} onValue={setUser} placeholder="anybody" maxLength={63} />
        <Field label="Path has" value={path} onValue={setPath} placeholder="anything" maxLength={200} />
        <Choice label="When" value={filter.since} onValue={(since) => set({ since })} choices={SPANS} />
        <Check label="Only refused or failed" value={filter.refused} onValue={(refused) => set({ refused })} />
        <button type="submit">Apply</button>
      </form>
      <Failure error={error ?? newest.error} />
      {newest.data?.problem && <Notice tone="bad" title="Changes are not written to disk now.">{newest.data.problem}</Notice>}
      {!newest.data ? <Loading /> : (
        <Table caption="Changes, newest first" rows={rows} rowKey={(entry) => String(entry.id)}
          empty={filter.user || filter.path || filter.since || filter.refused ? "There is no such change." : "Nobody has changed anything yet."}
          columns={[
            { name: "When", show: (entry) => date(entry.at_seconds) },
            { name: "Who", show: (entry) => <><span dir="auto">{entry.user}</span><small>{entry.via === "nothing" ? "not believed" : `by ${entry.via}`}, from {entry.address}</small></> },
            { name: "What", show: (entry) => <><b>{entry.method}</b> <span class="path">{entry.path}</span></> },
            { name: "Answer", show: (entry) => <Badge tone={entry.status >= 500 ? "bad" : entry.status >= 400 ? "warn" : "good"}>{said(entry.status)}</Badge> },
          ]} />
      )}
      {next !== null && <p><button type="button" disabled={isBusy} onClick={() => void showOlder()}>Show older</button></p>}
      {newest.data?.first_seconds != null && <p class="hint">What is kept begins at {date(newest.data.first_seconds)}. In a cluster each node has what was asked of it.</p>}
      <Same command={command(["list"], filter)} request={{ method: "GET", path: apiPath(filter) }} />
    </Page>
  );
}

function said(status: number): string {
  if (status < 400) return `${status} done`;
  if (status === 401) return "401 not let in";
  if (status === 403) return "403 no right";
  return `${status} ${status >= 500 ? "failed" : "refused"}`;
}

function asCsv(entries: AuditEntry[]): string {
  // What a spreadsheet would take for a formula gets a mark: as `cairn audit export` does.
  const quoted = (text: string) => `"${/^[=+\-@\t\r]/.test(text) ? "'" : ""}${text.replaceAll('"', '""')}"`;
  const lines = entries.map((entry) => {
    const at = new Date(entry.at_seconds * 1000).toISOString().replace(".000Z", "Z");
    return [entry.id, at, quoted(entry.user), quoted(entry.via), quoted(entry.address), quoted(entry.method), quoted(entry.path), entry.status].join(",");
  });
  return ["id,time,user,via,address,method,path,status", ...lines, ""].join("\r\n");
}

function download(name: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text]));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  // The browser has begun to read it by then.
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
