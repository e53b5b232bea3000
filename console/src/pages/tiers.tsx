// Tiers: object stores that cold data goes to.
import { useState } from "preact/hooks";
import { cairn, part } from "../api";
import { bytes, count, counted } from "../format";
import { to } from "../router";
import { useSession } from "../session";
import type { Tier, TierVolume, Volume } from "../types";
import { ActionForm, Badge, Card, Choice, Facts, Failure, Field, Loading, Notice, Page, Table } from "../ui";
import { useApi } from "../use";

type Action = { kind: "add" } | { kind: "remove"; tier: Tier };

export const TIERINGS: [string, string][] = [
  ["auto", "cold data: unused for the cooling time"],
  ["snapshot-only", "cold data that only snapshots have"],
  ["all", "all data, once its segments are sealed"],
  ["none", "nothing; offloaded data is promoted back"],
];

/** Those that wait until nobody used it for so many days. */
const COOLS = ["auto", "snapshot-only"];
/** Those that can be for certain files. */
const OF_FILES = ["auto", "all"];

/** Of which files something goes, if not of all. */
function ofFiles(volume: Pick<TierVolume, "files" | "min_size" | "min_age">): string {
  const parts = [
    volume.files && volume.files !== "any" ? `files ${volume.files}` : "",
    volume.min_size && volume.min_size !== "none" ? `of ${volume.min_size} or more` : "",
    volume.min_age && volume.min_age !== "none" ? `not changed for ${volume.min_age}` : "",
  ].filter((part) => part);
  return parts.length ? `; ${parts.join(", ")}` : "";
}

export function Tiers() {
  const tiers = useApi<{ tiers: Tier[] }>("/tiers");
  const session = useSession();
  const [action, setAction] = useState<Action>();
  const isAdmin = session.role === "admin";
  return (
    <Page title="Tiers" actions={isAdmin && <button type="button" class="primary" onClick={() => setAction({ kind: "add" })}>Add a tier</button>}>
      <p class="lead">An object store or a directory for cold data. Names and other metadata of files stay on the disks.</p>
      <Failure error={tiers.error} />
      {!tiers.data ? <Loading /> : tiers.data.tiers.length === 0 ? <p class="empty">There is no tier: all data is on the disks.</p>
        : tiers.data.tiers.map((tier) => <TierCard key={tier.name} tier={tier} onRemove={isAdmin ? () => setAction({ kind: "remove", tier }) : undefined} />)}
      {action?.kind === "add" && <AddTier onClose={() => setAction(undefined)} onDone={() => void tiers.again()} />}
      {action?.kind === "remove" && (
        <ActionForm title={`Remove tier ${action.tier.name}`} submit="Remove" isDangerous done={`Tier ${action.tier.name} is removed.`} onClose={() => setAction(undefined)} onDone={() => void tiers.again()}
          request={{ method: "DELETE", path: `/tiers/${part(action.tier.name)}` }} command={cairn("tier", "remove", action.tier.name)}>
          <p>A tier with data, or one that a volume uses, is not removed. Set the tiering of its volumes to none, and wait until all data is promoted back.</p>
        </ActionForm>
      )}
    </Page>
  );
}

function TierCard({ tier, onRemove }: { tier: Tier; onRemove: (() => void) | undefined }) {
  return (
    <Card title={tier.name} wide extra={<div class="row-actions">
      <Badge tone={tier.working ? "good" : "bad"}>{tier.working ? "Answers" : "Does not answer"}</Badge>
      {onRemove && <button type="button" class="danger-quiet" onClick={onRemove} aria-label={`Remove tier ${tier.name}`}>Remove</button>}
    </div>}>
      {tier.problem && <Notice tone={tier.working ? "warn" : "bad"} title={tier.problem} />}
      <Facts facts={[
        ["Place", <span class="path">{tier.url}</span>],
        ["Data in it", `${bytes(tier.bytes)} in ${counted(tier.objects, "object")}, of which ${bytes(tier.live_bytes)} are in use`],
        ["Saved on the disks", bytes(tier.saved_bytes)],
        ...(tier.month_cents != null ? [["Costs", `${(tier.month_cents / 100).toFixed(2)} USD a month for the bytes, at the list price of ${tier.price_date}`] as [string, string]] : []),
        ["To be deleted", `${counted(tier.unused_objects, "object")}${tier.deleted_volumes > 0 ? `, and those of ${counted(tier.deleted_volumes, "deleted volume")}` : ""}`],
        ["Requests since the start", `${count(tier.reads)} reads (${bytes(tier.read_bytes)}), ${count(tier.writes)} writes (${bytes(tier.written_bytes)}), ${count(tier.deletes)} deletions; ${count(tier.errors)} failed, ${count(tier.wrong)} answers were invalid`],
      ]} />
      <Table<TierVolume> caption={`Volumes in ${tier.name}`} rows={tier.volumes} rowKey={(volume) => volume.name} empty="No volume offloads data here."
        columns={[
          { name: "Volume", show: (volume) => <a href={to("volumes", volume.name)}>{volume.name}</a> },
          { name: "Offloaded data", show: (volume) => (COOLS.includes(volume.tiering) ? `${volume.tiering === "auto" ? "" : "only in snapshots, "}unused for ${volume.cooling_days} days` : TIERINGS.find(([name]) => name === volume.tiering)?.[1] ?? volume.tiering) + ofFiles(volume) },
          { name: "Objects", isNumber: true, show: (volume) => (volume.serving ? count(volume.objects) : "–") },
          { name: "Bytes", isNumber: true, show: (volume) => (volume.serving ? bytes(volume.bytes) : "–") },
          { name: "State", show: (volume) => (volume.problem ? <span class="wraps">{volume.problem}</span> : volume.serving ? "no trouble" : volume.owner ? `node ${volume.owner} owns it` : "not served") },
        ]} />
    </Card>
  );
}

