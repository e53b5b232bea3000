"""NFS, iSCSI and S3 on one server at the same time, by `cairn bench`, and what the server has in memory meanwhile.

Owns: the load, the readings of the process. Must not know: how much memory is too much.
"""

import json
import subprocess
import threading
import time

from lib import harness, lunhost, s3

BUCKET = "load"
LUN_BYTES = 4 << 30
SAMPLE_SECONDS = 0.1
CORNERS_COUNT = 4
# What a phase of a benchmark may take beside its time: files are written before it, and removed.
BESIDE_SECONDS_MAX = 600
PART_PREFIX = 'cairn_memory_bytes{part="'


def flags():
    """What the server is started with, and the ports of iSCSI and S3."""
    iscsi, objects = harness.next_port(), harness.next_port()
    return ["--listen-iscsi", f"127.0.0.1:{iscsi}", "--listen-s3", f"127.0.0.1:{objects}"], iscsi, objects


def parts(series):
    """What each part of a server has, in bytes, by its metrics."""
    names = [name for name in series if name.startswith(PART_PREFIX)]
    return {name.removeprefix(PART_PREFIX).removesuffix('"}'): series[name] for name in names}


class Watch(threading.Thread):
    """Reads what a server has in memory until it is told to end; keeps the parts of the highest reading."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server = server
        self.ended = threading.Event()
        # The highest reading at which the parts were asked for.
        self.peak_bytes = 0
        self.peak_parts: dict[str, float] = {}
        # Kinds of warnings that its status had.
        self.kinds: set[str] = set()

    def run(self):
        looked_at = 0.0
        while not self.ended.wait(SAMPLE_SECONDS):
            try:
                now = harness.resident_bytes(self.server.pid)
                # Asking for the parts takes memory as well: not each time.
                if now <= self.peak_bytes or time.monotonic() < looked_at:
                    continue
                self.peak_parts = parts(self.server.metrics())
                self.peak_bytes = now
                self.kinds |= {warning["kind"] for warning in self.server.status()["warnings"]}
                looked_at = time.monotonic() + 1
            except (OSError, harness.Failure):
                # It ends, or is too busy to answer; the next reading tells.
                continue

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join()

    def highest_bytes(self):
        """The most that the server had since it was started, as the kernel noted it."""
        return harness.resident_bytes(self.server.pid, "VmHWM")


class MixedLoad:
    """Reads and writes in order and at random over NFS and iSCSI, and objects over S3, for `seconds` each."""

    def __init__(self, server, iscsi_port, s3_port, folder, seconds, working_set):
        self.server, self.folder, self.seconds = server, folder, seconds
        server.cairn("bucket", "create", BUCKET)
        keys = s3.Keys(server)
        target, initiator = lunhost.map_lun(server, "load", LUN_BYTES)
        for name in ("small", "large"):
            server.make_folder(name)
        corners = ["--working-set", working_set, "--runtime", f"{max(1, round(seconds / CORNERS_COUNT))}s", "--ramp", "0s", "--jobs", "4"]
        nfs = f"nfs://127.0.0.1:{server.port}/main"
        self.commands = {
            "NFS, 4 KiB": ["four-corners", f"{nfs}/small?nconnect=4", *corners, "--depths", "16", "--sequential-request", "1MiB"],
            "NFS, 64 KiB": ["four-corners", f"{nfs}/large?nconnect=4", *corners, "--depths", "32", "--random-request", "64KiB"],
            "iSCSI": [
                "four-corners", f"iscsi://127.0.0.1:{iscsi_port}/{target}/0?sessions=4&initiator={initiator}", *corners,
                "--depths", "16", "--sequential-request", "1MiB",
            ],
            "S3": [
                "objects", f"s3://{keys.id}:{keys.secret}@127.0.0.1:{s3_port}/{BUCKET}", "--size", "64KiB,8MiB", "-n", "8", "-c", "8",
                "--operations", "put,get,mixed", "--runtime", f"{max(1, round(seconds / 6))}s",
            ],
        }

    def run(self):
        """Runs all of it at the same time; returns how many bytes each part moved."""
        running = {name: self.begin(name, words) for name, words in self.commands.items()}
        try:
            return {name: self.end(name, process, out) for name, (process, out) in running.items()}
        finally:
            for process, _ in running.values():
                process.kill()

    def begin(self, name, words):
        out = self.folder / f"{name.replace(' ', '')}.json"
        argv = [harness.cairn_path(), "bench", *words, "--out", out]
        with open(out.with_suffix(".log"), "w") as log:
            process = subprocess.Popen(
                list(map(str, argv)), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.server.environment()
            )
        return process, out

    def end(self, name, process, out):
        try:
            status = process.wait(self.seconds + BESIDE_SECONDS_MAX)
        except subprocess.TimeoutExpired as late:
            raise harness.Late(f"the load over {name} did not end") from late
        if status:
            raise harness.Failure(f"the load over {name} ended with {status}: {out.with_suffix('.log').read_text()[-2000:]}")
        phases = json.loads(out.read_text())["phases"]
        for phase in phases:
            if phase["errors"]:
                raise harness.Failure(f"{name}, {phase['name']}: {phase.get('first_error')}")
        return sum(phase["bytes"] for phase in phases)
