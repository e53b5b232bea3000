// Buckets, and the keys that open them.
import { useState } from "preact/hooks";
import { cairn, part } from "../api";
import { date } from "../format";
import { to } from "../router";
import type { AccessKey, Bucket, Volume } from "../types";
import { ActionForm, Badge, Card, Check, Choice, Code, Dialog, Failure, Field, Loading, Notice, Page, Table } from "../ui";
import { usePaged } from "../paged";
import { useApi } from "../use";

type Action = { kind: "create" | "key" } | { kind: "delete"; bucket: Bucket } | { kind: "revoke"; key: AccessKey } | { kind: "secret"; key: AccessKey };

export function Buckets() {
  const buckets = usePaged<{ buckets: Bucket[] }>("/buckets", "buckets");
  const keys = usePaged<{ keys: AccessKey[] }>("/s3/keys", "keys");
  const volumes = useApi<{ volumes: Volume[] }>("/volumes", 60_000);
  const [action, setAction] = useState<Action>();
  const changed = () => {
    void buckets.again();
    void keys.again();
  };
  return (
    <Page title="Buckets" actions={<>
      <button type="button" onClick={() => setAction({ kind: "key" })}>Create an access key</button>
      <button type="button" class="primary" onClick={() => setAction({ kind: "create" })}>Create a bucket</button>
    </>}>
      <Failure error={buckets.error ?? keys.error} />
      {buckets.filter}
      {!buckets.data ? <Loading /> : (<>
        <Table caption="Buckets" rows={buckets.data.buckets} rowKey={(bucket) => bucket.name}
          empty={buckets.filtered ? "No bucket has such a name." : "There is no bucket. A bucket is a directory of a volume, for S3 and NFS clients."}
          columns={[
            { name: "Name", show: (bucket) => <span dir="auto">{bucket.name}</span> },
            { name: "Directory", show: (bucket) => <><a href={to("volumes", bucket.volume)}>{bucket.volume}</a>/<span dir="auto">{bucket.path.replace(/^\/+/, "")}</span></> },
            { name: "Created", show: (bucket) => date(bucket.created_seconds) },
            { name: "Actions", show: (bucket) => <div class="row-actions"><button type="button" onClick={() => setAction({ kind: "delete", bucket })} aria-label={`Delete bucket ${bucket.name}`}>Delete</button></div> },
          ]} />
        {buckets.pages(buckets.data.buckets.length)}
      </>)}
      <Card title="Access keys" wide>
        {keys.filter}
        <Table caption="Access keys" rows={keys.data?.keys ?? []} rowKey={(key) => key.id} empty="There is no access key: no client can use S3 yet."
          columns={[
            { name: "Key", show: (key) => <><span class="path">{key.id}</span>{key.note && <small dir="auto">{key.note}</small>}</> },
            { name: "May use", show: (key) => <>{key.only.length === 0 ? `all buckets of ${key.volume}` : key.only.map((one) => `${one.bucket}/${one.prefix ?? ""}`).join(", ")} {key.read_only && <Badge tone="calm">Read only</Badge>}</> },
            { name: "Acts as", show: (key) => `uid ${key.uid}, gid ${key.gid}${key.groups.length > 0 ? `, groups ${key.groups.join(", ")}` : ""}` },
            { name: "Created", show: (key) => date(key.created_seconds) },
            { name: "Actions", show: (key) => <div class="row-actions"><button type="button" onClick={() => setAction({ kind: "revoke", key })} aria-label={`Revoke key ${key.id}`}>Revoke</button></div> },
          ]} />
        {keys.pages(keys.data?.keys.length ?? 0)}
      </Card>
      {action && <ActionDialog action={action} volumes={(volumes.data?.volumes ?? []).map((volume) => volume.name)} onClose={() => setAction(undefined)} onDone={changed}
        onKey={(key) => setAction({ kind: "secret", key })} />}
    </Page>
  );
}

