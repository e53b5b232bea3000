// One volume: how it is, who may mount it, its snapshots.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { Call } from "../api";
import { cairn, part } from "../api";
import { Charts, SpanPicker } from "../history";
import { bytes, bytesPerSecond, count, date, duration } from "../format";
import { go, to } from "../router";
import type { Export, ExportRule, Mount, Schedules, Snapshot, SnapshotList, Status, Volume } from "../types";
import { ActionForm, Badge, Card, Check, Choice, Code, Facts, Failure, Field, Loading, Meter, Notice, Page, Table } from "../ui";
import { usePaged } from "../paged";
import { useApi } from "../use";
import { Now } from "./activity";
import { Policies, Quotas } from "./places";
import { ClassCard, ClassCharts, PartLimits, SetClass } from "./service";
import { SetTiering } from "./tiers";
import { COMPRESSIONS, DEDUPES, MEDIA, PATTERNS, PROTECTIONS, StateBadge } from "./volumes";

type Action =
  | { kind: "edit" | "delete" | "export" | "snapshot" | "class" | "tiering" }
  | { kind: "clone"; snapshot?: Snapshot }
  | { kind: "schedules"; text: string }
  | { kind: "unexport"; rule: ExportRule }
  | { kind: "delete snapshot" | "lock" | "unlock" | "rename" | "restore"; snapshot: Snapshot };

