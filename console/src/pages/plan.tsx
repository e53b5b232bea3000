// The planner: designs that do what is wanted, with what they hold, do and cost.
import { useState } from "preact/hooks";
import { API, cairn } from "../api";
import { bytes, bytesPerSecond, count, counted } from "../format";
import { go, to, usePlace } from "../router";
import type { Plan, PlanDesign, PlanMiss, PlanRate } from "../types";
import { Badge, Card, Check, Choice, Facts, Failure, Field, Loading, Notice, Page, Same, Table } from "../ui";
import { useApi } from "../use";

const DOLLARS = new Intl.NumberFormat("en-US", { style: "currency", currency: "USD", maximumFractionDigits: 0 });

const WORKLOADS: [string, string][] = [
  ["", "streaming: large files in order"],
  ["random", "random"],
  ["metadata", "many small files"],
  ["database", "databases"],
  ["archive", "archive: written once, seldom read"],
];
const LEVELS: [string, string][] = [["", "one node: it may stop with it"], ["node", "without any one node"], ["zone", "without any one zone"]];
const FORMATS: [string, string][] = [["cloudformation", "CloudFormation"], ["terraform", "Terraform, OpenTofu"]];

/** The goals that the form has, by the keys of the API, which are the flags of the command. */
const TEXTS = ["capacity", "read", "write", "iops", "write-iops", "clients", "protocols", "survive", "budget", "growth", "years", "region"] as const;

/** The goals in the address of the page. */
function goalsOf(query: URLSearchParams): Record<string, string> {
  const known = [...TEXTS, "workload", "availability", "include-planned"];
  return Object.fromEntries(known.flatMap((key) => {
    const value = query.get(key);
    return value ? [[key, value]] : [];
  }));
}

/** The query of the API: a space is %20 there. */
const queryOf = (goals: Record<string, string>) =>
  Object.entries(goals).map(([key, value]) => `${encodeURIComponent(key)}=${encodeURIComponent(value.trim())}`).join("&");

export function PlanPage() {
  const { query } = usePlace();
  const goals = goalsOf(query);
  const text = queryOf(goals);
  const { data, error } = useApi<Plan>(goals["capacity"] ? `/plan?${text}` : undefined, 3_600_000);
  return (
    <Page title="Plan">
      <p class="lead">The planner evaluates thousands of designs of Cairn and of comparable products by capacity, speed and cost. This page changes nothing on this server.</p>
      <GoalForm key={text} goals={goals} />
      <Failure error={error} />
      {goals["capacity"] && !data && !error && <Loading />}
      {data && <Ranking plan={data} query={text} />}
    </Page>
  );
}

function GoalForm({ goals }: { goals: Record<string, string> }) {
  const [given, setGiven] = useState(goals);
  const field = (key: (typeof TEXTS)[number], label: string, placeholder: string, hint?: string) => (
    <Field label={label} value={given[key] ?? ""} onValue={(value) => setGiven({ ...given, [key]: value })} placeholder={placeholder} hint={hint} required={key === "capacity"} />
  );
  const choice = (key: string, label: string, choices: [string, string][]) => (
    <Choice label={label} value={given[key] ?? ""} onValue={(value) => setGiven({ ...given, [key]: value })} choices={choices} />
  );
  const wanted = Object.entries(given).filter(([, value]) => value.trim() !== "");
  const asked = queryOf(Object.fromEntries(wanted));
  const flags = wanted.flatMap(([key, value]) => (key === "include-planned" ? [`--${key}`] : [`--${key}`, value.trim()]));
  const send = (event: SubmitEvent) => {
    event.preventDefault();
    go(`${to("plan")}?${asked}`);
  };
  return (
    <Card title="Goals" wide>
      <form onSubmit={send}>
        <div class="fields">
          {field("capacity", "Capacity", "200TiB", "Usable, with its unit.")}
          {field("read", "Sequential reads", "6GB/s", "All clients together, steady.")}
          {field("write", "Sequential writes", "2GB/s")}
          {field("iops", "Random reads", "100000", "Of 4 KiB, per second.")}
          {field("write-iops", "Random writes", "20000")}
          {field("clients", "Clients", "any number")}
          {field("protocols", "Protocols", "nfs,s3", "nfs, smb, s3, iscsi; any if left out.")}
          {field("survive", "Failures that lose nothing", "1", "Of disks, volumes or nodes.")}
          {choice("availability", "It works on", LEVELS)}
          {choice("workload", "Use", WORKLOADS)}
          {field("budget", "Budget", "5000USD/month")}
          {field("region", "Region", "us-east-1", "Of the prices.")}
          {field("growth", "Growth", "30%/year")}
          {field("years", "Years ahead", "0")}
        </div>
        <Check label="Also designs that need what this version of Cairn does not have yet" value={given["include-planned"] === "true"}
          onValue={(value) => setGiven({ ...given, "include-planned": value ? "true" : "" })} />
        <Same command={cairn("plan", ...flags)} request={{ method: "GET", path: `/plan?${asked}` }} />
        <div class="buttons"><button type="submit" class="primary">Rank designs</button></div>
      </form>
    </Card>
  );
}

