// Who changed what and when.
import { useEffect, useState } from "preact/hooks";
import { cairn } from "../api";
import { date } from "../format";
import { go, to, usePlace } from "../router";
import { useLive } from "../live";
import type { AuditEntry, AuditPage, Cluster } from "../types";
import { Badge, Check, Choice, Failure, Field, Loading, Notice, Page, Same, Table } from "../ui";
import { SPANS, asCsv, entryKey, logPath, secondsAgo, useLog } from "../log";
import { useApi } from "../use";

/** The filter, as the address of the page has it. */
interface Filter {
  user: string;
  path: string;
  node: string;
  since: string;
  refused: boolean;
}

function filterOf(query: URLSearchParams): Filter {
  const since = query.get("since") ?? "";
  return { user: query.get("user") ?? "", path: query.get("path") ?? "", node: query.get("node") ?? "", since: secondsAgo(since) ? since : "", refused: query.get("refused") === "true" };
}

function addressOf({ user, path, node, since, refused }: Filter): string {
  const query = new URLSearchParams({ ...(user && { user }), ...(path && { path }), ...(node && { node }), ...(since && { since }), ...(refused && { refused: "true" }) });
  return `${to("audit")}${query.size > 0 ? `?${query}` : ""}`;
}

const apiPath = ({ user, path, node, since, refused }: Filter, more: Record<string, string> = {}): string =>
  logPath("/audit", { user, path, node, from: secondsAgo(since), refused: refused ? "true" : "", ...more });

const command = (words: string[], { user, path, node, since, refused }: Filter): string =>
  cairn("audit", ...words, ...(user ? ["--by", user] : []), ...(path ? ["--path", path] : []), ...(node ? ["--node", node] : []), ...(since ? ["--since", since] : []), refused && "--refused");

export function Audit() {
  const { query } = usePlace();
  const filter = filterOf(query);
  const { live } = useLive();
  const isCluster = live?.node != null;
  const nodes = useApi<Cluster>(isCluster ? "/cluster" : undefined, 60_000).data?.nodes ?? [];
  const address = addressOf(filter);
  // What is typed becomes the filter with Enter, or when the field is left.
  const [user, setUser] = useState(filter.user);
  const [path, setPath] = useState(filter.path);
  useEffect(() => {
    setUser(filter.user);
    setPath(filter.path);
  }, [address]);
  const log = useLog<AuditEntry, AuditPage>(address, (more) => apiPath(filter, more));
  const save = (format: "csv" | "json") => log.save(`cairn-audit.${format}`, "change", (all) =>
    (format === "csv" ? csv(all) : all.map((entry) => `${JSON.stringify(entry)}\n`).join("")));

  const set = (change: Partial<Filter>) => go(addressOf({ ...filter, user: user.trim(), path: path.trim(), ...change }), true);
  const apply = (event: Event) => {
    event.preventDefault();
    set({});
  };
  return (
    <Page title="Audit" actions={<>
      <button type="button" disabled={log.isBusy} onClick={() => void save("csv")}>Save as CSV</button>
      <button type="button" disabled={log.isBusy} onClick={() => void save("json")}>Save as JSON</button>
    </>}>
      <form class="filter" role="search" aria-label="Filter" onSubmit={apply} onFocusOut={() => { if (user.trim() !== filter.user || path.trim() !== filter.path) set({}); }}>
        <Field label="User" value={user} onValue={setUser} placeholder="anybody" maxLength={63} />
        <Field label="Path has" value={path} onValue={setPath} placeholder="anything" maxLength={200} />
        {isCluster && <Choice label="Asked of" value={filter.node} onValue={(node) => set({ node })}
          choices={[["", "Any node"], ...nodes.map((node): [string, string] => [node.name, node.name])]} />}
        <Choice label="When" value={filter.since} onValue={(since) => set({ since })} choices={SPANS} />
        <Check label="Only refused or failed" value={filter.refused} onValue={(refused) => set({ refused })} />
        <button type="submit">Apply</button>
      </form>
      <Failure error={log.error} />
      {log.page?.problem && <Notice tone="bad" title="Changes are not written to disk now.">{log.page.problem}</Notice>}
      {log.page?.silent?.map((one) => <Notice key={one.node} tone="warn" title={`Without what was asked of node ${one.node}, which does not answer.`}>{one.why}</Notice>)}
      {!log.page ? <Loading /> : (
        <Table caption="Changes, newest first" rows={log.rows} rowKey={entryKey}
          empty={filter.user || filter.path || filter.node || filter.since || filter.refused ? "There is no such change." : "There are no changes yet."}
          columns={[
            { name: "When", show: (entry) => date(entry.at_seconds) },
            { name: "Who", show: (entry) => <><span dir="auto">{entry.user}</span><small>{entry.via === "nothing" ? "not believed" : `by ${entry.via}`}, from {entry.address}</small></> },
            ...(isCluster ? [{ name: "Node", show: (entry: AuditEntry) => <span dir="auto">{entry.node}</span> }] : []),
            { name: "What", show: (entry) => <><b>{entry.method}</b> <span class="path">{entry.path}</span></> },
            { name: "Answer", show: (entry) => <Badge tone={entry.status >= 500 ? "bad" : entry.status >= 400 ? "warn" : "good"}>{said(entry.status)}</Badge> },
          ]} />
      )}
      {log.showOlder && <p><button type="button" disabled={log.isBusy} onClick={() => void log.showOlder?.()}>Show older</button></p>}
      {log.page?.first_seconds != null && <p class="hint">The oldest entry is of {date(log.page.first_seconds)}.{isCluster && " The list has the requests to all nodes, by the clocks of the nodes."}</p>}
      <Same command={command(["list"], filter)} request={{ method: "GET", path: apiPath(filter) }} />
    </Page>
  );
}

function said(status: number): string {
  if (status < 400) return `${status} done`;
  if (status === 401) return "401 not logged in";
  if (status === 403) return "403 no right";
  return `${status} ${status >= 500 ? "failed" : "refused"}`;
}

const csv = (entries: AuditEntry[]): string =>
  asCsv(["id", "time", "user", "via", "address", "method", "path", "status", "node"],
    entries.map((entry) => [entry.id, new Date(entry.at_seconds * 1000), entry.user, entry.via, entry.address, entry.method, entry.path, entry.status, entry.node ?? { bare: "" }]));
