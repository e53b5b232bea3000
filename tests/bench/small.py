"""Measures what small files and objects take on disks.

    scripts/bench-small [--count N] [--size BYTES] [--files] [--write]

As many files of random bytes as asked for, 1 KiB each unless --size says otherwise, are copied into a volume with protection 4+2 on six
folders, and as many objects are put into a bucket of another server. Then the blocks are counted that the file system below gave to what is
in the folders: shards with data, metadata, and logs. The files and objects are measured after a stop and a start, which write everything to
its place. Of the volume with the files it is measured how long a snapshot takes, beside one of the empty volume, and how soon a quota of the
whole tree is right. --files measures the files alone, and how fast all of them are read after a start.
--write puts the table into docs/results/performance.md.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import time
import urllib.request

from bench.nfs import report
from bench.peers import contenders
from lib import document, harness, s3

#: Unless --size says otherwise.
LEN_BYTES = 1024
PROTECTION = 1.5
#: At most so many times their bytes at the protection.
AIM = 1.3
FILES_PER_DIRECTORY = 10_000
WORKERS = 16
BLOCK_BYTES = 512
BUCKET = "small"
SNAPSHOTS = 20


def taken(server, *patterns):
    """Bytes on disks of what is in the folders of each data folder whose paths are like these."""
    found = 0
    for disk in server.disks:
        for top in (folder for pattern in patterns for folder in disk.glob(pattern)):
            for root, _, names in os.walk(top):
                found += sum((pathlib.Path(root) / name).stat().st_blocks * BLOCK_BYTES for name in names)
    return found


def settle(server):
    """All that is in memory comes to its place; what was collected is deleted."""
    server.stop()
    server.start()
    before = None
    while (now := taken(server, "shards", "volumes")) != before:
        before = now
        time.sleep(5)


def by_part(server):
    # The state, and its copies on other disks.
    state = taken(server, "volumes/*/state", "volumes/*/replica.*")
    return {"shards": taken(server, "shards"), "state": state, "all": taken(server, "*")}


def make_tree(top, count, len_bytes):
    made = 0
    while made < count:
        folder = top / f"d{made // FILES_PER_DIRECTORY:04}"
        folder.mkdir(parents=True)
        for number in range(min(FILES_PER_DIRECTORY, count - made)):
            (folder / f"f{number:05}").write_bytes(os.urandom(len_bytes))
        made += FILES_PER_DIRECTORY


def asked(server, method, path, body=None):
    """The answer of the admin API, over one connection: a command would take longer than what is measured."""
    headers = {"Authorization": f"Bearer {server.token_path.read_text().strip()}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.ready["admin"]["url"] + path, data, headers=headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read() or "null")


def snapshot_ms(server, prefix):
    """Milliseconds that taking a snapshot takes, the median of some; and the greatest."""
    taken = []
    for number in range(SNAPSHOTS):
        begun = time.monotonic()
        asked(server, "POST", "/api/v1/volumes/main/snapshots", {"name": f"{prefix}{number}"})
        taken.append(1000 * (time.monotonic() - begun))
    return statistics.median(taken), max(taken)


def quota_seconds(server, count, len_bytes):
    """Seconds until a quota that is put on the tree has counted all of it."""
    begun = time.monotonic()
    quota = asked(server, "PUT", "/api/v1/volumes/main/quotas", {"path": "/tree", "of": "all", "files": {"hard": 10 * count}})
    while quota["counting"]:
        time.sleep(0.2)
        quota = asked(server, "GET", "/api/v1/volumes/main/quota?path=/tree")
    if quota["used_files"] < count or quota["logical_bytes"] != count * len_bytes:
        raise harness.Failure(f"the quota counts wrong: {quota}")
    return time.monotonic() - begun


def read_rate(server, memory, count):
    """Files that are read in a second, all of them; the server has just been started."""
    begun = time.monotonic()
    server.cairn("cp", "-r", "-q", server.url("tree"), memory / "back")
    seconds = time.monotonic() - begun
    for path in (memory / "tree").rglob("f*"):
        if (memory / "back" / path.relative_to(memory / "tree")).read_bytes() != path.read_bytes():
            raise harness.Failure(f"{path} came back otherwise")
    return count / seconds


def files(root, count, len_bytes, is_read):
    with harness.scratch("small-", pathlib.Path("/dev/shm")) as memory, harness.Server(root, contenders.DISKS) as server:
        make_tree(memory / "tree", count, len_bytes)
        empty_ms = snapshot_ms(server, "empty")
        begun = time.monotonic()
        server.cairn("cp", "-r", "-q", memory / "tree", server.url("tree"))
        seconds = time.monotonic() - begun
        settle(server)
        parts = by_part(server)
        rate = ""
        if is_read:
            server.stop()
            server.start()
            rate = f" After a start {read_rate(server, memory, count):,.0f} files are read in a second."
        (few, most), (few_before, most_before) = snapshot_ms(server, "full"), empty_ms
        said = (
            f"A snapshot of the volume with the files takes {few:.1f} ms ({most:.1f} at most, of {SNAPSHOTS}), of the empty volume "
            f"{few_before:.1f} ms ({most_before:.1f}). A quota that is put on all of the files is right after "
            f"{quota_seconds(server, count, len_bytes):.1f} s.{rate}"
        )
        return parts, seconds, said


def objects(root, count, len_bytes, _is_read):
    port = harness.next_port()
    with harness.Server(root, contenders.DISKS, ["--listen-s3", f"127.0.0.1:{port}"]) as server:
        server.cairn("bucket", "create", BUCKET)
        keys = s3.Keys(server)
        url = f"s3://{keys.id}:{keys.secret}@127.0.0.1:{port}/{BUCKET}"
        out = root / "result.json"
        words = ["bench", "objects", url, "--keep", "--size", str(len_bytes), "-n", str(count // WORKERS), "-c", str(WORKERS)]
        words += ["--operations", "put", "--out", str(out)]
        done = subprocess.run([str(harness.cairn_path()), *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        phases = json.loads(out.read_text())["phases"] if out.exists() else []
        if done.returncode or any(phase["errors"] for phase in phases):
            raise harness.Failure(f"cairn bench objects: {done.stderr}")
        settle(server)
        return by_part(server), phases[0]["foreground_seconds"], None


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=LEN_BYTES, help="bytes of each")
    parser.add_argument("--files", action="store_true", help="files alone, and how fast they are read")
    parser.add_argument("--write", action="store_true", help="write the table into docs/results/performance.md")
    options = parser.parse_args()
    lines = [
        f"Measured {report.today()}: {options.count:,} of each, of {options.size} random bytes, on {os.cpu_count()} CPUs.", "",
        "| | shards | of their bytes at the protection | aim | metadata, three copies | logs and the rest | all | made in |",
        "|---|---|---|---|---|---|---|---|",
    ]
    notes: list[str] = []
    kinds = {"files, over NFS": files, "objects, over S3": objects}
    if options.files:
        del kinds["objects, over S3"]
    for title, measure in kinds.items():
        with harness.scratch("small-") as root:
            parts, seconds, said = measure(root, options.count, options.size, options.files)
        notes += ["", said] if said else []
        print(f"bench-small: {title}: {parts}, {seconds:.0f} s", flush=True)
        mib = lambda value: f"{value / (1 << 20):,.0f} MiB"
        ideal = options.count * options.size * PROTECTION
        rest = parts["all"] - parts["shards"] - parts["state"]
        cells = [title, mib(parts["shards"]), f"{parts['shards'] / ideal:.2f}", str(AIM), mib(parts["state"]), mib(rest), mib(parts["all"])]
        cells.append(f"{seconds:,.0f} s")
        lines.append(f"| {' | '.join(cells)} |")
    text = "\n".join(lines + notes)
    print(text)
    if options.write:
        document.write("bench-small", text)
