// Disks, and what becomes of what is on them.
import { useState } from "preact/hooks";
import type { Call } from "../api";
import { cairn, part } from "../api";
import { Charts, SpanPicker } from "../history";
import { bytes, bytesPerSecond, date, duration, microseconds, parseSize, perSecond, percent } from "../format";
import { survived } from "../health";
import { useLive } from "../live";
import type { Cache, Disk, DiskPlace, Rebuild, Scrub, ScrubReport, ScrubSchedule, Spread } from "../types";
import type { Tone } from "../ui";
import { ActionForm, Badge, Card, Check, Choice, Facts, Failure, Field, Loading, Meter, Notice, Page, Progress, Table } from "../ui";
import { useApi } from "../use";
import { MEDIA } from "./volumes";

const STATES: Record<Disk["state"], [word: string, tone: Tone]> = {
  ok: ["OK", "good"],
  unresponsive: ["Unresponsive", "bad"],
  failing: ["Failing", "bad"],
  returning: ["Returning", "warn"],
  missing: ["Missing", "bad"],
  failed: ["Failed", "bad"],
  draining: ["Draining", "warn"],
  drained: ["Drained", "calm"],
};

/** Disks that can be emptied: also such that are not counted on now. */
const TAKES_DRAIN: Disk["state"][] = ["ok", "unresponsive", "failing", "returning"];

const CACHE_STATES: Record<Cache["state"], [word: string, tone: Tone]> = {
  ok: ["OK", "good"],
  opening: ["Opening", "calm"],
  not_open: ["Not open", "bad"],
  let_alone: ["Failing", "bad"],
};

type Role = "data" | "journal" | "cache";
const ROLES: [Role, string][] = [
  ["data", "Data"],
  ["journal", "Journal: logs and metadata alone, on a faster disk"],
  ["cache", "Read cache: data that is read often, on a faster disk"],
];

type Action = { kind: "uncache"; cache: Cache } | { kind: "add" } | { kind: "drain" | "cancel" | "media" | "remove" | "replace" | "retry"; disk: Disk } | { kind: "scrub" } | { kind: "pause" } | { kind: "hold" | "resume" } | { kind: "schedule"; schedule: ScrubSchedule };

export function Pool() {
  const { data, error, again } = useApi<{ disks: Disk[] }>("/disks", 5_000);
  const caches = useApi<{ caches: Cache[] }>("/caches", 5_000);
  const rebuild = useApi<Rebuild>("/rebuild", 5_000);
  const scrub = useApi<Scrub>("/scrub", 5_000);
  const schedule = useApi<ScrubSchedule>("/scrub/schedule", 60_000);
  const spread = useApi<Spread>("/spread", 5_000);
  const { live } = useLive();
  const [action, setAction] = useState<Action>();
  const changed = () => {
    void again();
    void caches.again();
    void rebuild.again();
    void scrub.again();
    void schedule.again();
    void spread.again();
  };
  const disks = data?.disks ?? [];
  return (
    <Page title="Pool" actions={<button type="button" class="primary" onClick={() => setAction({ kind: "add" })}>Add a disk</button>}>
      <Failure error={error ?? caches.error ?? rebuild.error ?? scrub.error ?? schedule.error ?? spread.error} />
      {live && (
        <p class="lead">
          New data is stored as <b>{live.pool.protection}</b>:{" "}
          {survived(live.pool, live.disk_count)
            ? `any ${survived(live.pool, live.disk_count)} may be lost without loss of data.`
            : `the loss of a ${live.pool.devices == null ? "disk" : "device"} is the loss of data.`}
        </p>
      )}
      {!data ? <Loading /> : <Disks disks={disks} onAction={setAction} />}
      {caches.data && caches.data.caches.length > 0 && <Caches caches={caches.data.caches} onAction={setAction} />}
      <div class="cards">
        <RebuildCard rebuild={rebuild.data} />
        <SpreadCard spread={spread.data} onAction={setAction} />
        <ScrubCard scrub={scrub.data} onAction={setAction} />
        <ScheduleCard scrub={scrub.data} schedule={schedule.data} onAction={setAction} />
      </div>
      <Card title="Disks over time" wide extra={<SpanPicker />}>
        <Charts
          charts={[
            { title: "Mean latency of an operation", show: microseconds, lines: disks.slice(0, 8).map((disk) => [`disk_latency_microseconds:${disk.id}`, name(disk)]) },
            { title: "Operations", show: perSecond, lines: disks.slice(0, 8).map((disk) => [`disk_operations_per_second:${disk.id}`, name(disk)]) },
            { title: "Rebuild", show: bytesPerSecond, lines: [["rebuild_bytes_per_second", "worked on"]] },
            { title: "Free space", show: bytes, lines: [["pool_free_bytes", "all disks"]] },
          ]}
        />
        {disks.length > 8 && <p class="hint">The first eight disks are drawn; the history has all.</p>}
      </Card>
      {action && <ActionDialog action={action} onClose={() => setAction(undefined)} onDone={changed} />}
    </Page>
  );
}

