"""Space: what `df` says, what overwriting costs, what a full volume still does, and what deleting gives back.

`make test-space` (CAIRN_SPACE_LONG=1) overwrites 1 GiB ten times over instead of an eighth of it.
"""

import contextlib
import os
import random
import threading
import time

from lib import harness, libnfs
from lib.worlds import WorldTest, content

MIB = 1024 * 1024
LONG = os.environ.get("CAIRN_SPACE_LONG") == "1"
# One percent of the volume, and what the file system of the disks itself needs for folders.
DF_TOLERANCE = 0.01
DF_LOOKS_MIN = 21
DF_LOOK_SECONDS = 0.1
# What is told was looked at not longer ago.
DF_AGE_SECONDS_MAX = 0.1
# docs/guide/operations.md: how long deleting may take to give the space back.
SPACE_BACK_SECONDS_MAX = 90
LOG_FILE_BYTES = 32 * MIB
# Files that wait for new shards go after so long without use, one a second on each disk, instead of after a minute.
UNUSED_AFTER_SECONDS = 5
UNUSED_SECONDS_MAX = 240
DISKS = 3
LOOK_SECONDS = 1
# On small disks a shard is made this part of one.
SHARDS_PER_DISK = 64
# Under load, of all looks at it: so many are within that, and none is off by more than this. On small disks a segment that is
# counted a moment later is more than the tolerance by itself.
DF_SHARE_MIN = 0.95
DF_WORST = 0.02 if LONG else 0.02 + 1 / SHARDS_PER_DISK


def shard_bytes(disk):
    """Bytes of the files of a disk, and of those the ones that wait for new shards."""
    all_bytes = waiting_bytes = 0
    seen = set()
    for folder, _, files in os.walk(disk):
        for name in files:
            try:
                stat = os.stat(os.path.join(folder, name))
            except FileNotFoundError:
                continue  # renamed or deleted since it was listed
            if stat.st_ino in seen:
                continue
            seen.add(stat.st_ino)
            allocated = stat.st_blocks * 512
            all_bytes += allocated
            if os.path.basename(folder) == "free":
                waiting_bytes += allocated
    return all_bytes, waiting_bytes


def metadata_bytes(disk):
    """Bytes of the log and the state of the metadata: a few log files, once there is enough to do."""
    return shard_bytes(os.path.join(disk, "volumes"))[0]


def usable_bytes(room, data, parity):
    """Most bytes of data for disks with so much room each, in segments of so many shards on distinct disks.

    Each shard position takes `each` bytes: the largest for which the disks, cut off there, have room for all of them.
    """
    width = data + parity
    rest, each = sum(room), sum(room) / width
    for index, one in enumerate(sorted(room, reverse=True)[: width - 1]):
        if one <= each:
            break
        rest -= one
        each = rest / (width - index - 1)
    return each * data


class DfLooks:
    """Looks at `df` all the time, each time beside what the folders of the disks hold."""

    def __init__(self, server, disk_bytes, data, parity, made_bytes):
        self.server, self.disk_bytes, self.data, self.parity = server, disk_bytes, data, parity
        self.made_bytes = made_bytes
        # By how much of the volume it was off, and when, in seconds.
        self.looks = []
        # Why there are no more of them.
        self.problems = []
        self.started = time.monotonic()

    def reference(self):
        """Free bytes by the files of the disks, room in open segments included; data in memory counts as used."""
        series = self.server.metrics()
        reserve = self.disk_bytes / 16 if self.disk_bytes < 1024 * MIB else max(64 * MIB, self.disk_bytes * 0.02)
        room = []
        for disk in self.server.disks:
            all_bytes, waiting_bytes = shard_bytes(disk)
            room.append(max(0, self.disk_bytes - reserve - all_bytes + waiting_bytes))
        free = usable_bytes(room, self.data, self.parity) + series["cairn_store_open_room_bytes"]
        total = usable_bytes([self.disk_bytes - reserve] * len(room), self.data, self.parity)
        return min(free, total) - series['cairn_volume_dirty_bytes{volume="main"}']

    def look(self, mount):
        # While clients write it changes: what is told has to be what was there at some time since it may have been
        # looked, or between two of these.
        begin, wanted = time.monotonic(), [self.reference()]
        while time.monotonic() < begin + DF_AGE_SECONDS_MAX:
            wanted.append(self.reference())
        total, free = mount.space()
        wanted.append(self.reference())
        low, high = max(0, min(wanted) - self.made_bytes), max(0, *wanted)
        off = max(low - free, free - high, 0) / total
        self.looks.append((off, time.monotonic() - self.started, free / MIB, low / MIB, high / MIB))

    def verdict(self):
        """The share of looks within the tolerance, and the worst ones."""
        share = sum(look[0] <= DF_TOLERANCE for look in self.looks) / len(self.looks)
        return share, sorted(self.looks, reverse=True)[:5]


