#!/usr/bin/env python3
"""Runs in the VM: programs that people trust with their data, on a mount whose server meets with faults.

faults.py WORKLOAD... : each works in a folder of its own, at the same time as the others, in rounds, until the host
says that it is enough, and remembers in the guest's memory what was acknowledged to it. Then everything is unmounted,
the server is killed once more, and all that was acknowledged is compared.

SERVER and PORT name the server; REQUESTS is a folder shared with the host: `progress` says how far each is, `enough`
ends the load. REFUSALS: the words of errors that the fault may cause; what is refused is tried again.
OPTIONS: of the mount, beside those below.
"""

import contextlib
import hashlib
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time

MOUNT = pathlib.Path("/mnt")
# Seconds until the client sends a call again, in tenths.
RESEND_TENTHS = 100
OPTIONS = ["vers=3", "proto=tcp", "nolock", "hard", f"timeo={RESEND_TENTHS}", "retrans=2"]
OPTIONS += os.environ.get("OPTIONS", "").split()
REQUESTS = pathlib.Path(os.environ["REQUESTS"])
REFUSALS = [words for words in os.environ.get("REFUSALS", "").split("|") if words]
PROGRESS_SECONDS = 0.3
REQUEST_SECONDS_MAX = 120
RETRY_SECONDS = 0.5
# Not there without the package: then no test uses it.
POSTGRES = next(iter(pathlib.Path("/usr/lib/postgresql").glob("*/bin")), pathlib.Path("/usr/lib/postgresql"))


class Failed(Exception):
    """A program ended with an error; the text is what it said. `log`: what else is to be known of it."""

    log = ""


class Wrong(Exception):
    """Something acknowledged is not there or not what it was: no fault excuses that."""


def run(argv, is_progress=lambda line: False, **options):
    """Runs a program to its end; returns what it wrote, without its lines of progress."""
    process = subprocess.Popen(
        [str(word) for word in argv], text=True, errors="replace", stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options,
    )
    lines = []
    for line in process.stdout or ():
        if not is_progress(line):
            lines.append(line)
    if process.wait():
        raise Failed(f"{argv[0]} ended with {process.returncode}: {''.join(lines[-20:])}")
    return "".join(lines)


def check(argv):
    """Runs a program that compares: whatever it does not like is wrong."""
    try:
        return run(argv)
    except Failed as failed:
        raise Wrong(str(failed)) from failed


