"""What the machine itself can do, to compare with: disk, loopback, memory, erasure coding.

Owns: how each limit is measured.
Must not know: NFS, servers.
"""

import json
import multiprocessing
import socket
import subprocess
import time

from lib import harness

CHUNK_BYTES = 1 << 20
ENCODER_SET_BYTES_QUICK = 64 << 20


def fio(folder, name, flags):
    """Bytes and operations a second of the disk."""
    argv = ["fio", f"--name={name}", f"--directory={folder}", "--size=1g", "--output-format=json", "--unlink=1", *flags]
    job = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)["jobs"][0]
    kind = job["write"] if job["write"]["total_ios"] else job["read"]
    return {"mb_per_s": kind["bw_bytes"] / 1e6, "ops_per_s": kind["iops"]}


def drain(listener):
    stream, _ = listener.accept()
    buffer = memoryview(bytearray(CHUNK_BYTES))
    while stream.recv_into(buffer):
        pass


def loopback(seconds):
    """One TCP stream over the loopback interface between two processes, 1 MiB at a time."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reader = multiprocessing.get_context("fork").Process(target=drain, args=(listener,))
        reader.start()
        chunk, count = bytes(CHUNK_BYTES), 0
        with socket.create_connection(listener.getsockname()) as stream:
            start = time.monotonic()
            while time.monotonic() < start + seconds:
                stream.sendall(chunk)
                count += 1
        reader.join()
        elapsed = time.monotonic() - start
    return {"mb_per_s": count * CHUNK_BYTES / elapsed / 1e6, "ops_per_s": count / elapsed}


def limits(seconds):
    """One measurement of each limit, by key."""
    timed = ["--time_based", f"--runtime={seconds}"]
    with harness.scratch("limits-") as folder:
        direct = ["--bs=1m", "--direct=1", "--ioengine=libaio", "--iodepth=8", *timed]
        return {
            "disk-write": fio(folder, "w", ["--rw=write", *direct]),
            "disk-read": fio(folder, "r", ["--rw=read", *direct]),
            "fdatasync": fio(folder, "s", ["--rw=write", "--bs=4k", "--fdatasync=1", *timed]),
            "loopback": loopback(seconds),
        }


def encoder(is_quick):
    """GB/s of our kernels, of ISA-L and of memcpy, as `isal-compare` prints them."""
    program = harness.build_dir() / "isal-compare"
    if not program.exists():
        raise harness.Failure(f"{program} is not there: run `make bench-nfs`, which builds it")
    argv = [str(program), *(["--rounds", "1", "--set-bytes", str(ENCODER_SET_BYTES_QUICK)] if is_quick else [])]
    return json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