const name = (disk: Disk) => disk.label.split("/").filter(Boolean).at(-1) ?? disk.id.slice(0, 8);

function Caches({ caches, onAction }: { caches: Cache[]; onAction: (action: Action) => void }) {
  return (
    <Card title="Read caches" wide>
      <Table
        caption="Read caches"
        rows={caches}
        rowKey={(cache) => cache.id}
        empty="There are none."
        columns={[
          { name: "Folder", show: (cache) => <><span class="path" dir="auto">{cache.path}</span><small>{cache.id.slice(0, 8)}</small></> },
          { name: "State", show: (cache) => <><Badge tone={CACHE_STATES[cache.state][1]}>{CACHE_STATES[cache.state][0]}</Badge>{cache.problem && <small class="problem">{cache.problem}</small>}</> },
          { name: "Size", isNumber: true, show: (cache) => bytes(cache.size_bytes) },
          { name: "Errors", isNumber: true, show: (cache) => cache.errors },
          { name: "Actions", show: (cache) => <button type="button" onClick={() => onAction({ kind: "uncache", cache })} aria-label={`Remove ${cache.path}`}>Remove</button> },
        ]}
      />
    </Card>
  );
}

function Disks({ disks, onAction }: { disks: Disk[]; onAction: (action: Action) => void }) {
  const { number } = useLive();
  const [filter, setFilter] = useState("");
  const wanted = filter.trim().toLowerCase();
  const shown = disks.filter((disk) => disk.label.toLowerCase().includes(wanted) || disk.id.startsWith(wanted));
  const errors = (disk: Disk) => disk.read_errors + disk.write_errors + disk.full_errors + disk.checksum_errors;
  const errorWords = (disk: Disk) =>
    [["read", disk.read_errors], ["write", disk.write_errors], ["full", disk.full_errors], ["checksum", disk.checksum_errors]]
      .filter(([, count]) => Number(count) > 0).map(([kind, count]) => `${count} ${kind}`).join(", ");
  const latency = (disk: Disk) => {
    const value = number(`disk_latency_microseconds:${disk.id}`);
    return value === undefined ? "–" : microseconds(value);
  };
  return (
    <>
    {disks.length > 16 && <Field label="Filter by folder or id" value={filter} onValue={setFilter} type="search" />}
    <Table
      caption="Disks of the pool"
      rows={shown}
      rowKey={(disk) => disk.id}
      empty={disks.length > 0 ? "No disk is like that." : "The pool has no disks."}
      columns={[
        { name: "Disk", show: (disk) => <><span class="path" dir="auto">{disk.label || "(folder unknown)"}</span><small>{disk.id.slice(0, 8)}</small></> },
        { name: "Role", show: (disk) => (disk.role === "journal" ? "Journal" : "Data") },
        { name: "Kind", show: (disk) => (disk.media && disk.media !== "any" ? disk.media : "–") },
        { name: "State", show: (disk) => <><Badge tone={STATES[disk.state][1]}>{STATES[disk.state][0]}</Badge>{disk.problem && <small class="problem">{disk.problem}</small>}</> },
        { name: "Used", show: (disk) => {
          const used = disk.total_bytes - disk.free_bytes;
          const text = `${bytes(used)} of ${bytes(disk.total_bytes)}`;
          return disk.total_bytes > 0 ? <><Meter label={`Space used on ${disk.label}`} value={used} max={disk.total_bytes} text={text} /><small>{text}</small></> : "–";
        } },
        { name: "Shards", isNumber: true, show: (disk) => disk.shards },
        { name: "Logs", isNumber: true, show: (disk) => disk.logs },
        { name: "Latency", isNumber: true, show: latency },
        { name: "Errors", isNumber: true, show: (disk) => (errors(disk) > 0 ? <span class="problem">{errorWords(disk)}</span> : "0") },
        { name: "Actions", show: (disk) => (
          <div class="row-actions">
            {TAKES_DRAIN.includes(disk.state) && <button type="button" onClick={() => onAction({ kind: "drain", disk })} aria-label={`Drain ${disk.label}`}>Drain</button>}
            {(disk.state === "draining" || disk.state === "drained") && <button type="button" onClick={() => onAction({ kind: "cancel", disk })} aria-label={`Stop draining ${disk.label}`}>Keep</button>}
            {disk.state === "failed" && <button type="button" onClick={() => onAction({ kind: "retry", disk })} aria-label={`Try ${disk.label} again`}>Try again</button>}
            <button type="button" onClick={() => onAction({ kind: "media", disk })} aria-label={`Device class of ${disk.label}`}>Class</button>
            <button type="button" onClick={() => onAction({ kind: "replace", disk })} aria-label={`Replace ${disk.label}`}>Replace</button>
            {disk.state !== "ok" && <button type="button" onClick={() => onAction({ kind: "remove", disk })} aria-label={`Remove ${disk.label}`}>Remove</button>}
          </div>
        ) },
      ]}
    />
    </>
  );
}

