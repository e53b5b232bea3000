"""Locks over a mount without `nolock`: refused at once, whichever way they are asked for: locks.py MOUNT"""

import errno
import fcntl
import os
import signal
import struct
import sys
import time

SECONDS_MAX = 10
# l_type, l_whence, l_start, l_len, l_pid of Linux on 64 bits.
FLOCK = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
WAYS = {
    # The client asks TEST without asking its own statd before, so this error is the server's for sure.
    "F_GETLK": lambda file: fcntl.fcntl(file, fcntl.F_GETLK, FLOCK),
    "F_SETLK": lambda file: fcntl.fcntl(file, fcntl.F_SETLK, FLOCK),
    "F_SETLKW": lambda file: fcntl.fcntl(file, fcntl.F_SETLKW, FLOCK),
    "lockf of a range": lambda file: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 100, 1 << 40),
    "flock": lambda file: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB),
    "flock that waits": lambda file: fcntl.flock(file, fcntl.LOCK_SH),
}


def main(mount):
    path = os.path.join(mount, "locked")
    signal.alarm(SECONDS_MAX * len(WAYS))
    file = os.open(path, os.O_CREAT | os.O_RDWR)
    for name, ask in WAYS.items():
        started = time.monotonic()
        try:
            ask(file)
            sys.exit(f"{name}: was done")
        except OSError as error:
            if error.errno != errno.ENOLCK:
                sys.exit(f"{name}: {error}")
        seconds = time.monotonic() - started
        if seconds > SECONDS_MAX:
            sys.exit(f"{name}: took {seconds:.1f} s")
        print(f"{name}: ENOLCK after {seconds:.3f} s")
    # What was not given can be given back, and the file is as good as before.
    fcntl.flock(file, fcntl.LOCK_UN)
    fcntl.lockf(file, fcntl.LOCK_UN)
    os.write(file, b"content")
    os.close(file)
    os.unlink(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
