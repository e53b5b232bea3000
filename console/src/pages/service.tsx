// What a volume uses of its class, and the rates of its parts.
import { useState } from "preact/hooks";
import { cairn, part } from "../api";
import { Charts } from "../history";
import { bytesPerSecond, count, counted, duration, exactSize, microseconds, parseRate, percent, perSecond } from "../format";
import { to } from "../router";
import type { Latency, Limit, PartLimit, Volume } from "../types";
import { ActionForm, Card, Choice, Facts, Failure, Field, Loading, Meter, Table } from "../ui";
import { useApi } from "../use";

const NAMES: Record<string, string> = {
  throughput: "Throughput",
  "read-throughput": "Read throughput",
  "write-throughput": "Write throughput",
  iops: "Operations",
  "read-iops": "Reads",
  "write-iops": "Writes",
};

const shown = (of: string, value: number) => (of.endsWith("throughput") ? bytesPerSecond(value) : perSecond(value));

/** A volume's state against its latency objective. */
function goalWords(latency: Latency): string {
  const goal = `${microseconds(latency.goal_microseconds)} for 99 of 100 requests`;
  if (latency.met == null) return `${goal}; not known yet whether it is met`;
  return `${goal}; ${latency.met ? "met" : "missed"}: ${count(latency.late)} of the last ${count(latency.requests)} took longer`;
}

/** One limit of a class: what is used now, and what is saved. */
function LimitRow({ limit }: { limit: Limit }) {
  const name = NAMES[limit.of] ?? limit.of;
  const now = `${shown(limit.of, limit.now)} of ${shown(limit.of, limit.baseline)}`;
  const left = limit.credit_max > 0 ? (100 * limit.credit) / limit.credit_max : 0;
  const ends = limit.credit_ends_seconds == null ? "" : `, which lasts ${duration(limit.credit_ends_seconds)} as it is now`;
  return (
    <div class="limit">
      <h3>{name}</h3>
      <p>{now}{limit.burst > limit.baseline && `, up to ${shown(limit.of, limit.burst)} while there is credit`}</p>
      {limit.credit_max > 0 && (
        <>
          <Meter label={`Credit of ${name.toLowerCase()} that is spent`} value={limit.credit_max - limit.credit} max={limit.credit_max} text={`${percent(left)} of the credit is left`} />
          <p class="hint">{percent(left)} of the credit is left{ends}.</p>
        </>
      )}
    </div>
  );
}

/** The class of a volume, with what it uses of it. */
export function ClassCard({ volume, onChange }: { volume: Volume; onChange: () => void }) {
  const { rates } = volume;
  const inClass = (volume.class ?? "none") !== "none";
  return (
    <Card title="Class of service" extra={<button type="button" onClick={onChange}>Change class</button>}>
      {!inClass ? <p class="empty">The volume is in no class, and has no limits as a whole.</p> : (
        <>
          <p><a href={to("classes")}>{volume.class}</a>{volume.size_limit === "none" && ", and no size limit: rates by the TiB are those of its smallest size"}</p>
          {!rates && <p class="hint">The node that serves the volume counts its use{volume.owner ? `: node ${volume.owner}` : ""}.</p>}
          {rates?.limits.map((limit) => <LimitRow key={limit.of} limit={limit} />)}
          {rates && (
            <Facts facts={[
              ["Now", `${bytesPerSecond(rates.read_bytes_per_second)} read, ${bytesPerSecond(rates.written_bytes_per_second)} written, ${perSecond(rates.operations_per_second)}`],
              ["Waiting for their turn", `${counted(rates.waiting, "request")}; ${count(rates.delayed)} since the start, ${duration(rates.delayed_ms / 1000)} together`],
              ...(rates.latency ? [["Latency goal", goalWords(rates.latency)] as [string, string]] : []),
              ...(rates.client_throughput ? [["Each client", bytesPerSecond(rates.client_throughput)] as [string, string]] : []),
            ]} />
          )}
        </>
      )}
    </Card>
  );
}

/** Rates and credits of a volume over time. */
export function ClassCharts({ name }: { name: string }) {
  return (
    <Charts charts={[
      { title: "Through its class", show: bytesPerSecond, lines: [[`class_read_bytes_per_second:${name}`, "read"], [`class_written_bytes_per_second:${name}`, "written"]] },
      { title: "Credit that is left", show: percent, lines: [[`class_credit_percent:${name}`, "credit"]] },
    ]} />
  );
}

export function SetClass({ volume, onClose, onDone }: { volume: Volume; onClose: () => void; onDone: () => void }) {
  const { data } = useApi<{ classes: { name: string }[] }>("/classes", 60_000);
  const [name, setName] = useState(volume.class ?? "none");
  const choices: [string, string][] = [["none", "none: no limit"], ...(data?.classes ?? []).map((one): [string, string] => [one.name, one.name])];
  return (
    <ActionForm title={`The class of ${volume.name}`} submit="Change" done={name === "none" ? `${volume.name} is in no class.` : `${volume.name} is in class ${name}.`} onClose={onClose} onDone={onDone}
      request={{ method: "PATCH", path: `/volumes/${part(volume.name)}`, body: { class: name } }} command={cairn("volume", "set", volume.name, "--class", name)}>
      <p>The change applies within a second. Requests above a rate are delayed, never refused.</p>
      {data ? <Choice label="Class" value={name} onValue={setName} choices={choices} hint="The page Classes shows what each gives." /> : <Loading />}
    </ActionForm>
  );
}