function RebuildCard({ rebuild }: { rebuild: Rebuild | undefined }) {
  if (!rebuild) return null;
  return (
    <Card title="Moving and rebuilding" extra={<Badge tone={rebuild.running ? "warn" : "calm"}>{rebuild.running ? "Running" : "Idle"}</Badge>}>
      {rebuild.running && <Progress label="Rebuild" value={rebuild.moved_bytes} max={rebuild.moved_bytes + rebuild.bytes_left} />}
      <Facts
        facts={[
          ["Left", `${rebuild.shards_left} shards, ${bytes(rebuild.bytes_left)}${rebuild.seconds_left != null ? `, about ${duration(rebuild.seconds_left)}` : ""}`],
          ["Not readable in place", `${rebuild.shards_missing} shards`],
          ["Done since the start", `${rebuild.shards_moved} shards, ${bytes(rebuild.moved_bytes)}`],
          ["Lost", rebuild.lost_bytes > 0 ? <span class="problem">{bytes(rebuild.lost_bytes)}</span> : "nothing"],
          ["Limit", rebuild.rate_bytes_per_second > 0 ? bytesPerSecond(rebuild.rate_bytes_per_second) : "none"],
        ]}
      />
      {rebuild.problems.map((problem) => <Notice key={problem} tone="warn" title={problem} />)}
    </Card>
  );
}

const SPREAD_STAGES: Record<Spread["stage"], [word: string, tone: Tone, what: string]> = {
  even: ["Even", "good", "Disks of a kind are about equally full."],
  moving: ["Moving", "good", "Data moves to emptier disks of its kind, one shard after the other. Clients come first."],
  paused: ["Paused", "warn", "An operator paused it, in a cluster on all nodes. It stays so over restarts."],
  resting: ["Waiting", "calm", "Disks are not equally full, and the maintenance window is closed."],
  waiting: ["Waiting", "calm", "A disk is away, drains or was lost: its data comes first."],
  settled: ["Settled", "calm", "Disks are not equally full, but the node that answers has nothing that would be as safe on an emptier one."],
};

