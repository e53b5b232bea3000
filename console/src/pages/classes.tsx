// Classes of service: what each gives, and which volumes are in it.
import { useState } from "preact/hooks";
import { cairn, part } from "../api";
import { bytesPerSecond, count, duration, exactSize, microseconds, parseRate } from "../format";
import { to } from "../router";
import { useSession } from "../session";
import type { ClassLimits, ClassRate, ServiceClass } from "../types";
import { ActionForm, Badge, Choice, Failure, Field, Loading, Page, Table } from "../ui";
import { useApi } from "../use";

type Action = { kind: "create" } | { kind: "change" | "delete"; of: ServiceClass };

/** The limits of a class that are rates, as the API and the flags of the command name them. */
const RATES = ["throughput", "read_throughput", "write_throughput", "iops", "read_iops", "write_iops"] as const;
type RateName = (typeof RATES)[number];

const NAMES: Record<RateName, string> = {
  throughput: "Throughput",
  read_throughput: "Read throughput",
  write_throughput: "Write throughput",
  iops: "Operations",
  read_iops: "Reads",
  write_iops: "Writes",
};

const isBytes = (name: RateName) => name.endsWith("throughput");
const shown = (name: RateName, value: number) => (isBytes(name) ? bytesPerSecond(value) : `${count(value)}/s`);

/** A rate in words. */
function words(name: RateName, rate: ClassRate): string {
  const parts: string[] = [];
  if (rate.per_tib) parts.push(`${shown(name, rate.per_tib)} for each TiB`);
  if (rate.fixed) parts.push(shown(name, rate.fixed));
  const burst = rate.burst_permille ?? 1000;
  const extra = burst > 1000 ? `; ${burst / 1000} times that for up to ${duration(rate.credit_seconds ?? 0)}` : "";
  return parts.join(" and ") + extra;
}

function Limits({ limits }: { limits: ClassLimits }) {
  const lines = RATES.flatMap((name) => {
    const rate = limits[name];
    return rate ? [`${NAMES[name]}: ${words(name, rate)}`] : [];
  });
  if (limits.client_throughput) lines.push(`Each client: ${bytesPerSecond(limits.client_throughput)}`);
  if (limits.client_iops) lines.push(`Each client: ${count(limits.client_iops)} operations/s`);
  if (limits.total_throughput) lines.push(`All its volumes together, on each node: ${bytesPerSecond(limits.total_throughput)}`);
  if (limits.latency_goal_microseconds) lines.push(`Answers within ${microseconds(limits.latency_goal_microseconds)}, 99 of 100`);
  return <ul class="plain">{lines.map((line) => <li key={line}>{line}</li>)}</ul>;
}

export function Classes() {
  const classes = useApi<{ classes: ServiceClass[] }>("/classes");
  const session = useSession();
  const [action, setAction] = useState<Action>();
  const isAdmin = session.role === "admin";
  return (
    <Page title="Classes" actions={isAdmin && <button type="button" class="primary" onClick={() => setAction({ kind: "create" })}>Create a class</button>}>
      <p class="lead">A class limits the rates of its volumes: per TiB of their size limit, or fixed. A volume saves unused rate as credit, and spends credit above its rate.</p>
      <Failure error={classes.error} />
      {!classes.data ? <Loading /> : (
        <Table caption="Classes of service" rows={classes.data.classes} rowKey={(one) => one.name} empty="There is no class."
          columns={[
            { name: "Name", show: (one) => <>{one.name} {one.built_in && <Badge tone="calm">Built in</Badge>}</> },
            { name: "Rates", show: (one) => (one.name === "internal" && !one.limits.total_throughput ? "none, for rebuilds, scrubs, garbage collection and tiers" : <Limits limits={one.limits} />) },
            { name: "Volumes", show: (one) => (one.volumes.length === 0 ? "none" : one.volumes.map((name, at) => <span key={name}>{at > 0 && ", "}<a href={to("volumes", name)}>{name}</a></span>)) },
            { name: "Actions", show: (one) => isAdmin && !one.built_in && (
              <div class="row-actions">
                <button type="button" onClick={() => setAction({ kind: "change", of: one })} aria-label={`Change class ${one.name}`}>Change</button>
                <button type="button" class="danger-quiet" onClick={() => setAction({ kind: "delete", of: one })} aria-label={`Delete class ${one.name}`}>Delete</button>
              </div>) },
          ]} />
      )}
      <p class="hint">A volume is put into a class on its own page.</p>
      {action && <ActionDialog action={action} onClose={() => setAction(undefined)} onDone={() => void classes.again()} />}
    </Page>
  );
}

