"""Examples of the document fit their schemas, patterns included, which the tests in Rust do not read."""

from api.world import ApiTest

METHODS = ("get", "put", "post", "delete", "patch")
EXAMPLES_MIN = 50


def examples(schema, place):
    """Each example in a schema, with the part of it that it is of."""
    if isinstance(schema, dict):
        if "example" in schema and "type" in schema:
            yield place, schema, schema["example"]
        for key, part in schema.items():
            yield from examples(part, f"{place}.{key}")
    elif isinstance(schema, list):
        for part in schema:
            yield from examples(part, place)


class Document(ApiTest):
    def test_examples_fit_their_schemas(self):
        found = list(examples(self.document["components"]["schemas"], ""))
        for path, item in self.document["paths"].items():
            for method in METHODS:
                for parameter in item.get(method, {}).get("parameters", []):
                    if "example" in parameter:
                        found.append((f"{method} {path} {parameter['name']}", parameter["schema"], parameter["example"]))
        self.assertGreater(len(found), EXAMPLES_MIN)
        for place, schema, example in found:
            self.assertEqual(self.misfits(schema, example), [], place)