function SpreadCard({ spread, onAction }: { spread: Spread | undefined; onAction: (action: Action) => void }) {
  if (!spread) return null;
  const [word, tone, what] = SPREAD_STAGES[spread.stage];
  const share = (permille: number) => percent(permille / 10);
  return (
    <Card title="Moving to emptier disks" extra={<Badge tone={tone}>{word}</Badge>}>
      <p class="hint">{what}</p>
      <Facts
        facts={[
          ["In use", `${share(spread.least_permille)} of the emptiest disk, ${share(spread.most_permille)} of the fullest`],
          ["Above the mean of their kind", bytes(spread.excess_bytes)],
          ["Moved by this node since its start", bytes(spread.moved_bytes)],
          ...(spread.rests_until_seconds != null ? [["Waits until", date(spread.rests_until_seconds)] as [string, string]] : []),
        ]}
      />
      <div class="buttons">
        {spread.paused
          ? <button type="button" onClick={() => onAction({ kind: "resume" })} aria-label="Go on moving to emptier disks">Go on</button>
          : <button type="button" onClick={() => onAction({ kind: "hold" })} aria-label="Pause moving to emptier disks">Pause</button>}
      </div>
    </Card>
  );
}

const STAGES: Record<Scrub["stage"], [word: string, tone: Tone]> = {
  never: ["Never run", "calm"],
  running: ["Running", "good"],
  paused: ["Paused", "warn"],
  done: ["Done", "calm"],
};

function ScrubCard({ scrub, onAction }: { scrub: Scrub | undefined; onAction: (action: Action) => void }) {
  const report = useApi<ScrubReport>(scrub && scrub.damaged > 0 ? "/scrub/report" : undefined, 60_000);
  if (!scrub) return null;
  const [word, tone] = STAGES[scrub.stage];
  return (
    <Card title="Scrub" extra={<Badge tone={tone}>{word}</Badge>}>
      <p class="hint">A scrub reads all stored data, verifies its checksums, and repairs damage.</p>
      {scrub.stage !== "never" && (
        <>
          {scrub.stage !== "done" && <Progress label="Scrub" value={scrub.done_bytes} max={scrub.total_bytes} />}
          <Facts
            facts={[
              ["Begun", date(scrub.started_seconds)],
              ...(scrub.stage === "done" ? [["Ended", date(scrub.finished_seconds)] as [string, string]] : []),
              ["Read", `${bytes(scrub.done_bytes)} of about ${bytes(scrub.total_bytes)}${scrub.seconds_left != null && scrub.stage === "running" ? `, about ${duration(scrub.seconds_left)} left` : ""}`],
              ["Wrong", scrub.wrong_bytes > 0 ? `${bytes(scrub.wrong_bytes)}, ${bytes(scrub.repaired_bytes)} repaired` : "nothing"],
              ["Damaged for good", scrub.damaged > 0 ? <span class="problem">{scrub.damaged} places</span> : "nothing"],
            ]}
          />
        </>
      )}
      {report.data && report.data.damaged.length > 0 && (
        <Table caption="Unreadable parts of files" rows={report.data.damaged} rowKey={(one) => `${one.volume} ${one.inode} ${one.start}`} empty=""
          columns={[
            { name: "File", show: (one) => <span dir="auto">{one.volume}: {one.paths[0] ?? `inode ${one.inode}`}</span> },
            { name: "Bytes", isNumber: true, show: (one) => `${one.start}–${one.end}` },
          ]} />
      )}
      <div class="buttons">
        {scrub.stage === "running"
          ? <button type="button" onClick={() => onAction({ kind: "pause" })}>Pause</button>
          : <button type="button" onClick={() => onAction({ kind: "scrub" })}>{scrub.stage === "paused" ? "Continue" : "Start a scrub"}</button>}
      </div>
    </Card>
  );
}

