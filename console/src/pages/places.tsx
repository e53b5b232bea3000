// Directories of a volume: their quotas and their policies.
import { useState } from "preact/hooks";
import { cairn, part } from "../api";
import { bytes, count, date, exactSize, parseSize } from "../format";
import type { Policy, Quota, QuotaLimit } from "../types";
import { ActionForm, Badge, Card, Check, Choice, Failure, Field, Meter, Table } from "../ui";
import { useApi } from "../use";
import { COMPRESSIONS, DEDUPES, MEDIA, PATTERNS, PROTECTIONS } from "./volumes";

const OF: [string, string][] = [
  ["all", "everything in the directory"],
  ["user", "what a user has in it"],
  ["group", "what a group has in it"],
  ["default-user", "what each user has in it"],
  ["default-group", "what each group has in it"],
];

/** Whom a quota is about. */
function whom(quota: Quota): string {
  if (quota.of === "all") return "all";
  if (quota.of === "user" || quota.of === "group") return `${quota.of} ${quota.id}${quota.inherited ? " (as each)" : ""}`;
  return quota.of === "default-user" ? "each user" : "each group";
}

/** The flags of the command that say whom. */
function whomFlags(of: string, id: string): string[] {
  if (of === "user" || of === "group") return [`--${of}`, id || "ID"];
  return of === "all" ? [] : [`--${of}`];
}

const place = (name: string, path: string) => `${name}/${path.replace(/^\/+/, "")}`;
const rooted = (path: string) => `/${path.trim().replace(/^\/+/, "")}`;

function limits(limit: QuotaLimit, show: (value: number) => string): string {
  const parts = [
    limit.hard != null && `${show(limit.hard)} at most`,
    limit.soft != null && `${show(limit.soft)} for long`,
    limit.advisory != null && `reported from ${show(limit.advisory)} on`,
  ];
  return parts.filter(Boolean).join(", ") || "no limit";
}

/** What is wrong with a quota now. */
function QuotaState({ quota }: { quota: Quota }) {
  const isAt = (limit: number | null | undefined, used: number) => limit != null && used >= limit;
  if (quota.counting) return <Badge tone="calm">Counting existing usage</Badge>;
  if (isAt(quota.bytes.hard, quota.used_bytes) || isAt(quota.files.hard, quota.used_files)) return <Badge tone="bad">Full</Badge>;
  const ends = quota.bytes_grace_ends_seconds ?? quota.files_grace_ends_seconds;
  if (ends != null) return <Badge tone="warn">Soft limit passed; full from {date(ends)} on</Badge>;
  if (isAt(quota.bytes.advisory, quota.used_bytes) || isAt(quota.files.advisory, quota.used_files)) return <Badge tone="warn">Above advisory limit</Badge>;
  return <Badge tone="good">Within its limits</Badge>;
}

type QuotaAction = { kind: "set" } | { kind: "remove"; quota: Quota };

export function Quotas({ name }: { name: string }) {
  const { data, error, again } = useApi<{ quotas: Quota[] }>(`/volumes/${part(name)}/quotas`);
  const [action, setAction] = useState<QuotaAction>();
  const close = { onClose: () => setAction(undefined), onDone: () => void again() };
  return (
    <Card title="Quotas" wide extra={<button type="button" onClick={() => setAction({ kind: "set" })}>Set a quota</button>}>
      <Failure error={error} />
      {data && (
        <Table<Quota> caption="Quotas" rows={data.quotas} rowKey={(quota) => `${quota.path} ${quota.of} ${quota.id ?? ""}`}
          empty="There is no quota: directories, users and groups may use all space of the volume."
          columns={[
            { name: "Directory", show: (quota) => <span class="path" dir="auto">{quota.path}</span> },
            { name: "Of", show: whom },
            { name: "Bytes", show: (quota) => (
              <>
                {bytes(quota.used_bytes)}{quota.physical && " stored"}; {limits(quota.bytes, bytes)}
                {quota.bytes.hard != null && <Meter label={`Used of ${quota.path}`} value={quota.used_bytes} max={quota.bytes.hard} text={`${bytes(quota.used_bytes)} of ${bytes(quota.bytes.hard)}`} />}
              </>) },
            { name: "Files", show: (quota) => <>{count(quota.used_files)}; {limits(quota.files, count)}</> },
            { name: "State", show: (quota) => <QuotaState quota={quota} /> },
            { name: "Actions", show: (quota) => !quota.inherited && <div class="row-actions"><button type="button" onClick={() => setAction({ kind: "remove", quota })} aria-label={`Remove the quota of ${whom(quota)} in ${quota.path}`}>Remove</button></div> },
          ]} />
      )}
      {action?.kind === "set" && <SetQuota name={name} {...close} />}
      {action?.kind === "remove" && <RemoveQuota name={name} quota={action.quota} {...close} />}
    </Card>
  );
}

