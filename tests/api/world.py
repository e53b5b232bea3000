"""What the tests of the API share: a server, its document, and what does not fit a schema of it."""

import json

import jsonschema_rs

from lib.worlds import WorldTest


class ApiTest(WorldTest):
    def setUp(self):
        super().setUp()
        self.pool = self.server(1)
        self.document = json.loads(self.pool.get("/api/v1/openapi.json"))

    def misfits(self, schema, value):
        """What is wrong with a value by a schema of the document."""
        whole = {"allOf": [schema], "components": self.document["components"]}
        return [error.message for error in jsonschema_rs.Draft202012Validator(whole).iter_errors(value)]