/** What begins by itself, and when: of the whole cluster. */
function ScheduleCard({ scrub, schedule, onAction }: { scrub: Scrub | undefined; schedule: ScrubSchedule | undefined; onAction: (action: Action) => void }) {
  if (!schedule) return null;
  const until = schedule.is_open
    ? schedule.closes_seconds != null ? `open, until ${date(schedule.closes_seconds)}` : "open"
    : schedule.opens_seconds != null ? `closed, until ${date(schedule.opens_seconds)}` : "closed";
  return (
    <Card title="Maintenance window" extra={<Badge tone={schedule.is_open ? "good" : "calm"}>{schedule.is_open ? "Open" : "Closed"}</Badge>}>
      <p class="hint">Scheduled scrubs, moves of volumes for load balance, and moves of data to emptier disks and of metadata to faster disks wait for the window. Rebuilds and repairs do not.</p>
      <Facts
        facts={[
          ["Window, in UTC", schedule.window ? <><code>{schedule.window}</code>, {until}</> : "none: always open"],
          ["A scrub begins", schedule.every ? `each ${schedule.every}` : "only when started by hand"],
          ...(scrub?.rests_until_seconds != null ? [["The scrub waits until", date(scrub.rests_until_seconds)] as [string, string]] : []),
          ...(scrub?.next_seconds != null ? [["Next scrub", date(scrub.next_seconds)] as [string, string]] : []),
        ]}
      />
      <div class="buttons">
        <button type="button" onClick={() => onAction({ kind: "schedule", schedule })}>Change</button>
      </div>
    </Card>
  );
}

function ScheduleForm({ schedule, onClose, onDone }: { schedule: ScrubSchedule; onClose: () => void; onDone: () => void }) {
  const [every, setEvery] = useState(schedule.every ?? "");
  const [window, setWindow] = useState(schedule.window ?? "");
  const body = { ...(every.trim() ? { every: every.trim() } : {}), ...(window.trim() ? { window: window.trim() } : {}) };
  const isNone = Object.keys(body).length === 0;
  return (
    <ActionForm onClose={onClose} onDone={onDone} title="Maintenance window" submit="Change" done="The maintenance window is changed."
      request={isNone ? { method: "DELETE", path: "/scrub/schedule" } : { method: "PUT", path: "/scrub/schedule", body }}
      command={cairn("scrub", "schedule", ...(isNone ? ["--clear"] : []), ...(body.every ? ["--every", body.every] : []), ...(body.window ? ["--window", body.window] : []))}>
      <Field label="Time between scrubs" value={every} onValue={setEvery} placeholder="no schedule" hint="Hours or days from start to start, such as 12h or 30d." />
      <Field label="Window, in UTC" value={window} onValue={setWindow} placeholder="always open" hint="Days and times of the week, such as sat:22:00-06:00, daily:01:00-05:00 or mon-fri:02:00-04:00,sat,sun:00:00-24:00." />
    </ActionForm>
  );
}

/** What the folder is on that is to become a disk, to be confirmed. */
function Place({ place }: { place: DiskPlace }) {
  const others = place.shares_with.join(", ");
  return (
    <>
      <p>
        {place.exists ? `${place.path} is on ` : `${place.path} does not exist. It would be created on `}
        <strong>{place.device}</strong> ({place.file_system} at {place.mount_point}), {bytes(place.total_bytes)} with {bytes(place.free_bytes)} free.
      </p>
      {place.mount_point === "/" && <Notice tone="warn">That is the file system of the machine itself. Is the drive mounted, and the name right?</Notice>}
      {others && <Notice tone="warn">{`The drive has ${others} already: its loss loses all of them.`}</Notice>}
    </>
  );
}

