"""Benchmarks whose server is asked meanwhile: the burst of a class beside the planner's model, and what a read cache had."""

import json
import subprocess

from lib import harness
from lib.worlds import WorldTest

MB = 1_000_000
USAGE = 2
#: The proportions of the paper's volume of 6 TiB: 240 and 2,280 MB/s read, 72 and 300 MB/s written; a tenth of them, for 4 s.
PAPER = ["--read-throughput", "12MB/s", "--read-burst", "9.5x", "--write-throughput", "3.6MB/s", "--write-burst", "4.167x",
         "--burst-credit", "4s"]
#: So near to the planner's model issue 28 wants the curve, in percent.
DEVIATION_PERCENT_MAX = 5
# A machine that is busy with other tests delivers less than the model: it is measured again.
MEASURED_TIMES_MAX = 3
MEMORY = ["--memory-limit", "256MiB"]
CACHE_SECONDS_MAX = 60


def above_model_percent(result, curve):
    """By how much more was delivered than the model says, at most, in percent of all that the model delivers."""
    last = curve["stretches"][-1]
    end = last["at_seconds"] + last["seconds"]
    starts = [point["at_seconds"] for point in curve["model"]]

    def modelled(until):
        ends = [*starts[1:], end]
        pairs = zip(curve["model"], ends, strict=True)
        return sum(point["bytes_per_second"] * max(0, min(to, end, until) - point["at_seconds"]) for point, to in pairs)

    phases = {phase["name"]: phase for phase in result["phases"]}
    done, most = 0, 0.0
    for stretch in curve["stretches"]:
        for sample in phases[stretch["phase"]]["samples"]:
            done += sample["bytes"]
            at = stretch["at_seconds"] + sample["at_seconds"] + sample["seconds"]
            most = max(most, done - modelled(at))
    return 100 * most / modelled(end)