export function VolumePage({ name }: { name: string }) {
  const path = `/volumes/${part(name)}`;
  const { data: volume, error, again } = useApi<Volume>(path);
  const exports = useApi<{ exports: Export[] }>("/exports");
  // What each would free is counted when somebody asks for it.
  const [withSpace, setWithSpace] = useState(false);
  const snapshots = usePaged<SnapshotList>(`${path}/snapshots${withSpace ? "?space=true" : ""}`, "snapshots", withSpace ? 60_000 : undefined);
  const schedules = useApi<Schedules>(`${path}/schedules`, 60_000);
  const [action, setAction] = useState<Action>();
  const changed = () => {
    void again();
    void exports.again();
    void snapshots.again();
    void schedules.again();
  };
  if (!volume) {
    return (
      <Page title={`Volume ${name}`}>
        {error ? <Failure error={error} /> : <Loading />}
        <p><a href={to("volumes")}>All volumes</a></p>
      </Page>
    );
  }
  const rules = exports.data?.exports.find((one) => one.volume === name)?.rules ?? [];
  const used = `${bytes(volume.used_bytes)} of ${bytes(volume.total_bytes)}`;
  return (
    <Page title={`Volume ${name}`}
      actions={<>
        <button type="button" onClick={() => setAction({ kind: "edit" })}>Change settings</button>
        <button type="button" onClick={() => setAction({ kind: "tiering" })}>Cold data</button>
        <button type="button" onClick={() => setAction({ kind: "clone" })}>Clone</button>
        <button type="button" class="danger-quiet" onClick={() => setAction({ kind: "delete" })}>Delete</button>
      </>}>
      <p class="crumb"><a href={to("volumes")}>All volumes</a></p>
      <Failure error={error ?? exports.error ?? snapshots.error} />
      {volume.problem && <Notice tone="bad" title={volume.problem} />}
      <div class="cards">
        <Card title="State" extra={<StateBadge volume={volume} />}>
          <Meter label="Space used" value={volume.used_bytes} max={volume.total_bytes} text={used} />
          <Facts facts={[
            ["Used", `${used}, ${bytes(volume.free_bytes)} free`],
            ["Files", count(volume.inodes)],
            ["Size limit", volume.size_limit],
            ["Protection", protectionWords(volume)],
            ...(volume.directory_protections ?? []).map((it): [string, string] => ["Of directories", protectionWords(it)]),
            ["Access", volume.access_pattern],
            ["Compression", volume.compression],
            ["Device class", mediaWords(volume)],
            ["Deduplication", volume.deduplicated_bytes ? `${volume.dedupe}; ${bytes(volume.deduplicated_bytes)} deduplicated since the server started` : volume.dedupe ?? "off"],
            ...(volume.clone_of ? [["Clone of", <>{volume.clone_of.deleted ? `${volume.clone_of.volume} (deleted)` : <a href={to("volumes", volume.clone_of.volume)}>{volume.clone_of.volume}</a>} at {volume.clone_of.snapshot}</>] as [string, ComponentChildren]] : []),
            ["Cold data", volume.tiering ? <>{volume.tiering.policy}, to <a href={to("tiers")}>{volume.tiering.tier}</a>; {bytes(volume.tiering.remote_bytes)} are there</> : "stays on the disks"],
            ["Snapshots", `${count(volume.snapshots)}, which alone hold ${bytes(volume.snapshot_bytes)}`],
            ["Created", date(volume.created_seconds)],
          ]} />
        </Card>
        <MountCard name={name} />
        <ClassCard volume={volume} onChange={() => setAction({ kind: "class" })} />
      </div>
      <Now name={name} />
      <Card title="Who may mount it" wide extra={<button type="button" onClick={() => setAction({ kind: "export" })}>Let clients mount it</button>}>
        <Table<ExportRule> caption="Rules of the export" rows={rules} rowKey={(rule) => rule.client}
          empty="Nobody may mount it."
          columns={[
            { name: "Clients", show: (rule) => <span class="path">{rule.client}</span> },
            { name: "Access", show: (rule) => (rule.access === "ro" ? "read only" : "read and write") },
            { name: "Squash", show: (rule) => rule.squash ?? "root" },
            { name: "Reserved port", show: (rule) => (rule.require_reserved_port ? "required" : "not required") },
            { name: "Actions", show: (rule) => <div class="row-actions"><button type="button" onClick={() => setAction({ kind: "unexport", rule })} aria-label={`Remove the rule for ${rule.client}`}>Remove</button></div> },
          ]} />
      </Card>
      <Clients name={name} />
      <Quotas name={name} />
      <Policies name={name} />
      <PartLimits name={name} />
      <Snapshots list={snapshots.data} filter={snapshots.filter} pages={snapshots.pages} schedules={schedules.data} withSpace={withSpace} onSpace={() => setWithSpace(true)} onAction={setAction} />
      <Card title="Over time" wide extra={<SpanPicker />}>
        <Charts charts={[
          { title: "Written by clients", show: bytesPerSecond, lines: [[`volume_written_bytes_per_second:${name}`, "written"]] },
          { title: "Held by files", show: bytes, lines: [[`volume_file_bytes:${name}`, "files"]] },
        ]} />
        {(volume.class ?? "none") !== "none" && <ClassCharts name={name} />}
      </Card>
      {action && <ActionDialog name={name} volume={volume} action={action} onClose={() => setAction(undefined)} onDone={changed} />}
    </Page>
  );
}

function MountCard({ name }: { name: string }) {
  const { data } = useApi<Status>("/status", 60_000);
  if (!data) return null;
  const { port, rpcbind } = data.nfs;
  const ports = rpcbind && port === 2049 ? "" : `,port=${port},mountport=${port}`;
  return (
    <Card title="Mount">
      <Code label={`Mount ${name} on Linux`} text={`sudo mount -t nfs -o vers=3,proto=tcp,nolock${ports} ${location.hostname}:/${name} /mnt`} />
      <Code label={`List ${name} without mounting`} text={`cairn ls -l 'nfs://${location.hostname}:${port}/${name}'`} />
    </Card>
  );
}

/** Whether a path that was mounted is a volume's, or a directory of it. */
const isOf = (name: string, path: string) => {
  const first = path.split("/").find((one) => one !== "" && one !== ".");
  return first === name;
};

