"""The .deb on a bare Debian, and the image that Containerfile describes: installed, served from, removed.

Real: the package, dpkg, its scripts, the command of the unit under its user, a client that others wrote. Not here: systemd
(of the unit it only judges the sandbox) and a tool that builds images: the steps of Containerfile run in a bare Debian.
"""

import contextlib
import gzip
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import tarfile
import unittest
from typing import Any

from lib import harness

ROOT = pathlib.Path(os.environ.get("CAIRN_PACKAGE_ROOT") or "missing")
UNIT = "usr/lib/systemd/system/cairn.service"
COMMAND_SECONDS_MAX = 300
START_SECONDS_MAX = 60
# 0 is a service without any rights, 10 one with all; below 2 systemd calls it safe (`systemd-analyze security`).
EXPOSURE_MAX = 2.0
IMAGE_BYTES_MAX = 100 << 20
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
URL = "nfs://127.0.0.1/main?version=3"
# Where port 111 may not be bound.
URL_OF_PORT = f"{URL}&nfsport=2049&mountport=2049"
CONTENT = bytes(range(256)) * 40_000


def run(argv, **options):
    """Runs a program; returns what it printed, or fails with what it complained."""
    done = subprocess.run([str(word) for word in argv], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=COMMAND_SECONDS_MAX, **options)
    if done.returncode:
        raise AssertionError(f"{shlex.join(map(str, argv))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


class Debian:
    """A bare Debian below a folder."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        run(["tar", "-C", folder, "--exclude=./dev/*", "-xf", ROOT])
        run(["mount", "--rbind", "/dev", folder / "dev"])
        run(["mount", "-t", "proc", "proc", folder / "proc"])
        run(["mount", "-t", "tmpfs", "tmpfs", folder / "run"])

    def run(self, *words, env=None):
        environment = {"PATH": PATH, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", **(env or {})}
        return run(["chroot", self.folder, *words], env=environment)

    def fails(self, *words):
        with contextlib.suppress(AssertionError):
            self.run(*words)
            return False
        return True

    def path(self, name):
        return self.folder / name.lstrip("/")

    def end(self):
        subprocess.run(["umount", "--recursive", "--lazy", self.folder / "dev"], capture_output=True)
        for name in ("proc", "run"):
            subprocess.run(["umount", "--lazy", self.folder / name], capture_output=True)


class Served:
    """A server below a root folder, as a user of that root; it is stopped afterwards, and has to end well."""

    def __init__(self, root, argv, environment, log):
        self.root, self.log = root, log
        with open(log, "wb") as output:
            self.process = subprocess.Popen([str(word) for word in argv], stdin=subprocess.DEVNULL, stdout=output,
                                            stderr=output, env={"PATH": PATH, **environment})
        self.environment = environment

    def __enter__(self):
        def serves():
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log.read_text()}")
            argv = ["chroot", str(self.root), "/usr/bin/cairn", "status"]
            return subprocess.run(argv, env={"PATH": PATH, **self.environment}, capture_output=True).returncode == 0

        try:
            harness.wait_until(serves, START_SECONDS_MAX, "the start of the server")
        except BaseException:
            self.process.kill()
            raise
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(START_SECONDS_MAX)
        if status:
            raise AssertionError(f"the server ended with {status}:\n{self.log.read_text()}")

    def owner(self):
        """User and group ids of the process."""
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return tuple(int(re.findall(rf"^{key}:\s+(\d+)", text, re.MULTILINE)[0]) for key in ("Uid", "Gid"))


@unittest.skipUnless(ROOT.is_file(), "there is no bare Debian: run scripts/test-package")
class Package(unittest.TestCase):
    scratch: pathlib.Path
    out: pathlib.Path
    deb: pathlib.Path

    @classmethod
    def setUpClass(cls):
        held = contextlib.ExitStack()
        cls.addClassCleanup(held.close)
        cls.scratch = held.enter_context(harness.scratch("package-"))
        cls.out = cls.scratch / "out"
        cls.deb = cls.build(cls.out)

    @staticmethod
    def build(out):
        run([harness.REPOSITORY / "scripts/package", harness.cairn_path(), out])
        (deb,) = out.glob("cairn_*.deb")
        return deb

    def debian(self, name):
        debian = Debian(self.scratch / name)
        self.addCleanup(debian.end)
        return debian

    def install(self, debian):
        shutil.copy(self.deb, debian.path("/tmp/cairn.deb"))
        debian.run("dpkg", "--install", "/tmp/cairn.deb")

    def serve(self, debian):
        """What systemd does with the unit, as far as a bare Debian can do it."""
        unit = debian.path(UNIT).read_text()
        (command,) = re.findall(r"^ExecStart=(.*)", unit, re.MULTILINE)
        user = int(debian.run("id", "--user", "cairn"))
        group = int(debian.run("id", "--group", "cairn"))
        self.assertIn("\nUser=cairn\nGroup=cairn\n", unit)
        (state,) = re.findall(r"^StateDirectory=(.*)", unit, re.MULTILINE)
        for name in ("/run/cairn", *(f"/var/lib/{folder}" for folder in state.split())):
            debian.path(name).mkdir(exist_ok=True)
            os.chown(debian.path(name), user, group)
        (capability,) = re.findall(r"^AmbientCapabilities=CAP_(\w+)$", unit, re.MULTILINE)
        rights = [f"--inh-caps=-all,+{capability.lower()}", f"--ambient-caps=-all,+{capability.lower()}",
                  f"--bounding-set=-all,+{capability.lower()}", "--no-new-privs"]
        argv = ["chroot", debian.folder, "setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", *rights]
        served = Served(debian.folder, [*argv, *shlex.split(command)], {"RUNTIME_DIRECTORY": "/run/cairn"},
                        self.scratch / "cairn.log")
        return served, (user, group)

    def check_file(self, is_new, url=URL):
        from lib import libnfs

        with libnfs.Mount(url) as mount:
            if is_new:
                mount.write_file("/file", CONTENT)
            self.assertEqual(mount.read_file("/file"), CONTENT)

    def test_it_is_made_the_same_each_time(self):
        again = self.build(self.scratch / "again")
        self.assertEqual(again.name, self.deb.name)
        self.assertEqual(again.read_bytes(), self.deb.read_bytes())
        run(["sha256sum", "--check", "--quiet", f"{self.deb.name}.sha256"], cwd=self.out)

    def test_the_program_names_the_symbols_beside_the_package(self):
        (symbols,) = self.out.glob("cairn_*.debug")
        tree = self.scratch / "with-symbols"
        run(["dpkg-deb", "--extract", self.deb, tree])
        program = tree / "usr/bin/cairn"
        self.assertIn(symbols.name, run(["readelf", "--string-dump=.gnu_debuglink", program]))
        # They are there alone.
        self.assertIn(" .symtab", run(["readelf", "--section-headers", "--wide", symbols]))
        self.assertNotIn(" .symtab", run(["readelf", "--section-headers", "--wide", program]))

    def test_it_installs_serves_and_leaves_data(self):
        debian = self.debian("debian")
        self.install(debian)
        self.check_what_is_installed(debian)
        # A first installation neither starts nor enables anything, and makes no pool.
        self.assertFalse(debian.path("/var/lib/cairn").exists())
        self.assertFalse(list(debian.path("/etc/systemd/system").glob("*/cairn.service")))

        served, owner = self.serve(debian)
        with served:
            self.assertEqual(served.owner(), owner)
            self.check_file(is_new=True)
        data = debian.path("/var/lib/cairn/disk1")
        self.assertTrue(data.is_dir())

        config = debian.path("/etc/cairn/cairn.toml")
        config.write_text(config.read_text() + "\nmemory_limit = \"1GiB\"\n")
        # As an upgrade does: what an administrator changed stays.
        self.install(debian)
        self.assertIn("memory_limit = \"1GiB\"", config.read_text())
        with self.serve(debian)[0]:
            self.check_file(is_new=False)

        before = sorted(path.relative_to(data) for path in data.rglob("*"))
        debian.run("dpkg", "--remove", "cairn")
        self.assertFalse(debian.path("/usr/bin/cairn").exists())
        self.assertTrue(config.exists())
        debian.run("dpkg", "--purge", "cairn")
        self.assertFalse(config.parent.exists())
        self.assertTrue(debian.fails("dpkg-query", "--status", "cairn"))
        self.assertEqual(sorted(path.relative_to(data) for path in data.rglob("*")), before)
        self.assertEqual(int(debian.run("id", "--user", "cairn")), owner[0])

        self.install(debian)
        served, again = self.serve(debian)
        self.assertEqual(again, owner)
        with served:
            self.check_file(is_new=False)

    def check_what_is_installed(self, debian):
        debian.run("dpkg", "--verify", "cairn")
        self.assertIn("/usr/sbin/nologin", debian.run("getent", "passwd", "cairn"))
        debian.run("cairn", "config", "check", "/etc/cairn/cairn.toml")
        listed = debian.run("dpkg-query", "--showformat=${Conffiles}", "--show", "cairn")
        self.assertEqual([line.split()[0] for line in listed.split("\n") if line], ["/etc/cairn/cairn.toml"])
        # Of every command that the program has, and from the program itself: the bare system leaves out documents.
        pages = {}
        run(["sh", "-c", f"dpkg-deb --fsys-tarfile {self.deb} >{self.scratch}/tree.tar"])
        with tarfile.open(self.scratch / "tree.tar") as files:
            for file in files:
                found = re.fullmatch(r"\./usr/share/man/man1/(.*)\.1\.gz", file.name)
                if found:
                    page = files.extractfile(file)
                    assert page
                    pages[found[1]] = gzip.decompress(page.read()).decode()
                self.assertEqual((file.uname, file.gname, file.mode & 0o022), ("root", "root", 0), file.name)
        self.assertIn("cairn-serve", pages)
        self.assertIn("cairn-plan-deploy", pages)
        self.assertTrue(all(text.count(".SH NAME") == 1 for text in pages.values()))
        completion = debian.run("bash", "-c", "source /usr/share/bash-completion/completions/cairn && complete -p cairn")
        self.assertIn("_cairn", completion)
        for name in ("zsh/vendor-completions/_cairn", "fish/vendor_completions.d/cairn.fish"):
            self.assertGreater(debian.path(f"/usr/share/{name}").stat().st_size, 1000, name)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is not here: NOT TESTED: the unit's sandbox")
    def test_the_unit_is_sandboxed(self):
        tree = self.scratch / "tree"
        run(["dpkg-deb", "--extract", self.deb, tree])
        unit = tree / UNIT
        text = run(["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX * 10:.0f}", "--no-pager", unit])
        self.assertRegex(text, r"Overall exposure level for cairn\.service: \d")
        # Its own mistakes; of what is not here (the manual page, the program) it says so, too.
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
        said = [line for line in done.stderr.splitlines() if "cairn.service" in line and "is not executable" not in line]
        self.assertEqual(said, [])

    def test_the_image_serves(self):
        debian = self.debian("build")
        steps, image = containerfile(self.out / "Containerfile")
        shutil.copytree(self.out, debian.path("/context"))
        debian.path("/package").mkdir()
        shutil.copy(self.deb, debian.path("/package"))
        for step in steps:
            debian.run("sh", "-c", step, env={"CAIRN_ID": image["CAIRN_ID"]})
        root = debian.path("/image")
        self.assertFalse(list(root.glob("**/sh")))
        self.assertLess(sum(path.lstat().st_size for path in root.rglob("*") if path.is_file()), IMAGE_BYTES_MAX)
        # What a container has beside its image.
        for name in ("proc", "dev"):
            (root / name).mkdir()
            run(["mount", "--rbind", debian.path(name), root / name])
        try:
            user, group = map(int, image["USER"].split(":"))
            self.assertEqual((user, group), (int(image["CAIRN_ID"]), int(image["CAIRN_ID"])))
            self.assertEqual((root / image["VOLUME"].lstrip("/")).stat().st_uid, user)
            name, _, value = image["ENV"].partition("=")
            for is_new in (True, False):
                # Without any capability.
                argv = ["chroot", f"--userspec={user}:{group}", "--groups=", root, *image["ENTRYPOINT"], *image["CMD"]]
                with Served(root, argv, {name: value}, self.scratch / "image.log") as served:
                    self.assertEqual(served.owner(), (user, group))
                    self.check_file(is_new, URL_OF_PORT)
        finally:
            for name in ("proc", "dev"):
                subprocess.run(["umount", "--recursive", "--lazy", root / name], capture_output=True)


def containerfile(path):
    """The commands of the first stage, and what the second one and the arguments say."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    build, _, image = text.partition("\nFROM scratch\n")
    said: dict[str, Any] = {}
    for line in image.splitlines():
        word, _, rest = line.partition(" ")
        said[word] = [each.strip('" ') for each in rest.strip("[]").split(",")] if rest.startswith("[") else rest
    (said["CAIRN_ID"],) = re.findall(r"^ARG CAIRN_ID=(\d+)$", build, re.MULTILINE)
    return re.findall(r"^RUN (.*)", build, re.MULTILINE), said
