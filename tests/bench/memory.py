"""What a server has in memory beside its limit, with six disks, under NFS, iSCSI and S3 together.

    scripts/bench-memory [--limits 256MiB,512MiB,2GiB] [--seconds 120] [--working-set 2GiB] [--write]

A new server for each limit, on six folders of one device. Reads and writes in order and at random (4 KiB and 64 KiB, which overwrite
the files) run over NFS and iSCSI, and objects of 64 KiB and 8 MiB over S3, all at the same time. The peak is VmHWM of proc(5): the most
that the process ever had. Ends with 1 if it is above 1.05 of the limit. --write puts the table into docs/results/performance.md.
"""

import argparse

from bench.nfs import report
from lib import document, harness, mixedload

DISKS_COUNT = 6
RATIO_MAX = 1.05
MIB = 1 << 20
UNITS = {"MiB": MIB, "GiB": 1 << 30}


def size(text):
    """`256MiB` in bytes."""
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return int(text.removesuffix(unit)) * factor
    raise argparse.ArgumentTypeError(f"{text!r} is no size: for example 256MiB or 2GiB")


def sizes(text):
    return [(word, size(word)) for word in text.split(",")]


def measured(limit, options):
    """The highest reading of a server with this limit, what each part had then, and what was moved."""
    flags, iscsi_port, s3_port = mixedload.flags()
    with harness.scratch("bench-memory-") as root:
        server = harness.Server(root / "pool", DISKS_COUNT, [*flags, "--memory-limit", limit])
        server.root.mkdir()
        with server:
            load = mixedload.MixedLoad(server, iscsi_port, s3_port, root, options.seconds, options.working_set)
            with mixedload.Watch(server) as watch:
                moved = load.run()
                peak_bytes = watch.highest_bytes()
            series = server.metrics()
    return {
        "peak_bytes": peak_bytes, "parts": watch.peak_parts, "kinds": watch.kinds, "moved_bytes": sum(moved.values()),
        "pauses": series["cairn_memory_pauses_total"], "given_back": series["cairn_memory_given_back_total"],
    }


def table(results, options):
    names = sorted({name for _, _, found in results for name in found["parts"]})
    lines = [
        f"Measured {report.today()}: six folders of one device, {options.seconds} s of each kind of load, files of {options.working_set}. Each "
        "part is as it was at the highest reading that was taken while the load ran; MiB.", "",
        "| limit | peak (VmHWM) | of the limit | moved, GB | times callers waited | " + " | ".join(names) + " |",
        "|---|---|---|---|---|" + "---|" * len(names),
    ]
    for limit, limit_bytes, found in results:
        cells = [
            limit, f"{found['peak_bytes'] / MIB:,.0f} MiB", f"{found['peak_bytes'] / limit_bytes:.2f}",
            f"{found['moved_bytes'] / 1e9:,.1f}", f"{found['pauses']:,.0f}",
            *(f"{found['parts'].get(name, 0) / MIB:,.0f}" for name in names),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--limits", type=sizes, default=sizes("256MiB,512MiB,2GiB"), metavar="SIZE,...")
    parser.add_argument("--seconds", type=int, default=120, help="of each kind of load (default 120)")
    parser.add_argument("--working-set", default="2GiB", metavar="SIZE", help="the files of each load (default 2GiB)")
    parser.add_argument("--write", action="store_true", help="put the table into docs/results/performance.md")
    options = parser.parse_args()
    results = []
    for limit, limit_bytes in options.limits:
        found = measured(limit, options)
        results.append((limit, limit_bytes, found))
        told = f"{found['peak_bytes'] / MIB:,.0f} MiB, {found['peak_bytes'] / limit_bytes:.2f} of the limit"
        print(f"bench-memory: {limit}: {told}; freed memory went back {found['given_back']:,.0f} times", flush=True)
    text = table(results, options)
    print(f"\n{text}\n")
    if options.write:
        document.write("bench-memory", text)
    is_kept = all(found["peak_bytes"] <= RATIO_MAX * limit_bytes for _, limit_bytes, found in results)
    print(f"bench-memory: {'kept' if is_kept else 'NOT kept'}")
    return 0 if is_kept else 1
