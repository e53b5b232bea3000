"""A real browser for tests: Chromium, driven by Playwright from an environment that `scripts/setup browser` makes.

Owns: finding both, what a page may not do in any test (complain, ask another server), the check of accessibility.
Must not know: what is on a page.
"""

import base64
import contextlib
import functools
import importlib
import json
import os
import pathlib
from typing import Any
from urllib.parse import urlparse

from lib import harness, pages

AXE = harness.REPOSITORY / "console" / "node_modules" / "axe-core" / "axe.min.js"
# What the rules of WCAG 2.2 AA say, and what axe calls best practice.
AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
# Name, width, preferred colours.
LOOKS = [("light", 1280, "light"), ("dark", 1280, "dark"), ("phone", 390, "light")]
HEIGHT_PX = 900
SIDE_BY_SIDE_HEIGHT_PX = 640
TIMEOUT_MS = 10_000


@functools.cache
def playwright() -> Any:
    harness.set_up_packages("browser")
    return importlib.import_module("playwright.sync_api")


@contextlib.contextmanager
def chromium():
    with playwright().sync_playwright() as started:
        browser = started.chromium.launch(executable_path=pages.browser(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def side_by_side(browser, pictures, path):
    """Writes pictures of one page in several looks beside each other, as one JPEG."""
    images = "".join(
        f'<img src="data:image/png;base64,{base64.b64encode(picture).decode()}" height="{SIDE_BY_SIDE_HEIGHT_PX}">' for picture in pictures
    )
    style = "body { margin: 0; padding: 12px; display: inline-flex; gap: 12px; background: #888 }"
    page = browser.new_page(viewport={"width": 2400, "height": SIDE_BY_SIDE_HEIGHT_PX + 24})
    page.set_content(f"<style>{style}</style><body>{images}</body>", wait_until="load")
    page.locator("body").screenshot(path=path, type="jpeg", quality=80)
    page.close()


def from_dist(route):
    """A file of the console as it is in the repository: while its pages are written, the program need not be built anew."""
    route.fulfill(path=harness.REPOSITORY / "console" / "dist" / pathlib.PurePath(urlparse(route.request.url).path).name)


class Window:
    """A page of its own in a browser, with nobody's cookies. What it complained about is in `complaints`."""

    def __init__(self, browser, url, width=1280, colours="light"):
        self.url = url
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.context = browser.new_context(viewport={"width": width, "height": HEIGHT_PX}, color_scheme=colours)
        self.context.set_default_timeout(TIMEOUT_MS)
        if os.environ.get("CAIRN_CONSOLE_DIST"):
            self.context.route(lambda url: url.endswith((".js", ".css")), from_dist)
        self.page = self.context.new_page()
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def open(self, path=""):
        self.page.goto(f"{self.url}/console/{path}")

    def log_in(self, token):
        self.page.get_by_label("Admin token").fill(token)
        self.page.get_by_role("button", name="Log in", exact=True).click()

    def heading(self):
        return self.page.get_by_role("heading", level=1)

    def others_asked(self):
        """Servers beside ours that the page asked for something."""
        own = urlparse(self.url).netloc
        return [url for url in self.asked if urlparse(url).netloc not in ("", own)]

    def violations(self):
        """What axe finds on the page as it is now."""
        # The page's policy lets no script in that is not its server's: this comes by the debugger's way.
        self.page.evaluate(AXE.read_text() + ";0")
        found = self.page.evaluate("tags => axe.run(document, {runOnly: tags}).then(done => done.violations)", AXE_TAGS)
        return [f"{one['id']}: {one['help']}: {json.dumps([node['html'][:160] for node in one['nodes'][:3]])}" for one in found]

    def picture(self, path):
        self.page.screenshot(path=path, full_page=True)

    def picture_of_top(self):
        """What is seen first, as PNG."""
        return self.page.screenshot()

    def close(self):
        self.context.close()
