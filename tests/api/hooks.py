"""What schemathesis is told of our JSON: loaded by the tool itself, in its own Python."""

from urllib.parse import urlencode

import schemathesis

# A longer URI is 414 by the HTTP library, before the API sees it.
QUERY_LEN_BYTES_MAX = 60_000


def whole(value):
    """JSON Schema counts 3.0 among the integers; our parser wants them without a fraction, as most do."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: whole(part) for key, part in value.items()}
    if isinstance(value, list):
        return [whole(part) for part in value]
    return value


@schemathesis.hook
def map_body(context, body):
    return whole(body)


@schemathesis.hook
def filter_case(context, case):
    return len(urlencode(case.query or {}, doseq=True)) <= QUERY_LEN_BYTES_MAX
