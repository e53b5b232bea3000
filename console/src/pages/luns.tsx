// LUNs, the groups that see them, and who is connected.
import { useState } from "preact/hooks";
import { cairn, part } from "../api";
import { bytes, date, parseSize } from "../format";
import type { Igroup, Lun, Session, Volume } from "../types";
import { ActionForm, Badge, Card, Check, Choice, Failure, Field, Loading, Page, Table } from "../ui";
import { usePaged } from "../paged";
import { useApi } from "../use";

type Action = { kind: "create" | "group" } | { kind: "map" | "delete" | "switch"; lun: Lun } | { kind: "unmap"; lun: Lun; igroup: string } | { kind: "ungroup"; group: Igroup };

export function Luns() {
  const luns = usePaged<{ luns: Lun[] }>("/luns", "LUNs");
  const igroups = usePaged<{ igroups: Igroup[] }>("/igroups", "groups");
  const sessions = usePaged<{ sessions: Session[] }>("/iscsi/sessions", "sessions");
  const volumes = useApi<{ volumes: Volume[] }>("/volumes", 60_000);
  const [action, setAction] = useState<Action>();
  const changed = () => {
    void luns.again();
    void igroups.again();
  };
  return (
    <Page title="LUNs" actions={<>
      <button type="button" onClick={() => setAction({ kind: "group" })}>Create a group</button>
      <button type="button" class="primary" onClick={() => setAction({ kind: "create" })}>Create a LUN</button>
    </>}>
      <Failure error={luns.error ?? igroups.error ?? sessions.error} />
      {luns.filter}
      {!luns.data ? <Loading /> : (<>
        <Table caption="LUNs" rows={luns.data.luns} rowKey={(lun) => `${lun.volume}/${lun.name}`}
          empty={luns.filtered ? "No LUN has such a name." : "There is no LUN. A LUN is a disk for a host, over iSCSI; it is thin, and a volume holds it."}
          columns={[
            { name: "Name", show: (lun) => <><span dir="auto">{lun.volume}/{lun.name}</span><small>naa.{lun.naa}</small></> },
            { name: "State", show: (lun) => <>{lun.online ? <Badge tone="good">Online</Badge> : <Badge tone="warn">Offline</Badge>} {lun.read_only && <Badge tone="calm">Read only</Badge>} {lun.write_cache && <Badge tone="calm">Write cache</Badge>} {lun.reserve === "full" && <Badge tone="calm">Space set aside</Badge>}</> },
            { name: "Size", isNumber: true, show: (lun) => <>{bytes(lun.size_bytes)}<small>{bytes(lun.used_bytes)} used</small></> },
            { name: "Block", isNumber: true, show: (lun) => lun.block_bytes },
            { name: "Seen by", show: (lun) => (lun.maps.length === 0 ? <Badge tone="calm">nobody</Badge> : lun.maps.map((map) => (
              <span key={map.igroup} class="tag">{map.igroup} as {map.number} <button type="button" class="quiet" aria-label={`Unmap ${lun.name} from ${map.igroup}`} onClick={() => setAction({ kind: "unmap", lun, igroup: map.igroup })}>✕</button></span>
            ))) },
            { name: "Actions", show: (lun) => (
              <div class="row-actions">
                <button type="button" onClick={() => setAction({ kind: "map", lun })} aria-label={`Map ${lun.name}`}>Map</button>
                <button type="button" onClick={() => setAction({ kind: "switch", lun })} aria-label={`Take ${lun.name} ${lun.online ? "offline" : "online"}`}>{lun.online ? "Offline" : "Online"}</button>
                <button type="button" onClick={() => setAction({ kind: "delete", lun })} aria-label={`Delete ${lun.name}`}>Delete</button>
              </div>
            ) },
          ]} />
        {luns.pages(luns.data.luns.length)}
      </>)}
      <Card title="Groups of initiators" wide>
        {igroups.filter}
        <Table caption="Groups of initiators" rows={igroups.data?.igroups ?? []} rowKey={(group) => `${group.volume}/${group.name}`}
          empty="There is no group. A LUN is mapped to a group, whose hosts see it."
          columns={[
            { name: "Group", show: (group) => <span dir="auto">{group.volume}/{group.name}</span> },
            { name: "Initiators", show: (group) => group.initiators.map((one) => <span key={one} class="path block">{one}</span>) },
            { name: "Actions", show: (group) => <div class="row-actions"><button type="button" onClick={() => setAction({ kind: "ungroup", group })} aria-label={`Remove group ${group.name}`}>Remove</button></div> },
          ]} />
        {igroups.pages(igroups.data?.igroups.length ?? 0)}
      </Card>
      <Card title="Connected hosts" wide>
        {sessions.filter}
        <Table caption="Sessions of iSCSI" rows={sessions.data?.sessions ?? []} rowKey={(one) => `${one.initiator} ${one.address} ${one.target ?? ""}`}
          empty="No host is connected."
          columns={[
            { name: "Initiator", show: (one) => <span class="path">{one.initiator}</span> },
            { name: "Address", show: (one) => one.address },
            { name: "Target", show: (one) => <span class="path">{one.target ?? "asks which there are"}</span> },
            { name: "Since", show: (one) => date(one.begun_seconds) },
          ]} />
        {sessions.pages(sessions.data?.sessions.length ?? 0)}
      </Card>
      {action && <ActionDialog action={action} volumes={(volumes.data?.volumes ?? []).map((volume) => volume.name)} igroups={igroups.data?.igroups ?? []} onClose={() => setAction(undefined)} onDone={changed} />}
    </Page>
  );
}