class Space(WorldTest):
    def pool(self, disk_mib, flags=(), disks=DISKS):
        return self.server(disks, ["--disk-size-limit", f"{disk_mib}MiB", *flags])

    @contextlib.contextmanager
    def df_is_right(self, server, data, parity, made_bytes=0):
        """Meanwhile `df` is looked at all the time; then it has to have been right.

        `made_bytes`: it may say so much less, because a segment counts as used while it is being made or deleted.
        """
        looks = DfLooks(server, self.disk_bytes, data, parity, made_bytes)
        is_over, problems = threading.Event(), looks.problems

        def watch():
            try:
                with libnfs.Mount(server.libnfs_url()) as mount:
                    while not is_over.is_set():
                        looks.look(mount)
                        is_over.wait(DF_LOOK_SECONDS)
            except Exception as error:
                problems.append(error)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield looks
        finally:
            is_over.set()
            watcher.join()
        self.assertEqual(problems, [])
        share, worst = looks.verdict()
        print(f"\ndf: {len(looks.looks)} looks, {share:.1%} within {DF_TOLERANCE:.0%}, the worst off by {worst[0][0]:.2%}")
        told = [f"{off:.2%} after {at:.1f} s: {free:.1f} MiB, not {low:.1f} to {high:.1f}" for off, at, free, low, high in worst]
        with self.measured():
            self.assertGreaterEqual(len(looks.looks), DF_LOOKS_MIN)
            self.assertLessEqual(worst[0][0], DF_WORST, told)
            self.assertGreaterEqual(share, DF_SHARE_MIN, told)

    def check_df(self, server, mount, when):
        """Free space by NFS and by the command, against the files in the folders of the disks.

        Three disks hold three copies: what one disk has free is what the volume has. Data in memory counts
        as used, room in segments that take appends as free. Under load things move between two looks, so
        the smallest difference of a few counts.
        """
        differences, told_differences = [], []
        for _ in range(10):
            before = server.metrics()
            total, free = mount.space()
            used = []
            for disk in server.disks:
                all_bytes, waiting_bytes = shard_bytes(disk)
                used.append(all_bytes - waiting_bytes)
            after = server.metrics()

            def now(series):
                return (before[series] + after[series]) / 2

            reserve = self.disk_bytes / 16 if self.disk_bytes < 1024 * MIB else max(64 * MIB, self.disk_bytes * 0.02)
            room = max(0, self.disk_bytes - reserve - max(used)) + now("cairn_store_open_room_bytes")
            want = max(0, min(room, total) - now('cairn_volume_dirty_bytes{volume="main"}'))
            differences.append(abs(free - want) / total)
            volumes = {volume["name"]: volume for volume in server.status()["volumes"]}
            told, free_now = volumes["main"], mount.space()[1]
            # A total that is another one has its whole difference as the error.
            total_off = abs(told["total_bytes"] - total)
            told_differences.append((abs(told["free_bytes"] - free_now) + (total_off if total_off >= 8192 else 0)) / total)
            if max(min(differences), min(told_differences)) <= DF_TOLERANCE:
                break
            # What the metadata's state takes is counted every few seconds.
            time.sleep(LOOK_SECONDS)
        # Where the machine is busy all the time, all looks may be off: so much happens between two readings.
        with self.measured():
            self.assertLessEqual(min(differences), DF_TOLERANCE, f"df is wrong {when}: {differences}")
            self.assertLessEqual(min(told_differences), DF_TOLERANCE, f"`cairn status` {when}: {told_differences}")

    def test_overwriting_at_random_and_df(self):
        """Ten times its size is written into a file at random places, while `df` is watched."""
        file_mib = 1024 if LONG else 128
        self.disk_bytes = (8 if LONG else 1) * 1024 * MIB
        server = self.pool(self.disk_bytes // MIB)
        write_len_bytes = 64 * 1024
        rng = random.Random(5)
        blocks = [content(f"block {index}", write_len_bytes) for index in range(64)]
        file_blocks = file_mib * MIB // write_len_bytes
        model = [index % len(blocks) for index in range(file_blocks)]
        used_max = 0
        with libnfs.Mount(server.libnfs_url()) as mount, libnfs.Mount(server.libnfs_url()) as looking:
            self.check_df(server, looking, "when it is empty")
            # On disks as small as this one segment is more than a hundredth of them.
            with self.df_is_right(server, 1, 2, 0 if LONG else self.disk_bytes // SHARDS_PER_DISK):
                with mount.open("/database", os.O_CREAT | os.O_RDWR) as file:
                    for index in range(file_blocks):
                        file.write(index * write_len_bytes, blocks[model[index]])
                    file.sync()
                    self.check_df(server, looking, "at rest")
                    done, is_over = threading.Event(), threading.Event()

                    def overwrite():
                        try:
                            for nth in range(10 * file_blocks):
                                if is_over.is_set():
                                    return
                                index, block = rng.randrange(file_blocks), rng.randrange(len(blocks))
                                file.write(index * write_len_bytes, blocks[block])
                                model[index] = block
                                if nth % 500 == 499:
                                    file.sync()
                            file.sync()
                        finally:
                            done.set()

                    writer = threading.Thread(target=overwrite, daemon=True)
                    writer.start()
                    try:
                        while not done.wait(1.0):
                            self.check_df(server, looking, "under load")
                            total, free = looking.space()
                            dirty = server.metrics()['cairn_volume_dirty_bytes{volume="main"}']
                            used_max = max(used_max, total - free - dirty)
                    finally:
                        is_over.set()
                        writer.join()
            metrics = server.metrics()
            reserve = max(64 * MIB, self.disk_bytes * 0.02)
            # In the short form the log and what is written between two looks are as much as the file.
            bound = 1.5 * file_mib * MIB + reserve + (0 if LONG else 128 * MIB)
            amplification = metrics["cairn_write_amplification_data_permille"] / 1000
            print(
                f"\noverwritten {10 * file_mib} MiB: used at most {used_max / MIB:.0f} MiB of {bound / MIB:.0f},"
                f" write amplification {amplification:.2f}"
            )
            # A collection that gets no processor is behind.
            with self.measured():
                self.assertLess(used_max, bound)
                self.assertLess(amplification, 4)
            self.assertGreater(metrics['cairn_gc_rewritten_bytes_total{volume="main"}'], 0)
            self.check_df(server, looking, "afterwards")
            data = mount.read_file("/database")
            for index in range(file_blocks):
                got = data[index * write_len_bytes : (index + 1) * write_len_bytes]
                self.assertTrue(got == blocks[model[index]], f"block {index}")

    def check_df_all_along(self, disks, data, parity):
        """`df` while a file is written, overwritten at random and deleted.

        On disks of 8 GiB, where a segment that is being made or deleted, and counts as used, is less than the tolerance.
        """
        self.disk_bytes = 8 * 1024 * MIB
        server = self.pool(self.disk_bytes // MIB, disks=disks)
        write_len_bytes, file_blocks = 256 * 1024, 1024
        rng = random.Random(disks)
        some = [content(f"block {index}", write_len_bytes) for index in range(16)]
        with libnfs.Mount(server.libnfs_url()) as mount, self.df_is_right(server, data, parity) as df:
            with mount.open("/database", os.O_CREAT | os.O_RDWR) as file:
                for index in range(file_blocks):
                    file.write(index * write_len_bytes, rng.choice(some))
                file.sync()
                nth = 0
                while nth < 3 * file_blocks or len(df.looks) < DF_LOOKS_MIN and not df.problems:
                    file.write(rng.randrange(file_blocks) * write_len_bytes, rng.choice(some))
                    nth += 1
                    if nth % 200 == 0:
                        file.sync()
                file.sync()
            free_before = mount.space()[1]
            mount.unlink("/database")
            is_back = lambda: mount.space()[1] > free_before + 0.9 * file_blocks * write_len_bytes
            harness.wait_until(is_back, SPACE_BACK_SECONDS_MAX, "the return of space")

    def test_df_of_three_disks_all_along(self):
        self.check_df_all_along(3, 1, 2)

    def test_df_of_six_disks_all_along(self):
        self.check_df_all_along(6, 4, 2)

    def fill(self, mount, prefix, len_bytes):
        """Writes files until there is no space; returns their names."""
        data = content(prefix, len_bytes)
        names: list[str] = []
        while True:
            name = f"/{prefix}{len(names)}"
            try:
                mount.write_file(name, data)
            except OSError:
                break
            names.append(name)
            self.assertLess(len(names), 100_000, "it never fills")
        with contextlib.suppress(OSError):
            mount.unlink(f"/{prefix}{len(names)}")  # the one that did not fit
        return names, data

    def test_full_and_emptied_again_and_again(self):
        """Filled with small and with large files, emptied, filled again: as much fits as before."""
        self.disk_bytes = 384 * MIB
        server = self.pool(384)
        with libnfs.Mount(server.libnfs_url()) as mount:

            def room():
                """Free space, and what the metadata took of it."""
                return mount.space()[1] + max(metadata_bytes(disk) for disk in server.disks)

            room_at_start = room()
            for round_number in range(2):
                for kind, len_bytes in (("small", 40_000), ("large", 24 * MIB)):
                    names, data = self.fill(mount, f"{kind}{round_number}-", len_bytes)
                    written = len(names) * len_bytes
                    taken = written + max(metadata_bytes(disk) for disk in server.disks)
                    # A write is refused, too, where the collection is behind.
                    with self.measured():
                        self.assertGreater(taken, 0.9 * room_at_start - len_bytes, f"{kind}, round {round_number}")
                    self.check_df(server, mount, f"full of {kind} files")
                    # Reading goes on, and deleting works on a full volume.
                    for name in names[:: max(1, len(names) // 10)]:
                        self.assertTrue(mount.read_file(name) == data, name)
                    begun = time.monotonic()
                    for name in names:
                        mount.unlink(name)

                    def is_back():
                        return room() >= 0.95 * room_at_start

                    harness.wait_until(is_back, SPACE_BACK_SECONDS_MAX, f"the return of space, {kind}")
                    seconds = time.monotonic() - begun
                    print(f"\n{kind}: {len(names)} files, {written / MIB:.0f} MiB; back in {seconds:.1f} s")
                    self.check_df(server, mount, f"emptied of {kind} files")
        server.restart()
        metrics = server.metrics()
        self.assertEqual(metrics['cairn_volume_file_bytes{volume="main"}'], 0)
        self.assertEqual(metrics['cairn_gc_errors_total{volume="main"}'], 0)

    def test_files_that_wait_for_new_shards_do_not_wait_for_ever(self):
        """For everybody but the pool they are used space: without writes they go."""
        self.disk_bytes = 1024 * MIB
        config = self.scratch / "soon.toml"
        config.write_text(f"idle_after = {UNUSED_AFTER_SECONDS}\n")
        server = self.pool(1024, ["--config", str(config)])

        def waiting():
            return [shard_bytes(disk)[1] for disk in server.disks]

        with libnfs.Mount(server.libnfs_url()) as mount:
            mount.write_file("/large", content("large", 160 * MIB))
            mount.unlink("/large")
            harness.wait_until(lambda: min(waiting()) > 0, SPACE_BACK_SECONDS_MAX, "files that wait for new shards")
            free_before = mount.space()[1]
            harness.wait_until(lambda: max(waiting()) == 0, UNUSED_SECONDS_MAX, "the return of their space")
            # They counted as free before; the log may have begun another file.
            least = free_before - LOG_FILE_BYTES - DF_TOLERANCE * self.disk_bytes
            harness.wait_until(lambda: mount.space()[1] >= least, SPACE_BACK_SECONDS_MAX, "the space that counted as free")

    def test_deleted_volumes_give_the_space_of_their_metadata_back(self):
        """Volumes come and go: what their logs took does not stay counted."""
        rounds, log_file_bytes = 4, 32 * MIB
        self.disk_bytes = 512 * MIB
        server = self.pool(512)

        def free():
            series = server.metrics().items()
            return sum(value for name, value in series if name.startswith("cairn_disk_free_bytes{"))

        free_before = free()
        for _ in range(rounds):
            server.cairn("volume", "create", "extra")
            server.cairn("volume", "delete", "extra", "--yes", "--force")
        # The volume that stays may have begun another log file meanwhile, on each disk.
        least = free_before - 1.5 * DISKS * log_file_bytes
        # What the metadata's state takes is counted every few seconds.
        harness.wait_until(lambda: free() >= least, SPACE_BACK_SECONDS_MAX, "the return of space")
