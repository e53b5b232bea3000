"""Looks at pages of the program in a real browser, headless.

Owns: the browser, how pages are looked at. Must not know: what is on a page, where it comes from.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

BROWSERS = ["chromium-headless-shell", "chromium", "google-chrome"]
# Name, width, preferred colours as Chromium numbers them.
LOOKS = [("light", 1280, 1), ("dark", 1280, 0), ("phone", 390, 1)]
HEIGHT_PX = 2400
DOCS_WIDTH_PX = 1100
TIMEOUT_S = 120


def fail(message):
    sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {message}")


def browser():
    found = next((path for path in map(shutil.which, BROWSERS) if path), None)
    return found or fail(f"there is none of {', '.join(BROWSERS)}; run scripts/setup page")


def browse(*arguments):
    """Runs the browser with a profile of its own; gives back what it printed."""
    with tempfile.TemporaryDirectory() as profile:
        command = [browser(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                   f"--user-data-dir={profile}", "--virtual-time-budget=5000", "--enable-logging=stderr", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode != 0:
        fail(f"the browser ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout, done.stderr


def check(page):
    """What is wrong with a page once its scripts have run, or None."""
    text, log = browse("--dump-dom", page.as_uri())
    wanted = page.read_text(encoding="utf-8").count('class="chart"')
    drawn = re.search(r'<body[^>]* data-charts="(\d+)"', text)
    complaints = [line for line in log.splitlines() if "CONSOLE" in line]
    if complaints:
        return f"the browser complains: {complaints[0]}"
    if not drawn or int(drawn[1]) != wanted or text.count("<canvas") != wanted:
        return f"{wanted} charts wanted, {drawn[1] if drawn else 'none'} drawn"
    return None


def look(page, out):
    """Pictures in light, dark and on a phone, and a PDF, in `out`."""
    for name, width, colours in LOOKS:
        browse(f"--screenshot={out / f'{page.stem}-{name}.png'}", f"--window-size={width},{HEIGHT_PX}",
               f"--blink-settings=preferredColorScheme={colours}", page.as_uri())
    browse(f"--print-to-pdf={out / f'{page.stem}.pdf'}", "--no-pdf-header-footer", page.as_uri())


def picture(page, path, height_px):
    """The picture of a page for the documents."""
    path.parent.mkdir(exist_ok=True)
    browse(f"--screenshot={path}", f"--window-size={DOCS_WIDTH_PX},{height_px}",
           "--blink-settings=preferredColorScheme=1", page.as_uri())


def check_and_look(made, out, has_pictures=True):
    """Ends the program if a page is not drawn as it should; leaves pictures of all of them."""
    for page in made:
        problem = check(page)
        if problem:
            fail(f"{page}: {problem}")
        if has_pictures:
            look(page, out)
    where = f"pictures are in {out}" if has_pictures else f"they are in {out}"
    print(f"{pathlib.Path(sys.argv[0]).name}: {len(made)} pages are drawn as they should; {where}")
