"""People's ways through the console, in Chromium, on real servers."""

import contextlib
import http.client
import json
import math
import pathlib
import re
import shutil
import time
import urllib.error
import urllib.request

from console.main import OUT
from console.world import FOR_DOCS, PICTURES_OF_PAGES, ConsoleTest
from lib import browser, harness, libnfs
from lib.background import Background
from lib.worlds import content

PAGES = [("overview", ""), ("pool", "pool"), ("volumes", "volumes"), ("volume", "volumes/main"), ("luns", "luns"), ("buckets", "buckets")]
PAGES += [("classes", "classes"), ("tiers", "tiers"), ("plan", "plan?capacity=50TiB"), ("users", "users"), ("audit", "audit")]
PAGES += [("events", "events")]
DOCS = {"overview-light": "console-overview", "pool-dark": "console-pool", "volume-light": "console-volume"}
DOCS |= {"events-light": "console-events", "benchmarks-light": "console-benchmarks"}
LOAD_LEN_BYTES = 1_000_000
SECONDS_MAX = 60
# Of all streams together.
STREAMS_MEMORY_BYTES_MAX = 32 << 20
# More than there may be connections.
ASKING_PAGES = 200
# A rate, also one of a fast machine.
LOAD_RATE = re.compile(r"[1-9].* [KMG]iB/s")
LOAD_TEXT = re.compile(r"[1-9].* [KM]iB/s")


