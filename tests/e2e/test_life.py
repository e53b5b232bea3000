"""Starting, stopping, being refused, and what scripts can rely on."""

import contextlib
import json
import os
import socket
import subprocess

from lib import harness
from lib.rawnfs import JUKEBOX, OK, Peer
from lib.worlds import WorldTest

EXIT_USAGE = 2
EXIT_FAILED = 1
RPCBIND_PORT = 111
# It is tried again 10, 30 and 70 s after the start.
OPEN_SECONDS_MAX = 120
SAID_SECONDS_MAX = 60


class Life(WorldTest):
    def test_sigterm_ends_with_success_and_removes_the_ready_file(self):
        server = self.server(1)
        self.assertEqual(server.ready["pid"], server.pid)
        self.assertEqual(server.stop(), 0)
        self.assertFalse(server.ready_path.exists())

    def test_a_second_start_is_refused_with_the_pid(self):
        server = self.server(1)
        ready = str(self.scratch / "second.json")
        argv = [ready if word == str(server.ready_path) else word for word in server.argv()]
        second = subprocess.run(
            argv, capture_output=True, text=True, timeout=harness.START_SECONDS_MAX, env=server.environment()
        )
        self.assertEqual(second.returncode, EXIT_FAILED, second.stderr)
        self.assertIn(str(server.pid), second.stderr)
        self.assertEqual(server.status()["pid"], server.pid)

    def test_of_several_servers_none_is_guessed(self):
        first = self.server(1)
        # As two servers of one user have it.
        run = {"CAIRN_RUNTIME_DIR": first.environment()["CAIRN_RUNTIME_DIR"]}

        class Beside(harness.Server):
            def environment(self):
                return super().environment() | run

        root = self.scratch / "second"
        root.mkdir()
        second = self.enterContextHere(Beside(root, 1))
        environment = {name: value for name, value in first.environment().items() if name != "CAIRN_STATE_DIR"}

        def asked(*words, more=None):
            argv = [str(harness.cairn_path()), *map(str, words)]
            return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment | (more or {}))

        for words in (["status"], ["volume", "delete", "main", "--yes", "--force"], ["disk", "list"]):
            refused = asked(*words)
            self.assertEqual(refused.returncode, EXIT_USAGE, refused.stdout)
            for server in (first, second):
                self.assertIn(server.ready["admin"]["url"], refused.stderr)
                self.assertIn(server.ready["pool"], refused.stderr)
                self.assertIn(str(server.state_path), refused.stderr)
            self.assertIn("--state-dir", refused.stderr)
        # Each way to name one; its token is found.
        for server in (first, second):
            for done in (
                asked("status", "--json", "--server", server.ready["admin"]["url"]),
                asked("status", "--json", "--state-dir", server.state_path),
                asked("status", "--json", more={"CAIRN_SERVER": server.ready["admin"]["url"]}),
                asked("status", "--json", more={"CAIRN_STATE_DIR": str(server.state_path)}),
            ):
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(json.loads(done.stdout)["pid"], server.pid)
        refused = asked("status", "--state-dir", self.scratch)
        self.assertEqual(refused.returncode, 3, refused.stdout)
        # The only one that is left is meant.
        self.assertEqual(second.stop(), 0)
        self.assertEqual(json.loads(asked("status", "--json").stdout)["pid"], first.pid)

    def test_folders_on_one_drive_are_one_device_and_have_its_space_once(self):
        server = self.server(6)
        server.await_health("no_redundancy")
        status = server.status()
        pool = status["pool"]
        self.assertEqual((pool["devices"], pool["device_failures_tolerated"]), (1, 0))
        parts = ("6 folders on 1 device, 4+2: survives no loss of a device", "put each folder on a device of its own")

        def missing():
            said = server.cairn("status").stdout
            return [part for part in parts if part not in said]

        # Of a disk that is silent for a moment it says something else.
        harness.wait_until_equal(missing, [], SAID_SECONDS_MAX, "what the status does not say")
        space = os.statvfs(server.disks[0])
        total = space.f_blocks * space.f_frsize
        self.assertLessEqual(abs(pool["total_bytes"] - total), 6 * space.f_frsize)
        self.assertEqual(sum(disk["total_bytes"] for disk in status["disks"]), pool["total_bytes"])

    def test_a_full_volume_is_said(self):
        server = self.server(3)
        server.cairn("volume", "create", "small", "--size-limit", "8MiB")
        server.cairn("export", "set", "small", "--client", "127.0.0.1/32", "--squash", "none")
        url = lambda name: f"nfs://127.0.0.1:{server.port}/small/{name}"
        file = self.scratch / "file"
        file.write_bytes(b"x" * (15 << 19))
        server.cairn("cp", "-q", file, url("one"))
        kinds = lambda: {warning["kind"]: warning for warning in server.status()["warnings"]}
        harness.wait_until(lambda: "volume_low" in kinds(), SAID_SECONDS_MAX, "that the volume is nearly full")
        self.assertEqual(kinds()["volume_low"]["volume"], "small")
        file.write_bytes(b"x" * 471_000)
        server.cairn("cp", "-q", file, url("two"))
        harness.wait_until(lambda: "volume_full" in kinds(), SAID_SECONDS_MAX, "that the volume is full")
        server.await_health("degraded")
        said = server.cairn("status").stdout
        self.assertNotIn("nothing needs to be done", said)
        self.assertIn("cairn volume set small --size-limit", said)
        server.cairn("rm", url("one"), url("two"))
        harness.wait_until(lambda: not {"volume_full", "volume_low"} & set(kinds()), SAID_SECONDS_MAX, "that it is not")

    def test_no_redundancy_is_said(self):
        server = self.server(1)
        server.await_health("no_redundancy")
        self.assertIn("NO REDUNDANCY", server.cairn("status").stdout)
        self.assertIn("NO REDUNDANCY", server.log_path.read_text())

    def test_layouts_follow_the_disks(self):
        for disks, layout in [(2, "2 mirrors"), (3, "3 mirrors"), (4, "2+2"), (5, "3+2"), (6, "4+2"), (7, "5+2")]:
            with self.subTest(disks=disks):
                server = self.server(disks, name=f"pool{disks}")
                self.assertEqual(server.status()["pool"]["protection"], layout)
                server.kill()

    def test_volumes_are_made_exported_and_deleted(self):
        server = self.server(1)
        server.cairn("volume", "create", "extra", "--size-limit", "1GiB")
        server.cairn("export", "set", "extra", "--client", "127.0.0.0/8", "--squash", "none")
        names = server.cairn("ls", f"nfs://127.0.0.1:{server.port}/").stdout.split()
        self.assertEqual(names, ["extra", "main"])
        source = self.scratch / "source"
        source.write_text("kept")
        url = f"nfs://127.0.0.1:{server.port}/extra/copy"
        server.cairn("cp", "-q", source, url)
        server.restart()
        url = f"nfs://127.0.0.1:{server.port}/extra/copy"
        self.assertEqual(server.cairn("cat", url).stdout, "kept")
        server.cairn("volume", "delete", "extra", "--yes", "--force")
        listed = json.loads(server.cairn("volume", "list", "--json").stdout)
        self.assertEqual([volume["name"] for volume in listed["volumes"]], ["main"])

    def test_clients_of_a_volume_that_cannot_be_opened_wait(self):
        server = self.server(1)
        with Peer(server.port) as peer:
            _, root = peer.mount("/main")
            _, file, _ = peer.create(root, "kept")
            self.assertEqual(peer.write(file, b"data"), OK)
        self.assertEqual(server.stop(), 0)
        (folder,) = (server.disks[0] / "volumes").iterdir()
        away = self.scratch / "away"
        folder.rename(away)
        server.start()
        with Peer(server.port) as peer:
            for handle in (root, file):
                self.assertEqual(peer.getattr(handle)[0], JUKEBOX)
            self.assertEqual(peer.write(file, b"more"), JUKEBOX)
            self.assertEqual(peer.mount("/main"), (OK, root))
            self.assertEqual(peer.exports(), ["/main"])
            away.rename(folder)
            served = lambda: peer.getattr(file)[0] == OK
            harness.wait_until(served, OPEN_SECONDS_MAX, "the volume that is opened again")
            self.assertEqual(peer.read(file), OK)

    def test_port_111_is_needed_only_when_asked_for(self):
        with socket.socket() as taken:
            # If it fails, somebody else has the port, or this user may not have it: the same to the server.
            with contextlib.suppress(OSError):
                taken.bind(("127.0.0.1", RPCBIND_PORT))
                taken.listen()
            server = self.server(1)
            server.stop()
            server.rpcbind = None
            server.start()
            self.assertFalse(server.status()["nfs"]["rpcbind"])
            self.assertIn("port 111 is not served", server.log_path.read_text())
            server.stop()
            server.rpcbind = True
            with self.assertRaises(harness.Failure) as refused:
                server.start()
            self.assertIn("127.0.0.1:111", str(refused.exception))

    def test_wrong_settings_are_refused_with_the_nearest_word(self):
        server = self.server(1)
        config = self.scratch / "cairn.toml"
        config.write_text('listen_nsf = "127.0.0.1:0"\n')
        done = server.cairn("config", "check", config, check=False)
        self.assertEqual(done.returncode, EXIT_USAGE)
        self.assertIn("listen_nfs", done.stderr)
