"""Results as tables in Markdown.

Owns: medians, ratios, aims, wording.
Must not know: how anything was measured.
"""

import os
import platform
import statistics
import time

from bench.nfs import scale
from bench.nfs.workloads import BY_KEY, STREAMS, WORKLOADS

SIX_AIMS = {"seqwrite-first": None, "seqwrite-new": 0.6, "seqwrite-again": 0.6, "seqread-cold": 0.9, "seqread-warm": 0.9}
DEGRADED_AIM = 0.7
LIMIT_TITLES = {
    "disk-write": "disk, 1 MiB O_DIRECT write",
    "disk-read": "disk, 1 MiB O_DIRECT read",
    "loopback": "one TCP stream over loopback",
    "memcpy": "memcpy, cold, one core",
    "fdatasync": "disk, 4 KiB write + fdatasync, one at a time",
}
# Which workload comes how near to which limit.
SHARES = [
    ("disk-write", "seqwrite-new"),
    ("disk-write", "seqwrite-again"),
    ("disk-read", "seqread-cold"),
    ("loopback", "seqread-warm"),
    ("loopback", "seqwrite-again"),
    ("memcpy", "seqread-warm"),
    ("fdatasync", "randwrite-sync-1"),
    ("fdatasync", "randwrite-sync"),
]


def yes(is_reached):
    return "yes" if is_reached else "**no**"


def median_of(rounds, key, value):
    return statistics.median(value(one[key]) for one in rounds)


def rate_of(rounds, key):
    return median_of(rounds, key, BY_KEY[key].rate)


def have(rounds, key):
    return bool(rounds) and all(key in one for one in rounds)


def ratios(ours, theirs, key):
    """Of each round: what the machine did meanwhile hit both."""
    rate = BY_KEY[key].rate
    return [rate(one[key]) / rate(other[key]) for one, other in zip(ours, theirs)]


def aim_text(aim, found):
    return f"{aim} | {yes(statistics.median(found) >= aim)}" if aim else "- | -"


def ratio_text(values):
    middle = statistics.median(values)
    spread = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
    return f"{middle:.2f}{spread}"


def beside_ganesha(rounds):
    ours, theirs = rounds["cairn"], rounds["ganesha"]
    lines = [
        "| workload | Cairn | NFS-Ganesha | ratio (rounds) | aim | reached |",
        "|---|---|---|---|---|---|",
    ]
    for workload in WORKLOADS:
        key = workload.key
        if not have(ours, key) or not have(theirs, key):
            continue
        found = ratios(ours, theirs, key)
        lines.append(
            f"| {workload.title} | {workload.rate_text(rate_of(ours, key))} | {workload.rate_text(rate_of(theirs, key))} "
            f"| {ratio_text(found)} | {aim_text(workload.aim, found)} |"
        )
    return lines


def most_the_load_allows(workload, ours, theirs):
    """The ratio if Cairn itself cost no CPU at all."""
    if workload.depth_one:
        return "-"
    load_cost = median_of(ours, workload.key, lambda one: workload.cost(one, "load"))
    processors = min(workload.connections, os.cpu_count())
    scale_of_rate = 1e3 if workload.is_stream else 1e6
    return f"{processors / load_cost * scale_of_rate / rate_of(theirs, workload.key):.1f}" if load_cost else "-"


def cpu(rounds):
    ours, theirs = rounds["cairn"], rounds["ganesha"]
    lines = [
        "| workload | Cairn | NFS-Ganesha | load beside Cairn | load beside Ganesha | most the load allows |",
        "|---|---|---|---|---|---|",
    ]
    for workload in WORKLOADS:
        key = workload.key
        if not have(ours, key) or not have(theirs, key):
            continue
        costs = [
            median_of(one, key, lambda result, who=who: workload.cost(result, who))
            for who in ("server", "load")
            for one in (ours, theirs)
        ]
        texts = " | ".join(workload.cost_text(cost) for cost in costs)
        lines.append(f"| {workload.title} | {texts} | {most_the_load_allows(workload, ours, theirs)} |")
    return lines