function ActionDialog({ action, onClose, onDone }: { action: Action; onClose: () => void; onDone: () => void }) {
  const [path, setPath] = useState("");
  const [wipe, setWipe] = useState(false);
  const [create, setCreate] = useState(false);
  const [force, setForce] = useState(false);
  const [rate, setRate] = useState("");
  const [role, setRole] = useState<Role>("data");
  const [size, setSize] = useState("");
  const [media, setMedia] = useState("disk" in action ? (action.disk.media ?? "any") : "any");
  const common = { onClose, onDone };
  const disk = "disk" in action ? action.disk : undefined;
  const id = disk?.id ?? "";
  const body = { path: path.trim(), wipe, create };
  const look = {
    path: `/disk-place?path=${encodeURIComponent(path.trim())}`,
    shown: (place: unknown) => <Place place={place as DiskPlace} />,
  };
  const making = <Check label="Create the folder if it does not exist" value={create} onValue={setCreate} />;
  const folder = (
    <>
      <Field label="Folder on the server" value={path} onValue={setPath} required placeholder="/srv/disk7"
        hint="An empty folder on a device of its own." />
      {making}
      <Check label="Accept a folder that was a Cairn disk, and delete its content" value={wipe} onValue={setWipe} />
    </>
  );
  switch (action.kind) {
    case "add": {
      const choice = <Choice label="What it is for" value={role} onValue={(value) => setRole(value as Role)} choices={ROLES} />;
      if (role === "cache") {
        return (
          <ActionForm {...common} title="Add a disk" submit="Add" look={look} done={`${path} is a read cache.`}
            request={{ method: "POST", path: "/caches", body: { path: path.trim(), size_bytes: parseSize(size) ?? 0, create } }}
            command={cairn("disk", "add", path || "FOLDER", "--role", "cache", "--size", size.replaceAll(" ", "") || "SIZE", create && "--create")}>
            {choice}
            <p>A read cache keeps data from its second read on. Its loss loses no data.</p>
            <Field label="Folder on the server" value={path} onValue={setPath} required placeholder="/nvme/cairn" hint="On a file system with so much room." />
            {making}
            <Field label="Size" value={size} onValue={setSize} required placeholder="100GiB" pattern="\s*\d+(\.\d+)?\s*[KMGTkmgt]?i?[Bb]?\s*" hint="256MiB at least." />
          </ActionForm>
        );
      }
      return (
        <ActionForm {...common} title="Add a disk" submit="Add" look={look} done={`${path} is a disk of the pool.`}
          request={{ method: "POST", path: "/disks", body: { ...body, role, ...(media === "any" ? {} : { media }) } }}
          command={cairn("disk", "add", path || "FOLDER", ...(role === "journal" ? ["--role", "journal"] : []), ...(media === "any" ? [] : ["--media", media]), create && "--create", wipe && "--wipe")}>
          {choice}
          <p>{role === "journal"
            ? "The disk gets only logs and metadata of all volumes. For the full gain, a pool needs as many journal disks as a log has copies: three in a pool of three or more disks."
            : "New data goes to it as well. Existing data moves to it in the background, until all disks are about equally full."}</p>
          <Choice label="Device class" value={media} onValue={setMedia} choices={MEDIA} />
          {folder}
        </ActionForm>
      );
    }
    case "uncache":
      return (
        <ActionForm {...common} title={`Remove ${action.cache.path}`} submit="Remove" done={`Removed read cache ${action.cache.path}.`}
          request={{ method: "DELETE", path: `/caches/${part(action.cache.id)}` }} command={cairn("disk", "remove", action.cache.id)}>
          <p>Its data is also on the disks of the pool. Its folder is emptied.</p>
        </ActionForm>
      );
    case "replace":
      return (
        <ActionForm {...common} title={`Replace ${disk?.label}`} submit="Replace" done={`${path} takes the place of ${disk?.label}.`}
          request={{ method: "POST", path: `/disks/${part(id)}/replace`, body }}
          command={cairn("disk", "replace", id, path || "FOLDER", create && "--create", wipe && "--wipe")}>
          <p>The data of the old disk moves to other disks, or is rebuilt if the disk is lost. Then the old disk leaves the pool; in a cluster, once you remove it.</p>
          {folder}
        </ActionForm>
      );
    case "media":
      return (
        <ActionForm {...common} title={`Device class of ${disk?.label}`} submit="Change" done={`The device class of ${disk?.label} is changed.`}
          request={{ method: "PATCH", path: `/disks/${part(id)}`, body: { media } }} command={cairn("disk", "set", id, "--media", media)}>
          <p>Data whose policy asks for a device class moves to disks of that class. Other data stays.</p>
          <Choice label="Device class" value={media} onValue={setMedia} choices={MEDIA} />
        </ActionForm>
      );
    case "drain":
    case "cancel": {
      const draining = action.kind === "drain";
      return (
        <ActionForm {...common} title={draining ? `Drain ${disk?.label}` : `Keep ${disk?.label}`} submit={draining ? "Drain" : "Keep"}
          done={draining ? `${disk?.label} is being drained.` : `${disk?.label} stays.`}
          request={{ method: "PATCH", path: `/disks/${part(id)}`, body: { draining } }}
          command={cairn("disk", "drain", id, !draining && "--cancel")}>
          <p>{draining ? "Its data moves to the other disks while clients work. Then it can be removed." : "New data goes to it again."}</p>
        </ActionForm>
      );
    }
    case "retry":
      return (
        <ActionForm {...common} title={`Try ${disk?.label} again`} submit="Try again" done={`${disk?.label} is used again.`}
          request={{ method: "POST", path: `/disks/${part(id)}/retry` }} command={cairn("disk", "retry", id)}>
          <p>The disk is taken back if it answers all operations. It counts again once it has the writes that it missed.</p>
        </ActionForm>
      );
    case "remove":
      return (
        <ActionForm {...common} title={`Remove ${disk?.label}`} submit="Remove" isDangerous done={`${disk?.label} left the pool.`}
          request={{ method: "DELETE", path: `/disks/${part(id)}${force ? "?force=true" : ""}` }}
          command={cairn("disk", "remove", id, force && "--force")}>
          <p>The disk is removed from the pool. This is refused for a disk with data.</p>
          <Check label="Remove the disk although it has data, which is then rebuilt from the other disks" value={force} onValue={setForce} />
        </ActionForm>
      );
    case "scrub": {
      const parsed = rate.trim() ? parseSize(rate) : undefined;
      const request: Call = { method: "POST", path: "/scrub/start", body: parsed === undefined ? {} : { rate_bytes_per_second: parsed } };
      return (
        <ActionForm {...common} title="Scrub" submit="Start" done="The scrub runs." request={request}
          command={cairn("scrub", "start", ...(parsed === undefined ? [] : ["--rate", rate.replaceAll(" ", "")]))}>
          <Field label="At most this much a second" value={rate} onValue={setRate} placeholder="as configured" pattern="\s*\d+(\.\d+)?\s*[KMGkmg]?i?[Bb]?\s*"
            hint="Such as 50MiB; 0 for no limit." />
        </ActionForm>
      );
    }
    case "schedule":
      return <ScheduleForm schedule={action.schedule} {...common} />;
    case "hold":
    case "resume": {
      const paused = action.kind === "hold";
      return (
        <ActionForm {...common} title={paused ? "Pause moving to emptier disks" : "Go on moving to emptier disks"} submit={paused ? "Pause" : "Go on"}
          done={paused ? "The spread is paused." : "The spread continues."} request={{ method: "PUT", path: "/spread", body: { paused } }}
          command={cairn("disk", "spread", paused ? "--pause" : "--resume")}>
          <p>{paused ? "The spread stays paused across restarts, on all nodes. New data goes to all disks meanwhile." : "Data moves until all disks of a device class are about equally full."}</p>
        </ActionForm>
      );
    }
    case "pause":
      return (
        <ActionForm {...common} title="Pause the scrub" submit="Pause" done="The scrub is paused." request={{ method: "POST", path: "/scrub/pause" }}
          command={cairn("scrub", "pause")}>
          <p>The scrub stays paused across restarts, and continues where it was.</p>
        </ActionForm>
      );
  }
}
