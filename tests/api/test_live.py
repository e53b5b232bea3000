"""Events of the live stream fit their schemas."""

import json
import urllib.error
import urllib.request

from api.world import ApiTest

# What the data of each kind of event is.
KINDS = {"live": "LiveView", "problem": "ErrorBody"}
EVENTS_LOOKED_AT = 3
SECONDS_MAX = 30


class Live(ApiTest):
    def events(self):
        url = self.pool.ready["admin"]["url"].rstrip("/") + "/api/v1/live/events"
        token = self.pool.token_path.read_text().strip()
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=SECONDS_MAX) as stream:
            self.assertEqual(stream.headers["Content-Type"], "text/event-stream")
            event: dict[str, str] = {}
            for line in stream:
                text = line.decode().rstrip("\n")
                if text:
                    field, value = text.split(": ", 1)
                    event[field] = value
                else:
                    yield event
                    event = {}

    def named(self, name):
        return {"$ref": f"#/components/schemas/{name}"}

    def test_each_event_fits_the_schema_of_its_kind(self):
        answer = self.document["paths"]["/api/v1/live/events"]["get"]["responses"]["200"]
        schema = answer["content"]["text/event-stream"]["schema"]
        for _, event in zip(range(EVENTS_LOOKED_AT), self.events()):
            self.assertEqual(self.misfits(schema, event), [])
            data = json.loads(event["data"])
            self.assertEqual(self.misfits(self.named(KINDS[event["event"]]), data), [])

    def test_the_document_knows_all_kinds_and_no_others(self):
        kinds = self.named("LiveEventKind")
        for kind in KINDS:
            self.assertEqual(self.misfits(kinds, kind), [])
        self.assertNotEqual(self.misfits(kinds, "other"), [])
        # A schema that takes everything would pass the test above.
        self.assertNotEqual(self.misfits(self.named("LiveView"), {"now_seconds": 0}), [])

    def test_a_problem_is_an_error_as_any_other(self):
        # A server that is well sends none. They are made as the bodies of errors are.
        request = urllib.request.Request(self.pool.ready["admin"]["url"].rstrip("/") + "/api/v1/live")
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=SECONDS_MAX)
        self.assertEqual(self.misfits(self.named("ErrorBody"), json.load(refused.exception)), [])
