"""/metrics under load: all that docs/reference/admin.md lists is there, moves, and says the truth."""

import itertools
import json
import re

from lib import harness, libnfs
from lib.worlds import WorldTest, content, digest_tree, make_tree

LARGE_LEN_BYTES = 96 * 1024 * 1024
SMALL_LEN_BYTES = 1024 * 1024
GC_SECONDS_MAX = 120
REOPEN_SECONDS_MAX = 120
WELL_SECONDS_MAX = 120
# Shown only once there is something to count.
RARE = {
    "cairn_address_pool_addresses",
    "cairn_address_pool_addresses_held",
    "cairn_class_burst",
    "cairn_class_credit",
    "cairn_class_credit_max",
    "cairn_class_delayed_milliseconds_total",
    "cairn_class_delayed_total",
    "cairn_class_limit",
    "cairn_class_operations_total",
    "cairn_class_rate",
    "cairn_class_read_bytes_total",
    "cairn_class_waiting",
    "cairn_class_written_bytes_total",
    "cairn_dns_connections_refused_total",
    "cairn_dns_questions_total",
    "cairn_forward_connections_ended_total",
    "cairn_forward_streams_opened_total",
    "cairn_forward_streams_refused_total",
    "cairn_latency_goal_late_total",
    "cairn_latency_goal_microseconds",
    "cairn_latency_goal_missed",
    "cairn_latency_goal_requests_total",
    "cairn_lun_bytes_total",
    "cairn_lun_command_duration_seconds",
    "cairn_lun_commands_total",
    "cairn_lun_errors_total",
    "cairn_lun_tasks",
    "cairn_nfs_errors_total",
    "cairn_nfs_forwarded_duration_seconds",
    "cairn_nfs_forwarded_unanswered_total",
    "cairn_nfs_held_calls",
    "cairn_nfs_held_duration_seconds",
    "cairn_s3_requests_total",
    "cairn_volume_encrypted",
} | {
    f"cairn_tier_{name}"
    for name in (
        *("bytes", "deletes_total", "errors_total", "live_bytes", "objects", "read_bytes_total", "reads_total", "saved_bytes"),
        *("unused_objects", "working", "writes_total", "written_bytes_total", "wrong_total"),
    )
}


def documented():
    """The names in the tables of the manual; `a_{b,c}` is a_b and a_c."""
    text = (harness.REPOSITORY / "docs" / "reference" / "admin.md").read_text()
    names = set()
    for pattern in re.findall(r"`(cairn_[a-z0-9_{},]+)`", text):
        parts = [part.strip("{}").split(",") for part in re.split(r"(\{[^}]*\})", pattern)]
        names |= {"".join(choice) for choice in itertools.product(*parts)}
    return names


def family(series):
    """The name of a series without labels and the endings of histograms."""
    return re.sub(r"_(bucket|count|sum)$", "", series.partition("{")[0])


def queries():
    """Where and what of each query in the dashboard and the alerts that come with Cairn."""
    packaging = harness.REPOSITORY / "packaging"
    for panel in json.loads((packaging / "grafana" / "cairn.json").read_text())["panels"]:
        for target in panel.get("targets", []):
            yield f"panel {panel['title']}", target["expr"], target["legendFormat"]
    rules = (packaging / "prometheus" / "cairn.rules.yml").read_text()
    for rule in re.split(r"\n\s*- alert: ", rules)[1:]:
        expression = re.search(r"expr: (.*)", rule)
        assert expression, rule
        yield f"alert {rule.split()[0]}", expression[1], rule.replace("$labels.", "")