def encoder_of(results, prefix, is_peer=False):
    """The fastest contender of that name: (name, hot, cold) in GB/s."""
    found = [one for one in results["results"] if one["what"].startswith(prefix) and ("isa-l" in one["what"]) == is_peer]
    best = max(found, key=lambda one: one["hot_gb_per_s"])
    return best["what"], best["hot_gb_per_s"], best["cold_gb_per_s"]


def limits(found, encoder, cairn_rounds):
    """`found`: one dictionary for each round."""
    value = {key: statistics.median(one[key]["mb_per_s"] for one in found) for key in found[0]}
    value["fdatasync"] = statistics.median(one["fdatasync"]["ops_per_s"] for one in found)
    if encoder:
        value["memcpy"] = encoder_of(encoder, "memcpy")[2] * 1e3
    lines = ["| limit of the machine | | Cairn reaches with | | share |", "|---|---|---|---|---|"]
    shown = set()
    for limit, key in SHARES:
        if limit not in value:
            continue
        unit = "/s" if limit == "fdatasync" else "MB/s"
        figure = f"{value[limit]:,.0f} {unit}"
        if have(cairn_rounds, key):
            rate = rate_of(cairn_rounds, key)
            lines.append(f"| {LIMIT_TITLES[limit]} | {figure} | {BY_KEY[key].title} | {BY_KEY[key].rate_text(rate)} | {rate / value[limit]:.2f} |")
        elif limit not in shown:
            lines.append(f"| {LIMIT_TITLES[limit]} | {figure} | | | |")
        shown.add(limit)
    return lines


def six_disks(rounds):
    one, six = rounds["cairn"], rounds["cairn-six"]
    lines = ["| workload | one disk | six disks, 4+2 | ratio (rounds) | aim | reached |", "|---|---|---|---|---|---|"]
    for key in STREAMS:
        if not have(one, key) or not have(six, key):
            continue
        workload, found = BY_KEY[key], ratios(six, one, key)
        lines.append(
            f"| {workload.title} | {workload.rate_text(rate_of(one, key))} | {workload.rate_text(rate_of(six, key))} "
            f"| {ratio_text(found)} | {aim_text(SIX_AIMS[key], found)} |"
        )
    healthy = [one["seqread-cold"]["mb_per_s"] for one in six]
    degraded = [one["degraded"]["mb_per_s"] for one in six]
    found = [bad / good for bad, good in zip(degraded, healthy)]
    lines += [
        "",
        "| cold read of six disks | all there | two deleted | ratio (rounds) | aim | reached |",
        "|---|---|---|---|---|---|",
        f"| sequential | {statistics.median(healthy):,.0f} MB/s | {statistics.median(degraded):,.0f} MB/s "
        f"| {ratio_text(found)} | {DEGRADED_AIM} | {yes(statistics.median(found) >= DEGRADED_AIM)} |",
    ]
    return lines


def encoder(results):
    ours, memcpy = encoder_of(results, "encode"), encoder_of(results, "memcpy")
    peer = encoder_of(results, "encode", is_peer=True)
    lines = [f"| {results['settings']['code']}, one core, GB/s of data | hot | cold |", "|---|---|---|"]
    for title, (name, hot, cold) in [("Cairn", ours), ("ISA-L", peer), ("memcpy", memcpy)]:
        lines.append(f"| {title}: {name} | {hot:.1f} | {cold:.1f} |")
    lines += [
        "",
        f"At least ISA-L's: hot {yes(ours[1] >= peer[1])}, cold {yes(ours[2] >= peer[2])}; "
        f"at least memcpy's, cold: {yes(ours[2] >= memcpy[2])}.",
    ]
    return lines


