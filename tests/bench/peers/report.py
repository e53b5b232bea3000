"""Results as tables in Markdown.

Owns: medians, ratios, wording.
Must not know: how anything was measured.
"""

import os
import platform
import statistics

from bench.nfs.report import ratio_text
from bench.peers.contenders import BY_KEY as CONTENDERS
from bench.peers.suites import SUITES

# Ours, theirs, heading, what is to be said before the table.
PAIRS = [
    (
        "cairn", "ganesha", "One data disk: Cairn and NFS-Ganesha",
        "NFS-Ganesha's VFS backend, with the same file system below it. It does not sync names; Cairn's creates, renames and "
        "unlinks are durable when answered.",
    ),
    (
        "cairn-six", "gluster", "Erasure coding 4+2: Cairn and GlusterFS",
        "Six folders of one device for each; GlusterFS as a disperse volume with its default options, served by NFS-Ganesha "
        "(libgfapi, no mount in between), so that the same client drives both. It does not sync names either.",
    ),
    (
        "cairn-nodes", "gluster", "Six nodes 4+2: a cluster of Cairn, and GlusterFS",
        "Six nodes of Cairn, each a process with one folder and a network namespace of its own, with mTLS between them and etcd "
        "beside them; the client talks to the owner. GlusterFS as above: six bricks, each a process.",
    ),
    (
        "cairn-nodes", "cairn-six", "What the nodes cost: a cluster of six, and one server with six disks",
        "The same protection. All of it shares the processors of one machine, so this compares processor time: nodes on machines "
        "of their own have more of it.",
    ),
]


def value_text(value, unit):
    return f"{value:,.0f} MB/s" if unit == "MB/s" else f"{value:,.0f} /s"


def rows(suite, ours, theirs):
    """A row for each figure that both have in all rounds."""
    lines = []
    for title, figure in ours[0][suite.key].items():
        pairs = [(one[suite.key].get(title), other[suite.key].get(title)) for one, other in zip(ours, theirs)]
        pairs = [(one["value"], other["value"]) for one, other in pairs if one and other and other["value"] > 0]
        if not pairs:
            continue
        unit = figure["unit"]
        our, their = (statistics.median(column) for column in zip(*pairs))
        ratio = ratio_text([one / other for one, other in pairs])
        lines.append(f"| {suite.title}: {title} | {value_text(our, unit)} | {value_text(their, unit)} | {ratio} |")
    return lines


def table(rounds, our_key, their_key):
    # A round that one of them did not end is compared for neither.
    whole = [one for one in rounds if our_key in one and their_key in one]
    ours, theirs = [one[our_key] for one in whole], [one[their_key] for one in whole]
    lines = [f"| figure | {CONTENDERS[our_key].title} | {CONTENDERS[their_key].title} | ratio (rounds) |", "|---|---|---|---|"]
    for suite in SUITES:
        if whole and all(suite.key in one for one in ours + theirs):
            lines += rows(suite, ours, theirs)
    return lines


def document(results):
    """All there is in `results`, which is also what the JSON file holds."""
    rounds, count = results["rounds"], len(results["rounds"])
    versions = "; ".join(f"{CONTENDERS[key].title}: {version}" for key, version in results["versions"].items())
    text = [
        f"Measured {results['date']} on {os.cpu_count()} CPUs ({results['cpu']}), {platform.system()} {platform.release()}, commit "
        f"{results['commit']}, in {results['seconds'] / 60:.0f} minutes; {versions}. Load average when it began: "
        f"{results['load_average']:.1f}.",
        f"{count} round{'s' if count != 1 else ''}, in which all take turns at going first; each server is new in each round, and "
        "before each suite it is restarted and the page cache emptied. Reads come after writes of the same suite, so what a server "
        "has in memory by then stays there. Rates are medians, ratios the median (least to most) of "
        "each round's own.",
    ]
    text += [f"**Left out: {CONTENDERS[key].title}**: {' '.join(why.split())}" for key, why in results["left_out"].items()]
    for our_key, their_key, heading, words in PAIRS:
        if any(our_key in one and their_key in one for one in rounds):
            text += ["", f"### {heading}", "", words, "", *table(rounds, our_key, their_key)]
    text += ["", "### The commands", ""]
    text += [f"- {suite.title}: `{suite.command(results['is_quick'])} TARGET`" for suite in SUITES if suite.key in results["suites"]]
    return "\n".join(text)