class Load(Background):
    """Files that are written and read over NFS until it ends."""

    def __init__(self, server):
        super().__init__()
        self.server = server

    def work(self):
        data = content("load", LOAD_LEN_BYTES)
        with libnfs.Mount(self.server.libnfs_url()) as mount:
            number = 0
            while not self.stopping.is_set():
                mount.write_file(f"/load{number % 8}", data)
                # Sometimes it is read more often than written, so that the lines of a chart differ.
                for _ in range(1 + number // 16 % 4):
                    assert mount.read_file(f"/load{number % 8}") == data
                # Not all that the machine can do, and sometimes more of it.
                self.stopping.wait(0.4 + 0.3 * math.sin(number / 40))
                number += 1


class Pages(ConsoleTest):
    def test_a_token_lets_in_and_nothing_else_does(self):
        server = self.server(1)
        window = self.window(server, is_in=False)
        page = window.page
        browser.playwright().expect(page.get_by_label("Admin token")).to_be_visible()
        self.assertEqual(window.violations(), [])
        window.log_in("0123456789abcdef0123456789abcdef")
        self.shown(page.get_by_role("alert"), "the token is not this server's")
        self.assertEqual(window.violations(), [])
        # The browser itself says that an answer was 401.
        self.assertTrue(all("401" in complaint for complaint in window.complaints), window.complaints)
        window.complaints.clear()
        # An address below is asked for after the log-in as well.
        window.open("volumes/main")
        window.complaints.clear()
        window.log_in(server.token_path.read_text())
        self.shown(window.heading(), "Volume main")
        page.reload()
        self.shown(window.heading(), "Volume main")

        (cookie,) = window.context.cookies()
        self.assertTrue(cookie["httpOnly"])
        self.assertEqual(cookie["sameSite"], "Strict")
        self.assertNotIn(server.token_path.read_text().strip(), cookie["value"])
        self.assertEqual(page.evaluate("document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage)"), "{}{}")

        # Another site's page, or a form, has the cookie at most, and not the header.
        url = server.ready["admin"]["url"]
        cookie_header = f"{cookie['name']}={cookie['value']}"

        def answer(method, path, **headers):
            body = b'{"name":"stolen"}' if method == "POST" else None
            request = urllib.request.Request(url + path, body, headers={"Cookie": cookie_header} | headers, method=method)
            try:
                with urllib.request.urlopen(request, timeout=30) as got:
                    return got.status
            except urllib.error.HTTPError as error:
                return error.code

        self.assertEqual(answer("POST", "/api/v1/volumes"), 401)
        self.assertEqual(answer("GET", "/api/v1/volumes"), 200)
        self.assertEqual(answer("POST", "/api/v1/volumes", **{"X-Cairn-Console": "1"}), 201)

        # The session survives a restart of the server, and ends with the log-out, for whoever has the cookie.
        page.get_by_role("button", name="Log out").click()
        browser.playwright().expect(page.get_by_label("Admin token")).to_be_visible()
        self.assertEqual(answer("GET", "/api/v1/volumes"), 401)

    def test_users_log_in_with_their_rights(self):
        server = self.server(1)
        admin = self.window(server)
        page = admin.page
        page.get_by_role("link", name="Users", exact=True).click()
        self.shown(admin.heading(), "Users")
        self.shown(page.get_by_role("main"), "There is no user.")
        for name, role in (("alice", "admin"), ("bob", "viewer")):
            page.get_by_role("button", name="Create a user").click()
            dialog = self.dialog(admin)
            dialog.get_by_label("Name").fill(name)
            dialog.get_by_label("Role").select_option(role)
            dialog.get_by_label("Password").fill(f"password of {name}")
            # What is shown to copy has no secret in it.
            dialog.get_by_text("As a command or REST call").click()
            self.shown(dialog, f"cairn user create {name} --role {role}")
            self.shown(dialog, '"password":"PASSWORD"')
            self.assertEqual(admin.violations(), [])
            dialog.get_by_role("button", name="Create").click()
            self.shown(page.get_by_role("row", name=name), role.capitalize())
        self.quiet(admin)

        bob = self.window(server, is_in=False)
        page = bob.page
        page.get_by_role("button", name="User", exact=True).click()
        self.assertEqual(bob.violations(), [])
        page.get_by_label("Name").fill("bob")
        page.get_by_label("Password").fill("password of alice")
        page.get_by_role("button", name="Log in").click()
        self.shown(page.get_by_role("alert"), "user name or password is wrong")
        page.get_by_label("Password").fill("password of bob")
        page.get_by_role("button", name="Log in").click()
        self.shown(bob.heading(), "Overview")
        self.shown(page.get_by_role("banner"), "bob")
        self.shown(page.get_by_role("banner"), "Viewer")
        # What the API refuses, the form refuses in the same words.
        bob.open("volumes")
        page.get_by_role("button", name="Create a volume").click()
        self.dialog(bob).get_by_label("Name").fill("two")
        self.dialog(bob).get_by_role("button", name="Create").click()
        self.shown(self.dialog(bob).get_by_role("alert"), "user bob is a viewer")
        bob.open("users")
        self.shown(bob.heading(), "Users")
        browser.playwright().expect(page.get_by_role("button", name="Create a user")).to_have_count(0)

        # Another password for oneself ends the session; another admin's change ends it too.
        page.get_by_role("button", name="Change password").click()
        self.dialog(bob).get_by_label("Current password").fill("password of bob")
        self.dialog(bob).get_by_label("New password").fill("another of bob")
        self.dialog(bob).get_by_role("button", name="Change").click()
        browser.playwright().expect(page.get_by_text("The session has ended.")).to_be_visible()
        page.get_by_label("Name").fill("bob")
        page.get_by_label("Password").fill("another of bob")
        page.get_by_role("button", name="Log in").click()
        self.shown(bob.heading(), "Users")

        # An admin sees who is logged in, and ends it.
        admin.open("users")
        sessions = admin.page.get_by_role("table", name="Sessions")
        self.shown(sessions.get_by_role("row", name="token"), "This one")
        self.shown(sessions.get_by_role("row", name="bob"), "Password")
        self.assertEqual(admin.violations(), [])
        sessions.get_by_role("row", name="bob").get_by_role("button", name="End session").click()
        self.dialog(admin).get_by_role("button", name="End", exact=True).click()
        browser.playwright().expect(sessions.get_by_role("row", name="bob")).to_have_count(0)
        page.get_by_role("link", name="Volumes", exact=True).click()
        browser.playwright().expect(page.get_by_text("The session has ended.")).to_be_visible()
        page.get_by_label("Name").fill("bob")
        page.get_by_label("Password").fill("another of bob")
        page.get_by_role("button", name="Log in").click()
        self.shown(bob.heading(), "Volumes")
        server.cairn("user", "delete", "bob")
        page.get_by_role("link", name="Users", exact=True).click()
        browser.playwright().expect(page.get_by_text("The session has ended.")).to_be_visible()

        # Who did what is on the page of the audit log, by filter, and to save.
        page = admin.page
        page.get_by_role("link", name="Audit", exact=True).click()
        self.shown(admin.heading(), "Audit")
        self.shown(page.get_by_role("row", name="DELETE /api/v1/users/bob"), "token")
        page.get_by_label("User").fill("bob")
        page.get_by_label("User").press("Enter")
        page.get_by_label("Only refused or failed").check()
        self.shown(page.get_by_role("row", name="POST /api/v1/volumes"), "403 no right")
        browser.playwright().expect(page.get_by_role("row", name="/api/v1/users")).to_have_count(0)
        self.assertTrue(page.url.endswith("/audit?user=bob&refused=true"), page.url)
        self.assertEqual(admin.violations(), [])
        with page.expect_download() as saved:
            page.get_by_role("button", name="Save as CSV").click()
        text = pathlib.Path(saved.value.path()).read_text()
        self.assertTrue(text.startswith("id,time,user,via,address,method,path,status,node\n"), text)
        self.assertIn('"bob","session","127.0.0.1","POST","/api/v1/volumes",403', text)
        page.get_by_text("As a command or REST call").click()
        self.shown(page.get_by_role("main"), "cairn audit list --by bob --refused")
        self.quiet(admin)

    def test_what_happened_is_shown_filtered_and_saved(self):
        server = self.server(3)
        server.stop()
        away = server.root / "away"
        server.disks[2].rename(away)
        server.start()
        window = self.window(server)
        page = window.page
        # The overview has the last few, and new ones without being asked.
        last = page.get_by_role("table", name="The last events")
        self.shown(last, f"{server.disks[2]} is missing")
        server.cairn("scrub", "start")
        self.shown(last, "a scrub reads and checks all data")
        page.get_by_role("link", name="All events").click()
        self.shown(window.heading(), "Events")
        events = page.get_by_role("table", name="Events, newest first")
        self.shown(events, "the server was stopped")
        self.assertEqual(window.violations(), [])
        page.get_by_label("Severity").select_option("error")
        self.shown(events, "cairn disk replace")
        browser.playwright().expect(events.get_by_text("the server was stopped")).to_have_count(0)
        page.get_by_label("About").fill("nothing like it")
        page.get_by_label("About").press("Enter")
        self.shown(page.get_by_role("main"), "There is no such event.")
        page.get_by_label("About").fill("Disk2")
        page.get_by_label("About").press("Enter")
        self.shown(events, "is missing")
        self.assertTrue(page.url.endswith("/events?severity=error&subject=Disk2"), page.url)
        page.reload()
        self.shown(events, "is missing")
        with page.expect_download() as saved:
            page.get_by_role("button", name="Save as CSV").click()
        text = pathlib.Path(saved.value.path()).read_text()
        # As the command writes it, to the byte.
        self.assertEqual(text, server.cairn("events", "--csv", "--severity", "error", "--subject", "Disk2").stdout)
        page.get_by_text("As a command or REST call").click()
        self.shown(page.get_by_role("main"), "cairn events --severity error --subject Disk2")
        self.quiet(window)

    def test_a_benchmark_is_run_watched_stopped_and_compared(self):
        server = self.server(3)
        window = self.window(server)
        page, dialog = window.page, self.dialog(window)
        # A server without data offers it.
        page.get_by_role("button", name="Try it for a minute").click()
        self.shown(window.heading(), "Benchmarks")
        running = page.get_by_role("region", name="Running on volume main")
        browser.playwright().expect(running.locator(".tile", has_text="Rate").locator(".big")).to_have_text(LOAD_RATE, timeout=SECONDS_MAX * 1000)
        browser.playwright().expect(running.locator(".tile", has_text="Mean latency").locator(".big")).to_have_text(
            re.compile(r"[1-9].* (µs|ms)"), timeout=SECONDS_MAX * 1000)
        self.shown(running, "Part 1 of 4: ")
        self.assertEqual(window.violations(), [])
        OUT.mkdir(parents=True, exist_ok=True)
        window.picture(OUT / "benchmark-running.png")
        browser.playwright().expect(page.get_by_role("button", name="Run a benchmark")).to_be_disabled()
        # Viewers only look.
        server.cairn("user", "create", "bob", "--role", "viewer", input="password of bob\n")
        bob = self.window(server, is_in=False)
        bob.page.get_by_role("button", name="User", exact=True).click()
        bob.page.get_by_label("Name").fill("bob")
        bob.page.get_by_label("Password").fill("password of bob")
        bob.page.get_by_role("button", name="Log in").click()
        self.shown(bob.heading(), "Overview")
        bob.open("benchmarks")
        self.shown(bob.page.get_by_role("region", name="Running on volume main"), "of 4")
        browser.playwright().expect(bob.page.get_by_role("button", name="Run a benchmark")).to_have_count(0)
        browser.playwright().expect(bob.page.get_by_role("button", name="Stop")).to_have_count(0)

        running.get_by_role("button", name="Stop").click()
        dialog.get_by_text("As a command or REST call").click()
        self.shown(dialog, "cairn bench server stop")
        dialog.get_by_role("button", name="Stop", exact=True).click()
        runs = page.get_by_role("table", name="Runs, newest first")
        browser.playwright().expect(runs).to_contain_text("an administrator stopped it", timeout=SECONDS_MAX * 1000)
        browser.playwright().expect(page.get_by_role("button", name="Run a benchmark")).to_be_enabled(timeout=SECONDS_MAX * 1000)
        page.get_by_role("button", name="Run a benchmark").click()
        dialog.get_by_label("Files of").select_option("64 MiB")
        dialog.get_by_text("As a command or REST call").click()
        self.shown(dialog, "cairn bench server start main --working-set 64MiB")
        self.shown(dialog, '{"volume":"main","working_set_bytes":67108864}')
        self.assertEqual(window.violations(), [])
        dialog.get_by_role("button", name="Run it").click()
        self.shown(running, "Part 1 of 4: ")
        server.cairn("bench", "server", "stop")
        self.ran(server, 2)
        # Two whole ones beside each other.
        for count in (3, 4):
            server.cairn("bench", "server", "start", "main", "--working-set", "16MiB", "--phase-time", "1s")
            self.ran(server, count)
        page.reload()
        for index in range(2):
            page.get_by_role("checkbox", name="Compare the run of").nth(index).check()
        compared = page.get_by_role("region", name="Two runs beside each other")
        self.shown(compared.get_by_role("table"), "random write")
        self.shown(compared.get_by_role("table"), "×")
        page.get_by_text("Show them").click()
        self.shown(page.get_by_role("table", name="Published figures"), "This server, volume main")
        self.assertEqual(window.violations(), [])
        window.picture(OUT / "benchmarks-compared.png")
        with page.expect_download() as report:
            compared.get_by_role("link", name="Download the report with charts").click()
        self.assertIn("<html", pathlib.Path(report.value.path()).read_text())
        with page.expect_download() as result:
            page.get_by_role("link", name="as JSON").first.click()
        self.assertEqual(json.loads(pathlib.Path(result.value.path()).read_text())["schema"], "cairn-bench/1")
        self.quiet(window)

    def happened(self, server, text):
        told = lambda: json.loads(server.get("/api/v1/events"))["entries"]
        harness.wait_until(lambda: any(text in event["message"] for event in told()), SECONDS_MAX, text)

    def ran(self, server, count):
        def is_over():
            found = json.loads(server.get("/api/v1/benchmarks"))
            return "running" not in found and len(found["runs"]) == count

        harness.wait_until(is_over, SECONDS_MAX, "the benchmark is over")

    def test_files_of_the_console_are_sent_small_and_safe(self):
        server = self.server(1)
        url = server.ready["admin"]["url"]

        def ask(path, **headers):
            request = urllib.request.Request(url + path, headers=headers)
            try:
                return urllib.request.urlopen(request, timeout=30)
            except urllib.error.HTTPError as error:
                return error

        total = 0
        for path in ("/console/", "/console/console.js", "/console/console.css", "/console/icon.svg"):
            got = ask(path, **{"Accept-Encoding": "gzip"})
            total += len(got.read())
            self.assertEqual(got.headers["Content-Encoding"], "gzip", path)
            self.assertIn("default-src 'none'", got.headers["Content-Security-Policy"])
            self.assertNotIn("unsafe", got.headers["Content-Security-Policy"])
            self.assertEqual(ask(path, **{"If-None-Match": got.headers["ETag"]}).code, 304, path)
            plain = ask(path)
            self.assertIsNone(plain.headers["Content-Encoding"])
            self.assertIn(plain.read(1), (b"<", b"/", b":", b"."))
        self.assertLess(total, 500_000)
        self.assertIn(b'id="app"', ask("/").read())
        self.assertEqual(ask("/console/old.js").code, 404)

    def test_load_is_seen(self):
        server = self.server(3)
        window = self.window(server)
        page = window.page
        # Nothing is stored: the page says how to begin.
        self.shown(page.get_by_role("main"), "Nothing is stored yet")
        self.shown(page.get_by_label("Mount on Linux", exact=True), f"port={server.port}")
        # All three folders are on one drive.
        self.shown(page.get_by_label("Health"), "No redundancy")
        with Load(server):
            browser.playwright().expect(page.locator(".tile", has_text="Written now").locator(".big")).to_have_text(
                LOAD_TEXT, timeout=SECONDS_MAX * 1000)
            browser.playwright().expect(page.locator(".tile", has_text="Read now").locator(".big")).to_have_text(
                LOAD_TEXT, timeout=SECONDS_MAX * 1000)
            # The history has it within its ten seconds, and a chart shows it.
            page.goto(f"{window.url}/console/?span=15min")
            chart = page.locator("figure", has_text="NFS throughput")
            browser.playwright().expect(chart.locator(".legend")).to_contain_text(LOAD_TEXT, timeout=SECONDS_MAX * 1000)
            browser.playwright().expect(chart.locator("canvas")).to_be_visible()
        before = self.history(server, "nfs_written_bytes_per_second")
        self.assertGreater(max(before), LOAD_LEN_BYTES / 10)
        # A stop writes what is not written yet.
        server.restart()
        after = self.history(server, "nfs_written_bytes_per_second")
        self.assertGreaterEqual(len(after), len(before) - 1)
        self.assertGreater(max(after), LOAD_LEN_BYTES / 10)
        self.assertTrue((server.disks[0] / "history").is_dir())
        # It leaves a disk that is drained.
        server.cairn("disk", "drain", server.disks[0])
        harness.wait_until(lambda: str(server.disks[1]) in self.folder(server), SECONDS_MAX, "the history on another disk")
        self.assertGreaterEqual(len(self.history(server, "nfs_written_bytes_per_second")), len(after))
        server.cairn("disk", "drain", server.disks[0], "--cancel")
        listed = json.loads(server.get("/api/v1/history/series"))
        self.assertLess(listed["stored_bytes_max"], 200 << 20)
        self.assertGreater(listed["stored_bytes"], 0)

    def test_what_clients_do_with_a_volume_now(self):
        server = self.server(1)
        window = self.window(server)
        page, expect = window.page, browser.playwright().expect
        window.open("volumes/main")
        now = page.get_by_role("region", name="Now", exact=True)
        self.shown(now, "No client uses this volume now.")
        self.assertEqual(window.violations(), [])
        with Load(server):
            table = lambda name: now.get_by_role("table", name=name)
            for name, row in (
                ("Clients that do most", re.compile(r"127\.0\.0\.1.*NFS.*[1-9].*/s.*[KM]iB/s")),
                ("Files with which most is done", re.compile(r"/load\d.*file.*[1-9].*/s.*[KM]iB/s")),
                ("Operations by kind", re.compile(r"write.*NFS.*[1-9].*/s.*[KM]iB/s.*[µm]?s.*[µm]?s")),
            ):
                rows = table(name).locator("tbody tr").filter(has_text=row)
                expect(rows.first).to_be_visible(timeout=SECONDS_MAX * 1000)
            self.shown(now, "read")
            self.assertEqual(window.violations(), [])
        # Nobody reloads the page.
        expect(now.get_by_text("No client uses this volume now.")).to_be_visible(timeout=SECONDS_MAX * 1000)
        self.quiet(window)

    def test_a_kill_costs_a_minute_of_the_past_at_most(self):
        server = self.server(2)
        # Written together: those of a minute.
        harness.wait_until(lambda: len(self.history(server, "inodes")) >= 7, 2 * SECONDS_MAX, "a history of more than a minute")
        before = self.history(server, "inodes")
        server.kill()
        (written,) = server.disks[0].glob("history/metrics/v1/fine-*")
        # What a crash tears is cut off, and written over.
        with open(written, "ab") as file:
            file.write(b"torn")
        server.start()
        after = self.history(server, "inodes")
        self.assertGreaterEqual(len(after), len(before) - 6)
        self.assertGreaterEqual(len(after), 6)
        server.restart()
        self.assertGreaterEqual(len(self.history(server, "inodes")), len(after))
        self.assertEqual(list(server.disks[0].glob("history/metrics/v1/fine-*")), [written])

    def folder(self, server):
        return json.loads(server.get("/api/v1/history/series"))["folder"]

    def history(self, server, series):
        view = json.loads(server.get(f"/api/v1/history?series={series}&from=-900&points=2000"))
        (found,) = view["series"]
        self.assertEqual(len(found["values"]), view["steps"])
        return [value for value in found["values"] if value is not None]

    def test_a_server_that_is_started_anew_is_said(self):
        server = self.server(1)
        port = server.ready["admin"]["url"].rpartition(":")[2]
        window = self.window(server)
        self.shown(window.page.get_by_label("Health"), "No redundancy")
        server.kill()
        # Later flags win: the page goes on asking the same address.
        server.flags += ["--listen-admin", f"127.0.0.1:{port}"]
        self.shown(window.page.get_by_role("alert"), "does not answer")
        server.argv = lambda made=server.argv: without_first_listener(made())
        server.start()
        self.shown(window.page.get_by_role("status").filter(has_text="started anew"), "connected again")
        self.shown(window.heading(), "Overview")

    def test_a_volume_and_its_snapshots(self):
        server = self.server(3)
        window = self.window(server)
        page = window.page
        page.get_by_role("link", name="Volumes", exact=True).click()
        self.shown(window.heading(), "Volumes")
        page.get_by_role("button", name="Create a volume").click()
        dialog = self.dialog(window)
        dialog.get_by_label("Name").fill("main")
        dialog.get_by_role("button", name="Create").click()
        # The same refusal as that of the command.
        refused = server.cairn("volume", "create", "main", check=False).stderr
        said = dialog.get_by_role("alert").inner_text()
        self.assertIn("choose another name", refused)
        self.assertIn("choose another name", said)
        window.complaints.clear()
        dialog.get_by_label("Name").fill("projects")
        dialog.get_by_label("Size limit").fill("5 GiB")
        dialog.get_by_label("Compression").select_option("zstd")
        dialog.get_by_text("As a command or REST call").click()
        self.shown(dialog.get_by_label("the command", exact=True), "cairn volume create projects --compression zstd --size-limit 5GiB")
        self.assertEqual(window.violations(), [])
        dialog.get_by_role("button", name="Create").click()
        self.shown(window.heading(), "Volume projects")
        made = json.loads(server.cairn("volume", "show", "projects", "--json").stdout)
        self.assertEqual((made["size_limit"], made["compression"]), ("5 GiB", "zstd:3"))

        page.get_by_role("button", name="Let clients mount it").click()
        dialog.get_by_role("textbox", name="Clients").fill("10.0.0.0/8")
        dialog.get_by_role("button", name="Let them").click()
        self.shown(page.get_by_role("table", name="Rules of the export"), "10.0.0.0/8")
        exports = json.loads(server.cairn("export", "list", "--json").stdout)
        self.assertIn("10.0.0.0/8", json.dumps(exports))

        with libnfs.Mount(server.libnfs_url()) as mount:
            mount.write_file("/file", b"before")
            window.open("volumes/main")
            page.get_by_role("button", name="Take a snapshot").click()
            dialog.get_by_label("Name").fill("first")
            dialog.get_by_role("button", name="Take it").click()
            self.shown(page.get_by_role("table", name="Snapshots, oldest first"), "first")
            mount.write_file("/file", b"after!")
            self.assertEqual(mount.read_file("/.snapshot/first/file"), b"before")
            page.get_by_role("button", name="Show reclaimable space").click()
            self.shown(page.get_by_role("columnheader", name="Frees"), "Frees")
            page.get_by_role("button", name="Restore from snapshot first").click()
            dialog.get_by_label("Path in the volume").fill("/file")
            dialog.get_by_role("button", name="Restore").click()
            self.shown(page.locator(".toast"), "/file is as snapshot first has it")
            self.assertEqual(mount.read_file("/file"), b"before")
            page.get_by_role("button", name="Schedule", exact=True).click()
            dialog.get_by_label("Schedules").fill("often 5")
            dialog.get_by_role("button", name="Set").click()
            self.shown(dialog.get_by_role("alert"), "has no time")
            window.complaints.clear()
            dialog.get_by_label("Schedules").fill("hourly 24, daily 7")
            dialog.get_by_role("button", name="Set").click()
            self.shown(page.get_by_role("main"), "By schedule: hourly 24, daily 7; the next one is due")
            page.get_by_role("button", name="Lock snapshot first", exact=True).click()
            dialog.get_by_role("button", name="Lock").click()
            page.get_by_role("button", name="Unlock snapshot first").wait_for()
            page.get_by_role("button", name="Delete snapshot first").click()
            dialog.get_by_role("button", name="Delete").click()
            self.shown(dialog.get_by_role("alert"), "locked")
            window.complaints.clear()
            page.keyboard.press("Escape")
            page.get_by_role("button", name="Unlock snapshot first").click()
            dialog.get_by_role("button", name="Unlock").click()
            page.get_by_role("button", name="Lock snapshot first", exact=True).wait_for()
            page.get_by_role("button", name="Delete snapshot first").click()
            dialog.get_by_role("button", name="Delete").click()
            self.shown(page.get_by_role("main"), "There is no snapshot. A snapshot takes no space")
            self.assertRaises(OSError, lambda: mount.names("/.snapshot/first"))
        self.quiet(window)

    def test_classes_limits_quotas_policies_and_clones(self):
        server = self.server(3)
        window = self.window(server)
        page, dialog = window.page, self.dialog(window)
        shown = lambda *words: json.loads(server.cairn(*words, "--json").stdout)

        window.open("classes")
        table = page.get_by_role("table", name="Classes of service")
        self.shown(table, "premium")
        page.get_by_role("button", name="Create a class").click()
        dialog.get_by_label("Name").fill("gold")
        dialog.get_by_label("Throughput for each TiB").fill("128 MiB/s")
        dialog.get_by_label("Burst").select_option("4")
        dialog.get_by_label("A full credit lasts").fill("120")
        dialog.get_by_text("As a command or REST call").click()
        command = "cairn class create gold --throughput-per-tib 128MiB --burst 4x --burst-credit 7200s"
        self.shown(dialog.get_by_label("the command", exact=True), command)
        self.assertEqual(window.violations(), [])
        dialog.get_by_role("button", name="Create").click()
        self.shown(table, "Throughput: 128 MiB/s for each TiB; 4 times that for up to 2 h")
        made = shown("class", "show", "gold")["limits"]
        # What the command makes is the same.
        server.cairn(*command.replace(" gold ", " silver ").split()[1:])
        self.assertEqual(shown("class", "show", "silver")["limits"], made)
        page.get_by_role("button", name="Change class gold").click()
        dialog.get_by_label("Throughput for each TiB").fill("64 MiB")
        dialog.get_by_role("button", name="Change").click()
        self.shown(table, "Throughput: 64 MiB/s for each TiB")

        server.cairn("volume", "set", "main", "--size-limit", "1TiB")
        window.open("volumes/main")
        page.get_by_role("button", name="Change class").click()
        dialog.get_by_label("Class").select_option("gold")
        dialog.get_by_role("button", name="Change").click()
        of_class = page.get_by_role("region", name="Class of service", exact=True)
        self.shown(of_class, "of 64 MiB/s, up to 256 MiB/s while there is credit")
        self.shown(of_class, "100 % of the credit is left")
        window.open("classes")
        page.get_by_role("button", name="Delete class gold").click()
        # The browser complains on its own, now or a moment later.
        with page.expect_console_message(lambda said: "409" in said.text):
            dialog.get_by_role("button", name="Delete").click()
        self.shown(dialog.get_by_role("alert"), "main")
        window.complaints.clear()
        page.keyboard.press("Escape")

        window.open("volumes/main")
        page.get_by_role("button", name="Limit a part").click()
        dialog.get_by_label("Which").fill("127.0.0.1/32")
        dialog.get_by_label("Of writes").fill("5MiB")
        dialog.get_by_role("button", name="Set").click()
        limits = page.get_by_role("table", name="Parts that have rates of their own")
        self.shown(limits, "clients/127.0.0.1")
        self.assertEqual(shown("limit", "list", "main")["limits"][0]["write_throughput"], 5 << 20)
        page.get_by_role("button", name="Remove the limit of clients/127.0.0.1").click()
        dialog.get_by_role("button", name="Remove").click()
        limits.wait_for(state="detached")

        with libnfs.Mount(server.libnfs_url()) as mount:
            mount.mkdir("/projects")
            page.get_by_role("button", name="Set a quota").click()
            dialog.get_by_label("Directory").fill("projects")
            dialog.get_by_label("Bytes at most").fill("1MiB")
            dialog.get_by_role("button", name="Set").click()
            quotas = page.get_by_role("table", name="Quotas")
            self.shown(quotas, "1 MiB at most")
            mount.write_file("/projects/fits", b"0" * (1 << 20))
            self.shown(quotas, "Full")
            self.assertRaises(OSError, lambda: mount.write_file("/projects/more", b"0" * (1 << 20)))
            page.get_by_role("button", name="Remove the quota of all in /projects").click()
            dialog.get_by_role("button", name="Remove").click()
            # That of the whole volume is its size limit.
            browser.playwright().expect(quotas).not_to_contain_text("/projects", timeout=browser.TIMEOUT_MS)
            mount.write_file("/projects/more", b"0" * (1 << 20))

            page.get_by_role("button", name="Set a policy").click()
            dialog.get_by_label("Directory").fill("/projects")
            dialog.get_by_label("Compression").select_option("zstd")
            dialog.get_by_role("button", name="Set").click()
            policies = page.get_by_role("table", name="Directories with policies")
            self.shown(policies, "/projects")
            self.assertEqual(shown("policy", "list", "main")["policies"][0]["policy"]["compression"], "zstd:3")
            page.get_by_role("button", name="Convert what is in /projects").click()
            dialog.get_by_role("button", name="Convert").click()
            self.shown(page.locator(".toast"), "The conversion has begun.")

            page.get_by_role("button", name="Take a snapshot").click()
            dialog.get_by_label("Name").fill("first")
            dialog.get_by_role("button", name="Take it").click()
            page.get_by_role("button", name="Clone snapshot first").click()
            dialog.get_by_label("Name of the clone").fill("copy")
            dialog.get_by_role("button", name="Clone", exact=True).click()
            self.shown(window.heading(), "Volume copy")
            self.shown(page.get_by_role("main"), "main at first")
        server.cairn("export", "set", "copy", "--client", "127.0.0.1", "--squash", "none")
        with libnfs.Mount(server.libnfs_url().replace("/main", "/copy")) as mount:
            self.assertEqual(mount.read_file("/projects/fits"), b"0" * (1 << 20))
        self.quiet(window)

    def test_tiers(self):
        server = self.server(1)
        window = self.window(server)
        page, dialog = window.page, self.dialog(window)
        window.open("tiers")
        self.shown(page.get_by_role("main"), "There is no tier: all data is on the disks.")
        page.get_by_role("button", name="Add a tier").click()
        dialog.get_by_label("Name").fill("cold")
        dialog.get_by_label("Place").fill(f"file://{self.scratch}/none")
        dialog.get_by_role("button", name="Add", exact=True).click()
        self.shown(dialog.get_by_role("alert"), "mount what is to be there")
        window.complaints.clear()
        (self.scratch / "none").mkdir()
        dialog.get_by_role("button", name="Add", exact=True).click()
        self.shown(page.get_by_role("region", name="cold", exact=True), "No volume offloads data here.")
        window.open("volumes/main")
        page.get_by_role("button", name="Cold data").click()
        dialog.get_by_label("Days without use").fill("5")
        dialog.get_by_label("Files").fill("videos/*.mp4")
        dialog.get_by_role("button", name="Change").click()
        self.shown(dialog.get_by_role("alert"), "without '/'")
        window.complaints.clear()
        dialog.get_by_label("Files").fill("*.mp4,*.fastq.gz")
        dialog.get_by_label("Not changed for").fill("30d")
        dialog.get_by_role("button", name="Change").click()
        self.shown(page.get_by_role("main"), "auto, to cold; 0 B are there")
        tiering = json.loads(server.cairn("volume", "show", "main", "--json").stdout)["tiering"]
        self.assertEqual((tiering["policy"], tiering["cooling_days"]), ("auto", "5"))
        self.assertEqual((tiering["files"], tiering["min_size"], tiering["min_age"]), ("*.mp4,*.fastq.gz", "none", "30d"))
        window.open("tiers")
        self.shown(page.get_by_role("table", name="Volumes in cold"), "unused for 5 days; files *.mp4,*.fastq.gz, not changed for 30d")
        self.assertEqual(window.violations(), [])
        page.get_by_role("button", name="Remove tier cold").click()
        dialog.get_by_role("button", name="Remove").click()
        self.shown(dialog.get_by_role("alert"), "main")
        window.complaints.clear()
        self.quiet(window)

    def test_a_plan_and_its_template(self):
        server = self.server(1)
        window = self.window(server)
        page = window.page
        window.open("plan")
        page.get_by_label("Capacity").fill("200")
        page.get_by_role("button", name="Rank designs").click()
        self.shown(page.get_by_role("alert"), "capacity")
        window.complaints.clear()
        page.get_by_label("Capacity").fill("50TiB")
        page.get_by_label("Failures that lose nothing").fill("2")
        page.get_by_text("As a command or REST call").click()
        self.shown(page.get_by_label("the command", exact=True), "cairn plan --capacity 50TiB --survive 2")
        page.get_by_role("button", name="Rank designs").click()
        designs = page.get_by_role("table", name="Designs, best first")
        plan = json.loads(server.cairn("plan", "--capacity", "50TiB", "--survive", "2", "--output", "json").stdout)
        first = plan["ranking"]["fits"][0]["evaluation"]
        self.shown(designs, f"1. {first['name']}")
        self.shown(designs, f"${round(first['cost']['month_usd']):,}")
        self.assertEqual(window.violations(), [])
        # The page has an address.
        page.reload()
        self.shown(designs, f"1. {first['name']}")
        with page.expect_download() as report:
            page.get_by_role("link", name="Download the report with charts").click()
        self.assertIn("<html", pathlib.Path(report.value.path()).read_text())
        with page.expect_download() as template:
            page.get_by_role("link", name="Download the Terraform, OpenTofu template").first.click()
        self.assertEqual(template.value.suggested_filename, "cairn.tf")
        self.assertIn("aws_instance", pathlib.Path(template.value.path()).read_text())
        self.quiet(window)

    def test_disks_are_drained_added_and_scrubbed(self):
        server = self.server(4)
        window = self.window(server)
        page, dialog = window.page, self.dialog(window)
        window.open("pool")
        page.get_by_role("button", name="Add a disk").click()
        dialog.get_by_label("Folder on the server").fill(str(server.disks[0]))
        # What it is on comes first, to be confirmed.
        dialog.get_by_role("button", name="Next", exact=True).click()
        self.shown(dialog, f"{server.disks[0]} is on")
        self.shown(dialog, "its loss loses all of them")
        dialog.get_by_role("button", name="Add", exact=True).click()
        refused = server.cairn("disk", "add", server.disks[0], check=False).stderr
        said = dialog.get_by_role("alert").locator("strong").inner_text()
        self.assertIn(said, refused)
        window.complaints.clear()
        added = server.root / "added"
        dialog.get_by_label("Folder on the server").fill(str(added))
        dialog.get_by_role("button", name="Next", exact=True).click()
        self.shown(dialog, f"{added} does not exist")
        dialog.get_by_role("button", name="Add", exact=True).click()
        self.shown(dialog, "--create")
        self.assertFalse(added.exists())
        window.complaints.clear()
        dialog.get_by_label("Create the folder if it does not exist").check()
        dialog.get_by_role("button", name="Add", exact=True).click()
        disks = page.get_by_role("table", name="Disks of the pool")
        self.shown(disks, str(added))
        page.get_by_role("button", name=f"Drain {added}").click()
        dialog.get_by_role("button", name="Drain").click()
        page.get_by_role("button", name=f"Remove {added}").wait_for()
        page.get_by_role("button", name="Start a scrub").click()
        dialog.get_by_role("button", name="Start").click()
        self.shown(page.get_by_role("region", name="Scrub", exact=True), "Done")
        self.assertEqual(json.loads(server.cairn("scrub", "status", "--json").stdout)["stage"], "done")
        spread = page.get_by_role("region", name="Moving to emptier disks", exact=True)
        for button, submit, other, paused in (("Pause", "Pause", "Go on", True), ("Go on", "Go on", "Pause", False)):
            spread.get_by_role("button", name=f"{button} moving to emptier disks").click()
            dialog.get_by_role("button", name=submit, exact=True).click()
            spread.get_by_role("button", name=f"{other} moving to emptier disks").wait_for()
            self.assertEqual(json.loads(server.cairn("disk", "spread", "--json").stdout)["paused"], paused)
        planned = page.get_by_role("region", name="Maintenance window", exact=True)
        self.shown(planned, "always open")
        for every, window_text, want in (("30d", "sat:22:00-06:00", "each 30d"), ("", "", "only when started by hand")):
            planned.get_by_role("button", name="Change").click()
            dialog.get_by_label("Time between scrubs").fill(every)
            dialog.get_by_label("Window, in UTC").fill(window_text)
            dialog.get_by_role("button", name="Change").click()
            self.shown(planned, want)
            schedule = json.loads(server.cairn("scrub", "schedule", "--json").stdout)
            self.assertEqual([schedule.get("every", ""), schedule.get("window", "")], [every, window_text])
        self.quiet(window)

    def test_luns_and_buckets(self):
        server = self.server(1)
        window = self.window(server)
        page, dialog = window.page, self.dialog(window)
        window.open("luns")
        page.get_by_role("button", name="Create a group").click()
        dialog.get_by_label("Name").fill("hosts")
        dialog.get_by_label("Initiators").fill("iqn.2026-01.example:a iqn.2026-01.example:b")
        dialog.get_by_role("button", name="Create").click()
        self.shown(page.get_by_role("table", name="Groups of initiators"), "iqn.2026-01.example:b")
        page.get_by_role("button", name="Create a LUN").click()
        dialog.get_by_label("Name").fill("db")
        dialog.get_by_label("Size").fill("1.5GiB")
        dialog.get_by_role("button", name="Create").click()
        page.get_by_role("button", name="Map db").click()
        dialog.get_by_role("button", name="Map", exact=True).click()
        self.shown(page.get_by_role("table", name="LUNs", exact=True), "hosts as 0")
        (lun,) = json.loads(server.cairn("lun", "list", "--json").stdout)["luns"]
        self.assertEqual((lun["size_bytes"], lun["maps"][0]["igroup"]), (3 << 29, "hosts"))

        window.open("buckets")
        page.get_by_role("button", name="Create a bucket").click()
        dialog.get_by_label("Name").fill("photos")
        dialog.get_by_role("button", name="Create").click()
        self.shown(page.get_by_role("table", name="Buckets", exact=True), "photos")
        page.get_by_role("button", name="Create an access key").click()
        dialog.get_by_label("Uid").fill("1000")
        dialog.get_by_label("Only these buckets").fill("photos/2026/")
        dialog.get_by_role("button", name="Create").click()
        self.shown(dialog, "shown only now")
        secret = dialog.get_by_label("The secret", exact=True).inner_text()
        self.assertGreater(len(secret.strip()), 16)
        dialog.get_by_role("button", name="Done").click()
        (key,) = json.loads(server.cairn("s3", "key", "list", "--json").stdout)["keys"]
        self.assertEqual((key["uid"], key["only"][0]["prefix"]), (1000, "2026/"))
        self.quiet(window)

    def test_a_lost_disk_is_said(self):
        server = self.server(3)
        server.stop()
        shutil.rmtree(server.disks[2])
        server.start()
        window = self.window(server)
        health = window.page.get_by_label("Health")
        self.shown(health, "Degraded")
        self.shown(health, "disk2")
        window.open("pool")
        self.shown(window.page.get_by_role("table", name="Disks of the pool"), "Missing")
        self.assertEqual(window.violations(), [])
        # A new one in its place.
        window.page.get_by_role("button", name=f"Replace {server.disks[2]}").click()
        dialog = self.dialog(window)
        dialog.get_by_label("Folder on the server").fill(str(server.disks[2]))
        dialog.get_by_role("button", name="Replace").click()
        browser.playwright().expect(window.page.get_by_text("Missing", exact=True)).to_have_count(0, timeout=SECONDS_MAX * 1000)
        window.open()
        self.shown(window.page.get_by_label("Health"), "No redundancy")

    def server_for_pictures(self):
        """Six disks; for the documents in folders whose names tell nothing of this machine."""
        if not FOR_DOCS:
            return self.server(6)
        folder = pathlib.Path("/srv/cairn")
        folder.mkdir(parents=True)
        self.addCleanup(shutil.rmtree, folder)
        server = harness.Server(self.scratch, 6)
        server.disks = [folder / f"disk{number}" for number in range(1, 7)]
        return self.enterContextHere(server)

    def test_all_pages_are_accessible_and_fit(self):
        server = self.server_for_pictures()
        server.cairn("volume", "create", "projects")
        server.cairn("export", "set", "projects", "--client", "10.0.0.0/8")
        server.cairn("igroup", "create", "main/hosts", "--initiator", "iqn.2026-01.example:host")
        server.cairn("lun", "create", "main/database", "--size", "2TiB")
        server.cairn("lun", "map", "main/database", "--igroup", "hosts")
        server.cairn("bucket", "create", "photos", "--path", "projects/photos")
        server.cairn("s3", "key", "create", "--volume", "projects", "--uid", "1000", "--gid", "100", "--note", "<b>web</b> \u202eabc")
        server.cairn("snapshot", "create", "main", "before-upgrade")
        # Something that happened.
        server.cairn("volume", "create", "scratch", "--protection", "none")
        self.happened(server, "volume scratch has protection none")
        server.cairn("volume", "delete", "scratch", "--yes")
        self.happened(server, "resolved: volume scratch")
        server.cairn("scrub", "start")
        self.happened(server, "the scrub is done")
        OUT.mkdir(parents=True, exist_ok=True)
        self.tops = {}
        with Load(server):
            first = self.window(server)
            first.open("?span=15min")
            chart = first.page.locator("figure", has_text="NFS throughput").locator(".legend")
            browser.playwright().expect(chart).to_contain_text(LOAD_TEXT, timeout=SECONDS_MAX * 1000)
            wait_for_history(server, 85 if FOR_DOCS else 4)
            self.look_at(server, PAGES)
            # Charts of the other pages would show little but these.
            for count in (1, 2):
                server.cairn("bench", "server", "start", "main", "--working-set", "64MiB", "--phase-time", "3s" if FOR_DOCS else "1s")
                self.ran(server, count)
            self.look_at(server, [("benchmarks", "benchmarks")])
            if FOR_DOCS:
                images = harness.REPOSITORY / "docs" / "images"
                for name, kept in DOCS.items():
                    shutil.copy(OUT / f"{name}.png", images / f"{kept}.png")
                self.tops["log-in"] = [self.log_in_page(server, width, colours) for _, width, colours in browser.LOOKS]
                for name, tops in self.tops.items():
                    browser.side_by_side(self.browser, tops, PICTURES_OF_PAGES / f"{name}.jpg")

    def log_in_page(self, server, width, colours):
        window = self.window(server, is_in=False, width=width, colours=colours)
        window.page.get_by_label("Admin token").wait_for()
        return window.picture_of_top()

    def look_at(self, server, shown):
        """Pages in light, dark and on a phone: nothing is wrong with them, and there is a picture of each."""
        for look, width, colours in browser.LOOKS:
            window = self.window(server, width=width, colours=colours)
            for name, path in shown:
                with self.subTest(page=name, look=look):
                    window.open(f"{path}{'&' if '?' in path else '?'}span=15min")
                    window.heading().wait_for()
                    window.page.wait_for_load_state("load")
                    browser.playwright().expect(window.page.get_by_text("Loading…")).to_have_count(0)
                    self.assertEqual(window.violations(), [])
                    wide = window.page.evaluate("document.documentElement.scrollWidth - innerWidth")
                    self.assertLessEqual(wide, 0, "it scrolls sideways")
                    window.picture(OUT / f"{name}-{look}.png")
                    self.tops.setdefault(name, []).append(window.picture_of_top())
            self.quiet(window)

    def test_dialogs_of_kinds_and_roles_are_accessible_and_fit(self):
        server = self.server(3)
        server.cairn("disk", "add", self.scratch / "fast", "--role", "cache", "--size", "256MiB")
        label = json.loads(server.cairn("disk", "list", "--json").stdout)["disks"][0]["label"]
        dialogs = [
            ("disk-add", "pool", "Add a disk", {"What it is for": "cache"}),
            ("disk-add-data", "pool", "Add a disk", {}),
            ("disk-kind", "pool", f"Device class of {label}", {}),
            ("disk-replace", "pool", f"Replace {label}", {}),
            ("disk-drain", "pool", f"Drain {label}", {}),
            ("volume-create", "volumes", "Create a volume", {}),
            ("volume-change", "volumes/main", "Change settings", {}),
            ("volume-tiering", "volumes/main", "Cold data", {}),
            ("policy-set", "volumes/main", "Set a policy", {}),
            ("quota-set", "volumes/main", "Set a quota", {}),
            ("part-limit", "volumes/main", "Limit a part", {}),
        ]
        OUT.mkdir(parents=True, exist_ok=True)
        for look, width, colours in browser.LOOKS:
            window = self.window(server, width=width, colours=colours)
            page = window.page
            for name, path, button, chosen in dialogs:
                with self.subTest(dialog=name, look=look):
                    window.open(path)
                    page.get_by_role("button", name=button, exact=True).first.click()
                    dialog = self.dialog(window)
                    dialog.wait_for()
                    for field, value in chosen.items():
                        dialog.get_by_label(field).select_option(value)
                    self.assertEqual(window.violations(), [])
                    wide = dialog.evaluate("it => Math.max(it.scrollWidth - it.clientWidth, it.getBoundingClientRect().right - innerWidth)")
                    self.assertLessEqual(wide, 0, "it does not fit")
                    # What is done, and the way out, are within reach: the dialog scrolls by itself.
                    dialog.get_by_role("button").last.scroll_into_view_if_needed()
                    dialog.evaluate("it => it.scrollTo(0, 0)")
                    page.screenshot(path=OUT / f"dialog-{name}-{look}.png")
            self.quiet(window)

    def test_all_of_it_goes_by_keyboard(self):
        server = self.server(1)
        window = self.window(server)
        page = window.page

        def press_until(done, key="Tab", most=40):
            for _ in range(most):
                page.keyboard.press(key)
                if done():
                    return
            self.fail(f"{key} does not lead there")

        focused = "document.activeElement.textContent.trim()"
        press_until(lambda: page.evaluate(focused) == "Volumes", "Shift+Tab")
        page.keyboard.press("Enter")
        self.shown(window.heading(), "Volumes")
        # The title has the focus, so that what follows is next.
        self.assertEqual(page.evaluate(focused), "Volumes")
        press_until(lambda: page.evaluate(focused) == "Create a volume")
        page.keyboard.press("Enter")
        self.dialog(window).wait_for()
        press_until(lambda: page.evaluate("document.activeElement.labels?.[0]?.textContent") == "Name")
        page.keyboard.type("keyed")
        page.keyboard.press("Enter")
        self.shown(window.heading(), "Volume keyed")

    def test_many_open_pages_shut_nobody_out(self):
        server = self.server(1)
        window = self.window(server)
        # Interactive within a second on this machine, with what a browser has not seen before.
        timing = window.page.evaluate("performance.getEntriesByType('navigation')[0].domInteractive")
        self.assertLess(timing, 1000)
        # More streams than there may be: the others are refused, and nobody is shut out.
        memory = harness.resident_bytes(server.pid)
        streams, refused = [], 0
        cookie = window.context.cookies()[0]
        for _ in range(70):
            request = urllib.request.Request(f"{window.url}/api/v1/live/events", headers={"Cookie": f"{cookie['name']}={cookie['value']}"})
            try:
                streams.append(urllib.request.urlopen(request, timeout=10))
            except urllib.error.HTTPError as error:
                self.assertEqual(error.code, 503)
                refused += 1
        self.assertGreaterEqual(refused, 6)
        self.assertLess(harness.resident_bytes(server.pid) - memory, STREAMS_MEMORY_BYTES_MAX)
        self.assertEqual(server.status()["health"], "no_redundancy")
        other = self.window(server)
        self.shown(other.page.get_by_label("Health"), "No redundancy")
        # Pages that ask now and then, and keep their connections.
        host, _, port = window.url.removeprefix("http://").partition(":")
        begun = time.monotonic()
        asking = [http.client.HTTPConnection(host, int(port), timeout=SECONDS_MAX) for _ in range(ASKING_PAGES)]
        for connection in asking:
            connection.request("GET", "/api/v1/live", headers={"Cookie": f"{cookie['name']}={cookie['value']}"})
            answer = connection.getresponse()
            self.assertEqual((answer.status, bool(answer.read())), (200, True))
        self.assertEqual(server.status()["health"], "no_redundancy")
        # Idle connections would be cut off after 15 s.
        self.assertLess(time.monotonic() - begun, 10)
        for connection in asking:
            connection.close()
        for stream in streams:
            stream.close()
        # Open streams do not hold up a stop.
        bearer = {"Authorization": f"Bearer {server.token_path.read_text().strip()}"}

        def again():
            # That a stream is gone, the server hears when it tells it something.
            with contextlib.suppress(urllib.error.HTTPError):
                return urllib.request.urlopen(urllib.request.Request(f"{window.url}/api/v1/live/events", headers=bearer), timeout=10)

        kept = harness.wait_until(again, SECONDS_MAX, "room for a stream")
        self.assertIn(b"event: live", kept.readline())
        self.assertEqual(server.stop(), 0)


def wait_for_history(server, rows):
    """So many rows, that there is a line to be drawn."""
    def count():
        view = json.loads(server.get("/api/v1/history?series=nfs_operations_per_second&from=-900&points=2000"))
        return sum(value is not None for value in view["series"][0]["values"]) >= rows
    harness.wait_until(count, SECONDS_MAX + 10 * rows, "the history")


def without_first_listener(argv):
    """The flag may be given once."""
    at = argv.index("--listen-admin")
    return argv[:at] + argv[at + 2 :]