const RATE_PATTERN = "\\s*\\d+(\\.\\d+)?\\s*[KMGTkmgt]?i?[Bb]?(/s)?\\s*";
const NUMBER_PATTERN = "\\s*\\d+\\s*";

/** What the flags of the command are for limits, by flag. */
function flagsOf(limits: ClassLimits): Map<string, string> {
  const all = new Map<string, string>();
  const add = (flag: string, isOfBytes: boolean, value: number | null | undefined) => {
    if (value) all.set(`--${flag}`, isOfBytes ? exactSize(value) : String(value));
  };
  for (const name of RATES) {
    const flag = name.replaceAll("_", "-");
    add(`${flag}-per-tib`, isBytes(name), limits[name]?.per_tib);
    add(flag, isBytes(name), limits[name]?.fixed);
  }
  const burst = RATES.map((name) => limits[name]).find((rate) => (rate?.burst_permille ?? 1000) > 1000);
  if (burst) {
    all.set("--burst", `${(burst.burst_permille ?? 1000) / 1000}x`);
    all.set("--burst-credit", `${burst.credit_seconds ?? 0}s`);
  }
  add("client-throughput", true, limits.client_throughput);
  add("client-iops", false, limits.client_iops);
  add("total-throughput", true, limits.total_throughput);
  if (limits.latency_goal_microseconds) all.set("--latency-goal", `${limits.latency_goal_microseconds}us`);
  return all;
}

/** The flags that make these limits of those before. */
function flags(now: ClassLimits, before: ClassLimits): string[] {
  const [is, was] = [flagsOf(now), flagsOf(before)];
  const gone = [...was.keys()].filter((flag) => !is.has(flag) && flag !== "--burst-credit");
  return [
    ...[...is].filter(([flag, value]) => was.get(flag) !== value).flat(),
    ...gone.flatMap((flag) => [flag, flag === "--burst" ? "1x" : "none"]),
  ];
}

function ActionDialog({ action, onClose, onDone }: { action: Action; onClose: () => void; onDone: () => void }) {
  if (action.kind === "delete") {
    const { name, volumes } = action.of;
    return (
      <ActionForm title={`Delete class ${name}`} submit="Delete" isDangerous done={`Class ${name} is deleted.`} onClose={onClose} onDone={onDone}
        request={{ method: "DELETE", path: `/classes/${part(name)}` }} command={cairn("class", "delete", name)}>
        <p>{volumes.length > 0 ? `It is refused while volumes are in it: ${volumes.join(", ")}.` : "No volume is in it."}</p>
      </ActionForm>
    );
  }
  return <EditClass of={action.kind === "change" ? action.of : undefined} onClose={onClose} onDone={onDone} />;
}

