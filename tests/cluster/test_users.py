"""Users, the audit log and events in a cluster: what is done at one node holds at all, and what one saw is told there."""

import json
import urllib.error
import urllib.request

from cluster.world import LEASE_IS_OVER_SECONDS, ClusterTest
from lib import harness

PASSWORD, OTHER = "correct horse battery", "another horse entirely"
# Until each node has heard of a change in the cluster's map.
HEARD_SECONDS_MAX = 30


class Users(ClusterTest):
    def ask(self, cluster, node, method, path, body=None, cookie=None):
        """Status, cookie and JSON of an answer of a node."""
        headers = {"X-Cairn-Console": "1"} | ({"Cookie": cookie} if cookie else {})
        data = None if body is None else json.dumps(body).encode()
        url = cluster.machine(node)["admin"] + path
        request = urllib.request.Request(url, data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                status, found, text = answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, found, text = error.code, error.headers, error.read()
        return status, (found["set-cookie"] or "").partition(";")[0], json.loads(text or "null")

    def log_in(self, cluster, node, user, password=PASSWORD):
        """Status, cookie and what is said to somebody who logs in."""
        return self.ask(cluster, node, "POST", "/api/v1/session", {"user": user, "password": password})

    def logged_in(self, cluster, node, user, role):
        """A session at a node that has just heard of the user, perhaps."""

        def session():
            status, cookie, body = self.log_in(cluster, node, user)
            return cookie if status == 200 and body["role"] == role else None

        return harness.wait_until(session, HEARD_SECONDS_MAX, f"that {user} logs in at {node} as {role}", 1)

    def password_file(self, password):
        path = self.scratch / "password"
        path.write_text(f"{password}\n")
        return path

    def audit(self, cluster, node, *words):
        return json.loads(cluster.cairn(node, "audit", "list", "--json", *words).stdout)

    def changes(self, cluster, node):
        """Who did what, as the node's own audit log has it."""
        entries = self.audit(cluster, node, "--node", node)["entries"]
        self.assertEqual({entry["node"] for entry in entries} - {node}, set())
        return [(entry["user"], entry["via"], entry["method"], entry["path"], entry["status"]) for entry in entries]

    def events(self, cluster, node):
        return [event["message"] for event in json.loads(cluster.cairn(node, "events", "--json").stdout)["entries"]]

    def test_a_user_is_the_same_at_all_nodes(self):
        cluster = self.cluster(3)
        first, second, third = cluster.names
        cluster.cairn(first, "user", "create", "alice", "--role", "viewer", "--password-file", self.password_file(PASSWORD))
        sessions = {node: self.logged_in(cluster, node, "alice", "viewer") for node in cluster.names}
        for node, cookie in sessions.items():
            status, _, body = self.ask(cluster, node, "POST", "/api/v1/volumes", {"name": "two"}, cookie)
            self.assertEqual(status, 403, body)

        # Another role ends what was begun with the one before, everywhere.
        cluster.cairn(third, "user", "set", "alice", "--role", "admin")
        for node, cookie in sessions.items():
            is_over = lambda node=node, cookie=cookie: self.ask(cluster, node, "GET", "/api/v1/session", cookie=cookie)[0] == 401
            harness.wait_until(is_over, HEARD_SECONDS_MAX, f"that the session at {node} is over")
        sessions = {node: self.logged_in(cluster, node, "alice", "admin") for node in cluster.names}
        # The node that is asked has looked at the role; the volume is made by another one, perhaps.
        for number, (node, cookie) in enumerate(sessions.items()):
            made = lambda node=node, cookie=cookie, name=f"of{number}": (
                self.ask(cluster, node, "POST", "/api/v1/volumes", {"name": name}, cookie)[0] in (201, 409)
            )
            harness.wait_until(made, HEARD_SECONDS_MAX, f"that {node} makes a volume", 1)

        # Another password, set where the user was not made.
        cluster.cairn(second, "user", "password", "alice", "--password-file", self.password_file(OTHER))
        for node in cluster.names:
            is_new = lambda node=node: self.log_in(cluster, node, "alice", OTHER)[0] == 200
            harness.wait_until(is_new, HEARD_SECONDS_MAX, f"that {node} takes the new password", 1)
            self.assertEqual(self.log_in(cluster, node, "alice")[0], 401)

        # Each node has the changes that it was asked for; any of them tells those of all, newest first.
        everywhere = [self.audit(cluster, node, "--limit", "1000") for node in cluster.names]
        for page in everywhere:
            self.assertNotIn("silent", page)
            ids = [entry["id"] for entry in page["entries"]]
            self.assertEqual(ids, sorted(ids, reverse=True))
            self.assertEqual({entry["node"] for entry in page["entries"]}, set(cluster.names))
        of_all = [{(entry["node"], entry["id"]) for entry in page["entries"]} for page in everywhere]
        # One that was asked later may have an entry more: that of nobody who only read.
        self.assertEqual(of_all[0], of_all[1])
        self.assertEqual(of_all[0], of_all[2])
        refused = cluster.cairn(first, "audit", "list", "--node", "nobody", check=False)
        self.assertIn("no node of this cluster has the name nobody", refused.stderr)
        for number, node in enumerate(cluster.names):
            changes = self.changes(cluster, node)
            self.assertIn(("alice", "session", "POST", "/api/v1/volumes", 403), changes)
            self.assertIn(("alice", "session", "POST", "/api/v1/volumes", 201), changes)
            self.assertIn(("alice", "password", "POST", "/api/v1/session", 200), changes)
            own = [("POST", "/api/v1/users"), ("PATCH", "/api/v1/users/alice"), ("PATCH", "/api/v1/users/alice")][(0, 2, 1)[number]]
            self.assertIn(own, [(method, path) for user, _, method, path, _ in changes if user == "token"])

    def test_a_node_that_was_away_knows_who_was_deleted(self):
        cluster = self.cluster(3)
        first, second, third = cluster.names
        cluster.cairn(first, "user", "create", "bob", "--role", "admin", "--password-file", self.password_file(PASSWORD))
        sessions = {node: self.logged_in(cluster, node, "bob", "admin") for node in cluster.names}
        cluster.kill(third)
        # What became of it is told at the others, which lost it.
        for node in (first, second):
            is_told = lambda node=node: any(third in message for message in self.events(cluster, node))
            harness.wait_until(is_told, 3 * LEASE_IS_OVER_SECONDS, f"that {node} tells of {third}", 1)
        deleted = lambda: cluster.cairn(second, "user", "delete", "bob", check=False).returncode == 0
        harness.wait_until(deleted, HEARD_SECONDS_MAX, "that two of three nodes delete a user", 1)
        gone = lambda: self.ask(cluster, first, "GET", "/api/v1/session", cookie=sessions[first])[0] == 401
        harness.wait_until(gone, HEARD_SECONDS_MAX, f"that the session at {first} is over")
        self.assertEqual(self.log_in(cluster, first, "bob")[0], 401)
        # What both saw is one event, with who saw it; the third's own are missing, and that is said.
        page_of = lambda: json.loads(cluster.cairn(first, "events", "--json").stdout)
        away = lambda: [event["nodes"] for event in page_of()["entries"] if (event["kind"], event["subject"]) == ("node_away", f"node {third}")]
        harness.wait_until(lambda: [set(nodes) for nodes in away()] == [{first, second}], 3 * LEASE_IS_OVER_SECONDS, "both tell it as one", 1)
        page = page_of()
        self.assertEqual([silent["node"] for silent in page["silent"]], [third])
        starts = [event["nodes"] for event in page["entries"] if event["kind"] == "server_started"]
        self.assertEqual(sorted(starts), sorted([[first], [second]]))
        only = json.loads(cluster.cairn(first, "events", "--json", "--node", second).stdout)["entries"]
        self.assertEqual({node for event in only for node in event["nodes"]}, {second})
        self.assertIn("no node of this cluster", cluster.cairn(first, "events", "--node", "nobody", check=False).stderr)
        # The others tell what they were asked, and who is missing.
        listed = cluster.cairn(first, "audit", "list")
        self.assertIn(f"without the entries of node {third}", listed.stderr)
        self.assertIn("DELETE /api/v1/users/bob", listed.stdout)
        self.assertEqual([silent["node"] for silent in self.audit(cluster, first)["silent"]], [third])

        # Whoever was away does not let in who was deleted meanwhile: not once.
        cluster.start_nodes(third)
        cookie = sessions[third]
        served = lambda: cluster.status_of(third) is not None
        harness.wait_until(served, 60, f"that {third} is back")
        self.assertEqual(self.ask(cluster, third, "GET", "/api/v1/session", cookie=cookie)[0], 401)
        self.assertEqual(self.log_in(cluster, third, "bob")[0], 401)
        # Its own audit log survived the kill, and has what was done there before.
        self.assertIn(("bob", "password", "POST", "/api/v1/session", 200), self.changes(cluster, third))
        self.assertIn("DELETE", [method for _, _, method, path, _ in self.changes(cluster, second) if path == "/api/v1/users/bob"])
