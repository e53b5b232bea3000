"""The admin API against its own OpenAPI document, on a server made for it.

    scripts/test-api [--long] [--seed N]

schemathesis makes requests that the document allows, and some that it forbids, and compares what the server does with what
the document says: tests/api/schemathesis.toml says by which rules, and what is left out and why. The same seed makes the
same requests; without --long they take one to two minutes. Then the live stream and the examples of the document are looked at.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import unittest

from lib import harness

FOLDER = pathlib.Path(__file__).parent
# Requests of each operation, beside those at the edges of all bounds, which are always the same.
EXAMPLES_SHORT = 4
EXAMPLES_LONG = 300
# An answer that takes longer is a fault.
REQUEST_SECONDS_MAX = 30
TESTS = ("test_document", "test_live")


def enter_environment():
    """Goes on in the Python that has schemathesis, if this one is another."""
    folder = harness.set_up("api")
    if pathlib.Path(sys.prefix).resolve() != folder.resolve():
        python = str(folder / "bin" / "python")
        sys.stdout.flush()
        os.execv(python, [python, *sys.argv])


def ask(server, options):
    """Whether nothing that the tool asked was answered in another way than the document says."""
    token = server.token_path.read_text().strip()
    examples = EXAMPLES_LONG if options.long else EXAMPLES_SHORT
    command = [
        sys.executable, "-m", "schemathesis.cli", "--config-file", str(FOLDER / "schemathesis.toml"), "--no-color", "run",
        server.ready["admin"]["url"].rstrip("/") + "/api/v1/openapi.json",
        "--header", f"Authorization: Bearer {token}",
        "--phases", "examples,coverage,fuzzing",
        "--max-examples", str(examples),
        "--seed", str(options.seed),
        "--request-timeout", str(REQUEST_SECONDS_MAX),
        "--continue-on-failure",
    ]  # fmt: skip
    environment = os.environ | {"SCHEMATHESIS_HOOKS": "api.hooks", "PYTHONPATH": str(FOLDER.parent)}
    return subprocess.run(command, cwd=server.root, env=environment, stdin=subprocess.DEVNULL).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help=f"{EXAMPLES_LONG} requests of each operation, not {EXAMPLES_SHORT}")
    parser.add_argument("--seed", type=int, default=1, help="of the requests")
    options = parser.parse_args()
    enter_environment()
    print(f"the API of {harness.cairn_path()}", flush=True)
    with harness.scratch("api") as root:
        with harness.Server(root, disks=2, flags=("--listen-s3", "127.0.0.1:0", "--listen-iscsi", "127.0.0.1:0")) as server:
            is_told = ask(server, options)
            is_alive = server.process.poll() is None
            if not is_told or not is_alive:
                print(server.log_tail(), flush=True)
    names = [f"api.{name}" for name in TESTS]
    done = unittest.main(module=None, argv=["test-api", *names], verbosity=2, exit=False).result
    return 0 if is_told and is_alive and done.wasSuccessful() and done.testsRun else 1
