"""The memory limit: what the process has under NFS, iSCSI and S3 together, what each part has, and what the status says."""

from lib import harness, mixedload
from lib.worlds import WorldTest

MIB = 1 << 20
LIMIT, LIMIT_BYTES = "256MiB", 256 * MIB
DISKS_COUNT = 6
LOAD_SECONDS = 16
# A machine that is busy with other tests gives the server's own thread its turns late.
RATIO_MAX = 1.2
STATED_SECONDS_MAX = 30
PARTS = {
    "record_cache", "metadata_cache", "metadata_buffers", "dirty", "appends", "read_buffers", "nfs_requests", "iscsi_commands",
    "iscsi_unsent", "s3_transfers", "tables", "replayed_logs", "other",
}


class Memory(WorldTest):
    def test_the_limit_holds_for_all_protocols_and_disks_together(self):
        flags, iscsi_port, s3_port = mixedload.flags()
        server = self.server(DISKS_COUNT, [*flags, "--memory-limit", LIMIT])
        load = mixedload.MixedLoad(server, iscsi_port, s3_port, self.scratch, LOAD_SECONDS, "128MiB")
        with mixedload.Watch(server) as watch:
            moved = load.run()
            highest_bytes = watch.highest_bytes()
        # Of each protocol, and more than there is memory: nothing was kept waiting for ever.
        self.assertTrue(all(moved.values()), moved)
        told = {name: round(value / MIB) for name, value in watch.peak_parts.items()}
        with self.measured():
            self.assertGreater(sum(moved.values()), LIMIT_BYTES, moved)
            self.assertLess(highest_bytes / LIMIT_BYTES, RATIO_MAX, told)
        # At the highest reading there was data in caches.
        self.assertGreater(watch.peak_parts["record_cache"], MIB, told)
        self.assert_parts_are_what_the_process_has(server.metrics())
        well = lambda: "memory_over" not in [warning["kind"] for warning in server.status()["warnings"]]
        harness.wait_until(well, STATED_SECONDS_MAX, "a status that does not warn of memory")

    def assert_parts_are_what_the_process_has(self, series):
        parts = mixedload.parts(series)
        self.assertEqual(set(parts), PARTS)
        self.assertGreater(parts["metadata_buffers"], 0, parts)
        # Without its program it has nothing.
        self.assertGreater(parts["other"], MIB, parts)
        self.assertEqual(sum(parts.values()), series["cairn_memory_resident_bytes"], parts)
        self.assertEqual(series["cairn_memory_limit_bytes"], LIMIT_BYTES)
        budget = {name: value for name, value in series.items() if name.startswith("cairn_memory_budget_bytes")}
        self.assertEqual(sum(budget.values()), LIMIT_BYTES)