function Clients({ name }: { name: string }) {
  const { data, error } = useApi<{ mounts: Mount[] }>("/nfs/mounts");
  const mounts = (data?.mounts ?? []).filter((mount) => isOf(name, mount.path));
  return (
    <Card title="Clients" wide>
      <Failure error={error} />
      {data && (
        <Table caption="Clients that mounted it" rows={mounts} rowKey={(mount) => `${mount.client} ${mount.path}`}
          empty="No client has reported a mount."
          columns={[
            { name: "Address", show: (mount) => <span class="path">{mount.client}</span> },
            { name: "Path", show: (mount) => <span class="path" dir="auto">{mount.path}</span> },
          ]} />
      )}
      <p class="hint">As reported by NFSv3 clients. A client that disappears without an unmount stays in the list.</p>
    </Card>
  );
}

function Snapshots({ list, filter, pages, schedules, withSpace, onSpace, onAction }: {
  list: SnapshotList | undefined; filter: ComponentChildren; pages: (shown: number) => ComponentChildren; schedules: Schedules | undefined; withSpace: boolean; onSpace: () => void; onAction: (action: Action) => void;
}) {
  const hasSome = (list?.snapshots.length ?? 0) > 0;
  return (
    <Card title="Snapshots" wide
      extra={
        <div class="row-actions">
          {hasSome && !withSpace && <button type="button" onClick={onSpace}>Show reclaimable space</button>}
          {schedules && <button type="button" onClick={() => onAction({ kind: "schedules", text: schedules.text })}>Schedule</button>}
          <button type="button" onClick={() => onAction({ kind: "snapshot" })}>Take a snapshot</button>
        </div>
      }>
      {!list ? <Loading /> : (
        <>
          {filter}
          <Table caption="Snapshots, oldest first" rows={list.snapshots} rowKey={(one) => one.name}
            empty="There is no snapshot. A snapshot takes no space until files change; users find it in .snapshot of each directory."
            columns={[
              { name: "Name", show: (one) => <span class="path" dir="auto">{one.name}</span> },
              { name: "Taken", show: (one) => <>{date(one.taken_seconds)}<small>{duration(one.age_seconds)} ago</small></> },
              { name: "Files", isNumber: true, show: (one) => count(one.inodes) },
              { name: "Held", isNumber: true, show: (one) => bytes(one.file_bytes) },
              ...(withSpace ? [{ name: "Frees", isNumber: true, show: (one: Snapshot) => (one.frees_bytes == null ? "–" : bytes(one.frees_bytes)) }] : []),
              { name: "Lock", show: (one) => (one.locked ? <Badge tone="calm">Locked</Badge> : "") },
              { name: "Actions", show: (snapshot) => (
                <div class="row-actions">
                  <button type="button" onClick={() => onAction({ kind: "restore", snapshot })} aria-label={`Restore from snapshot ${snapshot.name}`}>Restore</button>
                  <button type="button" onClick={() => onAction({ kind: "clone", snapshot })} aria-label={`Clone snapshot ${snapshot.name}`}>Clone</button>
                  <button type="button" onClick={() => onAction({ kind: "rename", snapshot })} aria-label={`Rename snapshot ${snapshot.name}`}>Rename</button>
                  <button type="button" onClick={() => onAction({ kind: snapshot.locked ? "unlock" : "lock", snapshot })} aria-label={`${snapshot.locked ? "Unlock" : "Lock"} snapshot ${snapshot.name}`}>{snapshot.locked ? "Unlock" : "Lock"}</button>
                  <button type="button" onClick={() => onAction({ kind: "delete snapshot", snapshot })} aria-label={`Delete snapshot ${snapshot.name}`}>Delete</button>
                </div>
              ) },
            ]} />
          {pages(list.snapshots.length)}
          {(list.held_bytes > 0 || list.freeing > 0) && (
            <p class="hint">
              Snapshots alone hold {bytes(list.held_bytes)}, before redundancy.
              {list.freeing > 0 && ` The space of ${list.freeing} deleted ones is being freed.`}
            </p>
          )}
          <p class="hint">{scheduled(schedules)}</p>
        </>
      )}
    </Card>
  );
}

/** What is taken by itself, and when the next one is due. */
function scheduled(schedules: Schedules | undefined) {
  if (!schedules) return "";
  if (schedules.text === "") return "There is no schedule.";
  const due = schedules.schedules.map((one) => one.next_seconds).filter((next) => next != null);
  const next = due.length > 0 ? `; the next one is due ${date(Math.min(...due))}` : "";
  return `By schedule: ${schedules.text}${next}.`;
}

