"""How long a server takes to serve again after kill -9, by what was under way.

Owns: what is made dirty, when the server is killed, when it counts as serving.
Must not know: how results are shown.
"""

import dataclasses
import json
import os
import re
import signal
import struct
import time

from bench.reliability import pool

# The calls that the end-to-end tests make by hand.
from lib import harness, rawnfs

EXPORT = "/main"
FILE = "nfsload-f0"
DIRTY_SECONDS_MAX = 60
ANSWER_SECONDS_MAX = 60
POLL_SECONDS = 0.001
READ = 6
READ_BYTES = 4096
# Colours may stand between a name and its value.
RECOVERED = re.compile(r"replayed\W+(?:\x1b\[\d*m)?(\d+).*?journaled\W+(?:\x1b\[\d*m)?(\d+)")
UNSTABLE = "randwrite conns=4 depth=16 bs=65536 commit=0 secs=60 size={recovery_size}"
STABLE = "randwrite conns=4 depth=16 bs=16384 sync=1 secs=60 size={recovery_size}"
CREATE = "create conns=4 depth=16 walk=0 files={recovery_files}"


@dataclasses.dataclass(frozen=True)
class Case:
    """The server is killed as soon as `series` is at least `amount`."""

    title: str
    arguments: str | None
    series: str = ""
    amount: int = 0


def cases(sizes):
    """Nothing, more and more unstable data, more and more of the journal, more and more names."""
    found = [Case("nothing", None)]
    dirty, log = "cairn_volume_dirty_bytes", "cairn_log_written_bytes_total"
    found += [Case("writes answered as unstable", UNSTABLE, dirty, amount) for amount in sizes["recovery_unstable"]]
    found += [Case("writes answered as stable", STABLE, log, amount) for amount in sizes["recovery_journal"]]
    found += [Case("files being made", CREATE, "cairn_volume_inodes", amount) for amount in sizes["recovery_names"]]
    return found


def value(series, name):
    return sum(value for key, value in series.items() if key.partition("{")[0] == name)


def handle_of(port, name):
    with rawnfs.Peer(port) as peer:
        status, root = peer.mount(EXPORT)
        if status == rawnfs.OK:
            status, handle = peer.lookup(root, name)
        if status != rawnfs.OK:
            raise harness.Failure(f"{name} cannot be looked up: {status}")
        return handle


def answers(port, handle):
    """Whether a READ of a file that was there before is answered with its bytes."""
    try:
        with rawnfs.Peer(port) as peer:
            arguments = rawnfs.opaque(handle) + struct.pack(">QI", 0, READ_BYTES)
            answer = peer.call(rawnfs.NFS, 3, READ, arguments)
            return answer.u32() == rawnfs.OK
    except (OSError, rawnfs.Denied):
        return False


def kill_when_dirty(load, server, case, sizes):
    """Kills the server in the middle of it; what was dirty then."""
    process = load.spawn(server, case.arguments.format(**sizes)) if case.arguments else None
    try:
        def enough():
            if process and process.poll() is not None:
                raise harness.Failure(f"the load ended before there was enough of: {case.title}")
            series = server.metrics()
            return value(series, case.series) >= case.amount and series

        series = harness.wait_until(enough, DIRTY_SECONDS_MAX, case.title)
        server.kill()
    finally:
        if process:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return series


def start_again(server, handle):
    """Seconds until a READ is answered, and until the server says that all volumes are served."""
    os.sync()
    pool.DROP_CACHES.write_text("3")
    begin = time.monotonic()
    server.process = server.spawn()
    answered = ready = None
    while answered is None or ready is None:
        if server.process.poll() is not None:
            raise harness.Failure(f"cairn serve ended with {server.process.returncode}:\n{server.log_tail()}")
        if answered is None and answers(server.port, handle):
            answered = time.monotonic() - begin
        if ready is None and server.ready_path.exists():
            ready = time.monotonic() - begin
        if time.monotonic() - begin > ANSWER_SECONDS_MAX:
            raise harness.Failure(f"the server did not serve again:\n{server.log_tail()}")
        time.sleep(POLL_SECONDS)
    # Its admin API has another port now. The file is renamed into place, so what is there is whole.
    server.ready = json.loads(server.ready_path.read_text())
    failed = [volume["name"] for volume in server.status()["volumes"] if not volume["serving"]]
    if failed:
        raise harness.Failure(f"after the restart some volumes are not served: {failed}")
    return answered, ready


def one(load, case, sizes):
    with pool.pool("recovery-") as server:
        load.run(server, "seqwrite conns=4 size={recovery_size}".format(**sizes))
        handle = handle_of(server.port, FILE)
        # From here on, only what this case makes dirty.
        server.restart()
        series = kill_when_dirty(load, server, case, sizes)
        answered, ready = start_again(server, handle)
        # What the last start says it found.
        replayed, journaled = RECOVERED.findall(server.log_path.read_text(errors="replace"))[-1]
    return {
        "dirty_bytes": value(series, "cairn_volume_dirty_bytes"),
        "log_bytes": value(series, "cairn_log_written_bytes_total"),
        "inodes": value(series, "cairn_volume_inodes"),
        "answered_seconds": answered,
        "ready_seconds": ready,
        "replayed": int(replayed),
        "journaled": int(journaled),
    }


def run(load, rounds, sizes, say):
    found: dict = {}
    wanted = cases(sizes)
    for number in range(rounds):
        for case in wanted:
            say(f"recovery, round {number + 1} of {rounds}: {case.title} {case.amount or ''}")
            found.setdefault(f"{case.title}/{case.amount}", []).append(one(load, case, sizes))
    return {"cases": found}
