"""What schemathesis is told of our JSON: loaded by the tool itself, in its own Python."""

import schemathesis


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