function ActionDialog({ action, volumes, onClose, onDone, onKey }: { action: Action; volumes: string[]; onClose: () => void; onDone: () => void; onKey: (key: AccessKey) => void }) {
  const common = { onClose, onDone };
  const [volume, setVolume] = useState(volumes[0] ?? "main");
  const [name, setName] = useState("");
  const [directory, setDirectory] = useState("");
  const [uid, setUid] = useState("0");
  const [gid, setGid] = useState("0");
  const [only, setOnly] = useState("");
  const [readOnly, setReadOnly] = useState(false);
  const [note, setNote] = useState("");
  const [keep, setKeep] = useState(true);
  const inVolume = <Choice label="Volume" value={volume} onValue={setVolume} choices={volumes.map((one) => [one, one])} />;
  const ids = (
    <div class="pair">
      <Field label="Uid" value={uid} onValue={setUid} required inputMode="numeric" pattern="\d+" />
      <Field label="Gid" value={gid} onValue={setGid} required inputMode="numeric" pattern="\d+" />
    </div>
  );
  switch (action.kind) {
    case "create": {
      const path = directory.trim();
      const isDefault = volume === "main" && !path;
      return (
        <ActionForm {...common} title="Create a bucket" submit="Create" done={`Bucket ${name} is created.`}
          request={{ method: "POST", path: "/buckets", body: { name, volume, ...(path ? { path } : {}), ...(uid === "0" ? {} : { uid: Number(uid) }), ...(gid === "0" ? {} : { gid: Number(gid) }) } }}
          command={cairn("bucket", "create", name || "NAME", ...(isDefault ? [] : ["--path", path ? `${volume}/${path}` : volume]), ...(uid === "0" ? [] : ["--uid", uid]), ...(gid === "0" ? [] : ["--gid", gid]))}>
          <Field label="Name" value={name} onValue={setName} required minLength={3} maxLength={63} placeholder="photos" hint="3 to 63 of a-z, 0-9, '-' and '.'." />
          {inVolume}
          <Field label="Directory" value={directory} onValue={setDirectory} placeholder="the bucket's name" hint="An existing directory is used as it is: nothing is copied." />
          <p class="hint">Owner of new directories:</p>
          {ids}
        </ActionForm>
      );
    }
    case "key": {
      const words = only.split(/[\s,]+/).filter(Boolean);
      const permissions = words.map((word) => {
        const [bucket = "", ...prefix] = word.split("/");
        return { bucket, prefix: prefix.join("/") };
      });
      return (
        <ActionForm onClose={onClose} onDone={(made) => { onDone(); onKey(made as AccessKey); }} title="Create an access key" submit="Create" done="The access key is created."
          request={{ method: "POST", path: "/s3/keys", body: { volume, uid: Number(uid), gid: Number(gid), ...(readOnly ? { read_only: true } : {}), ...(words.length > 0 ? { only: permissions } : {}), ...(note ? { note } : {}) } }}
          command={cairn("s3", "key", "create", ...(volume === "main" ? [] : ["--volume", volume]), "--uid", uid, "--gid", gid, readOnly && "--read-only", ...words.flatMap((word) => ["--bucket", word]), ...(note ? ["--note", note] : []))}>
          {inVolume}
          <p class="hint">User and group with which the key accesses files:</p>
          {ids}
          <Field label="Only these buckets" value={only} onValue={setOnly} placeholder="all of the volume" hint="BUCKET or BUCKET/PREFIX, separated by spaces." />
          <Check label="Allow only reading and listing" value={readOnly} onValue={setReadOnly} />
          <Field label="Note" value={note} onValue={setNote} placeholder="what it is for" />
        </ActionForm>
      );
    }
    case "secret":
      return (
        <Dialog title="The access key" onClose={onClose}>
          <Notice tone="warn" title="The secret is shown only now.">Save it: it cannot be shown again.</Notice>
          <Code label="The key's id" text={action.key.id} />
          <Code label="The secret" text={action.key.secret ?? ""} />
          <div class="buttons"><button type="button" class="primary" onClick={onClose}>Done</button></div>
        </Dialog>
      );
    case "delete":
      return (
        <ActionForm {...common} title={`Delete bucket ${action.bucket.name}`} submit="Delete" isDangerous done={`Bucket ${action.bucket.name} is deleted.`}
          request={{ method: "DELETE", path: `/buckets/${part(action.bucket.name)}${keep ? "?keep=true" : ""}` }} command={cairn("bucket", "delete", action.bucket.name, keep && "--keep")}>
          <Check label="Keep the directory and its files" value={keep} onValue={setKeep} />
          <p class="hint">Otherwise the directory is deleted as well; it must be empty.</p>
        </ActionForm>
      );
    case "revoke":
      return (
        <ActionForm {...common} title={`Revoke key ${action.key.id}`} submit="Revoke" isDangerous done={`Key ${action.key.id} is revoked.`}
          request={{ method: "DELETE", path: `/s3/keys/${part(action.key.id)}` }} command={cairn("s3", "key", "revoke", action.key.id)}>
          <p>Its users lose access at once.</p>
        </ActionForm>
      );
  }
}
