"""Background jobs are listed while they run, by the command, in the API and in the metrics, and end with the server."""

import json
import re

from lib import harness
from lib.worlds import WorldTest

STEPS_SECONDS_MAX = 60
# Longer periods are not waited for.
SHORT_SECONDS = 5


def documented():
    """Names of jobs in the manual's table, and whether a server alone has them from its start."""
    text = (harness.REPOSITORY / "docs" / "reference" / "admin.md").read_text()
    section = text.partition("### Background jobs\n")[2].partition("\n##")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*?) \|", section, re.MULTILINE)
    # Servers of tests have no spare files.
    later = ("certificate", "object-lifecycles", "iscsi-portals", "iscsi-tokens", "spares")
    return {name: "in a cluster" not in what and name not in later for name, what in rows}


class Jobs(WorldTest):
    def jobs(self, server):
        return json.loads(server.cairn("job", "list", "--json").stdout)["jobs"]

    def test_jobs_of_a_server_are_listed_and_work(self):
        server = self.server(3)
        known = documented()
        self.assertGreater(len(known), 30)

        def worked():
            short = [job for job in self.jobs(server) if job["period_seconds"] <= SHORT_SECONDS]
            return all(job["steps"] or job["state"] == "busy" for job in short)

        harness.wait_until(worked, STEPS_SECONDS_MAX, "a step of each job with a short period")
        jobs = {job["name"]: job for job in self.jobs(server)}
        self.assertEqual(set(jobs) - set(known), set(), "listed, and not in the manual")
        always = {name for name, is_always in known.items() if is_always}
        self.assertEqual(always - set(jobs), set(), "in the manual, and not listed")
        for name, job in jobs.items():
            self.assertEqual((job["errors"], job["panics"], job["last_error"]), (0, 0, None), name)
            self.assertEqual(job["state"] == "busy", job["next_in_seconds"] is None, name)
        self.assertEqual(jobs["scrub"]["held_because"], "no scrub is under way")
        named = re.compile(r'cairn_background_job_steps_total\{name="([^"]+)"\}')
        counted = {found[1] for found in map(named.match, server.metrics()) if found}
        self.assertEqual(set(jobs) - counted, set(), "without metrics")
        text = server.cairn("job", "list").stdout
        for name in jobs:
            self.assertRegex(text, rf"(?m)^{name} ")

    def test_a_job_shows_what_it_does_and_ends_with_the_server(self):
        server = self.server(3)
        server.cairn("scrub", "start")
        scrub = lambda: next(job for job in self.jobs(server) if job["name"] == "scrub")
        # A scrub of an empty pool may be over before it is seen.
        done = lambda: scrub()["state"] == "busy" or scrub()["busy_seconds"] > 0
        harness.wait_until(done, STEPS_SECONDS_MAX, "that the scrub is a step of its job")
        server.stop()
        self.assertNotIn("background jobs are abandoned", server.log_tail())