function ActionDialog({ action, volumes, igroups, onClose, onDone }: { action: Action; volumes: string[]; igroups: Igroup[]; onClose: () => void; onDone: () => void }) {
  const common = { onClose, onDone };
  const lun = "lun" in action ? action.lun : undefined;
  const at = lun ? `/luns/${part(lun.volume)}/${part(lun.name)}` : "";
  const full = lun ? `${lun.volume}/${lun.name}` : "";
  const groups = igroups.filter((group) => group.volume === lun?.volume).map((group) => group.name);
  const [volume, setVolume] = useState(volumes[0] ?? "main");
  const [name, setName] = useState("");
  const [size, setSize] = useState("");
  const [block, setBlock] = useState("512");
  const [cache, setCache] = useState(false);
  const [reserve, setReserve] = useState(false);
  const [initiators, setInitiators] = useState("");
  const [igroup, setIgroup] = useState(groups[0] ?? "");
  const [force, setForce] = useState(false);
  const inVolume = <Choice label="Volume" value={volume} onValue={setVolume} choices={volumes.map((one) => [one, one])} />;
  switch (action.kind) {
    case "create": {
      const size_bytes = parseSize(size) ?? 0;
      return (
        <ActionForm {...common} title="Create a LUN" submit="Create" done={`LUN ${volume}/${name} is created. No host sees it yet.`}
          request={{ method: "POST", path: "/luns", body: { volume, name, size_bytes, ...(block === "512" ? {} : { block_bytes: Number(block) }), ...(cache ? { write_cache: true } : {}), ...(reserve ? { reserve: "full" } : {}) } }}
          command={cairn("lun", "create", `${volume}/${name || "NAME"}`, "--size", size.replaceAll(" ", "") || "SIZE", ...(block === "512" ? [] : ["--block-size", block]), cache && "--write-cache", ...(reserve ? ["--reserve", "full"] : []))}>
          {inVolume}
          <Field label="Name" value={name} onValue={setName} required placeholder="db" />
          <Field label="Size" value={size} onValue={setSize} required placeholder="500GiB" pattern="\s*\d+(\.\d+)?\s*[KMGTPkmgtp]?i?[Bb]?\s*" hint="It takes no space until it is written." />
          <Choice label="Bytes of a block" value={block} onValue={setBlock} choices={[["512", "512"], ["4096", "4096"]]} />
          <Check label="Answer writes before they are stable (hosts have to flush)" value={cache} onValue={setCache} />
          <Check label="Set its size aside (others get no space that it needs)" value={reserve} onValue={setReserve} />
        </ActionForm>
      );
    }
    case "group": {
      const names = initiators.split(/[\s,]+/).filter(Boolean);
      return (
        <ActionForm {...common} title="Create a group of initiators" submit="Create" done={`Group ${volume}/${name} is created.`}
          request={{ method: "PUT", path: `/igroups/${part(volume)}/${part(name)}`, body: { initiators: names } }}
          command={cairn("igroup", "create", `${volume}/${name || "NAME"}`, ...names.flatMap((one) => ["--initiator", one]))}>
          {inVolume}
          <Field label="Name" value={name} onValue={setName} required placeholder="hosts" />
          <Field label="Initiators" value={initiators} onValue={setInitiators} required placeholder="iqn.1993-08.org.debian:01:abc" hint="Separated by spaces or commas. A group of that name gets these instead of its own." />
        </ActionForm>
      );
    }
    case "map":
      return (
        <ActionForm {...common} title={`Map ${full}`} submit="Map" done={`${igroup} sees ${full}.`}
          request={{ method: "PUT", path: `${at}/maps/${part(igroup)}`, body: {} }} command={cairn("lun", "map", full, "--igroup", igroup || "GROUP")}>
          {groups.length > 0 ? <Choice label="Group" value={igroup} onValue={setIgroup} choices={groups.map((one) => [one, one])} />
            : <Field label="Group" value={igroup} onValue={setIgroup} required hint={`Volume ${lun?.volume} has no group yet: make one first.`} />}
        </ActionForm>
      );
    case "unmap":
      return (
        <ActionForm {...common} title={`Unmap ${full} from ${action.igroup}`} submit="Unmap" isDangerous done={`${full} is unmapped from ${action.igroup}.`}
          request={{ method: "DELETE", path: `${at}/maps/${part(action.igroup)}` }} command={cairn("lun", "unmap", full, "--igroup", action.igroup)}>
          <p>Its hosts lose the disk at once.</p>
        </ActionForm>
      );
    case "switch":
      return (
        <ActionForm {...common} title={`Take ${full} ${lun?.online ? "offline" : "online"}`} submit={lun?.online ? "Offline" : "Online"} done={`${full} is ${lun?.online ? "offline" : "online"}.`}
          request={{ method: "PATCH", path: at, body: { online: !lun?.online } }} command={cairn("lun", lun?.online ? "offline" : "online", full)}>
          <p>{lun?.online ? "The LUN is no longer served; its data is kept." : "The LUN is served again."}</p>
        </ActionForm>
      );
    case "delete":
      return (
        <ActionForm {...common} title={`Delete LUN ${full}`} submit="Delete for good" isDangerous done={`LUN ${full} is deleted.`}
          request={{ method: "DELETE", path: `${at}${force ? "?force=true" : ""}` }} command={cairn("lun", "delete", full, force && "--force")}>
          <p>All its data is lost.</p>
          {(lun?.maps.length ?? 0) > 0 && <Check label="Delete the LUN although it is mapped" value={force} onValue={setForce} />}
        </ActionForm>
      );
    case "ungroup": {
      const group = action.group;
      return (
        <ActionForm {...common} title={`Remove group ${group.name}`} submit="Remove" isDangerous done={`Group ${group.name} is removed.`}
          request={{ method: "DELETE", path: `/igroups/${part(group.volume)}/${part(group.name)}` }} command={cairn("igroup", "remove", `${group.volume}/${group.name}`)}>
          <p>A group that a LUN is mapped to is refused.</p>
        </ActionForm>
      );
    }
  }
}