def sync(path):
    """fsync of a file that was made, which may be refused, but not for want of the file."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError as error:
        raise Wrong(f"{path} is lost") from error
    try:
        os.fsync(file)
    finally:
        os.close(file)


def digest(path):
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[attr-defined]
    except FileNotFoundError as error:
        raise Wrong(f"{path} is lost") from error


class Workload(threading.Thread):
    # Rounds are small, so that a fault hits one in its middle and what is refused is soon tried again.
    unit = "rounds"
    # So many more say that it goes on.
    step = 1

    def __init__(self):
        super().__init__(daemon=True)
        self.name = type(self).__name__.lower()
        self.folder = MOUNT / self.name
        self.units = self.refused_count = 0
        self.failure = None
        self.enough = threading.Event()

    def round(self, number):
        """Does a little, and remembers what it was told."""
        raise NotImplementedError

    def run(self):
        number = 0
        try:
            while not self.enough.is_set():
                try:
                    self.round(number)
                except (Failed, OSError, sqlite3.Error) as error:
                    if not any(words in str(error) for words in REFUSALS):
                        raise
                    self.refused_count += 1
                    print(f"       {self.name}: refused: {str(error)[-300:]!r}", flush=True)
                    if log := getattr(error, "log", ""):
                        print(f"       {self.name}: its log: {log[-300:]!r}", flush=True)
                    self.after_refusal()
                    self.enough.wait(RETRY_SECONDS)
                number += 1
        except Exception as error:
            self.failure = f"{self.name}: round {number}: {error!r} {getattr(error, 'log', '')}"
            print(f"FAILED {self.failure}", flush=True)

    def after_refusal(self):
        pass

    def close(self):
        """Ends everything that uses the mount."""

    def verify(self):
        """Compares what was acknowledged; returns a count of bytes and a note."""
        raise NotImplementedError


class Fsx(Workload):
    """fsx checks each read, size and mapping against what it wrote; the files it leaves are kept."""

    unit, step = "operations", 100
    OPERATIONS, KEPT = 100, 8

    def setup(self):
        self.folder.mkdir()
        self.kept, self.removed = {}, set()

    def round(self, number):
        path = self.folder / f"file{number}"
        run(["/tools/fsx", "-q", "-N", self.OPERATIONS, "-S", 1 + number, "-P", "/tmp", path])
        sync(path)
        self.kept[path] = digest(path)
        self.units += self.OPERATIONS
        if len(self.kept) > self.KEPT:
            oldest = next(iter(self.kept))
            del self.kept[oldest]
            # Not there is what a call says that was done before a kill and is sent again.
            oldest.unlink(missing_ok=True)
            self.removed.add(oldest)

    def verify(self):
        for path, kept in self.kept.items():
            if digest(path) != kept:
                raise Wrong(f"{path} is not what fsx left")
        none_back(self.folder, self.removed)
        return sum(path.stat().st_size for path in self.kept), f"{len(self.kept)} files"


class Tar(Workload):
    """Trees of real files with their real modes, owners, times and links, compared with their archive."""

    unit, step = "files", 30
    FILES, KEPT = 150, 3

    def setup(self):
        self.folder.mkdir()
        names = subprocess.run(
            "find /usr /etc -xdev \\( -type f -o -type l \\) -size -300k | sort |"
            f" awk 'NR % 97 == 0' | head -n {self.FILES}",
            shell=True, capture_output=True, text=True, check=True,
        ).stdout
        pathlib.Path("/tmp/names").write_text(names)
        run(["tar", "--create", "--file", "/tmp/in.tar", "--files-from", "/tmp/names"])
        self.files_count = len(names.splitlines())
        self.kept, self.removed = [], set()

    def is_name(self, line):
        if line.startswith("tar:"):
            return False
        self.units += 1
        return True

    def round(self, number):
        tree = self.folder / f"tree{number}"
        tree.mkdir()
        self.extract(tree)
        # What was not synced is not acknowledged.
        run(["sync", "--file-system", tree])
        check(["tar", "--compare", "--file", "/tmp/in.tar", "--directory", tree])
        self.kept.append(tree)
        if len(self.kept) > self.KEPT:
            oldest = self.kept.pop(0)
            run(["rm", "-rf", oldest])
            self.removed.add(oldest)

    def extract(self, tree):
        run(
            ["tar", "--extract", "--verbose", "--file", "/tmp/in.tar", "--directory", tree, "--same-owner",
             "--preserve-permissions"],
            is_progress=self.is_name,
        )

    def verify(self):
        for tree in self.kept:
            check(["tar", "--compare", "--file", "/tmp/in.tar", "--directory", tree])
            found = sum(len(files) + sum(os.path.islink(os.path.join(at, name)) for name in folders)
                        for at, folders, files in os.walk(tree))
            if found != self.files_count:
                raise Wrong(f"{tree} has {found} files instead of {self.files_count}")
        none_back(self.folder, self.removed)
        return os.path.getsize("/tmp/in.tar") * len(self.kept), f"{len(self.kept)} trees"


class Git(Workload):
    """Commits with everything synced, now and then a clone, and fsck."""

    unit, step = "commits", 1
    CLONE_EVERY = 8

    def setup(self):
        self.folder.mkdir()
        self.work, self.commits = self.folder / "work", []
        for key, value in {"user.name": "test", "user.email": "test@example.com", "core.fsync": "all",
                           "gc.auto": "0", "safe.directory": "*", "init.defaultBranch": "main"}.items():
            run(["git", "config", "--global", key, value])
        run(["git", "init", "--quiet", self.work])
        self.bytes_written = 0

    def git(self, *words):
        return run(["git", "-C", self.work, *words])

    def round(self, number):
        for index in range(3):
            data = random.Random(f"{number} {index}").randbytes(60_000)
            (self.work / f"file{index}").write_bytes(data)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", f"round {number}")
        commit = self.git("rev-parse", "HEAD").strip()
        self.commits.append(commit)
        self.units += 1
        if number % self.CLONE_EVERY == self.CLONE_EVERY - 1:
            clone = self.folder / f"clone{number}"
            run(["git", "clone", "--quiet", "--no-hardlinks", self.work, clone])
            check(["git", "-C", clone, "fsck", "--full", "--strict"])
            shutil.rmtree(clone)

    def after_refusal(self):
        # A program that was told an error leaves its locks, and so would have after a crash of its own.
        for lock in self.work.rglob("*.lock"):
            lock.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            for clone in self.folder.glob("clone*"):
                shutil.rmtree(clone)

    def verify(self):
        check(["git", "-C", self.work, "fsck", "--full", "--strict"])
        there = set(self.git("rev-list", "HEAD").split())
        lost = [commit for commit in self.commits if commit not in there]
        if lost:
            raise Wrong(f"{len(lost)} of {len(self.commits)} commits are lost, first {lost[0]}")
        count = self.git("count-objects", "--verbose")
        # Beside warnings of objects that git was refused while it made them.
        kib = {name: int(value) for name, value in re.findall(r"^([a-z-]+): (\d+)$", count, re.MULTILINE)}
        return (kib["size"] + kib["size-pack"]) << 10, f"{len(self.commits)} commits"


class Sqlite(Workload):
    """Transactions with synchronous=FULL, in a rollback journal and in a write-ahead log by turns."""

    unit, step = "transactions", 4
    ROWS_KEPT = 200

    def setup(self):
        self.folder.mkdir()
        self.acknowledged: dict[str, dict] = {"delete": {}, "wal": {}}
        self.removed: dict[str, set] = {"delete": set(), "wal": set()}
        self.open = {}
        for mode in self.acknowledged:
            self.connect(mode)

    def connect(self, mode):
        database = sqlite3.connect(self.folder / f"{mode}.db", isolation_level=None, check_same_thread=False)
        try:
            database.execute(f"pragma journal_mode={mode}")
            # Of the two, only EXTRA syncs the folder after a journal is deleted.
            database.execute(f"pragma synchronous={'EXTRA' if mode == 'delete' else 'FULL'}")
            database.execute("create table if not exists rows(id integer primary key, data blob)")
        except sqlite3.Error:
            database.close()
            raise
        self.open[mode] = database
        return database

    def row(self, number):
        return random.Random(number).randbytes(random.Random(-number).randrange(100, 9000))

    def round(self, number):
        for mode, rows in self.acknowledged.items():
            database = self.open.get(mode) or self.connect(mode)
            first = next(iter(rows), None) if len(rows) > self.ROWS_KEPT else None
            try:
                database.execute("begin immediate")
                database.execute("insert into rows values(?, ?)", (number, self.row(number)))
                if first is not None:
                    database.execute("delete from rows where id = ?", (first,))
                database.execute("commit")
            except sqlite3.Error:
                # Whether it is there or not is open, as after any failed commit.
                database.close()
                del self.open[mode]
                rows.pop(first, None)
                raise
            rows[number] = None
            if first is not None:
                del rows[first]
                self.removed[mode].add(first)
            self.units += 1

    def close(self):
        for database in self.open.values():
            database.close()

    def verify(self):
        verified_bytes = 0
        for mode, rows in self.acknowledged.items():
            database = self.connect(mode)
            answer = database.execute("pragma integrity_check").fetchall()
            if answer != [("ok",)]:
                raise Wrong(f"{mode}: {answer}")
            found = dict(database.execute("select id, data from rows"))
            for number in rows:
                if found.get(number) != self.row(number):
                    how = "wrong" if number in found else "lost"
                    raise Wrong(f"{mode}: row {number} was acknowledged and is {how}")
                verified_bytes += len(found[number])
            back = self.removed[mode] & found.keys()
            if back:
                raise Wrong(f"{mode}: rows are back: {sorted(back)}")
            database.close()
        return verified_bytes, f"{self.units} transactions"


class Postgres(Workload):
    """pgbench with fsync on; the database is never closed properly, and its checksums are compared at the end."""

    unit, step = "transactions", 2
    CLIENTS, TRANSACTIONS = 3, 40
    BLOCK_LEN_BYTES = 8192
    SETTINGS = {
        "fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "shared_buffers": "16MB",
        # Small and recycled often: segments of the log are made, renamed and removed all the time.
        "min_wal_size": "2MB", "max_wal_size": "8MB", "checkpoint_timeout": "30s",
        "unix_socket_directories": "'/tmp'", "listen_addresses": "''", "autovacuum_naptime": "10s",
    }

    def setup(self):
        self.folder.mkdir()
        shutil.chown(self.folder, "postgres", "postgres")
        self.data = self.folder / "data"
        self.acknowledged_count = self.unknown_count = 0
        self.pg("initdb", "--data-checksums", "--wal-segsize=1", "--auth=trust", "--no-instructions", self.data)
        with open(self.data / "postgresql.conf", "a") as file:
            file.writelines(f"{key} = {value}\n" for key, value in self.SETTINGS.items())
        self.start_server()
        self.pg("pgbench", "--initialize", "--init-steps=dtGp", "--quiet", "--host=/tmp", "postgres")

    def pg(self, program, *words, **options):
        who = {"user": "postgres", "group": "postgres", "extra_groups": []}
        environment = {"PATH": f"{POSTGRES}:/usr/bin:/bin", "LC_ALL": "C"}
        return run([POSTGRES / program, *words], **options, **who, cwd="/tmp", env=environment)

    def start_server(self):
        self.pg("pg_ctl", "start", "--wait", "--timeout=100", f"--pgdata={self.data}", "--log=/tmp/postgres.log")

    def round(self, number):
        if self.unknown_count and run_status([POSTGRES / "pg_isready", "--quiet", "--host=/tmp"]):
            with contextlib.suppress(Failed):
                self.pg("pg_ctl", "stop", "--mode=immediate", f"--pgdata={self.data}")
            self.start_server()
        done = re.compile(r"number of transactions actually processed: (\d+)")
        progress = re.compile(r"progress: \S+ s, (\S+) tps")

        def is_progress(line):
            if found := progress.match(line):
                self.units += round(float(found[1]))
            elif found := done.match(line):
                self.acknowledged_count += int(found[1])
            return bool(found)

        try:
            self.pg("pgbench", "--no-vacuum", "--host=/tmp", f"--client={self.CLIENTS}",
                    f"--transactions={self.TRANSACTIONS}", "--progress=1", "postgres", is_progress=is_progress)
        except Failed as error:
            # Each client may have had one commit under way.
            self.unknown_count += self.CLIENTS
            error.log = log_tail()
            raise

    def query(self, sql):
        return self.pg("psql", "--host=/tmp", "--no-align", "--tuples-only", "--command", sql, "postgres").strip()

    def close(self):
        with contextlib.suppress(Failed):
            self.pg("pg_ctl", "stop", "--mode=immediate", f"--pgdata={self.data}")

    def verify(self):
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        for line in log_lines(r"could not|PANIC|FATAL|No space"):
            print(f"       {self.name}: its log: {line}", flush=True)
        try:
            self.start_server()
            count = int(self.query("select count(*) from pgbench_history"))
            if not self.acknowledged_count <= count <= self.acknowledged_count + self.unknown_count:
                raise Wrong(f"{self.acknowledged_count} transactions were acknowledged, {count} are there")
            sums = self.query(
                "select (select sum(delta) from pgbench_history), (select sum(abalance) from pgbench_accounts),"
                " (select sum(bbalance) from pgbench_branches), (select sum(tbalance) from pgbench_tellers)"
            ).split("|")
            if len(set(sums)) != 1:
                raise Wrong(f"the sums are not the same: {sums}")
            self.pg("pg_ctl", "stop", "--mode=fast", f"--pgdata={self.data}")
            checked = self.pg("pg_checksums", "--check", f"--pgdata={self.data}")
        except Failed as error:
            raise Wrong(f"{error} {log_tail()}") from error
        finally:
            self.close()
        # What pgbench said on its way was rounded.
        self.units = self.acknowledged_count
        (blocks_count,) = map(int, re.findall(r"Blocks scanned: +(\d+)", checked))
        return blocks_count * self.BLOCK_LEN_BYTES, f"{count - self.acknowledged_count} more without an answer"


def none_back(folder, removed):
    back = sorted(path.name for path in folder.iterdir() if path in removed)
    if back:
        raise Wrong(f"{folder}: removed, and there again: {back}")


def run_status(argv):
    return subprocess.run([str(word) for word in argv], capture_output=True).returncode


def log_lines(pattern):
    """The last lines of PostgreSQL's log that tell of this."""
    lines = []
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/tmp/postgres.log").read_text(errors="replace").splitlines()
    return [line for line in lines if re.search(pattern, line)][-20:]