function ActionDialog({ name, volume, action, onClose, onDone }: {
  name: string; volume: Volume; action: Action; onClose: () => void; onDone: () => void;
}) {
  const common = { onClose, onDone };
  const path = `/volumes/${part(name)}`;
  const [text, setText] = useState(action.kind === "rename" ? action.snapshot.name : action.kind === "snapshot" ? stamp() : action.kind === "schedules" ? action.text : "");
  const [place, setPlace] = useState("");
  const [force, setForce] = useState(false);
  switch (action.kind) {
    case "edit":
      return <EditVolume volume={volume} {...common} />;
    case "class":
      return <SetClass volume={volume} {...common} />;
    case "tiering":
      return <SetTiering volume={volume} {...common} />;
    case "clone": {
      const { snapshot } = action;
      return (
        <ActionForm onClose={onClose} onDone={() => go(to("volumes", text))} title={`Clone ${name}${snapshot ? ` at snapshot ${snapshot.name}` : ""}`} submit="Clone" done={`Volume ${text} is created.`}
          request={{ method: "POST", path: `${path}/volume-clones`, body: { name: text, ...(snapshot ? { snapshot: snapshot.name } : {}) } }}
          command={cairn("volume", "clone", snapshot ? `${name}@${snapshot.name}` : name, text || "NAME")}>
          <p>A clone of any size is ready at once, and shares its data with {name} until either changes. No client may mount it until an export is set.</p>
          <Field label="Name of the clone" value={text} onValue={setText} required maxLength={63} placeholder={`${name}-test`} />
        </ActionForm>
      );
    }
    case "export":
      return <SetExport name={name} {...common} />;
    case "delete":
      return (
        <ActionForm onClose={onClose} onDone={() => go(to("volumes"), true)} title={`Delete volume ${name}`} submit="Delete for good" isDangerous
          done={`Volume ${name} is deleted.`} request={{ method: "DELETE", path: `${path}${force ? "?force=true" : ""}` }}
          command={cairn("volume", "delete", name, force && "--force")}>
          <p>All its data is lost. Type the name of the volume to continue.</p>
          <Field label="Name of the volume" value={text} onValue={setText} required pattern={name.replaceAll(/[.\-]/g, "\\$&")} />
          {volume.exported && <Check label="Delete the volume although it is exported" value={force} onValue={setForce} />}
        </ActionForm>
      );
    case "unexport":
      return (
        <ActionForm {...common} title={`Stop ${action.rule.client} from mounting ${name}`} submit="Remove the rule" isDangerous
          done={`The rule for ${action.rule.client} is removed.`}
          request={{ method: "DELETE", path: `/exports/${part(name)}?client=${part(action.rule.client)}` }}
          command={cairn("export", "remove", name, "--client", action.rule.client)}>
          <p>This applies at once, even to clients that have the volume mounted.</p>
        </ActionForm>
      );
    case "snapshot":
      return (
        <ActionForm {...common} title={`Take a snapshot of ${name}`} submit="Take it" done={`Snapshot ${text} is taken.`}
          request={{ method: "POST", path: `${path}/snapshots`, body: { name: text } }} command={cairn("snapshot", "create", name, text || "NAME")}>
          <Field label="Name" value={text} onValue={setText} required maxLength={100} hint="Letters, digits and .-_:+@, not beginning with a dot." />
        </ActionForm>
      );
    case "schedules":
      return (
        <ActionForm {...common} title={`Snapshots of ${name} by schedule`} submit="Set" done={text.trim() ? `Snapshots of ${name}: ${text}.` : `${name} has no snapshot schedule.`}
          request={{ method: "PUT", path: `${path}/schedules`, body: { schedules: text } }}
          command={cairn("snapshot", "schedule", name, text.trim() || "none")}>
          <p>Each has a name, how many of its snapshots are kept, and a time in the form of cron, in UTC. The oldest that are too many are deleted, but no locked one.</p>
          <Field label="Schedules" value={text} onValue={setText} placeholder="hourly 24, daily 7, weekly 4"
            hint="hourly, daily, weekly and monthly need no time: hourly 24, work 10 (30 8,12,17 * * MON-FRI). Nothing for none." />
        </ActionForm>
      );
    case "restore":
      return (
        <ActionForm {...common} title={`Restore from snapshot ${action.snapshot.name}`} submit="Restore" done={`${place.trim() || text} is as snapshot ${action.snapshot.name} has it.`}
          request={{ method: "POST", path: `${path}/snapshots/${part(action.snapshot.name)}/restore`, body: { path: text, ...(place.trim() ? { to: place.trim() } : {}) } }}
          command={cairn("snapshot", "restore", name, action.snapshot.name, text || "/PATH", ...(place.trim() ? ["--to", place.trim()] : []))}>
          <p>A restored file replaces the current file in one step. A restored directory needs an unused path. Both share their data with the snapshot.</p>
          <Field label="Path in the volume" value={text} onValue={setText} required placeholder="/project/report.odt" />
          <Field label="Where it comes, if not there" value={place} onValue={setPlace} placeholder="/project-old" />
        </ActionForm>
      );
    case "rename":
      return (
        <ActionForm {...common} title={`Rename snapshot ${action.snapshot.name}`} submit="Rename" done={`The snapshot is called ${text}.`}
          request={{ method: "PATCH", path: `${path}/snapshots/${part(action.snapshot.name)}`, body: { name: text } }}
          command={cairn("snapshot", "rename", name, action.snapshot.name, text || "NAME")}>
          <Field label="Name" value={text} onValue={setText} required maxLength={100} hint="Letters, digits and .-_:+@, not beginning with a dot." />
        </ActionForm>
      );
    case "lock":
    case "unlock":
      return (
        <ActionForm {...common} title={`${action.kind === "lock" ? "Lock" : "Unlock"} snapshot ${action.snapshot.name}`}
          submit={action.kind === "lock" ? "Lock" : "Unlock"} done={`Snapshot ${action.snapshot.name} is ${action.kind}ed.`}
          request={{ method: "PATCH", path: `${path}/snapshots/${part(action.snapshot.name)}`, body: { locked: action.kind === "lock" } }}
          command={cairn("snapshot", action.kind, name, action.snapshot.name)}>
          <p>{action.kind === "lock" ? "The snapshot cannot be deleted until it is unlocked." : "The snapshot can be deleted then."}</p>
        </ActionForm>
      );
    case "delete snapshot":
      return (
        <ActionForm {...common} title={`Delete snapshot ${action.snapshot.name}`} submit="Delete" isDangerous done={`Snapshot ${action.snapshot.name} is deleted.`}
          request={{ method: "DELETE", path: `${path}/snapshots/${part(action.snapshot.name)}` }}
          command={cairn("snapshot", "delete", name, action.snapshot.name)}>
          <p>Its space is freed in the background.</p>
        </ActionForm>
      );
  }
}

