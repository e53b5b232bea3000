// The nodes of the cluster, and the disks of each.
import { useState } from "preact/hooks";
import { bytes, counted } from "../format";
import { useLive } from "../live";
import type { Cluster, ClusterNode } from "../types";
import type { Tone } from "../ui";
import { Badge, Facts, Failure, Field, Loading, Notice, Page, Table } from "../ui";
import { useApi } from "../use";

// A cluster has that many nodes at most; their rows are short.
const NODES_SHOWN = 300;

function state(node: ClusterNode): [word: string, tone: Tone] {
  if (!node.alive) return ["Away", "bad"];
  if (node.drain) return node.drain.done ? ["Drained", "calm"] : ["Leaving", "warn"];
  return node.connected ? ["In the cluster", "good"] : ["Out of reach", "bad"];
}

const hasText = (node: ClusterNode, text: string): boolean =>
  [node.name, node.internal, node.external, ...node.disks.map((disk) => disk.label)].some((word) => word.toLowerCase().includes(text));

export function Nodes() {
  const { live } = useLive();
  const { data, error } = useApi<Cluster>(live?.node == null ? undefined : "/cluster");
  const [filter, setFilter] = useState("");
  if (live && live.node == null) {
    return (
      <Page title="Nodes">
        <p>This server is in no cluster.</p>
      </Page>
    );
  }
  const nodes = data?.nodes ?? [];
  const shown = nodes.filter((node) => hasText(node, filter.trim().toLowerCase()));
  return (
    <Page title="Nodes">
      <Failure error={error} />
      {data?.warnings.map((warning) => (
        <Notice key={`${warning.kind} ${warning.subject}`} tone={warning.severity === "info" ? "calm" : "warn"}>
          {warning.message} <small>{warning.next}</small>
        </Notice>
      ))}
      {data && (
        <Facts facts={[
          ["Cluster", <span dir="auto">{data.cluster}</span>],
          ["You ask", <span dir="auto">{data.node}</span>],
          ["Nodes in the cluster", `${nodes.filter((node) => node.alive).length} of ${nodes.length}`],
        ]} />
      )}
      {nodes.length > 8 && <Field label="Filter by name, address or disk" value={filter} onValue={setFilter} type="search" />}
      {!data ? (
        <Loading />
      ) : (
        <Table
          caption="Nodes of the cluster"
          rows={shown}
          rowKey={(node) => node.id}
          empty="No node is like that."
          first={NODES_SHOWN}
          columns={[
            { name: "Node", show: (node) => <><span dir="auto">{node.name}</span><small>{node.id.slice(0, 8)}</small></> },
            { name: "State", show: (node) => {
              const [word, tone] = state(node);
              return <><Badge tone={tone}>{word}</Badge>{node.problem && <small class="problem">{node.problem}</small>}
                {node.drain && !node.drain.done && <small>{bytes(node.drain.bytes_left)} are left on it</small>}</>;
            } },
            { name: "Addresses", show: (node) => <>{node.external}<small>among nodes: {node.internal}</small></> },
            { name: "Disks", show: (node) => <Disks node={node} /> },
          ]}
        />
      )}
    </Page>
  );
}

function Disks({ node }: { node: ClusterNode }) {
  const wrong = node.disks.filter((disk) => disk.state !== "ok");
  return (
    <details>
      <summary>
        {counted(node.disks.length, "disk")}
        {wrong.length > 0 && <>, <span class="problem">{wrong.length} not OK</span></>}
      </summary>
      <ul>
        {node.disks.map((disk) => (
          <li key={disk.id}>
            <span class="path" dir="auto">{disk.label || disk.id.slice(0, 8)}</span>: {disk.state === "ok" ? "OK" : <span class="problem">{disk.state}</span>}
          </li>
        ))}
      </ul>
    </details>
  );
}
