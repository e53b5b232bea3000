// The nodes of the cluster, the disks of each, and the addresses that they share.
import { useState } from "preact/hooks";
import { cairn, part } from "../api";
import { bytes, counted, duration } from "../format";
import { useLive } from "../live";
import { useSession } from "../session";
import type { AddressPool, Cluster, ClusterNode, PoolAddress } from "../types";
import type { Tone } from "../ui";
import { ActionForm, Badge, Card, Facts, Failure, Field, Loading, Notice, Page, Table } from "../ui";
import { useApi } from "../use";

// A cluster has that many nodes at most; their rows are short.
const NODES_SHOWN = 300;

function state(node: ClusterNode): [word: string, tone: Tone] {
  if (!node.alive) return ["Away", "bad"];
  if (node.drain) return node.drain.done ? ["Drained", "calm"] : ["Leaving", "warn"];
  if (node.maintenance_seconds != null) return ["In maintenance", "warn"];
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
                {node.maintenance_seconds != null && <small>for {duration(node.maintenance_seconds)} more</small>}
                {node.drain && !node.drain.done && <small>{bytes(node.drain.bytes_left)} are left on it</small>}</>;
            } },
            { name: "Addresses", show: (node) => <>{node.external}<small>among nodes: {node.internal}</small></> },
            { name: "Disks", show: (node) => <Disks node={node} /> },
          ]}
        />
      )}
      {data && <AddressPools />}
    </Page>
  );
}

type PoolAction = { kind: "create" } | { kind: "add" | "remove" | "delete"; pool: AddressPool };

function AddressPools() {
  const { data, error, again } = useApi<{ pools: AddressPool[] }>("/cluster/address-pools", 5_000);
  const session = useSession();
  const [action, setAction] = useState<PoolAction>();
  const isAdmin = session.role === "admin";
  return (
    <Card title="Addresses that nodes share" wide extra={isAdmin && <button type="button" onClick={() => setAction({ kind: "create" })}>Add an address pool</button>}>
      <Failure error={error} />
      {!data ? !error && <Loading /> : data.pools.length === 0 ? <p class="empty">There are none: clients use the addresses of nodes.</p>
        : data.pools.map((pool) => <AddressPoolTable key={pool.name} pool={pool} onAction={isAdmin ? setAction : undefined} />)}
      {action && <PoolForm action={action} onClose={() => setAction(undefined)} onDone={() => void again()} />}
    </Card>
  );
}

function AddressPoolTable({ pool, onAction }: { pool: AddressPool; onAction: ((action: PoolAction) => void) | undefined }) {
  const held = pool.addresses.filter((address) => address.node != null).length;
  const where = (address: PoolAddress): [word: string, tone: Tone] => {
    if (address.problem != null) return [address.node ?? "nobody", "bad"];
    if (address.node == null) return ["nobody", "bad"];
    return [address.node, address.node === address.home ? "good" : "warn"];
  };
  return (
    <section aria-label={`Address pool ${pool.name}`}>
      <h3 dir="auto">{pool.name}</h3>
      <Facts facts={[
        ["Nodes have", `${held} of ${counted(pool.addresses.length, "address", "addresses")}`],
        ...(pool.interface ? [["Interface", <code>{pool.interface}</code>] as [string, preact.ComponentChildren]] : []),
        ...(pool.dns_name ? [["Name in DNS", <code>{pool.dns_name}</code>] as [string, preact.ComponentChildren]] : []),
      ]} />
      <Table<PoolAddress> caption={`Addresses of ${pool.name}`} rows={pool.addresses} rowKey={(address) => address.address} empty="It has no address."
        columns={[
          { name: "Address", show: (address) => address.address },
          { name: "Is at", show: (address) => {
            const [word, tone] = where(address);
            return <><Badge tone={tone}>{word}</Badge>{address.problem && <small class="problem">{address.problem}</small>}</>;
          } },
          { name: "Home", show: (address) => <span dir="auto">{address.home ?? "–"}</span> },
        ]} />
      {onAction && (
        <div class="buttons">
          <button type="button" onClick={() => onAction({ kind: "add", pool })} aria-label={`Add addresses to ${pool.name}`}>Add addresses</button>
          <button type="button" onClick={() => onAction({ kind: "remove", pool })} aria-label={`Remove addresses from ${pool.name}`}>Remove addresses</button>
          <button type="button" class="danger-quiet" onClick={() => onAction({ kind: "delete", pool })} aria-label={`Delete address pool ${pool.name}`}>Delete</button>
        </div>
      )}
    </section>
  );
}

function PoolForm({ action, onClose, onDone }: { action: PoolAction; onClose: () => void; onDone: () => void }) {
  const [name, setName] = useState("");
  const [text, setText] = useState("");
  const [link, setLink] = useState("");
  const [dns, setDns] = useState("");
  const common = { onClose, onDone };
  const listed = text.split(/[\s,]+/).filter((word) => word);
  const addresses = (
    <Field label="Addresses" value={text} onValue={setText} required placeholder="10.0.0.20-10.0.0.25/24" hint="Addresses or ranges with prefix length. They must be unused." />
  );
  switch (action.kind) {
    case "create":
      return (
        <ActionForm {...common} title="Add an address pool" submit="Add" done={`Address pool ${name} is created.`}
          request={{ method: "POST", path: "/cluster/address-pools", body: { name, addresses: listed, ...(link.trim() ? { interface: link.trim() } : {}), ...(dns.trim() ? { dns_name: dns.trim() } : {}) } }}
          command={cairn("address", "pool", "create", name || "NAME", ...(listed.length ? listed : ["ADDRESSES"]), ...(link.trim() ? ["--interface", link.trim()] : []), ...(dns.trim() ? ["--dns", dns.trim()] : []))}>
          <p>Each node holds a share of the addresses; other nodes hold them while that node is away.</p>
          <Field label="Name" value={name} onValue={setName} required maxLength={63} placeholder="lan" />
          {addresses}
          <Field label="Interface" value={link} onValue={setLink} placeholder="that in their network" hint="Of this name on each node." />
          <Field label="DNS name" value={dns} onValue={setDns} placeholder="none" hint="The nodes' DNS responders (--listen-dns) resolve this name." />
        </ActionForm>
      );
    case "add":
    case "remove": {
      const { pool, kind } = action;
      return (
        <ActionForm {...common} title={kind === "add" ? `Add addresses to ${pool.name}` : `Remove addresses from ${pool.name}`} submit={kind === "add" ? "Add" : "Remove"} isDangerous={kind === "remove"}
          done={`Address pool ${pool.name} is changed.`}
          request={{ method: "PATCH", path: `/cluster/address-pools/${part(pool.name)}`, body: { [kind]: listed } }}
          command={cairn("address", "pool", kind, pool.name, ...(listed.length ? listed : ["ADDRESSES"]))}>
          {kind === "remove" && <p>Clients that use one of these addresses are disconnected.</p>}
          {addresses}
        </ActionForm>
      );
    }
    case "delete":
      return (
        <ActionForm {...common} title={`Delete address pool ${action.pool.name}`} submit="Delete" isDangerous done={`Address pool ${action.pool.name} is deleted.`}
          request={{ method: "DELETE", path: `/cluster/address-pools/${part(action.pool.name)}` }} command={cairn("address", "pool", "delete", action.pool.name)}>
          <p>The nodes drop its {counted(action.pool.addresses.length, "address", "addresses")}. Clients that use these addresses are disconnected.</p>
        </ActionForm>
      );
  }
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
