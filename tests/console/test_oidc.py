"""Log-in to the console by an OpenID provider of another site, in a browser: the button, there, back, and what goes wrong."""

from console.world import ConsoleTest
from lib import browser, oidc


class Oidc(ConsoleTest):
    def setUp(self):
        super().setUp()
        # For a browser `localhost` and `127.0.0.1` are two sites.
        self.provider = self.enterContextHere(oidc.Provider(self.scratch))
        root = self.scratch / "pool"
        root.mkdir()
        self.started = self.enterContextHere(oidc.OidcServer(root, self.provider))

    def go(self, window):
        """The button, and the one of the provider."""
        window.page.get_by_role("button", name="Log in with Example").click()
        window.page.get_by_role("button", name="Yes, it is me").click()

    def test_somebody_logs_in_by_the_button(self):
        window = self.window(self.started, is_in=False)
        page = window.page
        # Where somebody was is where they come back to.
        window.open("volumes/main")
        browser.playwright().expect(page.get_by_role("button", name="Log in with Example")).to_be_visible()
        self.assertEqual(window.violations(), [])
        self.go(window)
        self.shown(window.heading(), "Volume main")
        self.assertTrue(page.url.endswith("/console/volumes/main"), page.url)
        self.shown(page.get_by_role("banner"), "alice@example.org")
        self.shown(page.get_by_role("banner"), "Admin")
        browser.playwright().expect(page.get_by_role("button", name="Change password")).to_have_count(0)
        cookies = [cookie for cookie in window.context.cookies() if cookie["domain"] == "127.0.0.1"]
        self.assertEqual([cookie["name"] for cookie in cookies], [f"cairn-session-{self.started.admin_port}"])
        self.assertTrue(all(cookie["httpOnly"] and cookie["sameSite"] == "Strict" for cookie in cookies))
        kept = page.evaluate("document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage)")
        self.assertEqual(kept, "{}{}")
        page.reload()
        self.shown(window.heading(), "Volume main")
        page.get_by_role("link", name="Audit", exact=True).click()
        row = page.get_by_role("row", name="POST /api/v1/session/oidc/finish")
        self.shown(row, "alice@example.org")
        self.shown(row, "by oidc")

        page.get_by_role("button", name="Log out").click()
        browser.playwright().expect(page.get_by_role("button", name="Log in with Example")).to_be_visible()
        self.assertEqual([cookie for cookie in window.context.cookies() if cookie["domain"] == "127.0.0.1"], [])

    def test_a_viewer_and_somebody_without_a_role(self):
        self.provider.person = {"preferred_username": "bob", "groups": ["staff"]}
        window = self.window(self.started, is_in=False)
        page = window.page
        self.go(window)
        self.shown(window.heading(), "Overview")
        self.shown(page.get_by_role("banner"), "Viewer")
        page.get_by_role("button", name="Log out").click()

        self.provider.person = {"preferred_username": "eve", "groups": []}
        self.go(window)
        self.shown(page.get_by_role("alert"), "eve may not log in")
        # The code is in no address that the browser keeps.
        self.assertTrue(page.url.endswith("/console/login"), page.url)
        self.assertEqual(window.violations(), [])
        # The other ways in are on the same page, and lead to a page that there is.
        window.log_in(self.started.token_path.read_text())
        self.shown(window.heading(), "Overview")

    def test_what_the_browser_did_not_begin_lets_nobody_in(self):
        window = self.window(self.started, is_in=False)
        page = window.page
        browser.playwright().expect(page.get_by_role("button", name="Log in with Example")).to_be_visible()
        # A link from elsewhere, with somebody else's code.
        window.open("login?code=stolen&state=" + "0" * 64)
        self.shown(page.get_by_role("alert"), "this browser did not start this log-in")
        window.open("login?state=x&error=access_denied&error_description=no")
        self.shown(page.get_by_role("alert"), "this browser did not start this log-in")
        # The provider that goes away is told, not waited for.
        self.provider.server.shutdown()
        self.provider.server.server_close()
        self.started.restart()
        window.open()
        page.get_by_role("button", name="Log in with Example").click()
        self.shown(page.get_by_role("alert"), "the OpenID provider does not answer")
        self.provider.__enter__()
