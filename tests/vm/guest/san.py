"""In the VM: a host on LUNs, with the kernel's initiator, multipath, LVM and file systems. See tests/vm/san.py.

    san.py NAME...    some of the functions below that are marked as a test
"""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

REQUESTS = pathlib.Path(os.environ["REQUESTS"])
GIVEN = json.loads(os.environ["GIVEN"])
ANSWER_SECONDS_MAX = 120
DEVICE_SECONDS_MAX = 90
CLONES_SECONDS_MAX = 400
POLL_SECONDS = 0.2
MOUNT = pathlib.Path("/mnt/lun")
POSTGRES = next(iter(pathlib.Path("/usr/lib/postgresql").glob("*/bin")), None)
TESTS: dict[str, Callable[[], None]] = {}


class Failed(Exception):
    pass


def is_test(function):
    TESTS[function.__name__] = function
    return function


def run(*argv, check=True, quiet=False, **options):
    """Runs a program; returns what it prints."""
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, **options)
    if check and done.returncode:
        raise Failed(f"{' '.join(map(str, argv))} ended with {done.returncode}:\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")
    if not check:
        return done
    return done.stdout


def wait_until(done, seconds, what):
    deadline = time.monotonic() + seconds
    while True:
        found = done()
        if found:
            return found
        if time.monotonic() > deadline:
            raise Failed(f"{what} did not happen within {seconds} s\n{run('multipath', '-ll', check=False).stdout}")
        time.sleep(POLL_SECONDS)


def ask(name, text=""):
    """Has the other side do something; returns what it says."""
    path = REQUESTS / f"{name}.ask"
    path.write_text(text)
    answer = REQUESTS / f"{name}.answer"
    # Of a share the kernel may remember that a file was not there.
    wait_until(lambda: answer.name in os.listdir(REQUESTS), ANSWER_SECONDS_MAX, f"the answer to {name}")
    found = answer.read_text()
    answer.unlink()
    if found.startswith("!"):
        raise Failed(f"{name}: {found[1:]}")
    return found


def iscsiadm(*words, **options):
    return run("iscsiadm", *words, **options)


def set_node(name, value, target=None):
    iscsiadm("-m", "node", "-T", target or GIVEN["target"], "-o", "update", "-n", name, "-v", value)


def discover():
    told = iscsiadm("-m", "discovery", "-t", "sendtargets", "-p", GIVEN["portals"][0])
    return [tuple(line.split()) for line in told.splitlines()]


def login():
    set_node("node.session.timeo.replacement_timeout", "5")
    set_node("node.conn[0].timeo.noop_out_interval", "2")
    set_node("node.conn[0].timeo.noop_out_timeout", "2")
    iscsiadm("-m", "node", "-T", GIVEN["target"], "--login")


def paths():
    """Paths of the LUN, and how many of them work."""
    shown = run("multipath", "-ll", check=False).stdout
    return re.findall(r"\d+:\d+:\d+:\d+ +sd\w+ +\S+ +(\w+) +(\w+)", shown)


def mapped():
    """The device with all paths of the one LUN, once it is there with as many as there are portals."""

    def ready():
        shown = run("multipath", "-ll", check=False).stdout
        found = re.search(r"^(\S+) .*CAIRN", shown, re.MULTILINE)
        if found and len(paths()) >= len(GIVEN["portals"]):
            return pathlib.Path("/dev/mapper") / found[1]
        run("multipath", "-r", check=False)
        return None

    return wait_until(ready, DEVICE_SECONDS_MAX, "the multipath device")


def start():
    (pathlib.Path("/etc/multipath")).mkdir(exist_ok=True)
    pathlib.Path("/etc/multipath.conf").write_text(
        'defaults {\n find_multipaths no\n user_friendly_names no\n polling_interval 2\n}\nblacklist {\n devnode "^vd"\n}\n'
        'devices {\n device {\n vendor "CAIRN"\n product "LUN"\n path_grouping_policy group_by_prio\n prio alua\n'
        ' hardware_handler "1 alua"\n path_checker tur\n failback immediate\n no_path_retry queue\n fast_io_fail_tmo 5\n }\n}\n'
    )
    pathlib.Path("/etc/iscsi/initiatorname.iscsi").write_text(f"InitiatorName={GIVEN['initiator']}\n")
    ports = [portal.rpartition(":")[2] for portal in GIVEN["portals"]]
    run("guest-service", "localhost", *ports)
    MOUNT.mkdir(exist_ok=True)
    run("guest-service", "multipath")