function RemoveQuota({ name, quota, onClose, onDone }: { name: string; quota: Quota; onClose: () => void; onDone: () => void }) {
  const id = quota.id == null ? "" : String(quota.id);
  const query = `path=${part(quota.path)}&of=${quota.of}${id ? `&id=${id}` : ""}`;
  return (
    <ActionForm title={`Remove the quota of ${whom(quota)} in ${quota.path}`} submit="Remove" isDangerous done="The quota is removed." onClose={onClose} onDone={onDone}
      request={{ method: "DELETE", path: `/volumes/${part(name)}/quota?${query}` }} command={cairn("quota", "remove", place(name, quota.path), ...whomFlags(quota.of, id))}>
      <p>Then only quotas of parent directories and of the volume apply.</p>
    </ActionForm>
  );
}

const SIZE_PATTERN = "\\s*\\d+(\\.\\d+)?\\s*[KMGTPkmgtp]?i?[Bb]?\\s*";

function SetQuota({ name, onClose, onDone }: { name: string; onClose: () => void; onDone: () => void }) {
  const [path, setPath] = useState("/");
  const [of, setOf] = useState("all");
  const [id, setId] = useState("");
  const [hard, setHard] = useState("");
  const [soft, setSoft] = useState("");
  const [files, setFiles] = useState("");
  const [physical, setPhysical] = useState(false);
  const isOfOne = of === "user" || of === "group";
  const [most, some, inodes] = [parseSize(hard), parseSize(soft), Number(files) || undefined];
  const limit = { ...(most ? { hard: most } : {}), ...(some ? { soft: some } : {}) };
  const body = {
    path: rooted(path), of, ...(isOfOne && id ? { id: Number(id) } : {}),
    ...(most || some ? { bytes: limit } : {}), ...(inodes ? { files: { hard: inodes } } : {}), ...(physical ? { physical } : {}),
  };
  return (
    <ActionForm title={`Set a quota in ${name}`} submit="Set" done="The quota holds." onClose={onClose} onDone={onDone}
      request={{ method: "PUT", path: `/volumes/${part(name)}/quotas`, body }}
      command={cairn("quota", "set", place(name, path), ...whomFlags(of, id), ...(most ? ["--hard", exactSize(most)] : []), ...(some ? ["--soft", exactSize(some)] : []), ...(inodes ? ["--files", String(inodes)] : []), physical && "--physical")}>
      <Field label="Directory" value={path} onValue={setPath} required placeholder="/projects" hint="An existing directory. These limits replace those of an earlier quota for the same directory and users." />
      <div class="pair">
        <Choice label="Of" value={of} onValue={setOf} choices={OF} />
        {isOfOne && <Field label={of === "user" ? "Uid" : "Gid"} value={id} onValue={setId} required inputMode="numeric" pattern="\d+" />}
      </div>
      <div class="pair">
        <Field label="Bytes at most" value={hard} onValue={setHard} pattern={SIZE_PATTERN} placeholder="no limit" hint="Such as 100GiB. A limit below the current usage is allowed, and refuses further writes." />
        <Field label="Bytes for long" value={soft} onValue={setSoft} pattern={SIZE_PATTERN} placeholder="no limit" hint="May be passed for a week." />
      </div>
      <Field label="Files at most" value={files} onValue={setFiles} inputMode="numeric" pattern="\s*\d+\s*" placeholder="no limit" />
      <Check label="Count bytes as they are stored, after compression" value={physical} onValue={setPhysical} />
    </ActionForm>
  );
}

type PolicyAction = { kind: "set" } | { kind: "clear" | "apply"; policy: Policy };

