"""libnfs through ctypes: a client that others wrote, for the end-to-end tests.

Errors of reads and writes that libnfs splits come as EFAULT, whatever the server said; ask our own
client where the reason matters. Blocking calls; they release Python's lock, so threads run side by side, each with a mount of its own.
"""

import contextlib
import ctypes
import ctypes.util
import os

# From this major version of the shared library on, read and write take the buffer before the count.
BUFFER_FIRST_SONAME = 16
IO_LEN_BYTES = 1024 * 1024

_name = ctypes.util.find_library("nfs")
if _name is None:
    raise ImportError("libnfs is not installed: run `scripts/setup test`")
_lib = ctypes.CDLL(_name)
_soname = int(_name.rpartition(".so.")[2].split(".")[0])
_buffer_first = _soname >= BUFFER_FIRST_SONAME


class _Url(ctypes.Structure):
    _fields_ = [("server", ctypes.c_char_p), ("path", ctypes.c_char_p), ("file", ctypes.c_char_p)]


class _Dirent(ctypes.Structure):
    """The first two fields; the rest is not needed and differs between versions."""


_Dirent._fields_ = [("next", ctypes.POINTER(_Dirent)), ("name", ctypes.c_char_p)]


class _Statvfs(ctypes.Structure):
    """struct statvfs of 64-bit Linux."""

    _fields_ = [(name, ctypes.c_ulong) for name in (
        "bsize", "frsize", "blocks", "bfree", "bavail", "files", "ffree", "favail", "fsid", "flag", "namemax",
    )] + [("spare", ctypes.c_int * 6)]


class Stat(ctypes.Structure):
    """struct nfs_stat_64."""

    _fields_ = [(name, ctypes.c_uint64) for name in (
        "dev", "ino", "mode", "nlink", "uid", "gid", "rdev", "size", "blksize", "blocks",
        "atime", "mtime", "ctime", "atime_nsec", "mtime_nsec", "ctime_nsec", "used",
    )]


_lib.nfs_init_context.restype = ctypes.c_void_p
_lib.nfs_get_error.restype = ctypes.c_char_p
_lib.nfs_parse_url_dir.restype = ctypes.POINTER(_Url)
_lib.nfs_readdir.restype = ctypes.POINTER(_Dirent)


def _path(path):
    return path if isinstance(path, bytes) else path.encode()


class GaveUp(OSError):
    """libnfs gave up a call and its mount: nobody knows whether the call was done, and the mount can be used no more.

    That happens when a connection that it made again is reset in the moment between its `poll` and its look at the
    socket, as one may be to a server that is being killed.
    """