class Metrics(WorldTest):
    def test_dashboard_and_alerts_ask_for_what_is_there(self):
        server = self.server(3, ["--listen-s3", f"127.0.0.1:{harness.next_port()}"])
        server.cairn("volume", "set", "main", "--class", "premium", "--quota", "1TiB")
        with libnfs.Mount(server.libnfs_url()) as mount:
            mount.write_file("/file", content("file", SMALL_LEN_BYTES))
            mount.read_file("/file")
        shown = server.metrics()
        labels: dict[str, set[str]] = {}
        values: dict[tuple[str, str], set[str]] = {}
        for series in shown:
            name = series.partition("{")[0]
            pairs = dict(re.findall(r'([a-z]+)="([^"]*)"', series))
            labels[name] = labels.get(name, set()) | set(pairs)
            for label, value in pairs.items():
                values.setdefault((name, label), set()).add(value)
        known = documented() | {family(series) for series in shown}
        # Prometheus adds these to everything.
        everywhere = {"job", "instance", "le"}
        count = 0
        for where, query, shown_as in queries():
            used = re.findall(r"\b((?:cairn|process)_[a-z0-9_]+)\b(?:\{([^}]*)\})?", query)
            self.assertTrue(used or query.startswith("up{"), where)
            names = set(re.findall(r"\{\{ *([a-z]+) *\}\}", shown_as))
            for group in re.findall(r"by \(([^)]*)\)", query):
                names |= set(re.split(r", *", group))
            for name, chosen in used:
                count += 1
                self.assertIn(family(name), known, f"{where}: no such metric")
                if name not in labels:
                    self.assertIn(family(name), RARE, f"{where}: not shown")
                    continue
                asked = re.findall(r'([a-z]+)(=~|=)"([^"]*)"', chosen)
                there = labels[name] | everywhere
                self.assertEqual({label for label, _, _ in asked} - there, set(), f"{where}: {name} has no such label")
                self.assertEqual(names - there, set(), f"{where}: {name} has no such label")
                for label, _, value in asked:
                    if not value.startswith("$"):
                        self.assertLessEqual(set(value.split("|")), values[name, label], where)
        self.assertGreater(count, 60)

    def test_what_is_documented_is_there_and_moves(self):
        server = self.server(3)
        tree = make_tree(self.scratch / "tree")
        # Nothing of its state was shipped yet, and the log has all of it, unless a disk is silent for a moment.
        degraded = lambda: server.metrics()['cairn_log_degraded{volume="main"}']
        harness.wait_until_equal(degraded, 0, WELL_SECONDS_MAX, "whether the log lacks copies")
        before = server.metrics()
        server.cairn("cp", "-r", "-q", tree, server.url("tree"))
        server.cairn("cp", "-r", "-q", server.url("tree"), self.scratch / "back")
        self.assertEqual(digest_tree(self.scratch / "back"), digest_tree(tree))
        self.assertNotEqual(server.cairn("stat", server.url("none"), check=False).returncode, 0)
        with libnfs.Mount(server.libnfs_url()) as mount:
            mount.write_file("/large", content("large", LARGE_LEN_BYTES))

            def counted():
                """All series, once all is where it belongs and no disk is silent."""
                now = server.metrics()
                flushed = 'cairn_volume_flushed_bytes_total{volume="main"}'
                is_flushed = now[flushed] - before.get(flushed, 0) >= LARGE_LEN_BYTES
                healthy = [value for series, value in now.items() if series.startswith("cairn_disk_healthy{")]
                tolerated = now['cairn_volume_failures_tolerated{volume="main",domain="disk"}']
                return now if is_flushed and healthy == [1, 1, 1] and tolerated == 2 else None

            loaded = harness.wait_until(counted, WELL_SECONDS_MAX, "that all is flushed to disks that are healthy")
            mount.unlink("/large")

        shown = {family(series) for series in loaded if series.startswith("cairn_")}
        known = documented() | {name.removesuffix("_max") for name in documented()}
        self.assertEqual(documented() - RARE - shown, set(), "documented and not shown")
        limits = {name for name in shown if name.endswith("_max")}
        self.assertEqual(shown - known - limits, set(), "shown and not documented")

        self.assertEqual(loaded['cairn_volume_failures_tolerated{volume="main",domain="disk"}'], 2)

        def more(series, least=1):
            risen = loaded[series] - before.get(series, 0)
            self.assertGreaterEqual(risen, least, series)

        bytes_in_tree = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
        dense = bytes_in_tree - 5 * 1024 * 1024  # the hole of the sparse file does not travel
        more("cairn_nfs_written_bytes_total", dense + LARGE_LEN_BYTES)
        more("cairn_nfs_read_bytes_total", dense)
        for procedure in ("lookup", "create", "mkdir", "write", "read", "commit", "readdirplus", "symlink"):
            more(f'cairn_nfs_request_duration_seconds_count{{procedure="{procedure}"}}')
            self.assertGreater(loaded[f'cairn_nfs_request_duration_seconds_sum{{procedure="{procedure}"}}'], 0)
        more('cairn_nfs_errors_total{status="NFS3ERR_NOENT"}')
        more("cairn_cache_hits_total")
        more("cairn_store_appended_bytes_total", LARGE_LEN_BYTES)
        more("cairn_store_parity_bytes_total", 2 * LARGE_LEN_BYTES)
        more('cairn_log_syncs_total{volume="main"}')
        more('cairn_volume_flushed_bytes_total{volume="main"}', LARGE_LEN_BYTES)
        more('cairn_volume_file_bytes{volume="main"}', LARGE_LEN_BYTES)
        self.assertGreater(loaded["cairn_cache_bytes"], 0)
        self.assertGreater(loaded['cairn_volume_dirty_bytes_max{volume="main"}'], 0)
        healthy = [value for series, value in loaded.items() if series.startswith("cairn_disk_healthy{")]
        self.assertEqual(healthy, [1, 1, 1])
        free = sum(value for series, value in loaded.items() if series.startswith("cairn_disk_free_bytes{"))
        self.assertGreater(free, 0)

        def collected():
            now = server.metrics()
            removed = now['cairn_gc_segments_removed_total{volume="main"}']
            return removed and now['cairn_volume_orphans_reaped_total{volume="main"}']

        harness.wait_until(collected, GC_SECONDS_MAX, "garbage collection")

    def test_what_a_volume_did_stays_counted_when_it_is_opened_again_or_deleted(self):
        server = self.server(2)
        small, large = self.scratch / "small", self.scratch / "large"
        small.write_bytes(content("small", SMALL_LEN_BYTES))
        large.write_bytes(content("large", 16 * SMALL_LEN_BYTES))
        server.cairn("cp", "-q", small, server.url("first"))
        server.cairn("volume", "create", "second")
        server.cairn("export", "set", "second", "--client", "127.0.0.1", "--squash", "none")
        server.cairn("cp", "-q", large, f"nfs://127.0.0.1:{server.port}/second/large")
        written = 'cairn_volume_written_bytes_total{volume="%s"}'
        before = server.metrics()
        self.assertEqual(before[written % "main"], SMALL_LEN_BYTES)
        self.assertEqual(before[written % "second"], 16 * SMALL_LEN_BYTES)
        server.cairn("volume", "delete", "second", "--yes", "--force")
        after = server.metrics()
        self.assertNotIn(written % "second", after)
        for series in ("cairn_write_amplification_permille", "cairn_write_amplification_data_permille"):
            self.assertLess(after[series], 1.5 * before[series], series)

        # Its state is on this disk, so it is opened again on the other.
        opened_count = lambda: server.log_path.read_text().count("volume opened")
        opened_before = opened_count()
        server.cairn("disk", "drain", server.disks[0])
        harness.wait_until(lambda: opened_count() > opened_before, REOPEN_SECONDS_MAX, "the opening on the other disk")
        server.cairn("cp", "-q", small, server.url("second"))
        moved = server.metrics()
        self.assertGreaterEqual(moved[written % "main"], 2 * SMALL_LEN_BYTES)
        self.assertLess(moved[written % "main"], 3 * SMALL_LEN_BYTES)
        for name in ("cairn_log_groups_total", "cairn_log_written_bytes_total", "cairn_volume_flushed_bytes_total"):
            series = f'{name}{{volume="main"}}'
            self.assertGreater(moved[series], before[series], series)