export function Policies({ name }: { name: string }) {
  const path = `/volumes/${part(name)}`;
  const { data, error, again } = useApi<{ policies: Policy[] }>(`${path}/policies`);
  const [action, setAction] = useState<PolicyAction>();
  const close = { onClose: () => setAction(undefined), onDone: () => void again() };
  const said = (own: string | null | undefined, holds: string) => (own == null ? <>{holds}<small>inherited</small></> : holds);
  return (
    <Card title="Policies of directories" wide extra={<button type="button" onClick={() => setAction({ kind: "set" })}>Set a policy</button>}>
      <Failure error={error} />
      {data && (
        <Table<Policy> caption="Directories with policies" rows={data.policies} rowKey={(policy) => policy.path}
          empty="None says anything else than the volume."
          columns={[
            { name: "Directory", show: (policy) => <span class="path" dir="auto">{policy.path}</span> },
            { name: "Compression", show: (policy) => said(policy.policy.compression, policy.in_force.compression) },
            { name: "Deduplication", show: (policy) => said(policy.policy.dedupe, policy.in_force.dedupe) },
            { name: "Access", show: (policy) => said(policy.policy.access_pattern, policy.in_force.access_pattern) },
            { name: "Device class", show: (policy) => said(policy.policy.media, policy.in_force.media) },
            { name: "Protection", show: (policy) => said(policy.policy.protection, policy.in_force.protection) },
            { name: "Actions", show: (policy) => (
              <div class="row-actions">
                <button type="button" onClick={() => setAction({ kind: "apply", policy })} aria-label={`Convert what is in ${policy.path}`}>Convert data</button>
                <button type="button" onClick={() => setAction({ kind: "clear", policy })} aria-label={`Remove the policy of ${policy.path}`}>Remove</button>
              </div>) },
          ]} />
      )}
      {action?.kind === "set" && <SetPolicy name={name} {...close} />}
      {action?.kind === "apply" && (
        <ActionForm {...close} title={`Convert what is in ${action.policy.path}`} submit="Convert" done="The conversion has begun."
          request={{ method: "POST", path: `${path}/policy/apply`, body: { path: action.policy.path } }} command={cairn("policy", "apply", place(name, action.policy.path))}>
          <p>A policy applies to data written from then on. This rewrites the existing data in the background.</p>
        </ActionForm>
      )}
      {action?.kind === "clear" && (
        <ActionForm {...close} title={`Remove the policy of ${action.policy.path}`} submit="Remove" isDangerous done={`${action.policy.path} has no policy of its own.`}
          request={{ method: "DELETE", path: `${path}/policy?path=${part(action.policy.path)}` }} command={cairn("policy", "clear", place(name, action.policy.path))}>
          <p>New data then follows the nearest parent directory with a policy, or the volume.</p>
        </ActionForm>
      )}
    </Card>
  );
}

const AS_ABOVE: [string, string] = ["", "as above it"];

function SetPolicy({ name, onClose, onDone }: { name: string; onClose: () => void; onDone: () => void }) {
  const [path, setPath] = useState("");
  const [compression, setCompression] = useState("");
  const [dedupe, setDedupe] = useState("");
  const [pattern, setPattern] = useState("");
  const [media, setMedia] = useState("");
  const [protection, setProtection] = useState("");
  const policy = { ...(compression ? { compression } : {}), ...(dedupe ? { dedupe } : {}), ...(pattern ? { access_pattern: pattern } : {}), ...(media ? { media } : {}), ...(protection ? { protection } : {}) };
  const flags = Object.entries(policy).flatMap(([key, value]) => [`--${key.replaceAll("_", "-")}`, value]);
  return (
    <ActionForm title={`Set a policy in ${name}`} submit="Set" done={`${rooted(path)} has a policy.`} onClose={onClose} onDone={onDone}
      request={{ method: "PUT", path: `/volumes/${part(name)}/policies`, body: { path: rooted(path), policy } }}
      command={cairn("policy", "set", place(name, path || "DIRECTORY"), ...flags)}>
      <p>Applies to data written from then on, in the directory and below it.</p>
      <Field label="Directory" value={path} onValue={setPath} required placeholder="/archive" />
      <Choice label="Compression" value={compression} onValue={setCompression} choices={[AS_ABOVE, ...COMPRESSIONS]} />
      <Choice label="Deduplication" value={dedupe} onValue={setDedupe} choices={[AS_ABOVE, ...DEDUPES]} />
      <Choice label="Access" value={pattern} onValue={setPattern} choices={[AS_ABOVE, ...PATTERNS]} />
      <Choice label="Device class" value={media} onValue={setMedia} choices={[AS_ABOVE, ...MEDIA]} />
      <Choice label="Protection" value={protection} onValue={setProtection} choices={[AS_ABOVE, ...PROTECTIONS]} />
    </ActionForm>
  );
}