type Action = { kind: "set" } | { kind: "clear"; limit: PartLimit };

/** LUNs, buckets and networks of clients with rates of their own. */
export function PartLimits({ name }: { name: string }) {
  const path = `/volumes/${part(name)}/limits`;
  const { data, error, again } = useApi<{ limits: PartLimit[] }>(path);
  const [action, setAction] = useState<Action>();
  const close = { onClose: () => setAction(undefined), onDone: () => void again() };
  const rate = (value: number | null | undefined) => (value ? bytesPerSecond(value) : "–");
  return (
    <Card title="Rates of its parts" wide extra={<button type="button" onClick={() => setAction({ kind: "set" })}>Limit a part</button>}>
      <Failure error={error} />
      {data && (
        <Table caption="Parts that have rates of their own" rows={data.limits} rowKey={(limit) => limit.part}
          empty="No LUN, bucket or network of clients has a limit of its own."
          columns={[
            { name: "Part", show: (limit) => <span class="path">{limit.part}</span> },
            { name: "Throughput", isNumber: true, show: (limit) => rate(limit.throughput) },
            { name: "Reads", isNumber: true, show: (limit) => rate(limit.read_throughput) },
            { name: "Writes", isNumber: true, show: (limit) => rate(limit.write_throughput) },
            { name: "Operations", isNumber: true, show: (limit) => (limit.iops ? perSecond(limit.iops) : "–") },
            { name: "Now", show: (limit) => (limit.bytes_per_second == null ? "not known here" : `${bytesPerSecond(limit.bytes_per_second)}, ${perSecond(limit.operations_per_second ?? 0)}`) },
            { name: "Actions", show: (limit) => <div class="row-actions"><button type="button" onClick={() => setAction({ kind: "clear", limit })} aria-label={`Remove the limit of ${limit.part}`}>Remove</button></div> },
          ]} />
      )}
      {action?.kind === "set" && <SetLimit name={name} {...close} />}
      {action?.kind === "clear" && (
        <ActionForm {...close} title={`Remove the limit of ${action.limit.part}`} submit="Remove" isDangerous done={`${action.limit.part} has no limit of its own.`}
          request={{ method: "DELETE", path: `${path}?part=${part(action.limit.part)}` }} command={cairn("limit", "clear", name, action.limit.part)}>
          <p>The limits of the volume's class still apply.</p>
        </ActionForm>
      )}
    </Card>
  );
}

const RATE_PATTERN = "\\s*\\d+(\\.\\d+)?\\s*[KMGTkmgt]?i?[Bb]?(/s)?\\s*";
const KINDS: [string, string][] = [["clients", "a network of clients"], ["lun", "a LUN"], ["bucket", "a bucket"]];
const EXAMPLES: Record<string, string> = { clients: "10.1.0.0/16", lun: "db", bucket: "photos" };

function SetLimit({ name, onClose, onDone }: { name: string; onClose: () => void; onDone: () => void }) {
  const [kind, setKind] = useState("clients");
  const [which, setWhich] = useState("");
  const [all, setAll] = useState("");
  const [reads, setReads] = useState("");
  const [writes, setWrites] = useState("");
  const [iops, setIops] = useState("");
  const of = `${kind}/${which.trim()}`;
  const rates = { throughput: parseRate(all), read_throughput: parseRate(reads), write_throughput: parseRate(writes) };
  const set = Object.entries(rates).filter((entry): entry is [string, number] => entry[1] !== undefined);
  const operations = Number(iops) || undefined;
  const flags = set.flatMap(([key, value]) => [`--${key.replaceAll("_", "-")}`, exactSize(value)]);
  return (
    <ActionForm title={`Limit a part of ${name}`} submit="Set" done={`${of} has rates of its own.`} onClose={onClose} onDone={onDone}
      request={{ method: "PUT", path: `/volumes/${part(name)}/limits`, body: { part: of, ...Object.fromEntries(set), ...(operations ? { iops: operations } : {}) } }}
      command={cairn("limit", "set", name, which.trim() ? of : `${kind}/NAME`, ...flags, ...(operations ? ["--iops", String(operations)] : []))}>
      <p>These limits apply in addition to the volume's class. They replace earlier limits of the part.</p>
      <div class="pair">
        <Choice label="Part" value={kind} onValue={setKind} choices={KINDS} />
        <Field label="Which" value={which} onValue={setWhich} required placeholder={EXAMPLES[kind] ?? ""} />
      </div>
      <Field label="Throughput" value={all} onValue={setAll} pattern={RATE_PATTERN} placeholder="no limit" hint="Per second, reads and writes together: 100MiB." />
      <div class="pair">
        <Field label="Of reads" value={reads} onValue={setReads} pattern={RATE_PATTERN} placeholder="no limit" />
        <Field label="Of writes" value={writes} onValue={setWrites} pattern={RATE_PATTERN} placeholder="no limit" />
      </div>
      <Field label="Operations" value={iops} onValue={setIops} pattern="\s*\d+\s*" inputMode="numeric" placeholder="no limit" hint="Per second." />
    </ActionForm>
  );
}
