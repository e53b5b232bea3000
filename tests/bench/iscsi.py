"""Measures a LUN beside tgt, and beside a file of the same volume over NFS, with the four corners of `cairn bench`.

    scripts/bench-iscsi [--quick] [--rounds N] [--write]

All three are on one disk, with the load on the same processors, four sessions or connections, and each write stable when it
is answered (FUA, FILE_SYNC). Each round takes them in turns, another one first each time; tgt's LUN is a file that it
opens with its defaults (rdwr), new in each round, as the server is. --write puts the table into docs/results/performance.md.
"""

import argparse
import json
import statistics
import subprocess
import time
from typing import Any

from bench.nfs import report
from lib import document, harness, lunhost

TGT_TARGET = "iqn.2025-11.storage.cairn:tgt"
LUN_BYTES = 8 << 30
TGT_CONTROL_PORT = 55
START_SECONDS_MAX = 20
SESSIONS_COUNT = 4
# Of a phase: what it is called in a result, what it is called here, what is counted.
ROWS = [
    ("sequential read depth 16", "sequential read, 1 MiB", "bytes"),
    ("sequential write depth 16", "sequential write, 1 MiB", "bytes"),
    ("random read depth 1", "random read, 4 KiB, one at a time in each session", "operations"),
    ("random read depth 16", "random read, 4 KiB, 16 in each session", "operations"),
    ("random write depth 1", "random write, 4 KiB, one at a time in each session", "operations"),
    ("random write depth 16", "random write, 4 KiB, 16 in each session", "operations"),
]
AIMS = {"sequential read, 1 MiB": 2, "sequential write, 1 MiB": 2, ROWS[3][1]: 3, ROWS[5][1]: 2}
NFS_AIM = 0.9


class Tgt:
    """tgtd with one LUN in a file, on a port of its own."""

    def __init__(self, root):
        self.image = root / "tgt.img"
        self.port = harness.next_port()
        self.process: Any = None

    def control(self, *words):
        argv = ["tgtadm", "--control-port", str(TGT_CONTROL_PORT), "--lld", "iscsi", *words]
        return subprocess.run(argv, capture_output=True, text=True)

    def __enter__(self):
        with self.image.open("wb") as file:
            file.truncate(LUN_BYTES)
        argv = ["tgtd", "--foreground", "--control-port", str(TGT_CONTROL_PORT), "--iscsi", f"portal=127.0.0.1:{self.port}"]
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        made = lambda: not self.control("--op", "new", "--mode", "target", "--tid", "1", "-T", TGT_TARGET).returncode
        harness.wait_until(made, START_SECONDS_MAX, "the start of tgtd")
        for words in (
            ("--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", str(self.image)),
            ("--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"),
        ):
            done = self.control(*words)
            if done.returncode:
                raise harness.Failure(f"tgtadm {' '.join(words)}: {done.stderr}")
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.image.unlink()

    def url(self):
        return f"iscsi://127.0.0.1:{self.port}/{TGT_TARGET}/1?sessions={SESSIONS_COUNT}"


def measured(url, options, out):
    words = [
        "bench", "four-corners", url, "--sync", "--allow-files", "--depths", "1,16", "--sequential-request", "1MiB",
        "--working-set", options.working_set, "--runtime", options.runtime, "--ramp", "1s", "-o", str(out),
    ]
    done = subprocess.run([str(harness.cairn_path()), *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise harness.Failure(f"cairn {' '.join(words)}: {done.stderr}")
    phases = {phase["name"]: phase for phase in json.loads(out.read_text())["phases"]}
    out.unlink()
    for phase in phases.values():
        if phase["errors"] or phase.get("partial"):
            problem = phase.get("first_error") or phase.get("partial")
            raise harness.Failure(f"{url}, {phase['name']}: {problem}")
    return {title: phases[name][what] / phases[name]["foreground_seconds"] for name, title, what in ROWS}


def one_round(number, options, results):
    with harness.scratch("bench-iscsi-") as root:
        port = harness.next_port()
        server = harness.Server(root, flags=["--listen-iscsi", f"127.0.0.1:{port}", "--disk-size-limit", "24GiB"])
        with server, Tgt(root) as tgt:
            target, initiator = lunhost.map_lun(server, "disk", LUN_BYTES)
            sessions = f"sessions={SESSIONS_COUNT}&initiator={initiator}"
            contenders = [
                ("LUN", f"iscsi://127.0.0.1:{port}/{target}/0?{sessions}"), ("tgt", tgt.url()),
                ("NFS", f"nfs://127.0.0.1:{server.port}/main?nconnect={SESSIONS_COUNT}"),
            ]
            turn = number % len(contenders)
            for name, url in contenders[turn:] + contenders[:turn]:
                found = measured(url, options, root / "result.json")
                results.setdefault(name, []).append(found)
                told = ", ".join(f"{title} {value:.0f}" for title, value in found.items())
                print(f"bench-iscsi: round {number + 1}, {name}: {told}", flush=True)


def ratio(results, title, other):
    """The median, least and most of each round's own ratio."""
    ratios = [ours[title] / theirs[title] for ours, theirs in zip(results["LUN"], results[other])]
    return statistics.median(ratios), min(ratios), max(ratios)


def table(results, rounds):
    lines = [
        "| | LUN | tgt | LUN / tgt (rounds) | aim | NFS, same volume | LUN / NFS (rounds) | aim |", "|---|---|---|---|---|---|---|---|",
    ]
    for _, title, what in ROWS:
        values = {name: statistics.median(found[title] for found in founds) for name, founds in results.items()}
        shown = {
            name: f"{value / 1e6:,.0f} MB/s" if what == "bytes" else f"{value:,.0f} /s" for name, value in values.items()
        }
        by_tgt, by_nfs = ("{:.2f} ({:.2f} to {:.2f})".format(*ratio(results, title, other)) for other in ("tgt", "NFS"))
        lines.append(
            f"| {title} | {shown['LUN']} | {shown['tgt']} | {by_tgt} | {AIMS.get(title, '-')} | {shown['NFS']} | {by_nfs}"
            f" | {NFS_AIM} |"
        )
    return "\n".join([f"Measured {report.today()}, medians of {rounds} rounds.", "", *lines])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one short round, to see that everything runs")
    parser.add_argument("--rounds", type=int, help="3 unless --quick")
    parser.add_argument("--write", action="store_true", help="write the table into docs/results/performance.md")
    options = parser.parse_args()
    options.working_set, options.runtime = ("64MiB", "1s") if options.quick else ("1GiB", "5s")
    rounds = options.rounds or (1 if options.quick else 3)
    results: dict = {}
    begun = time.monotonic()
    for number in range(rounds):
        one_round(number, options, results)
    text = table(results, rounds)
    print(f"{text}\n\nbench-iscsi: {time.monotonic() - begun:.0f} s")
    if options.write:
        document.write("bench-iscsi", text)