function rate(value: PlanRate) {
  return <>{bytesPerSecond(value.steady)}{value.burst > 1.01 * value.steady && <small>bursts to {bytesPerSecond(value.burst)}</small>}</>;
}

/** A bar as long as a value is in comparison. */
function Bar({ value, most }: { value: number; most: number }) {
  return <span class="bar" aria-hidden="true"><span style={{ width: `${most > 0 ? (100 * value) / most : 0}%` }} /></span>;
}

function Ranking({ plan, query }: { plan: Plan; query: string }) {
  const { prices, designs, misses } = plan;
  const best = designs[0];
  const most = Math.max(...designs.map((design) => design.month_usd), 1);
  const fastest = Math.max(...designs.map((design) => design.read.steady), 1);
  return (
    <>
      {plan.collision && <Notice tone="warn" title="Nothing fits.">{plan.collision}</Notice>}
      {designs.length > 0 && (
        <Card title="Designs that fit" wide extra={<a class="button" href={`${API}/plan/report?${query}`} download="plan.html">Download the report with charts</a>}>
          <Table<PlanDesign> caption="Designs, best first" rows={designs} rowKey={(design) => String(design.rank)} empty=""
            columns={[
              { name: "Design", show: (design) => (
                <div class="wraps">
                  {design.rank}. {design.name} <Badge tone={design.is_cairn ? "good" : "calm"}>{design.is_cairn ? "Cairn" : "Product"}</Badge>
                  <small>{design.why}{design.needs.length > 0 && `; not yet: ${design.needs.join(", ")}`}</small>
                  {design.is_cairn && <Templates design={design} query={query} />}
                </div>) },
              { name: "Per month", isNumber: true, show: (design) => <>{DOLLARS.format(design.month_usd)}<Bar value={design.month_usd} most={most} /></> },
              { name: "Usable", isNumber: true, show: (design) => bytes(design.usable_bytes) },
              { name: "Reads", isNumber: true, show: (design) => <>{rate(design.read)}<Bar value={design.read.steady} most={fastest} /></> },
              { name: "Writes", isNumber: true, show: (design) => rate(design.write) },
              { name: "Random reads", isNumber: true, show: (design) => `${count(design.read_iops)}/s` },
              { name: "Random writes", isNumber: true, show: (design) => `${count(design.write_iops)}/s` },
            ]} />
          <p class="hint">{counted(plan.candidates, "design")} evaluated. Prices of {prices.region} from {prices.date}: {prices.source}.{prices.stale.length > 0 && ` Older than a year: ${prices.stale.join(", ")}.`}</p>
        </Card>
      )}
      {best && <Best design={best} />}
      {misses.length > 0 && (
        <Card title="Designs that do not fit" wide>
          <Table<PlanMiss> caption="Designs that do not fit, the nearest first" rows={misses} rowKey={(miss) => miss.name} empty=""
            columns={[
              { name: "Design", show: (miss) => miss.name },
              { name: "Per month", isNumber: true, show: (miss) => DOLLARS.format(miss.month_usd) },
              { name: "Why not", show: (miss) => <span class="wraps">{miss.why}</span> },
            ]} />
        </Card>
      )}
    </>
  );
}

function Templates({ design, query }: { design: PlanDesign; query: string }) {
  return (
    <span class="row-actions">
      {FORMATS.map(([format, text]) => (
        <a key={format} class="button" href={`${API}/plan/template?${query}&rank=${design.rank}&format=${format}`} download
          aria-label={`Download the ${text} template of design ${design.rank}`}>{text}</a>
      ))}
    </span>
  );
}

function Best({ design }: { design: PlanDesign }) {
  return (
    <Card title={`The first: ${design.name}`} wide>
      <Facts facts={[
        ["Survives", design.survives],
        ["Protocols", design.protocols.join(", ")],
        ["Capacity", `${bytes(design.usable_bytes)} usable of ${bytes(design.raw_bytes)}`],
        ["Reads", `${bytesPerSecond(design.read.steady)} (${design.read.known}), limited by ${design.read.limited_by}`],
        ["Writes", `${bytesPerSecond(design.write.steady)} (${design.write.known}), limited by ${design.write.limited_by}`],
        ["Cost", `${DOLLARS.format(design.month_usd)} a month, ${DOLLARS.format(design.year_usd)} a year, ${DOLLARS.format(design.month_per_usable_tib_usd)} a month for each usable TiB`],
        ["Growth", design.growth],
        ...(design.without.length > 0 ? [["Not in the price", design.without.join("; ")] as [string, string]] : []),
      ]} />
      <Table caption="Components" rows={design.costs} rowKey={(cost) => cost.words} empty=""
        columns={[
          { name: "Part", show: (cost) => cost.words },
          { name: "Count", isNumber: true, show: (cost) => count(cost.count) },
          { name: "Per month", isNumber: true, show: (cost) => DOLLARS.format(cost.month_usd) },
        ]} />
      {design.notes.map((note) => <p key={note} class="hint">{note}</p>)}
    </Card>
  );
}
