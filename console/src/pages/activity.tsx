// What clients do with a volume now: who, with which files, and how.
import { part } from "../api";
import { bytesPerSecond, count, microseconds, perSecond } from "../format";
import type { Activity, ActivityClient, ActivityFile, ActivityOperation } from "../types";
import { Card, Failure, Loading, Table } from "../ui";
import { useApi } from "../use";

/** A busier table would change before it is read. */
const EVERY_MS = 3_000;
const PROTOCOLS = { nfs: "NFS", iscsi: "iSCSI", s3: "S3" } as const;
const KINDS = { file: "file", directory: "directory", lun: "LUN", object: "object" } as const;

interface Rates {
  operations_per_second: number;
  read_bytes_per_second: number;
  written_bytes_per_second: number;
  lower_bound?: boolean;
}

const rate = (value: number) => (value > 0 ? bytesPerSecond(value) : "–");

function rateColumns<T extends Rates>() {
  return [
    { name: "Operations", isNumber: true, show: (one: T) => `${one.lower_bound ? "≥ " : ""}${perSecond(one.operations_per_second)}` },
    { name: "Read", isNumber: true, show: (one: T) => rate(one.read_bytes_per_second) },
    { name: "Written", isNumber: true, show: (one: T) => rate(one.written_bytes_per_second) },
  ];
}

export function Now({ name }: { name: string }) {
  const { data, error } = useApi<Activity>(`/volumes/${part(name)}/activity`, EVERY_MS);
  return (
    <Card title="Now" wide>
      <Failure error={error} />
      {data ? <Shown activity={data} /> : !error && <Loading />}
    </Card>
  );
}

function Shown({ activity }: { activity: Activity }) {
  if (activity.operations.length === 0) return <p class="empty">No client uses this volume now.</p>;
  const isBounded = [...activity.clients, ...activity.files].some((one) => one.lower_bound);
  return (
    <>
      <p>
        {count(activity.operations_per_second)} operations/s, {bytesPerSecond(activity.read_bytes_per_second)} read, {bytesPerSecond(activity.written_bytes_per_second)} written
        in the last {activity.seconds.toFixed(0)} seconds.
      </p>
      <h3>Clients</h3>
      <Table<ActivityClient> caption="Clients that do most" rows={activity.clients} rowKey={(one) => `${one.protocol} ${one.client}`}
        empty="None."
        columns={[
          { name: "Client", show: (one) => <span class="path">{one.client}</span> },
          { name: "Protocol", show: (one) => PROTOCOLS[one.protocol] },
          ...rateColumns<ActivityClient>(),
        ]} />
      {activity.has_more_clients && <p class="hint">There are others, which do less.</p>}
      <h3>Files</h3>
      <Table<ActivityFile> caption="Files with which most is done" rows={activity.files} rowKey={(one) => `${one.kind} ${one.inode ?? one.name}`}
        empty="None."
        columns={[
          { name: "File", show: (one) => (one.name == null ? `inode ${one.inode}, which has no name now` : <span class="path" dir="auto">{one.name}</span>) },
          { name: "Kind", show: (one) => KINDS[one.kind] },
          ...rateColumns<ActivityFile>(),
        ]} />
      {activity.has_more_files && <p class="hint">There are further, less busy files.</p>}
      <h3>Operations</h3>
      <Table<ActivityOperation> caption="Operations by kind" rows={activity.operations} rowKey={(one) => `${one.protocol} ${one.operation}`}
        empty="None."
        columns={[
          { name: "Operation", show: (one) => one.operation },
          { name: "Protocol", show: (one) => PROTOCOLS[one.protocol] },
          ...rateColumns<ActivityOperation>(),
          { name: "Mean latency", isNumber: true, show: (one) => latency(one.latency_mean_microseconds) },
          { name: "Worst", isNumber: true, show: (one) => latency(one.latency_max_microseconds) },
        ]} />
      {isBounded && <p class="hint">≥ marks a lower bound: operations from before a client or file was among the busiest are not counted.</p>}
    </>
  );
}

const latency = (value: number | null | undefined) => (value == null ? "–" : microseconds(value));
