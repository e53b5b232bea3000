"""What the tests of the console share: a browser, windows on a server, and what must never be in one."""

import os

from lib import browser, harness
from lib.worlds import WorldTest

FOR_DOCS = bool(os.environ.get("CAIRN_CONSOLE_DOCS"))
# Of each page one picture, of all looks beside each other.
PICTURES_OF_PAGES = harness.REPOSITORY / "docs" / "images" / "pages"


class ConsoleTest(WorldTest):
    def setUp(self):
        super().setUp()
        self.browser = self.enterContextHere(browser.chromium())

    def window(self, server, is_in=True, **look):
        window = browser.Window(self.browser, server.ready["admin"]["url"], **look)
        self.addCleanup(window.close)
        window.open()
        if is_in:
            window.log_in(server.token_path.read_text())
            self.shown(window.heading(), "Overview")
            # The browser says that there was no session before.
            window.complaints.clear()
        return window

    def shown(self, found, text):
        browser.playwright().expect(found).to_contain_text(text, timeout=browser.TIMEOUT_MS)

    def quiet(self, window):
        self.assertEqual(window.complaints, [])
        self.assertEqual(window.others_asked(), [])

    def dialog(self, window):
        return window.page.get_by_role("dialog")