def log_tail():
    with contextlib.suppress(OSError):
        return pathlib.Path("/tmp/postgres.log").read_text(errors="replace")[-1500:]


def mount():
    port = os.environ["PORT"]
    options = ",".join([*OPTIONS, f"port={port}", f"mountport={port}"])
    run(["mount", "-t", "nfs", "-o", options, f"{os.environ['SERVER']}:/main", MOUNT])


def unmount():
    try:
        run(["umount", MOUNT])
    except Failed as failed:
        raise Failed(f"{failed}; in use: {users()}") from failed


def users():
    """Who uses the mount: process and file."""
    found = []
    for link in pathlib.Path("/proc").glob("[0-9]*/*"):
        with contextlib.suppress(OSError):
            links = link.iterdir() if link.name in ("fd", "map_files") else [link] if link.name == "cwd" else []
            for each in links:
                target = os.readlink(each)
                if target.startswith(f"{MOUNT}/"):
                    found.append(f"{(link.parent / 'comm').read_text().strip()} {each}: {target}")
    return found[:10]


def request(name):
    """Asks the host for something and waits until it is done."""
    (REQUESTS / name).touch()
    deadline = time.monotonic() + REQUEST_SECONDS_MAX
    while not (REQUESTS / f"{name}.done").exists():
        if time.monotonic() > deadline:
            raise Failed(f"the host did not answer {name}")
        time.sleep(0.1)