def fio(name, *words, **options):
    argv = ["fio", f"--name={name}", "--ioengine=libaio", "--iodepth=8", "--direct=1", "--verify=crc32c", "--randrepeat=0"]
    return subprocess.Popen([*argv, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def end(process, what):
    told, _ = process.communicate(timeout=600)
    if process.returncode or "err= 0" not in told:
        raise Failed(f"{what} ended with {process.returncode}:\n{told[-2500:]}")
    return told


def secrets(own=None, other=None):
    """What iscsid takes for the node: user and secret of its own, and of the target."""
    kinds = {"username": own and own[0], "password": own and own[1], "username_in": other and other[0], "password_in": other and other[1]}
    set_node("node.session.auth.authmethod", "CHAP" if own else "None")
    for name, value in kinds.items():
        set_node(f"node.session.auth.{name}", value or "")


@is_test
def discovery():
    """SendTargets tells of the target at each of its portals, and of no other."""
    found = discover()
    wanted = {f"{portal},{group}" for portal, group in zip(GIVEN["portals"], GIVEN["groups"])}
    if {portal for portal, _ in found} != wanted or {name for _, name in found} != {GIVEN["target"]}:
        raise Failed(f"discovery tells {found}, not {GIVEN['target']} at {wanted}")


@is_test
def chap():
    """CHAP both ways; whoever has a wrong secret is refused, and so is a target that has one."""
    ask("secrets")
    good = [("host", "a secret of the host"), ("cairn", "a secret of the target")]
    told = iscsiadm("-m", "discovery", "-t", "sendtargets", "-p", GIVEN["portals"][0], check=False)
    if told.returncode == 0:
        raise Failed("discovery tells who has no secret of targets")
    cases = [
        ("none", (None, None), False),
        ("a wrong one", ((good[0][0], "another secret of it"), None), False),
        ("a wrong user", (("guest", good[0][1]), None), False),
        ("a target with a wrong one", (good[0], (good[1][0], "another secret of it")), False),
        ("the right ones", (good[0], None), True),
        ("the right ones, both ways", (good[0], good[1]), True),
    ]
    for what, given, wanted in cases:
        secrets(*given)
        done = iscsiadm("-m", "node", "-T", GIVEN["target"], "-p", GIVEN["portals"][0], "--login", check=False)
        if (done.returncode == 0) != wanted:
            raise Failed(f"secrets: {what}: login ended with {done.returncode}: {done.stderr}")
        if wanted:
            iscsiadm("-m", "node", "-T", GIVEN["target"], "--logout")
    ask("no-secrets")
    secrets()


@is_test
def multipath():
    """Two portals; one is cut off under fio verify, then the other: no error."""
    login()
    device = mapped()
    load = fio("paths", f"--filename={device}", "--rw=randrw", "--bs=4k-64k", "--size=24m", "--loops=2", "--verify_backlog=64",
               "--time_based=0", "--rate=2m")
    for portal in GIVEN["portals"][:2]:
        port = portal.rpartition(":")[2]
        run("nft", "add", "table", "ip", "cut")
        run("nft", "add", "chain", "ip", "cut", "out", "{ type filter hook output priority 0; }")
        run("nft", "add", "rule", "ip", "cut", "out", "tcp", "dport", port, "drop")
        # The first wait is for the loss of the path to be seen: there are fewer that work.
        wait_until(lambda: sum(state == ("active", "ready") for state in paths()) < len(GIVEN["portals"]), 60, "the loss of a path")
        run("nft", "delete", "table", "ip", "cut")
        wait_until(lambda: sum(state == ("active", "ready") for state in paths()) == len(GIVEN["portals"]), 90, "the return of the path")
    end(load, "fio while paths were cut")


def with_file_system(kind, make, check):
    device = mapped()
    run("wipefs", "-aq", device)
    run(*make, device)
    run("mount", "-t", kind, device, MOUNT)
    load = fio(kind, f"--directory={MOUNT}", "--rw=randwrite", "--bs=4k-128k", "--size=32m", "--fsync=16", "--do_verify=1", "--rate=3m")
    for _ in range(2):
        time.sleep(3)
        ask("kill")
    end(load, f"fio on {kind} while the server was killed")
    run("umount", MOUNT)
    run(*check, device)


@is_test
def ext4():
    """ext4 with fio verify while the server is killed and started again; then fsck finds nothing."""
    with_file_system("ext4", ["mkfs.ext4", "-q"], ["e2fsck", "-fn"])


@is_test
def xfs():
    """The same with XFS and xfs_repair."""
    with_file_system("xfs", ["mkfs.xfs", "-q", "-f"], ["xfs_repair", "-n"])


@is_test
def fstrim():
    """What is deleted on the host is free in the volume after fstrim."""
    device = mapped()
    run("wipefs", "-aq", device)
    run("mkfs.ext4", "-q", device)
    run("mount", device, MOUNT)
    # Nothing that compresses.
    path = MOUNT / "file"
    with open(path, "wb") as file, open("/dev/urandom", "rb") as source:
        for _ in range(48):
            file.write(source.read(1 << 20))
        os.fsync(file.fileno())
    full = int(ask("used"))
    path.unlink()
    # What a transaction that is not committed has freed is not trimmed.
    os.sync()
    print(run("fstrim", "-v", MOUNT).strip(), flush=True)
    wait_until(lambda: int(ask("used")) < full - (44 << 20), 60, f"that fstrim gives 48 MiB back ({full} bytes before)")
    run("umount", MOUNT)


@is_test
def grow():
    """The LUN grows while it is mounted, and so does the file system."""
    device = mapped()
    run("wipefs", "-aq", device)
    run("mkfs.ext4", "-q", device)
    run("mount", device, MOUNT)
    (MOUNT / "before").write_text("here")
    before = shutil.disk_usage(MOUNT).total
    ask("grow")
    iscsiadm("-m", "session", "--rescan")
    grown = lambda: int(run("blockdev", "--getsize64", device)) == 2 * GIVEN["size_bytes"]

    def resized():
        run("multipathd", "resize", "map", device.name, check=False)
        return grown()

    wait_until(resized, 60, "that the device grows")
    run("resize2fs", device)
    if shutil.disk_usage(MOUNT).total < before * 1.8 or (MOUNT / "before").read_text() != "here":
        raise Failed("the file system did not grow")
    run("umount", MOUNT)
    run("e2fsck", "-fn", device)


@is_test
def reservations():
    """sg_persist from two initiators: who is not registered cannot write, and preempting takes over."""
    other = GIVEN["other_initiator"]
    iscsiadm("-m", "iface", "-I", "other", "-o", "new")
    iscsiadm("-m", "iface", "-I", "other", "-o", "update", "-n", "iface.initiatorname", "-v", other)
    iscsiadm("-m", "discovery", "-t", "sendtargets", "-p", GIVEN["portals"][0], "-I", "other")
    devices = lambda: set(re.findall(r"disk +CAIRN.*?(/dev/sd\w+)", run("lsscsi")))
    mine = sorted(devices())
    iscsiadm("-m", "node", "-T", GIVEN["target"], "-I", "other", "-p", GIVEN["portals"][0], "--login")
    wait_until(lambda: devices() - set(mine), DEVICE_SECONDS_MAX, "the device of the other initiator")
    (theirs,) = devices() - set(mine)
    # The multipath device has both now; the paths alone are used here.
    mine = mine[0]
    run("multipath", "-F", check=False)

    def persist(device, *words, check=True):
        return run("sg_persist", "--no-inquiry", *words, device, check=check)

    def writes(device):
        with open("/dev/zero", "rb") as zeros:
            return run("dd", f"of={device}", "bs=4k", "count=1", "oflag=direct", check=False, stdin=zeros).returncode == 0

    persist(mine, "--out", "--register", "--param-sark=0xa")
    persist(mine, "--out", "--reserve", "--param-rk=0xa", "--prout-type=5")
    if not writes(mine) or writes(theirs):
        raise Failed("a reservation does not keep the other initiator out, or keeps its holder out")
    persist(theirs, "--out", "--register", "--param-sark=0xb")
    if not writes(theirs):
        raise Failed("a registrant cannot write under a reservation of registrants")
    persist(theirs, "--out", "--preempt", "--param-rk=0xb", "--param-sark=0xa", "--prout-type=5")
    if writes(mine) or "0xa" in persist(mine, "--in", "--read-keys"):
        raise Failed("who was preempted can write")
    persist(theirs, "--out", "--clear", "--param-rk=0xb")
    if not writes(mine):
        raise Failed("a reservation that was cleared keeps somebody out")
    iscsiadm("-m", "node", "-T", GIVEN["target"], "-I", "other", "--logout")
    run("multipath", "-r", check=False)
    mapped()


@is_test
def postgres():
    """PostgreSQL on the LUN while the server is killed: each transaction that was acknowledged is there."""
    if POSTGRES is None:
        raise Failed("the image has no PostgreSQL")
    device = mapped()
    run("wipefs", "-aq", device)
    run("mkfs.ext4", "-q", device)
    run("mount", device, MOUNT)
    home = MOUNT / "pg"
    home.mkdir()
    shutil.chown(home, "postgres", "postgres")

    def pg(program, *words, **options):
        who = {"user": "postgres", "group": "postgres", "extra_groups": []}
        return run(POSTGRES / program, *words, **who, cwd="/tmp", env={"PATH": f"{POSTGRES}:/usr/bin:/bin", "LC_ALL": "C"}, **options)

    pg("initdb", "--data-checksums", "--auth=trust", "--no-instructions", "--no-sync", home / "data")
    with open(home / "data" / "postgresql.conf", "a") as file:
        file.write("shared_buffers = 16MB\nunix_socket_directories = '/tmp'\nlisten_addresses = ''\n")
    begin = lambda: pg("pg_ctl", "start", "--wait", "--timeout=120", f"--pgdata={home / 'data'}", "--log=/tmp/postgres.log")
    begin()
    pg("pgbench", "--initialize", "--init-steps=dtGp", "--quiet", "--host=/tmp", "postgres")
    argv = [POSTGRES / "pgbench", "--no-vacuum", "--host=/tmp", "--client=3", "--transactions=120", "postgres"]
    who: dict[str, Any] = {"user": "postgres", "group": "postgres", "extra_groups": [], "cwd": "/tmp"}
    bench = subprocess.Popen(list(map(str, argv)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **who)
    for _ in range(2):
        time.sleep(2)
        ask("kill")
    told, _ = bench.communicate(timeout=600)
    done = re.search(r"actually processed: (\d+)", told)
    if bench.returncode or not done:
        raise Failed(f"pgbench ended with {bench.returncode}:\n{told}")
    # As in a crash of the host's database: what it finds is what was written.
    pg("pg_ctl", "stop", "--mode=immediate", f"--pgdata={home / 'data'}")
    begin()
    found = int(pg("psql", "--host=/tmp", "--no-align", "--tuples-only", "--command", "select count(*) from pgbench_history", "postgres"))
    if found != int(done[1]):
        raise Failed(f"{done[1]} transactions were acknowledged, {found} are there")
    pg("pg_ctl", "stop", "--mode=fast", f"--pgdata={home / 'data'}")
    pg("pg_checksums", "--check", f"--pgdata={home / 'data'}")
    run("umount", MOUNT)
    run("e2fsck", "-fn", device)


@is_test
def failover():
    """A cluster: the node that owns the volume is killed under fio verify, and the others are paths to the next owner."""
    login()
    device = mapped()
    wait_until(lambda: sum(state == ("active", "ready") for state in paths()) == len(GIVEN["portals"]), 60, "all paths")
    shown = run("multipath", "-ll")
    if len(re.findall(r"prio=50", shown)) != 1 or "prio=10" not in shown:
        raise Failed(f"the owner's path is not the one that is preferred:\n{shown}")
    print(shown, flush=True)
    load = fio("failover", f"--filename={device}", "--rw=randrw", "--bs=4k-64k", "--size=24m", "--verify_backlog=64", "--rate=1m",
               "--output-format=normal,json")
    time.sleep(2)
    ask("kill-owner")
    told = end(load, "fio while the owner was killed")
    worst = max(int(text) for text in re.findall(r'"max" : (\d+)', told))
    print(f"the longest wait of fio was {worst / 1e9:.1f} s", flush=True)
    print(run("multipath", "-ll"), flush=True)


# The demonstration: ten LUNs as one disk.

FILES_COUNT = 40
DEMO = pathlib.Path("/srv/data")


def digests(root):
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.name != "journal":
            found[str(path.relative_to(root))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def stripe(kind, check):
    step = lambda text: print(f"-- {text}", flush=True)
    step(f"the script of `cairn san plan-host` for {len(GIVEN['naas'])} LUNs")
    environment = os.environ | {"CHAP_SECRETS": "/requests/chap"}
    told = run("bash", "/requests/plan.sh", env=environment)
    print(told.strip().splitlines()[-1], flush=True)
    # Again: nothing changes.
    run("bash", "/requests/plan.sh", env=environment)
    shown = run("lvs", "--noheadings", "--separator=,", "-o", "stripes,stripesize,lv_size", "cairn/data").strip()
    step(f"the volume: stripes, stripe size, size: {shown}")
    if not shown.startswith(f"{len(GIVEN['naas'])},64.00k,"):
        raise Failed(f"the stripe is not over all LUNs: {shown}")
    ps = run("ps", "axww", "-o", "args")
    if "a secret of" in ps:
        raise Failed("a secret is in the arguments of a program")
    step("files, and a journal of numbers that are flushed one after the other while a snapshot of all is taken")
    for index in range(FILES_COUNT):
        path = DEMO / f"folder{index % 4}" / f"file{index}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(os.urandom((index % 8 + 1) * 100_000))
    os.sync()
    before = digests(DEMO)
    lun_stop = pathlib.Path("/tmp/stop")
    writer: Any = subprocess.Popen([sys.executable, __file__, "write-journal", str(DEMO / "journal"), str(lun_stop)], stdout=subprocess.PIPE, text=True)
    writer.stdout.readline()
    first = int(writer.stdout.readline())
    ask("snapshot")
    lun_stop.touch()
    last = int(writer.communicate(timeout=60)[0].split()[-1])
    step(f"then everything is deleted; {last} numbers were written, {first} of them before the snapshot")
    for path in list(DEMO.iterdir()):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    os.sync()
    step("clones of all LUNs in the snapshot, attached beside the originals")
    ask("clone")
    iscsiadm("-m", "session", "--rescan")
    names = json.loads((REQUESTS / "clones").read_text())
    # By the designator that the host's udev prefers.
    device_of = lambda naa: next((path for path in (pathlib.Path(f"/dev/mapper/3{naa}"), pathlib.Path(f"/dev/mapper/1CAIRN_{naa[-16:]}"))
                                  if path.exists()), None)
    # multipathd makes them, two paths each; the emulated processor takes its time.
    wait_until(lambda: all(map(device_of, names)), CLONES_SECONDS_MAX, "the clones")
    devices = [device_of(naa) for naa in names]
    run("vgimportclone", "--basevgname", "restored", *devices)
    run("vgchange", "--activate", "y", "restored")
    device = "/dev/restored/data"
    at = pathlib.Path("/mnt/restored")
    at.mkdir(exist_ok=True)
    # The journal of the file system is replayed, as after a power cut; then there is nothing to repair.
    run("mount", *(["-o", "nouuid"] if kind == "xfs" else []), device, at)
    after = digests(at)
    if after != before:
        missing = [name for name in before if after.get(name) != before[name]]
        raise Failed(f"{len(missing)} of {len(before)} files differ in the clone, the first is {missing[:1]}")
    numbers = (at / "journal").read_bytes().split(b"\n")[:-1]
    wrong = [index for index, number in enumerate(numbers) if number.strip(b"\0") != str(index).encode()]
    if wrong or len(numbers) <= first:
        raise Failed(f"of the journal {first} numbers were flushed before the snapshot; {len(numbers)} are there, wrong is {wrong[:3]}")
    run("umount", at)
    run(*check, device)
    step(f"fsck finds nothing; all {len(before)} files are the same, and {len(numbers)} numbers of the journal, without a gap")
    run("vgchange", "--activate", "n", "restored")
    run("umount", DEMO)
    run("vgchange", "--activate", "n", "cairn")


@is_test
def demo():
    """Ten LUNs of ten volumes as one striped XFS; a snapshot of all at one instant under load; its clone is whole."""
    stripe("xfs", ["xfs_repair", "-n"])


@is_test
def demo_ext4():
    """The same with ext4."""
    stripe("ext4", ["e2fsck", "-fn"])


def write_journal(path, stop):
    """Appends numbers, each flushed before the next; says how far it is."""
    with open(path, "wb", buffering=0) as file:
        print("begins", flush=True)
        index = 0
        while not os.path.exists(stop):
            file.write(f"{index}\n".encode())
            os.fsync(file.fileno())
            if index == 20:
                print(index, flush=True)
            index += 1
    print(index, flush=True)


def main():
    if sys.argv[1] == "write-journal":
        write_journal(*sys.argv[2:])
        return 0
    start()
    for name in sys.argv[1:]:
        begun = time.monotonic()
        try:
            TESTS[name]()
        except (Failed, subprocess.SubprocessError, OSError, ValueError) as error:
            print(f"FAILED {name}: {error}", flush=True)
            print(run("dmesg", check=False).stdout[-3000:], flush=True)
            return 1
        print(f"ok     {name}: {TESTS[name].__doc__} {time.monotonic() - begun:.0f} s", flush=True)
    with contextlib.suppress(Failed):
        run("multipath", "-F", check=False)
        iscsiadm("-m", "node", "-u", check=False)
    return 0


sys.exit(main())