/** A protection, and what it means now. */
function protectionWords(of: { protection: string; layout: string; disk_failures_tolerated: number }): string {
  const lost = of.disk_failures_tolerated;
  return `${of.protection}: ${of.layout}, ${lost === 0 ? "no disk" : lost === 1 ? "1 disk" : `${lost} disks`} may be lost`;
}

/** The device class of data, and how much data is in which class. */
function mediaWords(volume: Volume): string {
  const parts = (volume.media_bytes ?? []).map((it) =>
    it.on === it.wanted ? `${bytes(it.bytes)} on ${it.on}` : `${bytes(it.bytes)} for ${it.wanted}, elsewhere until that class has room`);
  return parts.length > 0 ? `${volume.media ?? "any"}: ${parts.join(", ")}` : (volume.media ?? "any");
}

/** A name for a snapshot of now. */
const stamp = () => new Date().toISOString().slice(0, 16).replace("T", "-");

function EditVolume({ volume, onClose, onDone }: { volume: Volume; onClose: () => void; onDone: () => void }) {
  const [protection, setProtection] = useState(volume.protection);
  const [pattern, setPattern] = useState(volume.access_pattern);
  const [compression, setCompression] = useState(volume.compression);
  const [dedupe, setDedupe] = useState(volume.dedupe ?? "off");
  const [media, setMedia] = useState(volume.media ?? "any");
  const [limit, setLimit] = useState(volume.size_limit);
  const size = limit.replaceAll(" ", "") || "none";
  const isOther = (now: string, before: string) => now !== before;
  const sized = isOther(size, volume.size_limit.replaceAll(" ", ""));
  const body = {
    ...(isOther(protection, volume.protection) ? { protection } : {}),
    ...(isOther(pattern, volume.access_pattern) ? { access_pattern: pattern } : {}),
    ...(isOther(compression, volume.compression) ? { compression } : {}),
    ...(isOther(dedupe, volume.dedupe ?? "off") ? { dedupe } : {}),
    ...(isOther(media, volume.media ?? "any") ? { media } : {}),
    ...(sized ? { size_limit: size } : {}),
  };
  const flags = Object.entries(body).flatMap(([key, value]) => [`--${key.replaceAll("_", "-")}`, value]);
  // Levels of zstd are set by command; what is set is shown.
  const also = (choices: [string, string][], value: string): [string, string][] =>
    choices.some(([name]) => name === value) ? choices : [...choices, [value, value]];
  return (
    <ActionForm title={`Change volume ${volume.name}`} submit="Change" done={`Volume ${volume.name} is changed.`} onClose={onClose} onDone={onDone}
      request={{ method: "PATCH", path: `/volumes/${part(volume.name)}`, body }} command={cairn("volume", "set", volume.name, ...flags)}>
      <p>Protection, compression, deduplication and device class apply to data written from then on.</p>
      <Choice label="Protection" value={protection} onValue={setProtection} choices={also(PROTECTIONS, protection)} />
      <Field label="Size limit" value={limit} onValue={setLimit} hint="none, or a size such as 500GiB." />
      <Choice label="Access" value={pattern} onValue={setPattern} choices={also(PATTERNS, pattern)} />
      <Choice label="Compression" value={compression} onValue={setCompression} choices={also(COMPRESSIONS, compression)} />
      <Choice label="Deduplication" value={dedupe} onValue={setDedupe} choices={DEDUPES} />
      <Choice label="Device class" value={media} onValue={setMedia} choices={MEDIA} />
    </ActionForm>
  );
}