def tell(name, value):
    path = REQUESTS / f"{name}.new"
    path.write_text(json.dumps(value))
    path.rename(REQUESTS / name)


def main(names):
    kinds = {kind.__name__.lower(): kind for kind in (Fsx, Tar, Git, Sqlite, Postgres)}
    workloads = [kinds[name]() for name in names]
    mount()
    for workload in workloads:
        begun = time.monotonic()
        workload.setup()
        print(f"       {workload.name}: ready after {time.monotonic() - begun:.1f} s", flush=True)
    for workload in workloads:
        workload.start()
    for number in itertools.count():
        if (REQUESTS / "enough").exists():
            break
        programs = {w.name: [w.units, w.step, w.refused_count, w.failure] for w in workloads}
        tell("progress", {"number": number, "programs": programs})
        if any(workload.failure for workload in workloads):
            break
        time.sleep(PROGRESS_SECONDS)
    for workload in workloads:
        workload.enough.set()
    for workload in workloads:
        workload.join()
    for workload in workloads:
        workload.close()
    results = {}
    unmount()
    request("last-kill")
    mount()
    for workload in workloads:
        begun = time.monotonic()
        if not workload.failure:
            try:
                verified_bytes, note = workload.verify()
                results[workload.name] = {
                    "units": workload.units, "unit": workload.unit, "verified_bytes": verified_bytes, "note": note,
                    "refused": workload.refused_count,
                }
                seconds = time.monotonic() - begun
                print(f"ok     {workload.name}: {workload.units} {workload.unit}, {note},"
                      f" {verified_bytes >> 20} MiB compared ({seconds:.0f} s)", flush=True)
            except Exception as error:
                workload.failure = repr(error)
                print(f"FAILED {workload.name}: {error!r}", flush=True)
    tell("results", results)
    request("done")
    unmount()
    return 1 if any(workload.failure for workload in workloads) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
