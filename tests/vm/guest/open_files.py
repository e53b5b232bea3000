"""Files that are renamed, replaced and removed while they are open: open_files.py MOUNT OTHER_MOUNT"""

import os
import pathlib
import sys


def check(what, got, want):
    if got != want:
        sys.exit(f"{what}: got {got!r}, want {want!r}")


def main(mount, other):
    path, second = os.path.join(mount, "open"), os.path.join(mount, "second")
    file = os.open(path, os.O_CREAT | os.O_RDWR)
    os.write(file, b"first")
    os.rename(path, path + ".renamed")
    os.write(file, b" more")
    os.fsync(file)
    check("after a rename", os.pread(file, 100, 0), b"first more")
    check("the new name", pathlib.Path(path + ".renamed").read_bytes(), b"first more")
    with open(second, "wb") as replacing:
        replacing.write(b"second")
    os.rename(second, path + ".renamed")
    check("after being replaced", os.pread(file, 100, 0), b"first more")
    check("what replaced it", pathlib.Path(path + ".renamed").read_bytes(), b"second")
    os.unlink(path + ".renamed")
    os.close(file)

    file = os.open(path, os.O_CREAT | os.O_RDWR)
    os.write(file, b"x" * 100_000)
    os.unlink(path)
    check("after an unlink", os.fstat(file).st_size, 100_000)
    os.write(file, b"y")
    os.fsync(file)
    check("its end", os.pread(file, 2, 99_999), b"xy")
    os.close(file)
    left = [name for name in os.listdir(mount) if name.startswith((".nfs", "open"))]
    check("what is left", left, [])

    # The server knows nothing of the other mount's open file: ESTALE, never other bytes.
    file = os.open(path, os.O_CREAT | os.O_RDWR)
    os.write(file, b"gone soon")
    os.fsync(file)
    os.unlink(os.path.join(other, "open"))
    fresh = os.open(os.path.join(other, "open"), os.O_CREAT | os.O_RDWR)
    os.write(fresh, b"another")
    os.fsync(fresh)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        got = os.pread(file, 100, 0)
        check("a removed file", got, b"gone soon")
    except OSError as error:
        check("the error of a removed file", error.strerror, "Stale file handle")
    os.close(fresh)
    os.unlink(os.path.join(other, "open"))


if __name__ == "__main__":
    main(*sys.argv[1:])
