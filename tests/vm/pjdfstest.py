"""The POSIX conformance suite pjdfstest, through the kernel client in the VM.

    scripts/pjdfstest [TEST...]            our server
    scripts/pjdfstest --peer [TEST...]     the guest's own kernel server on ext4, to compare with

Fails on any failure that is not in tests/pjdfstest/known-failures.txt, and on any entry there that passes.
With --peer it only lists what fails there.
"""

import os
import pathlib
import re
import sys

from lib import harness, vm

SECONDS_MAX = 1500
VERSION = "0.2.2"
FOLDER = harness.REPOSITORY / "tests" / "pjdfstest"
RESULT = re.compile(r"^\s*(\S+::\S+)\s+(ok|FAILED|skipped)$(?:\n\t(.*))?", re.MULTILINE)
PEER_PACKAGE = "nfs-kernel-server"


def known_failures():
    lines = (FOLDER / "known-failures.txt").read_text().splitlines()
    return {line.split()[0] for line in lines if line.strip() and not line.startswith("#")}


def read_results(output):
    """Test to word and detail; what one pass skipped another may have run."""
    results = {}
    for name, word, detail in RESULT.findall(output):
        if word != "skipped" or name not in results:
            results[name] = (word, detail)
    return results


def main():
    arguments = sys.argv[1:]
    peer = arguments[:1] == ["--peer"]
    vm.qemu()
    if peer:
        arguments = arguments[1:]
        os.environ["LINUX_CLIENT_PACKAGES"] = f"{os.environ.get('LINUX_CLIENT_PACKAGES', '')} {PEER_PACKAGE}".strip()
    tools = vm.cargo_tool("pjdfstest", VERSION).parent
    vm.image()
    with harness.scratch("pjdfstest-") as root, harness.Server(root, 1) as server:
        results_folder = root / "results"
        results_folder.mkdir()
        shares = {tools: "/tools", FOLDER: "/suite", results_folder: "/results"}
        status = vm.run(server, FOLDER / "run.sh", shares, SECONDS_MAX, ["peer" if peer else "cairn", *arguments])
        output_path = pathlib.Path(results_folder / "output")
        output = output_path.read_text(errors="replace") if output_path.exists() else ""
    kept = harness.target_dir() / ("pjdfstest-peer.log" if peer else "pjdfstest.log")
    kept.write_text(output)
    results = read_results(output)
    # Its status is 1 when tests fail; without any result it did not run at all.
    if not results or status not in (0, 1):
        print(f"pjdfstest: it did not run to its end, status {status}:\n{output[-2000:]}")
        return 1
    return judge(results, peer, kept)


def judge(results, peer, kept):
    """Prints what is to be known of the results; returns the exit status."""
    named = {word: {name for name in results if results[name][0] == word} for word in ("ok", "FAILED", "skipped")}
    failed, known = named["FAILED"], known_failures()
    server = "the kernel's server" if peer else "Cairn"
    print(f"pjdfstest: {server}: {len(results)} tests, {len(failed)} failed, {len(named['skipped'])} skipped; log: {kept}")
    for name in sorted(named["skipped"]):
        print(f"pjdfstest: skipped: {name}: {results[name][1]}")
    for name in sorted(failed):
        print(f"pjdfstest: {'known' if name in known else 'new'} failure: {name}")
    mended = named["ok"] & known
    for name in sorted(mended):
        print(f"pjdfstest: passes, though it is a known failure: {name}")
    return 0 if peer or not (failed - known or mended) else 1