function AddTier({ onClose, onDone }: { onClose: () => void; onDone: () => void }) {
  const [name, setName] = useState("");
  const [url, setUrl] = useState("");
  const [file, setFile] = useState("");
  const path = file.trim();
  return (
    <ActionForm title="Add a tier" submit="Add" done={`Tier ${name} is added.`} onClose={onClose} onDone={onDone}
      request={{ method: "POST", path: "/tiers", body: { name, url: url.trim(), ...(path ? { credentials_file: path } : {}) } }}
      command={cairn("tier", "add", name || "NAME", url.trim() || "URL", ...(path ? ["--credentials-file", path] : []))}>
      <Field label="Name" value={name} onValue={setName} required maxLength={63} placeholder="cold" />
      <Field label="Place" value={url} onValue={setUrl} required placeholder="s3://archive/cairn?region=eu-west-1" hint="s3://BUCKET/PREFIX?region=NAME, az://CONTAINER/PREFIX?account=NAME, gs://BUCKET/PREFIX, each with &endpoint=URL if need be, or file:///PATH. Nobody else's data may be there." />
      <Field label="File with credentials" value={file} onValue={setFile} placeholder="the server's environment, or its machine's own identity" hint="A file on the server that its owner alone can read." />
    </ActionForm>
  );
}

/** What of a volume goes to a tier. */
export function SetTiering({ volume, onClose, onDone }: { volume: Volume; onClose: () => void; onDone: () => void }) {
  const { data } = useApi<{ tiers: Tier[] }>("/tiers", 60_000);
  const now = volume.tiering;
  const [tier, setTier] = useState(now?.tier);
  const [tiering, setTiering] = useState(now?.policy ?? "auto");
  const [days, setDays] = useState(now?.cooling_days ?? "31");
  const [files, setFiles] = useState(now?.files ?? "any");
  const [size, setSize] = useState(now?.min_size ?? "none");
  const [age, setAge] = useState(now?.min_age ?? "none");
  if (!data) return null;
  const chosen = tier ?? data.tiers[0]?.name ?? "";
  const cooling = COOLS.includes(tiering) ? days : undefined;
  const isOfFiles = OF_FILES.includes(tiering);
  // What only snapshots have is of no file.
  const filter: [string, string, string][] = tiering === "none" ? [] : [
    ["tier_files", "--tier-files", isOfFiles ? files.trim() || "any" : "any"],
    ["tier_min_size", "--tier-min-size", isOfFiles ? size.trim() || "none" : "none"],
    ["tier_min_age", "--tier-min-age", isOfFiles ? age.trim() || "none" : "none"],
  ];
  const before = { tier_files: now?.files ?? "any", tier_min_size: now?.min_size ?? "none", tier_min_age: now?.min_age ?? "none" };
  const changed = filter.filter(([name, , value]) => value !== before[name as keyof typeof before]);
  return (
    <ActionForm title={`Cold data of ${volume.name}`} submit="Change" done={`Cold data of ${volume.name}: ${tiering}.`} onClose={onClose} onDone={onDone}
      request={{ method: "PATCH", path: `/volumes/${part(volume.name)}`, body: { tier: chosen, tiering, ...(cooling ? { cooling_days: cooling } : {}), ...Object.fromEntries(changed.map(([name, , value]) => [name, value])) } }}
      command={cairn("volume", "set", volume.name, "--tier", chosen || "TIER", "--tiering", tiering, ...(cooling ? ["--cooling-days", cooling] : []), ...changed.flatMap(([, flag, value]) => [flag, value]))}>
      {data.tiers.length === 0 ? <p>There is no tier yet: <a href={to("tiers")}>add one first</a>.</p>
        : <Choice label="Tier" value={chosen} onValue={setTier} choices={data.tiers.map((one) => [one.name, one.name])} />}
      <Choice label="Offloaded data" value={tiering} onValue={setTiering} choices={TIERINGS} />
      {COOLS.includes(tiering) && <Field label="Days without use" value={days} onValue={setDays} required inputMode="numeric" pattern="\d+" hint="2 to 183." />}
      {isOfFiles && <>
        <Field label="Files" value={files} onValue={setFiles} placeholder="any" hint="any, or name patterns separated by commas, such as *.mp4,*.fastq.gz" />
        <Field label="Least size" value={size} onValue={setSize} placeholder="none" hint="none, or a size such as 1MiB" />
        <Field label="Not changed for" value={age} onValue={setAge} placeholder="none" hint="none, or hours or days, such as 12h or 30d" />
      </>}
    </ActionForm>
  );
}