class Mount:
    """One connection to one export."""

    def __init__(self, url):
        self._nfs = ctypes.c_void_p(_lib.nfs_init_context())
        parsed = _lib.nfs_parse_url_dir(self._nfs, url.encode())
        if not parsed:
            raise OSError(0, f"{url}: {self._error()}")
        self._check(_lib.nfs_mount(self._nfs, parsed.contents.server, parsed.contents.path), url)

    def _error(self):
        return (_lib.nfs_get_error(self._nfs) or b"").decode(errors="replace")

    def _check(self, status, what):
        if status >= 0:
            return status
        error = f"{what}: {self._error()}"
        if error.endswith("nfs_service failed"):
            # The call is still queued, and its answer would be written to a stack that is gone: not even destroying
            # the context is safe.
            self._nfs = ctypes.c_void_p()
            raise GaveUp(-status, error)
        raise OSError(-status, error)

    def close(self):
        if self._nfs:
            _lib.nfs_destroy_context(self._nfs)
            self._nfs = ctypes.c_void_p()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def open(self, path, flags=os.O_RDONLY, mode=0o644):
        handle = ctypes.c_void_p()
        status = _lib.nfs_open2(self._nfs, _path(path), flags, mode, ctypes.byref(handle))
        self._check(status, f"open {path}")
        return File(self, handle, path)

    def mkdir(self, path):
        self._check(_lib.nfs_mkdir(self._nfs, _path(path)), f"mkdir {path}")

    def unlink(self, path):
        self._check(_lib.nfs_unlink(self._nfs, _path(path)), f"unlink {path}")

    def rmdir(self, path):
        self._check(_lib.nfs_rmdir(self._nfs, _path(path)), f"rmdir {path}")

    def rename(self, old, new):
        self._check(_lib.nfs_rename(self._nfs, _path(old), _path(new)), f"rename {old}")

    def symlink(self, target, path):
        self._check(_lib.nfs_symlink(self._nfs, _path(target), _path(path)), f"symlink {path}")

    def link(self, old, new):
        self._check(_lib.nfs_link(self._nfs, _path(old), _path(new)), f"link {new}")

    def truncate(self, path, len_bytes):
        status = _lib.nfs_truncate(self._nfs, _path(path), ctypes.c_uint64(len_bytes))
        self._check(status, f"truncate {path}")

    def chmod(self, path, mode):
        self._check(_lib.nfs_chmod(self._nfs, _path(path), mode), f"chmod {path}")

    def chown(self, path, uid, gid):
        self._check(_lib.nfs_chown(self._nfs, _path(path), uid, gid), f"chown {path}")

    def stat(self, path):
        """Attributes, of what a symbolic link names."""
        stat = Stat()
        self._check(_lib.nfs_stat64(self._nfs, _path(path), ctypes.byref(stat)), f"stat {path}")
        return stat

    def readlink(self, path):
        target = ctypes.create_string_buffer(4096)
        self._check(_lib.nfs_readlink(self._nfs, _path(path), target, len(target)), f"readlink {path}")
        return target.value.decode()

    def utimes(self, path, seconds):
        """Sets access and modification time."""
        times = (ctypes.c_long * 4)(int(seconds), 0, int(seconds), 0)
        self._check(_lib.nfs_utimes(self._nfs, _path(path), times), f"utimes {path}")

    def names(self, path):
        """The names in a directory, without `.` and `..`."""
        directory = ctypes.c_void_p()
        self._check(_lib.nfs_opendir(self._nfs, _path(path), ctypes.byref(directory)), f"opendir {path}")
        names = []
        while entry := _lib.nfs_readdir(self._nfs, directory):
            names.append(entry.contents.name)
        _lib.nfs_closedir(self._nfs, directory)
        return sorted(name.decode() for name in names if name not in (b".", b".."))

    def space(self, path="/"):
        """Total and free bytes where a path is (FSSTAT), in whole blocks."""
        stat = _Statvfs()
        self._check(_lib.nfs_statvfs(self._nfs, _path(path), ctypes.byref(stat)), "space")
        return stat.blocks * stat.bsize, stat.bavail * stat.bsize

    def write_file(self, path, content):
        """Creates or overwrites a file, and returns once it is stable."""
        with self.open(path, os.O_CREAT | os.O_RDWR) as file:
            file.write(0, content)
            file.sync()

    def read_file(self, path):
        with self.open(path) as file:
            return file.read_all()


class File:
    """One open file."""

    def __init__(self, mount, handle, path):
        self._mount, self._handle, self._path = mount, handle, path

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if not self._mount._nfs:
            return
        status = _lib.nfs_close(self._mount._nfs, self._handle)
        # Checked in any case: a mount that is given up here must not be used either. What failed first is what is told.
        with contextlib.nullcontext() if kind is None else contextlib.suppress(OSError):
            self._mount._check(status, f"close {self._path}")

    def _call(self, function, offset, count, buffer):
        nfs, count, offset = self._mount._nfs, ctypes.c_uint64(count), ctypes.c_uint64(offset)
        if _buffer_first:
            return function(nfs, self._handle, buffer, count, offset)
        return function(nfs, self._handle, offset, count, buffer)

    def write(self, offset, content):
        done = 0
        while done < len(content):
            piece = content[done : done + IO_LEN_BYTES]
            status = self._call(_lib.nfs_pwrite, offset + done, len(piece), piece)
            done += self._mount._check(status, f"write {self._path}")

    def read(self, offset, count):
        buffer = ctypes.create_string_buffer(count)
        status = self._call(_lib.nfs_pread, offset, count, buffer)
        return buffer.raw[: self._mount._check(status, f"read {self._path}")]

    def read_all(self):
        pieces, offset = [], 0
        while piece := self.read(offset, IO_LEN_BYTES):
            pieces.append(piece)
            offset += len(piece)
        return b"".join(pieces)

    def sync(self):
        self._mount._check(_lib.nfs_fsync(self._mount._nfs, self._handle), f"sync {self._path}")
