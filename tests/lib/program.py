"""How a script of the repository ends: with a status, and a failure as one line instead of a trace."""

import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import NoReturn

from lib import harness


def run(main: Callable[[], int | bool | None], profile: str | None = None) -> NoReturn:
    """Runs `main` and ends the process. `profile`: that of the cargo build under test, if not that of tests."""
    if profile:
        harness.use_profile(profile)
    try:
        sys.exit(main())
    except (harness.Failure, subprocess.SubprocessError) as failure:
        sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {failure}")
