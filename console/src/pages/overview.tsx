// All at a glance.
import type { ComponentChildren } from "preact";
import { HEALTH, NOTHING_TO_DO, survived } from "../health";
import type { ChartOf } from "../history";
import { Charts, SpanPicker } from "../history";
import { bytes, bytesPerSecond, counted, duration, microseconds, percent, perSecond } from "../format";
import { useLive } from "../live";
import { TryIt } from "./benchmarks";
import { LastEvents } from "./events";
import { to } from "../router";
import type { Live, Mount, Status } from "../types";
import { Badge, Card, Code, Facts, Loading, Meter, Notice, Page, Progress } from "../ui";
import { useApi } from "../use";

const CHARTS: ChartOf[] = [
  { title: "NFS throughput", show: bytesPerSecond,
    lines: [["nfs_read_bytes_per_second", "read"], ["nfs_written_bytes_per_second", "written"]] },
  { title: "NFS operations", show: perSecond,
    lines: [["nfs_read_operations_per_second", "read"], ["nfs_write_operations_per_second", "write"],
      ["nfs_other_operations_per_second", "other"]] },
  { title: "NFS latency in the server: median", show: microseconds,
    lines: [["nfs_read_latency_p50_microseconds", "read"], ["nfs_write_latency_p50_microseconds", "write"],
      ["nfs_other_latency_p50_microseconds", "other"]] },
  { title: "NFS latency in the server: 99 of 100 are faster", show: microseconds,
    lines: [["nfs_read_latency_p99_microseconds", "read"], ["nfs_write_latency_p99_microseconds", "write"],
      ["nfs_other_latency_p99_microseconds", "other"]] },
  { title: "LUNs and objects", show: bytesPerSecond,
    lines: [["iscsi_read_bytes_per_second", "LUN read"], ["iscsi_written_bytes_per_second", "LUN written"],
      ["s3_sent_bytes_per_second", "S3 sent"], ["s3_received_bytes_per_second", "S3 received"]] },
  { title: "Space: raw, and of files", show: bytes,
    lines: [["pool_total_bytes", "raw, all"], ["pool_free_bytes", "raw, free"], ["file_bytes", "files"]] },
];

export function Overview() {
  const { live } = useLive();
  if (!live) {
    return (
      <Page title="Overview">
        <Loading />
      </Page>
    );
  }
  return (
    <Page title="Overview">
      <HealthLine live={live} />
      {live.silent?.map(({ node, why }) => (
        <Notice key={node} tone="warn" title={`Node ${node} did not answer, and its numbers are missing: ${why}`} />
      ))}
      <Numbers />
      <FirstSteps live={live} />
      <div class="cards">
        <Capacity live={live} />
        <Running live={live} />
        <Server live={live} />
      </div>
      <LastEvents />
      <Card title={live.node ? "Over time, all nodes" : "Over time"} wide extra={<SpanPicker />}>
        <Charts charts={CHARTS} />
      </Card>
    </Page>
  );
}

function HealthLine({ live }: { live: Live }) {
  const [word, tone] = HEALTH[live.health];
  return (
    <section class={`health ${tone}`} aria-label="Health">
      <p class="health-line">
        <Badge tone={tone}>{word}</Badge> <span>{live.summary}</span>
      </p>
      {live.warnings.length > 0 && (
        <ul>
          {live.warnings.map((warning) => (
            <li key={`${warning.kind} ${warning.subject}`}>
              {warning.message} <small class="todo">{warning.next}</small>
            </li>
          ))}
        </ul>
      )}
      {live.warnings.length === 0 && <p class="todo">{NOTHING_TO_DO}</p>}
    </section>
  );
}

function Tile({ name, children, detail }: { name: string; children: ComponentChildren; detail?: ComponentChildren }) {
  return (
    <div class="tile">
      <dt>{name}</dt>
      <dd>
        <span class="big">{children}</span>
        {detail && <span class="detail">{detail}</span>}
      </dd>
    </div>
  );
}

function Numbers() {
  const { live, number } = useLive();
  const isCluster = live?.node !== undefined;
  const show = (name: string, format: (value: number) => string) => {
    const value = number(name);
    return value === undefined ? "–" : format(value);
  };
  return (
    <dl class="tiles" aria-label={isCluster ? "Now, all nodes" : "Now"}>
      <Tile name="Read now" detail={`${show("nfs_read_operations_per_second", perSecond)} operations`}>
        {show("nfs_read_bytes_per_second", bytesPerSecond)}
      </Tile>
      <Tile name="Written now" detail={`${show("nfs_write_operations_per_second", perSecond)} operations`}>
        {show("nfs_written_bytes_per_second", bytesPerSecond)}
      </Tile>
      <Tile name="NFS operations" detail={show("nfs_connections", (value) => counted(value, "connection"))}>
        {show("nfs_operations_per_second", perSecond)}
      </Tile>
      <Tile name={isCluster ? "NFS latency, slowest node" : "NFS latency"} detail={`99 of 100 below ${show("nfs_latency_p99_microseconds", microseconds)}`}>
        {show("nfs_latency_p50_microseconds", microseconds)}
      </Tile>
      <Tile name="LUNs" detail={show("iscsi_sessions", (value) => counted(value, "session"))}>
        {show("iscsi_commands_per_second", perSecond)}
      </Tile>
      <Tile name="Objects" detail={show("s3_connections", (value) => counted(value, "connection"))}>
        {show("s3_requests_per_second", perSecond)}
      </Tile>
    </dl>
  );
}

