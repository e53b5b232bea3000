"""Results as tables in Markdown.

Owns: medians, ratios, aims, wording.
Must not know: how anything was measured.
"""

import os
import platform
import statistics

from bench.nfs.report import ratio_text, yes
from bench.reliability import degraded, rebuild

DEGRADED_AIM = 0.7
REBUILD_AIM = 0.5
CLIENTS_AIM = 0.7


def middle(values):
    return statistics.median(values)


def spread_text(values, unit, digits=0):
    values = list(values)
    return f"{middle(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f}) {unit}"


def reached(aim, found):
    return f"{aim} | {yes(middle(found) > aim)}"


def recovery(result):
    lines = [
        "| killed during | in memory alone | log written | writes in the journal | entries replayed | files | first READ answered | all volumes served |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for key, rounds in result["cases"].items():
        def column(name, rounds=rounds):
            return [one[name] for one in rounds]

        lines.append(
            f"| {key.partition('/')[0]} | {middle(column('dirty_bytes')) / 1e6:,.1f} MB | {middle(column('log_bytes')) / 1e6:,.1f} MB "
            f"| {middle(column('journaled')):,.0f} | {middle(column('replayed')):,.0f} | {middle(column('inodes')):,.0f} "
            f"| {spread_text(column('answered_seconds'), 's', 2)} "
            f"| {spread_text(column('ready_seconds'), 's', 2)} |"
        )
    return lines


def degraded_reads(result):
    rounds = result["rounds"]
    lines = [
        "| read, cold | all there | one disk gone | ratio | the device is asked for | two disks gone | ratio | the device is asked for | aim | reached |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for work in degraded.READS:
        of = {count: [one[work.key][count]["rate"] for one in rounds] for count in ("0", "1", "2")}
        found = {count: [bad / good for bad, good in zip(of[count], of["0"])] for count in ("1", "2")}
        asked = {count: middle(one[work.key][count]["device_bytes_per_read"] for one in rounds) for count in of}
        both = min((found["1"], found["2"]), key=middle)
        lines.append(
            f"| {work.title} | {work.rate_text(middle(of['0']))} "
            f"| {work.rate_text(middle(of['1']))} | {ratio_text(found['1'])} | {asked['1'] / asked['0']:.2f} times as much "
            f"| {work.rate_text(middle(of['2']))} | {ratio_text(found['2'])} | {asked['2'] / asked['0']:.2f} times as much "
            f"| {reached(DEGRADED_AIM, both)} |"
        )
    return lines


def rebuild_rate(result):
    rounds = result["rounds"]
    ratios = [one["mb_per_s"] / one["raw_mb_per_s"] for one in rounds]
    cpu = [one["server_cpu_seconds"] / (one["wrote_bytes"] / 1e9) for one in rounds]
    return [
        "| rebuilt | the bare device | ratio (rounds) | aim | reached | CPU |",
        "|---|---|---|---|---|---|",
        f"| {spread_text([one['mb_per_s'] for one in rounds], 'MB/s')} | {spread_text([one['raw_mb_per_s'] for one in rounds], 'MB/s')} "
        f"| {ratio_text(ratios)} | {reached(REBUILD_AIM, ratios)} | {middle(cpu):.1f} s/GB |",
        "",
        f"A whole disk of {middle(one['wrote_bytes'] for one in rounds) / 1e6:,.0f} MB in {middle(one['seconds'] for one in rounds):.1f} s, from the "
        "command until it has everything.",
    ]


def went_on(rounds):
    return "" if all(rounds) else ", but it ended before the clients did"


def clients_and_rebuild(result):
    rounds = result["rounds"]
    lines = ["| work of clients | rebuild stopped | rebuild goes on | ratio (rounds) | aim | reached | rebuilt meanwhile |", "|---|---|---|---|---|---|---|"]
    for work in rebuild.WORK:
        entries = [one[work.key] for one in rounds]
        quiet, busy = ([one[key]["rate"] for one in entries] for key in ("quiet", "busy"))
        found = [bad / good for bad, good in zip(busy, quiet)]
        meanwhile = middle(one["rebuilt_mb_per_s"] for one in entries)
        # Clients that keep their speed because nothing is rebuilt are no success.
        stood = any(one["rebuilt_bytes"] == 0 for one in entries)
        verdict = f"{CLIENTS_AIM} | no: nothing was rebuilt" if stood else reached(CLIENTS_AIM, found)
        lines.append(
            f"| {work.title} | {work.rate_text(middle(quiet))} | {work.rate_text(middle(busy))} | {ratio_text(found)} "
            f"| {verdict} | {meanwhile:,.1f} MB/s{went_on(one['went_on'] for one in entries)} |"
        )
    return lines


def clients_and_scrub(result):
    rounds = result["rounds"]
    lines = [
        "| work of clients | no scrub | scrub as it comes (50 MiB/s) | ratio (rounds) | scrub without a limit "
        "| ratio (rounds) | read by it | aim | reached |", "|---|---|---|---|---|---|---|---|---|"]
    for work in rebuild.WORK:
        entries = [one[work.key] for one in rounds]
        of = {key: [one[key]["rate"] for one in entries] for key in ("quiet", "default", "unlimited")}
        found = {key: [bad / good for bad, good in zip(of[key], of["quiet"])] for key in ("default", "unlimited")}
        meanwhile = middle(one["unlimited"]["scrubbed_mb_per_s"] for one in entries)
        both = min(found.values(), key=middle)
        lines.append(
            f"| {work.title} | {work.rate_text(middle(of['quiet']))} | {work.rate_text(middle(of['default']))} | {ratio_text(found['default'])} "
            f"| {work.rate_text(middle(of['unlimited']))} | {ratio_text(found['unlimited'])} "
            f"| {meanwhile:,.0f} MB/s{went_on(one['unlimited']['went_on'] for one in entries)} | {reached(CLIENTS_AIM, both)} |"
        )
    return lines


PARTS = {
    "recovery": (
        "Recovery after kill -9",
        "Four connections on six disks (4+2). When there is as much data as the row says, the server is killed, "
        "the page cache emptied, and the server started. Times count from the start of the process: until a READ "
        "of an older file is answered with its bytes (a client tries every millisecond), and until the server says "
        "that all volumes are served. Data that was answered as unstable and was not on disk is gone, as NFS "
        "allows: clients send it again. The journal is what was answered as stable and is in the log, but not in a "
        "segment yet.",
        recovery,
    ),
    "degraded": (
        "Reads with disks gone",
        "Six disks, 4+2. Disks are taken away while the server is stopped. It starts with empty caches for each "
        "figure, with `--memory-limit 256MiB`, so that nothing that is read again is in memory. A lost unit is "
        "computed from four others. With one disk gone, that is a sixth of the units; with two, a third. So random "
        "reads ask for more, while sequential reads need everything anyway. Where the device is the limit (one for "
        "all six disks here), a read keeps at best 1 / (what the device is asked for): at random, no code of 4+2 "
        "can keep 0.7 there.",
        degraded_reads,
    ),
    "rebuild": (
        "Rebuild of a lost disk, without clients",
        "One of six disks is lost and replaced. The six disks are folders of one device here. For comparison, fio "
        "asks the bare device for the same at the same time: four readers of the shards of four other disks, and "
        "one writer of as many bytes as were rebuilt (O_DIRECT, 1 MiB, eight requests each in flight). Both rates "
        "are bytes written to the new disk; four times as many are read meanwhile.",
        rebuild_rate,
    ),
    "rebuild-clients": (
        "Clients while a disk is rebuilt",
        "The same disk is lost and replaced in both columns; in the first, the rebuild stands still "
        "(`--rebuild-rate 1`).",
        clients_and_rebuild,
    ),
    "scrub-clients": (
        "Clients while a scrub runs",
        "All disks are present. A scrub keeps to `scrub_rate`; without a limit it takes what clients leave.",
        clients_and_scrub,
    ),
}


def document(parts):
    """`parts`: by name, each with its result and what it was measured with."""
    text = [
        f"On {os.cpu_count()} CPUs, {platform.system()} {platform.release()}; the load (`nfs_load`, our own client) shares them. Each part is "
        "one run, in which what is compared takes turns in each round; rates are medians, ratios the median (least to most) of each "
        "round's own.",
    ]
    for name, (title, words, table) in PARTS.items():
        if name not in parts:
            continue
        part = parts[name]
        rounds = f"{part['rounds']} round{'s' if part['rounds'] != 1 else ''}"
        text += [
            "", f"#### {title}", "", words, "", *table(part["result"]), "",
            f"{part['date']}, {part['cpu']}, commit {part['commit']}, {rounds}, load average when it began {part['load_average']:.1f}: "
            f"`make bench-reliability BENCH_FLAGS='--only {name}'`",
        ]
    return "\n".join(text)