function EditClass({ of, onClose, onDone }: { of: ServiceClass | undefined; onClose: () => void; onDone: () => void }) {
  const before = of?.limits ?? {};
  const text = (value: number | null | undefined, show: (value: number) => string) => (value ? show(value) : "");
  const [name, setName] = useState(of?.name ?? "");
  const [perTib, setPerTib] = useState(of ? text(before.throughput?.per_tib, exactSize) : "64MiB");
  const [fixed, setFixed] = useState(text(before.throughput?.fixed, exactSize));
  const [iopsPerTib, setIopsPerTib] = useState(text(before.iops?.per_tib, String));
  const [iopsFixed, setIopsFixed] = useState(text(before.iops?.fixed, String));
  const [burst, setBurst] = useState(String((before.throughput?.burst_permille ?? before.iops?.burst_permille ?? 1000) / 1000));
  const [credit, setCredit] = useState(String((before.throughput?.credit_seconds ?? before.iops?.credit_seconds ?? 0) / 60));
  const [client, setClient] = useState(text(before.client_throughput, exactSize));
  const [goal, setGoal] = useState(text(before.latency_goal_microseconds, (value) => String(value / 1000)));
  const bursts = Number(burst) > 1 ? { burst_permille: Math.round(Number(burst) * 1000), credit_seconds: Math.round(Number(credit) * 60) } : {};
  const rate = (per_tib: number | undefined, one: number | undefined) =>
    per_tib || one ? { ...(per_tib ? { per_tib } : {}), ...(one ? { fixed: one } : {}), ...bursts } : undefined;
  const throughput = rate(parseRate(perTib), parseRate(fixed));
  const iops = rate(Number(iopsPerTib) || undefined, Number(iopsFixed) || undefined);
  // Limits that the form does not show stay as they are.
  const { throughput: _, iops: __, client_throughput: ___, latency_goal_microseconds: ____, ...others } = before;
  const each = parseRate(client);
  const goalMicroseconds = Math.round(Number(goal) * 1000) || undefined;
  const limits: ClassLimits = { ...others, ...(throughput ? { throughput } : {}), ...(iops ? { iops } : {}), ...(each ? { client_throughput: each } : {}), ...(goalMicroseconds ? { latency_goal_microseconds: goalMicroseconds } : {}) };
  const request = of
    ? { method: "PUT" as const, path: `/classes/${part(of.name)}`, body: { limits } }
    : { method: "POST" as const, path: "/classes", body: { name, limits } };
  return (
    <ActionForm title={of ? `Change class ${of.name}` : "Create a class"} submit={of ? "Change" : "Create"} onClose={onClose} onDone={onDone}
      done={of ? `Class ${of.name} is changed.` : `Class ${name} is created.`} request={request}
      command={cairn("class", of ? "set" : "create", of?.name ?? (name || "NAME"), ...flags(limits, before))}>
      {of ? <p>It holds within a second, for {of.volumes.length === 0 ? "no volume yet" : of.volumes.join(", ")}.</p>
        : <Field label="Name" value={name} onValue={setName} required maxLength={63} placeholder="gold" />}
      <div class="pair">
        <Field label="Throughput for each TiB" value={perTib} onValue={setPerTib} pattern={RATE_PATTERN} placeholder="none" hint="Per second, reads and writes together." />
        <Field label="and beside that" value={fixed} onValue={setFixed} pattern={RATE_PATTERN} placeholder="none" hint="Whatever the size." />
      </div>
      <div class="pair">
        <Field label="Operations for each TiB" value={iopsPerTib} onValue={setIopsPerTib} pattern={NUMBER_PATTERN} inputMode="numeric" placeholder="none" hint="Per second." />
        <Field label="and beside that" value={iopsFixed} onValue={setIopsFixed} pattern={NUMBER_PATTERN} inputMode="numeric" placeholder="none" hint="Whatever the size." />
      </div>
      <div class="pair">
        <Choice label="Burst" value={burst} onValue={setBurst} choices={burstChoices(burst)} />
        {Number(burst) > 1 && <Field label="A full credit lasts" value={credit} onValue={setCredit} required pattern={NUMBER_PATTERN} inputMode="numeric" hint="Minutes, at the full burst." />}
      </div>
      <div class="pair">
        <Field label="Throughput of each client" value={client} onValue={setClient} pattern={RATE_PATTERN} placeholder="no limit" />
        <Field label="Latency goal" value={goal} onValue={setGoal} pattern="\s*\d+(\.\d+)?\s*" inputMode="decimal" placeholder="none" hint="Milliseconds, for 99 of 100 requests." />
      </div>
    </ActionForm>
  );
}

/** The usual ones, and that which a class has. */
function burstChoices(now: string): [string, string][] {
  const usual = ["1", "2", "4", "8"];
  const all = usual.includes(now) ? usual : [...usual, now];
  return all.map((times) => [times, times === "1" ? "none" : `${times} times the rate`]);
}