function Capacity({ live }: { live: Live }) {
  const { number } = useLive();
  const { total_bytes, free_bytes, reserve_bytes, protection } = live.pool;
  const used = total_bytes - free_bytes;
  const files = number("file_bytes");
  const stored = number("stored_bytes");
  return (
    <Card title="Capacity">
      <Meter label="Raw space that is used" value={used} max={total_bytes} text={`${bytes(used)} of ${bytes(total_bytes)}`} />
      <Facts
        facts={[
          ["Raw", `${bytes(used)} of ${bytes(total_bytes)} used, ${bytes(free_bytes)} free`],
          ["Kept back", `${bytes(reserve_bytes)}, so that deleting and rebuilding work`],
          ["Files hold", files === undefined ? "–" : bytes(files)],
          ["Stored", stored === undefined ? "–" : `${bytes(stored)} after compression, before redundancy`],
          ["Protection", `${protection}: ${survived(live.pool, live.disk_count) ?? (live.pool.devices == null ? "no disk" : "no device")} may be lost`],
        ]}
      />
    </Card>
  );
}

function Running({ live: { rebuild, scrub } }: { live: Live }) {
  const { number } = useLive();
  const isScrubbing = scrub.stage === "running" || scrub.stage === "paused";
  // Numbers are of all nodes, and each node rebuilds what its own volumes have.
  const left = number("rebuild_left_bytes") ?? 0;
  const isElsewhere = left > 0 && !rebuild.running;
  return (
    <Card title="Running work" extra={<a href={to("pool")}>Pool</a>}>
      {rebuild.running && (
        <div class="work">
          <p>
            <b>Moving and rebuilding:</b> {counted(rebuild.shards_left, "shard")}, {bytes(rebuild.bytes_left)} left
            {rebuild.seconds_left != null && `, about ${duration(rebuild.seconds_left)}`}
          </p>
          <Progress label="Rebuild" value={rebuild.moved_bytes} max={rebuild.moved_bytes + rebuild.bytes_left} />
        </div>
      )}
      {isElsewhere && (
        <p>
          <b>Other nodes move and rebuild:</b> {bytes(left)} left
        </p>
      )}
      {rebuild.problems.map((problem) => (
        <Notice key={problem} tone="warn" title={problem} />
      ))}
      {isScrubbing && (
        <div class="work">
          <p>
            <b>Scrub{scrub.stage === "paused" ? " (paused)" : ""}:</b> {bytes(scrub.done_bytes)} of about {bytes(scrub.total_bytes)}
            {scrub.seconds_left != null && scrub.stage === "running" && `, about ${duration(scrub.seconds_left)} left`}
          </p>
          <Progress label="Scrub" value={scrub.done_bytes} max={scrub.total_bytes} />
        </div>
      )}
      {!rebuild.running && !isElsewhere && !isScrubbing && <p class="empty">Nothing runs in the background.</p>}
    </Card>
  );
}

function Server({ live }: { live: Live }) {
  const { number } = useLive();
  const cpu = number("cpu_seconds_per_second");
  const hits = number("cache_hits_percent");
  const { memory } = live;
  return (
    <Card title={live.node ? `Node ${live.node}` : "Server"}>
      <Facts
        facts={[
          ["Runs for", duration(live.uptime_seconds)],
          ["Disks", `${live.disks_working} of ${live.disk_count} work`],
          ["Volumes", <a href={to("volumes")}>{live.volume_count}</a>],
          ["Memory", `${bytes(memory.resident_bytes)} of ${bytes(memory.limit_bytes)}`],
          ["Cache", `${bytes(memory.record_cache_bytes)} of ${bytes(memory.record_cache_limit_bytes)}${hits === undefined ? "" : `, ${percent(hits)} found there${live.node ? " (all nodes)" : ""}`}`],
          ["Not on disk yet", `${bytes(memory.dirty_bytes)} of ${bytes(memory.dirty_limit_bytes)}`],
          [live.node ? "Processors busy, all nodes" : "Processors busy", cpu === undefined ? "–" : cpu.toFixed(2)],
        ]}
      />
    </Card>
  );
}

/** What a server without data says: how to mount it. */
function FirstSteps({ live }: { live: Live }) {
  const { number } = useLive();
  const isEmpty = number("file_bytes") === 0;
  const { data } = useApi<Status>(isEmpty ? "/status" : undefined, 60_000);
  const mounts = useApi<{ mounts: Mount[] }>(isEmpty ? "/nfs/mounts" : undefined);
  // A benchmark of the server itself leaves a mount of this machine in the list.
  const isOther = (client: string) => !client.startsWith("127.") && client !== "::1" && client !== data?.nfs.address;
  const volume = data?.volumes.find((one) => one.exported) ?? data?.volumes[0];
  if (!isEmpty || !data || !volume || live.volume_count === 0 || !mounts.data || mounts.data.mounts.some((mount) => isOther(mount.client))) return null;
  const { port, rpcbind } = data.nfs;
  const ports = rpcbind && port === 2049 ? "" : `,port=${port},mountport=${port}`;
  const host = location.hostname;
  return (
    <Card title="Nothing is stored yet: mount it" wide>
      <p>
        Volume <a href={to("volumes", volume.name)}>{volume.name}</a>{" "}
        {volume.exported ? "is exported." : "is exported to nobody yet: the second command changes that for a network."}
      </p>
      <div class="steps">
        <Code isTitled label="Mount on Linux" text={`sudo mount -t nfs -o vers=3,proto=tcp,nolock${ports} ${host}:/${volume.name} /mnt`} />
        <Code isTitled label="Let a network mount it" text={`cairn export set ${volume.name} --client 10.0.0.0/8`} />
        <Code isTitled label="Copy files in without mounting" text={`cairn cp -r ./folder 'nfs://${host}:${port}/${volume.name}/'`} />
      </div>
      <TryIt volume={volume.name} />
    </Card>
  );
}
