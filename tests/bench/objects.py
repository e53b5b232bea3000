"""Measures objects of Cairn beside MinIO, both with 4+2 on six folders of one device, with `cairn bench objects`.

    scripts/bench-s3 [--quick] [--rounds N] [--minio PROGRAM] [--write]

The load is on the same processors. Each round takes the two in turns, the other one first each time; both are new in each
round. Without MinIO Cairn is measured alone. --write puts the table into docs/results/performance.md.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import time
import urllib.request
from typing import Any

from bench.nfs import report
from lib import document, harness, s3

FOLDERS = 6
START_SECONDS_MAX = 60
USER, SECRET = "minio-user", "minio-secret"
BUCKET = "bench"
# Options of a run, what of it is told how, and how many times MinIO's it is to be.
RUNS = [
    (["--size", "8MiB", "-n", "30", "-c", "4", "--operations", "put,get"], {
        "put": ("PUT, 8 MiB, 4 at a time", "bytes", 2), "get": ("GET, 8 MiB, 4 at a time", "bytes", 2),
    }),
    (["--size", "4KiB", "-n", "1000", "-c", "16", "--operations", "put,get,list,delete-many"], {
        "put": ("PUT, 4 KiB, 16 at a time", "operations", 10), "get": ("GET, 4 KiB, 16 at a time", "operations", 3),
        "list": ("list in pages of 1,000, 16 at a time, entries", "operations", 3),
        "delete-many": ("delete, 1,000 keys in a request, 16 at a time", "operations", 5),
    }),
]


class Minio:
    """A server of one process on six folders, each object as four parts and two of parity."""

    def __init__(self, program, root):
        self.program, self.root = program, root
        self.port = harness.next_port()
        self.process: Any = None

    def __enter__(self):
        folders = [self.root / f"minio{number}" for number in range(FOLDERS)]
        for folder in folders:
            folder.mkdir()
        environment = os.environ | {
            "MINIO_ROOT_USER": USER, "MINIO_ROOT_PASSWORD": SECRET, "MINIO_STORAGE_CLASS_STANDARD": "EC:2", "MINIO_BROWSER": "off",
            # Folders of one device, which it refuses otherwise.
            "MINIO_CI_CD": "1", "CI": "true",
        }
        argv = [self.program, "server", "--quiet", "--address", f"127.0.0.1:{self.port}", *map(str, folders)]
        self.log = (self.root / "minio.log").open("wb")
        self.process = subprocess.Popen(argv, env=environment, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)
        harness.wait_until(self.is_up, START_SECONDS_MAX, "the start of MinIO")
        keys = type("Keys", (), {"id": USER, "secret": SECRET})
        s3.client(self.port, keys).create_bucket(Bucket=BUCKET)
        return self

    def is_up(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/minio/health/cluster", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()
        for number in range(FOLDERS):
            shutil.rmtree(self.root / f"minio{number}")

    def url(self):
        return f"s3://{USER}:{SECRET}@127.0.0.1:{self.port}/{BUCKET}"


def measured(url, quick, out):
    found = {}
    for options, rows in RUNS:
        more = ["-n", "5"] if quick else []
        words = ["bench", "objects", url, *options, *more, "--out", str(out)]
        done = subprocess.run([str(harness.cairn_path()), *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise harness.Failure(f"cairn bench objects: {done.stderr}")
        phases = json.loads(out.read_text())["phases"]
        out.unlink()
        for phase in phases:
            if phase["errors"]:
                raise harness.Failure(f"{phase['name']}: {phase.get('first_error')}")
            title, what, _ = rows[phase["name"].partition(" ")[0]]
            found[title] = phase[what] / phase["foreground_seconds"]
    return found


def one_round(number, options, results):
    with harness.scratch("bench-s3-") as root:
        port = harness.next_port()
        server = harness.Server(root, disks=FOLDERS, flags=["--listen-s3", f"127.0.0.1:{port}"])

        def cairn():
            with server:
                server.cairn("bucket", "create", BUCKET)
                keys = s3.Keys(server)
                return measured(f"s3://{keys.id}:{keys.secret}@127.0.0.1:{port}/{BUCKET}", options.quick, root / "result.json")

        def minio():
            with Minio(options.minio, root) as peer:
                return measured(peer.url(), options.quick, root / "result.json")

        contenders = [("Cairn", cairn), ("MinIO", minio)][: 2 if options.minio else 1]
        turn = number % len(contenders)
        for name, run in contenders[turn:] + contenders[:turn]:
            found = run()
            results.setdefault(name, []).append(found)
            told = ", ".join(f"{title} {value:.0f}" for title, value in found.items())
            print(f"bench-s3: round {number + 1}, {name}: {told}", flush=True)


def table(results, rounds):
    lines = ["| | Cairn | MinIO | Cairn / MinIO (rounds) | aim |", "|---|---|---|---|---|"]
    for _, rows in RUNS:
        for title, what, aim in rows.values():
            shown = {}
            for name, founds in results.items():
                value = statistics.median(found[title] for found in founds)
                shown[name] = f"{value / 1e6:,.0f} MB/s" if what == "bytes" else f"{value:,.0f} /s"
            ratios = [ours[title] / theirs[title] for ours, theirs in zip(results["Cairn"], results.get("MinIO", []))]
            by = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "-"
            lines.append(f"| {title} | {shown['Cairn']} | {shown.get('MinIO', '-')} | {by} | {aim} |")
    return "\n".join([f"Measured {report.today()}, medians of {rounds} rounds.", "", *lines])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one short round, to see that everything runs")
    parser.add_argument("--rounds", type=int, help="3 unless --quick")
    parser.add_argument("--minio", default=shutil.which("minio"), help="the program; the one on the path unless told")
    parser.add_argument("--write", action="store_true", help="write the table into docs/results/performance.md")
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else 3)
    results: dict = {}
    begun = time.monotonic()
    for number in range(rounds):
        one_round(number, options, results)
    text = table(results, rounds)
    print(f"{text}\n\nbench-s3: {time.monotonic() - begun:.0f} s")
    if options.write:
        document.write("bench-s3", text)
