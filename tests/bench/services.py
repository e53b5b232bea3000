"""Measures what data services cost where they gain nothing: unique bytes that do not compress.

    scripts/bench-services [--rounds N] [--mib N] [--write]

One server with six folders and protection 4+2 has a volume for each service, one without any, and one with all. The same files are
copied to each in turn, and back after a start of the server with an empty page cache. Each round begins with another volume. --write
puts the table into docs/results/performance.md.
"""

import argparse
import base64
import os
import pathlib
import statistics

from bench.hops import FILES, READ, WRITTEN, copy_all
from bench.nfs import peers, report
from bench.peers import contenders
from bench.small import asked
from lib import document, harness, libnfs

SNAPSHOTS = 1000
#: Everything on has at least this share of the throughput.
AIM = 0.95
PLAIN, ALL = "none", "all of them"
#: Flags of `cairn volume create`, whether there is a quota, how many snapshots there are.
KINDS: dict[str, tuple[list[str], bool, int]] = {
    PLAIN: (["--compression", "none"], False, 0),
    "compression (lz4)": (["--compression", "lz4"], False, 0),
    "deduplication": (["--compression", "none", "--dedupe", "on"], False, 0),
    "encryption": (["--compression", "none", "--encrypt"], False, 0),
    "a quota of the directory": (["--compression", "none"], True, 0),
    f"{SNAPSHOTS:,} snapshots": (["--compression", "none"], False, SNAPSHOTS),
    ALL: (["--compression", "lz4", "--dedupe", "on", "--encrypt"], True, SNAPSHOTS),
}


class Volumes:
    def __init__(self, root):
        key = root / "master.key"
        key.write_text(base64.b64encode(os.urandom(32)).decode() + "\n")
        key.chmod(0o600)
        self.server = harness.Server(root, contenders.DISKS, ["--master-key-file", str(key)])

    def name(self, kind):
        return f"v{list(KINDS).index(kind)}"

    def url(self, kind, name):
        return f"nfs://127.0.0.1:{self.server.port}/{self.name(kind)}/in/{name}"

    def make(self, kind):
        flags, has_quota, snapshots = KINDS[kind]
        name = self.name(kind)
        self.server.cairn("volume", "create", name, *flags)
        self.server.cairn("export", "set", name, "--client", "127.0.0.1", "--squash", "none")
        with libnfs.Mount(self.server.libnfs_url().replace("/main", f"/{name}")) as mount:
            mount.mkdir("/in")
            if has_quota:
                self.server.cairn("quota", "set", f"{name}/in", "--hard", "1TiB", "--files", "1000000")
            for number in range(snapshots):
                mount.write_file("/old", os.urandom(1 << 12))
                asked(self.server, "POST", f"/api/v1/volumes/{name}/snapshots", {"name": f"s{number}"})

    def cpu_seconds(self):
        return self.server.cpu_seconds()

    def measure(self, kind, source, memory):
        """{what: (MB/s, processor seconds of the server for each GB)}."""
        names = [f"file{number}" for number in range(FILES)]
        sources = [source / name for name in names]
        len_bytes = sum(path.stat().st_size for path in sources)
        found = {}

        def timed(what, pairs):
            before = self.cpu_seconds()
            seconds = copy_all(pairs)
            found[what] = (len_bytes / 1e6 / seconds, (self.cpu_seconds() - before) / (len_bytes / 1e9))

        timed(WRITTEN, [(path, self.url(kind, path.name)) for path in sources])
        self.server.stop()
        self.server.start()
        os.sync()
        peers.DROP_CACHES.write_text("3")
        timed(READ, [(self.url(kind, name), memory / name) for name in names])
        for path in sources:
            if path.read_bytes() != (memory / path.name).read_bytes():
                raise harness.Failure("other bytes were read than were written")
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=192, help=f"of each of {FILES} files")
    parser.add_argument("--write", action="store_true", help="write the table into docs/results/performance.md")
    options = parser.parse_args()
    found: dict[str, list[dict]] = {kind: [] for kind in KINDS}
    with harness.scratch("services-", pathlib.Path("/dev/shm")) as memory:
        source = memory / "source"
        source.mkdir()
        for number in range(options.rounds):
            # New bytes: those of the round before are known to deduplication, if only of its own volume.
            for file in range(FILES):
                (source / f"file{file}").write_bytes(os.urandom(options.mib << 20))
            kinds = list(KINDS)
            kinds = kinds[number % len(kinds) :] + kinds[: number % len(kinds)]
            with harness.scratch("services-") as root:
                volumes = Volumes(root)
                with volumes.server:
                    for kind in kinds:
                        volumes.make(kind)
                    for kind in kinds:
                        found[kind].append(volumes.measure(kind, source, memory))
                        print(f"bench-services: round {number + 1}, {kind}: {found[kind][-1]}", flush=True)
    lines = [
        f"Measured {report.today()}, medians of {options.rounds} rounds; {FILES} files of {options.mib} MiB at a time, on {os.cpu_count()} CPUs.", "",
        "| services | write | of none (rounds) | CPU | read | of none (rounds) | CPU |", "|---|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        cells = [kind]
        for what in (WRITTEN, READ):
            rates = [measured[what][0] for measured in found[kind]]
            cpu = statistics.median(measured[what][1] for measured in found[kind])
            ratios = [rate / none[what][0] for rate, none in zip(rates, found[PLAIN])]
            ratio = report.ratio_text(ratios) if kind != PLAIN else "-"
            cells += [f"{statistics.median(rates):,.0f} MB/s", ratio, f"{cpu:.2f} s/GB"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", f"The aim is {AIM} with all of them on."]
    text = "\n".join(lines)
    print(text)
    if options.write:
        document.write("bench-services", text)
