// What happened in the system.
import { useEffect, useState } from "preact/hooks";
import { cairn } from "../api";
import { date } from "../format";
import { useLive } from "../live";
import { SPANS, asCsv, entryKey, logPath, secondsAgo, useLog } from "../log";
import { go, to, usePlace } from "../router";
import type { Cluster, EventEntry, EventPage } from "../types";
import type { Tone } from "../ui";
import { Badge, Card, Choice, Failure, Field, Loading, Notice, Page, Same, Table } from "../ui";
import { useApi } from "../use";

const SEVERITIES: [value: string, text: string][] = [
  ["", "Everything"],
  ["warning", "Warnings and errors"],
  ["error", "Errors only"],
];
const TONES: Record<EventEntry["severity"], [string, Tone]> = {
  info: ["Info", "calm"],
  warning: ["Warning", "warn"],
  error: ["Error", "bad"],
};
// Of the last events, on the overview.
const LAST_COUNT = 5;

/** The filter, as the address of the page has it. */
interface Filter {
  severity: string;
  subject: string;
  text: string;
  node: string;
  since: string;
}

function filterOf(query: URLSearchParams): Filter {
  const value = (name: string) => query.get(name) ?? "";
  const severity = SEVERITIES.some(([known]) => known === value("severity")) ? value("severity") : "";
  return { severity, subject: value("subject"), text: value("text"), node: value("node"), since: secondsAgo(value("since")) ? value("since") : "" };
}

function addressOf(filter: Filter): string {
  const query = new URLSearchParams(Object.entries(filter).filter(([, value]) => value));
  return `${to("events")}${query.size > 0 ? `?${query}` : ""}`;
}

const apiPath = ({ severity, subject, text, node, since }: Filter, more: Record<string, string> = {}): string =>
  logPath("/events", { severity, subject, text, node, from: secondsAgo(since), ...more });

const command = ({ severity, subject, text, node, since }: Filter): string =>
  cairn("events", ...(severity ? ["--severity", severity] : []), ...(subject ? ["--subject", subject] : []), ...(text ? ["--text", text] : []), ...(node ? ["--node", node] : []), ...(since ? ["--since", since] : []));

export function Events() {
  const { query } = usePlace();
  const filter = filterOf(query);
  const { live } = useLive();
  const isCluster = live?.node != null;
  const nodes = useApi<Cluster>(isCluster ? "/cluster" : undefined, 60_000).data?.nodes ?? [];
  const address = addressOf(filter);
  // What is typed becomes the filter with Enter, or when the field is left.
  const [subject, setSubject] = useState(filter.subject);
  const [text, setText] = useState(filter.text);
  useEffect(() => {
    setSubject(filter.subject);
    setText(filter.text);
  }, [address]);
  const log = useLog<EventEntry, EventPage>(address, (more) => apiPath(filter, more));
  const set = (change: Partial<Filter>) => go(addressOf({ ...filter, subject: subject.trim(), text: text.trim(), ...change }), true);
  const apply = (event: Event) => {
    event.preventDefault();
    set({});
  };
  const save = (format: "csv" | "json") => log.save(`cairn-events.${format}`, "event", (all) =>
    (format === "csv" ? csv(all) : all.map((event) => `${JSON.stringify(event)}\n`).join("")));
  return (
    <Page title="Events" actions={<>
      <button type="button" disabled={log.isBusy} onClick={() => void save("csv")}>Save as CSV</button>
      <button type="button" disabled={log.isBusy} onClick={() => void save("json")}>Save as JSON</button>
    </>}>
      <p class="lead">Events of the system. Changes by users are in the <a href={to("audit")}>audit log</a>.</p>
      <form class="filter" role="search" aria-label="Filter" onSubmit={apply} onFocusOut={() => { if (subject.trim() !== filter.subject || text.trim() !== filter.text) set({}); }}>
        <Choice label="Severity" value={filter.severity} onValue={(severity) => set({ severity })} choices={SEVERITIES} />
        <Field label="About" value={subject} onValue={setSubject} placeholder="any disk, volume, node" maxLength={128} />
        <Field label="Text has" value={text} onValue={setText} placeholder="anything" maxLength={200} />
        {isCluster && <Choice label="Seen by" value={filter.node} onValue={(node) => set({ node })}
          choices={[["", "Any node"], ...nodes.map((node): [string, string] => [node.name, node.name])]} />}
        <Choice label="When" value={filter.since} onValue={(since) => set({ since })} choices={SPANS} />
        <button type="submit">Apply</button>
      </form>
      <Failure error={log.error} />
      {log.page?.problem && <Notice tone="bad" title="Events are not written to disk now.">{log.page.problem}</Notice>}
      {log.page?.silent?.map((one) => <Notice key={one.node} tone="warn" title={`Without what node ${one.node} alone saw, which does not answer.`}>{one.why}</Notice>)}
      {!log.page ? <Loading /> : <EventTable caption="Events, newest first" events={log.rows} />}
      {log.showOlder && <p><button type="button" disabled={log.isBusy} onClick={() => void log.showOlder?.()}>Show older</button></p>}
      {log.page?.first_seconds != null && <p class="hint">The oldest event is of {date(log.page.first_seconds)}.{isCluster && " An event that several nodes saw is listed once, by the clock of the first."}</p>}
      <Same command={command(filter)} request={{ method: "GET", path: apiPath(filter) }} />
    </Page>
  );
}

function EventTable({ caption, events }: { caption: string; events: EventEntry[] }) {
  return (
    <Table caption={caption} rows={events} rowKey={entryKey} empty="There is no such event."
      columns={[
        { name: "When", show: (event) => <span class="when">{date(event.at_seconds)}</span> },
        { name: "Severity", show: (event) => <Severity event={event} /> },
        { name: "What", show: (event) => <span class="wraps" dir="auto">{event.message}{event.nodes && event.nodes.length > 0 && <small>seen by {event.nodes.join(", ")}</small>}{event.action && <small>{event.action}</small>}</span> },
      ]} />
  );
}

function Severity({ event }: { event: EventEntry }) {
  // What is over is good news, unless it says otherwise.
  if (event.stage === "ended" && event.severity === "info") return <Badge tone="good">Over</Badge>;
  const [word, tone] = TONES[event.severity];
  return <Badge tone={tone}>{word}</Badge>;
}

/** The last few, for the overview. */
export function LastEvents() {
  const { live } = useLive();
  const { data, again } = useApi<EventPage>(`/events?limit=${LAST_COUNT}`, 60_000);
  // A new one is seen at once.
  useEffect(() => void again(), [live?.last_event_id]);
  if (!data || data.entries.length === 0) return null;
  return (
    <Card title="Latest events" wide extra={<a href={to("events")}>All events</a>}>
      <EventTable caption="The last events" events={data.entries} />
    </Card>
  );
}

const csv = (events: EventEntry[]): string =>
  asCsv(["id", "time", "severity", "kind", "stage", "subject", "message", "action", "nodes"], events.map((event) => [
    // Words of the API are written as they are, as by the command line.
    event.id, new Date(event.at_seconds * 1000), { bare: event.severity }, { bare: event.kind }, { bare: event.stage }, event.subject, event.message, event.action ?? "", (event.nodes ?? []).join(" "),
  ]));