class Watched(WorldTest):
    def cairn(self, *arguments, check=True):
        return self.world.cairn(*map(str, arguments), check=check)

    def run_bench(self, *words, check=True):
        """`cairn bench`, most of whose commands take no flags of a server."""
        argv = [harness.cairn_path(), "bench", *words]
        done = subprocess.run(list(map(str, argv)), capture_output=True, text=True, env=self.world.environment(), check=False)
        self.assertEqual(check, done.returncode == 0, done.stderr)
        return done

    def bench(self, suite, *arguments, check=True):
        """Runs a suite; its result, or what it said."""
        out = self.scratch / f"{suite}.json"
        inside = ["--server", self.world.ready["admin"]["url"], "--admin-token-file", self.world.token_path]
        done = self.run_bench(suite, *arguments, *inside, "--out", out, check=check)
        return json.loads(out.read_text()) if check else done

    def page(self, result):
        page = self.scratch / "page.html"
        self.run_bench("report", self.scratch / f"{result['suite']}.json", "-o", page)
        return page.read_text()

    def test_a_burst_follows_the_planners_model_and_is_charted_beside_the_paper(self):
        self.world = self.server(1)
        self.cairn("class", "create", "paper", *PAPER)
        for number in range(MEASURED_TIMES_MAX):
            # A new volume has all of its credit.
            self.cairn("volume", "create", f"v{number}", "--class", "paper")
            self.cairn("export", "set", f"v{number}", "--client", "127.0.0.1", "--squash", "none")
            target = f"nfs://127.0.0.1:{self.world.port}/v{number}"
            result = self.bench("burst", target, "--working-set", "32MiB", "--idle", "3s")
            curves = {curve["title"]: curve for curve in result["credits"]}
            self.assertEqual(sorted(curves), ["read", "write"])
            # However busy the machine is, nobody gets more than the class gives.
            for title, curve in curves.items():
                self.assertLess(above_model_percent(result, curve), DEVIATION_PERCENT_MAX, title)
            if all(curve["deviation_percent"] < DEVIATION_PERCENT_MAX for curve in curves.values()):
                break
        with self.measured():
            for title, baseline, burst in (("read", 12, 114), ("write", 3.6, 15)):
                curve = curves[title]
                self.assertEqual(curve["limit"], f"{title}-throughput")
                self.assertLess(curve["deviation_percent"], DEVIATION_PERCENT_MAX, title)
                figures = {figure["title"]: figure["value"] for figure in result["summary"]}
                self.assertAlmostEqual(figures[f"{title} burst"] / burst, 1, delta=0.08)
                self.assertAlmostEqual(figures[f"{title} baseline"] / baseline, 1, delta=0.12)
                # Credit goes down to nothing, is earned in the pause, and never more than the class keeps.
                left = [sample["credit_bytes"] for sample in curve["samples"]]
                self.assertLess(min(left), 0.1 * curve["credit_max_bytes"])
                self.assertLessEqual(max(left), curve["credit_max_bytes"])
                pause = curve["stretches"][1]["at_seconds"]
                earned = [sample["credit_bytes"] for sample in curve["samples"] if sample["at_seconds"] < pause][-1]
                self.assertGreater(earned, 2 * baseline * MB)
                # The server's credit and the model's are one curve.
                for sample in curve["samples"]:
                    model = [point for point in curve["model"] if point["at_seconds"] <= sample["at_seconds"]][-1]
                    off = abs(model["credit_bytes"] - sample["credit_bytes"])
                    self.assertLess(off, 0.12 * curve["credit_max_bytes"], (title, sample))
        self.assertIn("read-throughput, class paper", self.run_bench("show", self.scratch / "burst.json").stdout)
        page = self.page(result)
        for shown in ("Bursts and credit", "credit left over time", "expected by the paper, in proportion", "2,280"):
            self.assertIn(shown, page)

    def test_what_shows_no_burst_is_refused_first(self):
        self.world = self.server(1)
        target = self.world.url("")
        refused = self.bench("burst", target, check=False)
        self.assertEqual(refused.returncode, USAGE)
        self.assertIn("has no burst", refused.stderr)
        self.assertIn("cairn class create", refused.stderr)
        self.cairn("class", "create", "long", "--throughput", "2MB/s", "--burst", "2x", "--burst-credit", "2h")
        self.cairn("volume", "set", "main", "--class", "long")
        refused = self.bench("burst", target, check=False)
        self.assertEqual(refused.returncode, USAGE)
        self.assertIn("180 min", refused.stderr)
        self.assertIn("--runtime", refused.stderr)
        folder = self.scratch / "folder"
        folder.mkdir()
        refused = self.bench("burst", folder, check=False)
        self.assertEqual(refused.returncode, USAGE)
        self.assertIn("--volume", refused.stderr)
        self.assertFalse(list(self.scratch.glob("*.json*")))

    def test_passes_come_from_a_read_cache_and_it_is_said_where_there_is_none(self):
        self.world = self.server(1, MEMORY)
        target = self.world.url("")
        passes = ["--working-set", "256MiB", "--passes", "5"]
        result = self.bench("read-cache", target, *passes)
        self.assertEqual(result["reads"]["cache_count"], 0)
        self.assertTrue(any("has no read cache" in note for note in result["notes"]), result["notes"])
        self.assertTrue(all(it["from_cache_bytes"] == 0 for it in result["reads"]["passes"]))
        self.assertIn("no read cache: pass 1", self.page(result))

        self.cairn("disk", "add", self.scratch / "fast", "--role", "cache", "--size", "1GiB")
        harness.wait_until(lambda: self.metric_caches() == "ok", CACHE_SECONDS_MAX, "the read cache")
        result = self.bench("read-cache", target, *passes)
        self.assertEqual(result["reads"]["cache_count"], 1)
        self.assertFalse(any("has no read cache" in note for note in result["notes"]), result["notes"])
        reads = [it["from_cache_bytes"] for it in result["reads"]["passes"]]
        all_bytes = result["phases"][0]["bytes"]
        self.assertLess(reads[0], 0.1 * all_bytes)
        # What comes faster than its disk takes it is not kept: beside other tests it has less.
        with self.measured():
            self.assertGreater(max(reads), 0.25 * all_bytes)
        self.assertIn("read cache of 1 GiB: pass 5", self.page(result))

    def metric_caches(self):
        return json.loads(self.cairn("disk", "list", "--json").stdout)["caches"][0]["state"]
