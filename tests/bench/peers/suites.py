"""What is measured: the suites of `cairn bench`, with sizes for one small machine.

Owns: flags of each suite, calling `cairn bench`, which of its figures are compared.
Must not know: servers' kinds, how results are shown.
"""

import dataclasses
import json
import subprocess

from bench.nfs import peers
from lib import harness

SUITE_SECONDS_MAX = 600


@dataclasses.dataclass(frozen=True)
class Suite:
    key: str
    title: str
    flags: str
    flags_quick: str

    def argv(self, is_quick):
        return (self.flags_quick if is_quick else self.flags).split()

    @property
    def is_fsync_in_clock(self):
        return "-e" in self.flags.split()

    def command(self, is_quick):
        """As a user would type it."""
        return f"cairn bench {' '.join(self.argv(is_quick))}"


SUITES = [
    Suite(
        "four-corners", "Four corners",
        "four-corners --jobs 4 --working-set 512MiB --depths 32,8,1 --runtime 1500ms --ramp 500ms",
        "four-corners --jobs 2 --working-set 64MiB --depths 8,1 --runtime 300ms --ramp 100ms",
    ),
    Suite(
        "iozone", "IOzone, fsync in the clock", "iozone -e -i 0,1,2 -r 1MiB -s 96MiB -t 4", "iozone -e -i 0,1,2 -r 1MiB -s 16MiB -t 2",
    ),
    Suite(
        "ior-shared", "IOR, one file for all, fsync in the clock",
        "ior -e -t 1MiB -b 1MiB -s 96 -N 4", "ior -e -t 1MiB -b 1MiB -s 16 -N 2",
    ),
    Suite(
        "ior-own", "IOR, a file for each task, fsync in the clock",
        "ior -e -F -t 1MiB -b 1MiB -s 96 -N 4", "ior -e -F -t 1MiB -b 1MiB -s 16 -N 2",
    ),
    Suite("metadata", "Metadata", "metadata --jobs 4 -n 500 --depth 4", "metadata --jobs 2 -n 100 --depth 4"),
]
BY_KEY = {suite.key: suite for suite in SUITES}


def seed_of(round_number):
    """Another one in each round, the same for all contenders."""
    return str(1000 + round_number)


def run(suite, server, label, round_number, is_quick, file):
    """One suite on a server with cold caches: figures by title, each its value and its unit."""
    peers.make_cold(server)
    argv = [
        str(harness.cairn_path()), "bench", *suite.argv(is_quick), server.url().rstrip("/"),
        "--label", label, "--seed", seed_of(round_number), "-o", str(file),
    ]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SUITE_SECONDS_MAX)
    if done.returncode != 0:
        raise harness.Failure(f"{suite.command(is_quick)} on {label} ended with {done.returncode}:\n{done.stderr}")
    return figures(json.loads(file.read_text()), suite.is_fsync_in_clock)


def figures(result, is_fsync_in_clock):
    """Rates until the last answer, and for writes also until all is stable, unless that is the same."""
    found = {}
    for figure in result["summary"]:
        title, unit = figure["title"], figure["unit"]
        found[title] = {"value": figure["value"], "unit": unit}
        if figure.get("drained") and not is_fsync_in_clock:
            found[f"{title}, until it is stable"] = {"value": figure["drained"], "unit": unit}
    return found
