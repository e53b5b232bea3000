// All volumes, and the form for a new one.
import { useState } from "preact/hooks";
import type { Call } from "../api";
import { cairn } from "../api";
import { bytes, count } from "../format";
import { go, to } from "../router";
import type { Volume, VolumeList } from "../types";
import { ActionForm, Badge, Choice, Failure, Field, Loading, Meter, Page, Table } from "../ui";
import { usePaged } from "../paged";

export const PROTECTIONS: [string, string][] = [
  ["default", "default: as the number of disks allows"],
  ["+1n", "+1n: survives the loss of any 1 disk"],
  ["+2n", "+2n: any 2 disks"],
  ["+3n", "+3n: any 3 disks"],
  ["+4n", "+4n: any 4 disks"],
  ["2x", "2x: two copies"],
  ["3x", "3x: three copies"],
  ["4x", "4x: four copies"],
  ["5x", "5x: five copies"],
  ["none", "none: one copy, lost with its disk"],
];
export const PATTERNS: [string, string][] = [
  ["concurrent", "concurrent: many clients, all kinds of files"],
  ["streaming", "streaming: large files from end to end"],
  ["random", "random: small accesses in large files"],
];
export const DEDUPES: [string, string][] = [
  ["off", "Off"],
  ["on", "On: existing bytes are not written again"],
  ["verify", "Verify: read and compare existing bytes first"],
];
/** Kinds of disks. */
export const MEDIA: [string, string][] = [
  ["any", "Any"],
  ["hdd", "Hard disks"],
  ["ssd", "SSD"],
  ["nvme", "NVMe"],
];
export const COMPRESSIONS: [string, string][] = [
  ["lz4", "lz4: fast"],
  ["zstd", "zstd: smaller"],
  ["none", "none"],
];

export function StateBadge({ volume }: { volume: Volume }) {
  if (!volume.serving) return <Badge tone="bad">Not served</Badge>;
  return <Badge tone="good">Served</Badge>;
}

export function Volumes() {
  const [isNew, setNew] = useState(false);
  const list = usePaged<VolumeList>("/volumes", "volumes");
  const { data, error, again } = list;
  return (
    <Page title="Volumes" actions={<button type="button" class="primary" onClick={() => setNew(true)}>Create a volume</button>}>
      <Failure error={error} />
      {list.filter}
      {!data ? (
        <Loading />
      ) : (
        <>
        <Table
          caption="Volumes"
          rows={data.volumes}
          rowKey={(volume) => volume.name}
          empty={list.filtered ? "No volume has such a name." : "There is no volume yet."}
          columns={[
            { name: "Name", show: (volume) => <a href={to("volumes", volume.name)} dir="auto">{volume.name}</a> },
            { name: "State", show: (volume) => <><StateBadge volume={volume} />{volume.problem && <small class="problem">{volume.problem}</small>}{volume.owner && <small>on {volume.owner}</small>}</> },
            { name: "Used", show: (volume) => {
              const text = `${bytes(volume.used_bytes)} of ${bytes(volume.total_bytes)}`;
              return <><Meter label={`Space used by ${volume.name}`} value={volume.used_bytes} max={volume.total_bytes} text={text} /><small>{text}</small></>;
            } },
            { name: "Files", isNumber: true, show: (volume) => count(volume.inodes) },
            { name: "Protection", show: (volume) => <>{volume.layout}<small>{volume.disk_failures_tolerated === 0 ? "no disk may be lost" : `${volume.disk_failures_tolerated} may be lost`}</small></> },
            { name: "Exported", show: (volume) => (volume.exported ? "yes" : <Badge tone="calm">to nobody</Badge>) },
          ]}
        />
        {list.pages(data.volumes.length)}
        </>
      )}
      {isNew && (
        <CreateVolume
          onClose={() => setNew(false)}
          onDone={(made) => {
            void again();
            go(to("volumes", made.name));
          }}
        />
      )}
    </Page>
  );
}

function CreateVolume({ onClose, onDone }: { onClose: () => void; onDone: (made: Volume) => void }) {
  const [name, setName] = useState("");
  const [protection, setProtection] = useState("default");
  const [pattern, setPattern] = useState("concurrent");
  const [compression, setCompression] = useState("lz4");
  const [dedupe, setDedupe] = useState("off");
  const [media, setMedia] = useState("any");
  const [limit, setLimit] = useState("");
  const size = limit.replaceAll(" ", "");
  // What has its default is left out, as on the command line.
  const body = {
    name,
    ...(protection === "default" ? {} : { protection }),
    ...(pattern === "concurrent" ? {} : { access_pattern: pattern }),
    ...(compression === "lz4" ? {} : { compression }),
    ...(dedupe === "off" ? {} : { dedupe }),
    ...(media === "any" ? {} : { media }),
    ...(size ? { size_limit: size } : {}),
  };
  const request: Call = { method: "POST", path: "/volumes", body };
  const flag = (given: boolean, name: string, value: string) => (given ? [name, value] : []);
  const command = cairn("volume", "create", name || "NAME",
    ...flag(protection !== "default", "--protection", protection),
    ...flag(pattern !== "concurrent", "--access-pattern", pattern),
    ...flag(compression !== "lz4", "--compression", compression),
    ...flag(dedupe !== "off", "--dedupe", dedupe),
    ...flag(media !== "any", "--media", media),
    ...flag(size !== "", "--size-limit", size));
  return (
    <ActionForm title="Create a volume" submit="Create" request={request} command={command} done={`Volume ${name} is created. No client may mount it yet.`}
      onClose={onClose} onDone={(made) => onDone(made as Volume)}>
      <Field label="Name" value={name} onValue={setName} required maxLength={63} placeholder="projects"
        hint="Also the path to mount: letters, digits, '.', '_' and '-'." />
      <Choice label="Protection" value={protection} onValue={setProtection} choices={PROTECTIONS} />
      <Field label="Size limit" value={limit} onValue={setLimit} placeholder="none" hint="Such as 500GiB. Without one it may fill the pool." />
      <Choice label="Access" value={pattern} onValue={setPattern} choices={PATTERNS} />
      <Choice label="Compression" value={compression} onValue={setCompression} choices={COMPRESSIONS} />
      <Choice label="Deduplication" value={dedupe} onValue={setDedupe} choices={DEDUPES} />
      <Choice label="Device class" value={media} onValue={setMedia} choices={MEDIA} />
    </ActionForm>
  );
}