function SetExport({ name, onClose, onDone }: { name: string; onClose: () => void; onDone: () => void }) {
  const [client, setClient] = useState("");
  const [access, setAccess] = useState("rw");
  const [squash, setSquash] = useState("root");
  const [reserved, setReserved] = useState(false);
  const rule = {
    client: client.trim(),
    ...(access === "rw" ? {} : { access }),
    ...(squash === "root" ? {} : { squash }),
    ...(reserved ? { require_reserved_port: true } : {}),
  };
  const request: Call = { method: "PUT", path: `/exports/${part(name)}`, body: { rules: [rule] } };
  return (
    <ActionForm title={`Let clients mount ${name}`} submit="Let them" done={`${client} may mount ${name}.`} request={request} onClose={onClose} onDone={onDone}
      command={cairn("export", "set", name, "--client", client.trim() || "CIDR", access === "ro" && "--ro",
        ...(squash === "root" ? [] : ["--squash", squash]), reserved && "--require-reserved-port")}>
      <Field label="Clients" value={client} onValue={setClient} required placeholder="10.0.0.0/8"
        hint="An address or a network. If several rules match a client, the narrowest one applies." />
      <Choice label="They may" value={access} onValue={setAccess} choices={[["rw", "read and write"], ["ro", "read only"]]} />
      <Choice label="Users who become the anonymous user" value={squash} onValue={setSquash}
        choices={[["root", "root"], ["all", "everybody"], ["none", "nobody"]]} />
      <Check label="Refuse clients whose port is above 1023" value={reserved} onValue={setReserved} />
    </ActionForm>
  );
}
