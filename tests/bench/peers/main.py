"""Runs the suites of `cairn bench` on Cairn and its peers in one run; writes docs/results/performance.md.

    scripts/bench-peers [--quick] [--rounds N] [--only NAME,...] [--suites NAME,...]

`make bench-peers` installs and builds what it needs first. Needs root. A whole run of three rounds takes less than
15 minutes on two processors. A peer that is not there or does not start is named and left out; the run fails only when
none is left. Results: a table between the marks in docs/results/performance.md (only after a whole run), and in
target/bench/peers all of it, with a page of the last round.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import time

from bench.nfs import peers
from bench.nfs.report import today
from bench.peers import report, suites
from bench.peers.contenders import BY_KEY, CONTENDERS, Missing
from lib import document, harness

ROUNDS = 3
OURS = ("cairn", "cairn-six", "cairn-nodes")


def say(text):
    print(f"bench-peers: {text}", flush=True)


def commit():
    argv = ["git", "-C", str(harness.REPOSITORY), "describe", "--always", "--dirty"]
    return subprocess.run(argv, capture_output=True, text=True).stdout.strip() or "unknown"


class Run:
    """What has been measured so far, and who is out."""

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.rounds, self.left_out = [], {}
        self.contenders = []
        for contender in options.only:
            try:
                contender.check()
                self.contenders.append(contender)
            except (Missing, harness.Failure) as why:
                self.leave_out(contender, why)
        self.versions = {contender.key: contender.version() for contender in self.contenders}

    def leave_out(self, contender, why):
        say(f"{contender.title} is left out: {why}")
        self.left_out[contender.key] = str(why)
        self.contenders = [one for one in self.contenders if one is not contender]

    def one_server(self, contender, number):
        """All suites on a new server; None if it is out from now on."""
        results = {}
        with harness.scratch("peers-") as root:
            server = None
            try:
                server = contender.start(root)
                for suite in self.options.suites:
                    say(f"round {number + 1} of {self.options.rounds}: {suite.title} on {contender.title}")
                    file = self.folder / f"round{number + 1}-{contender.key}-{suite.key}.json"
                    results[suite.key] = suites.run(suite, server, contender.title, number, self.options.quick, file)
            except (Missing, harness.Failure, subprocess.TimeoutExpired) as why:
                # What a peer cannot do must not cost the measurement; what we cannot do is a bug.
                if contender.key in OURS:
                    raise harness.Failure(f"{contender.title}: {why}") from why
                self.leave_out(contender, why)
                return None
            finally:
                if server:
                    server.kill()
        os.sync()
        return results

    def measure(self):
        for number in range(self.options.rounds):
            found: dict = {}
            turns = list(self.contenders)
            self.rounds.append(found)
            # Another one first each time: who comes after whom must not matter.
            first = number % len(turns) if turns else 0
            for contender in turns[first:] + turns[:first]:
                results = self.one_server(contender, number)
                if results:
                    found[contender.key] = results

    def has_peer(self):
        return any(key not in OURS for one in self.rounds for key in one)


def write_page(folder, number):
    """A page with charts of the last round."""
    files = sorted(folder.glob(f"round{number}-*.json"))
    if files:
        page = folder / "page.html"
        subprocess.run([harness.cairn_path(), "bench", "report", *files, "-o", page], check=True, capture_output=True)
        say(f"a page of round {number} is {page}")


def some_of(known):
    def parse(text):
        chosen = [name.strip() for name in text.split(",")]
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"there is no {name}; there are {', '.join(known)}")
        return [known[name] for name in chosen]

    return parse


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round of small sizes, to see that everything runs")
    parser.add_argument("--rounds", type=int, help=f"{ROUNDS} unless --quick")
    parser.add_argument("--only", type=some_of(BY_KEY), metavar="NAME,...", help=f"some of: {', '.join(BY_KEY)}")
    parser.add_argument("--suites", type=some_of(suites.BY_KEY), metavar="NAME,...", help=f"some of: {', '.join(suites.BY_KEY)}")
    options = parser.parse_args()
    options.is_whole = not (options.quick or options.only or options.suites)
    options.rounds = options.rounds or (1 if options.quick else ROUNDS)
    if options.rounds < 1:
        parser.error("there must be at least one round")
    options.only, options.suites = options.only or CONTENDERS, options.suites or suites.SUITES
    return options


def main():
    options = parse_arguments()
    if os.geteuid() != 0:
        raise harness.Failure("the peers and emptying the page cache need root")
    harness.cairn_path()
    folder = harness.target_dir() / "bench" / "peers"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began, load_average = time.monotonic(), os.getloadavg()[0]
    run = Run(options, folder)
    try:
        # Without rpcbind no contender is left that needs it.
        with peers.portmapper() if shutil.which("rpcbind") else contextlib.nullcontext():
            run.measure()
    finally:
        results = {
            "date": today(),
            "cpu": harness.cpu_name(),
            "commit": commit(),
            "seconds": time.monotonic() - began,
            "load_average": load_average,
            "is_quick": options.quick,
            "suites": [suite.key for suite in options.suites],
            "versions": run.versions,
            "left_out": run.left_out,
            "rounds": run.rounds,
        }
        # What was measured before a failure is worth keeping.
        (folder / "peers.json").write_text(json.dumps(results, indent=1))
    text = report.document(results)
    print(text)
    write_page(folder, options.rounds)
    wants_peer = any(contender.key not in OURS for contender in options.only)
    if wants_peer and not run.has_peer():
        raise harness.Failure("no peer could be measured: " + "; ".join(f"{key}: {why}" for key, why in run.left_out.items()))
    if options.is_whole:
        document.write("bench-peers", text)
    else:
        say(f"{document.PATH} is left as it is: this was not a whole run")