def scaled(result):
    peaks = result["peak_bytes"]
    most = max(peaks.values())
    written, created, restarted = result["written"], result["created"], result["restart"]
    steps = ", ".join(f"{step} {peak / 1e6:,.0f}" for step, peak in peaks.items())
    return [
        f"One disk, `memory_limit` as it comes; {result['bytes'] / 1e9:.1f} GB written at {written['mb_per_s']:,.0f} MB/s, "
        f"{result['files']:,} files created at {created['ops_per_s']:,.0f} /s and listed in {result['list_seconds']:.1f} s.",
        "",
        "| | | aim | reached |",
        "|---|---|---|---|",
        f"| most resident memory | {most / 1e6:,.0f} MB | {scale.MEMORY_AIM_BYTES / 1e6:,.0f} MB | {yes(most <= scale.MEMORY_AIM_BYTES)} |",
        f"| kill -9 at {result['ops_per_s_when_killed']:,.0f} operations/s, until it says it serves "
        f"| {restarted['ready_seconds']:.2f} s | {scale.RESTART_SECONDS_AIM:.0f} s "
        f"| {yes(restarted['ready_seconds'] < scale.RESTART_SECONDS_AIM)} |",
        f"| the same, until a file's attributes are read | {restarted['answered_seconds']:.2f} s | {scale.RESTART_SECONDS_AIM:.0f} s "
        f"| {yes(restarted['answered_seconds'] < scale.RESTART_SECONDS_AIM)} |",
        "",
        f"Peak of resident memory after each step, MB: {steps}.",
    ]


def versions(found):
    return f"Cairn {found['cairn']} ({found['commit']}), NFS-Ganesha {found['ganesha']}"


def document(results):
    """All there is in `results`, which is also what the JSON file holds."""
    rounds, text = results["rounds"], []
    count = max(len(one) for one in rounds.values()) if rounds else 0
    loads = results["loads"]
    text.append(
        f"Measured {results['date']} on {os.cpu_count()} CPUs ({results['cpu']}), {platform.system()} {platform.release()}; "
        f"{versions(results['versions'])}; load by {loads['name']} on the same CPUs. "
        f"Load average when it began: {results['load_average']:.1f}."
    )
    if count:
        text.append(
            f"{count} round{'s' if count != 1 else ''}, each server new in each round and taking turns at going first; rates "
            "are medians, ratios the median (least to most) of each round's own."
        )
    if not loads["is_libnfs"]:
        text.append(
            "The load is our own NFS client, not nfsload; it takes less CPU than libnfs, so that both servers are faster "
            "than with nfsload, and ratios differ from those with it."
        )

    def part(title, lines):
        text.extend(["", f"### {title}", "", *lines])

    if rounds.get("cairn") and rounds.get("ganesha"):
        part("One data disk each", [
            "Ganesha's VFS backend on the same file system does not sync names; Cairn's creates and unlinks are "
            "durable when answered. Cold: both servers restarted, page cache dropped. A new server's first writes "
            "go to memory that is touched for the first time, which this machine gets from its hypervisor page by "
            "page (0.5 to 1 GB/s; 10 GB/s once the memory is there). The row after it shows the server at work.",
            "", *beside_ganesha(rounds)])
        part("CPU seconds per GB or per million operations", [
            "The load shares the CPUs. \"Most the load allows\" is the ratio to Ganesha if Cairn took no CPU and the "
            "load had all of it.",
            "", *cpu(rounds)])
    if results["limits"]:
        part("The machine's limits", limits(results["limits"], results["encoder"], rounds.get("cairn")))
    if rounds.get("cairn-six"):
        part("Six disks (folders of one device) against one", six_disks(rounds))
    if results["encoder"]:
        part("Erasure coding", encoder(results["encoder"]))
    if results["scale"]:
        part("Memory and restart", scaled(results["scale"]))
    return "\n".join(text)


def today():
    return time.strftime("%Y-%m-%d")
