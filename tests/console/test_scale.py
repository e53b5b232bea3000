"""Long lists in the console: 10,000 volumes, 3,000 LUNs, and 252 nodes with their disks.

The server is real; of a few paths the browser gets made-up answers instead, of the types that the API's document has.
"""

import json
from urllib.parse import parse_qs, urlparse

from console.world import FOR_DOCS, PICTURES_OF_PAGES, ConsoleTest
from lib import browser

VOLUMES_COUNT, NODES_COUNT, DISKS_OF_A_NODE = 10_000, 252, 12
LUNS_COUNT = 3000
# From the answer's arrival until a key that is pressed changes what is shown.
INTERACTIVE_MS_MAX = 1000
FRAME_MS_MAX = 200
SCROLLS_COUNT = 3
# Rows that a page may have at once, with that of the names.
ROWS_MAX = 201

# Notes each frame's length from now on, and what tasks kept the page from answering.
WATCH = """() => {
  window.frames = []; let last = performance.now();
  const step = now => { window.frames.push(now - last); last = now; window.watching && requestAnimationFrame(step); };
  window.watching = true; requestAnimationFrame(step);
}"""
SCROLL = """async () => {
  const end = () => document.documentElement.scrollHeight - innerHeight;
  for (let at = 0; at < end(); at += 400) {
    scrollTo(0, at);
    await new Promise(done => requestAnimationFrame(done));
  }
  window.watching = false;
  return {longest: Math.max(...window.frames.slice(1)), frames: window.frames.length, height: document.documentElement.scrollHeight};
}"""


def made(schemas, schema, /, **given):
    """A value of a type of the document: what must be there, with `given` for some of it."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    kind = schema.get("type")
    if "enum" in schema:
        return schema["enum"][0]
    for word in ("oneOf", "anyOf", "allOf"):
        if word in schema:
            return made(schemas, schema[word][0])
    if kind == "object" or "properties" in schema:
        required = schema.get("required", [])
        value = {name: made(schemas, schema["properties"][name]) for name in required if name not in given}
        unknown = given.keys() - schema["properties"].keys()
        assert not unknown, f"the type has no {unknown}"
        return value | given
    if isinstance(kind, list):
        return None
    return {"string": schema.get("example", "x"), "integer": 1, "number": 1.0, "boolean": True, "array": []}[kind]


class Scale(ConsoleTest):
    def setUp(self):
        super().setUp()
        self.started = self.server(1)
        self.schemas = json.loads(self.started.get("/api/v1/openapi.json"))["components"]["schemas"]

    def of_type(self, type_name, /, **given):
        return made(self.schemas, {"$ref": f"#/{type_name}"}, **given)

    def answered(self, window, pattern, answer):
        """Has the browser get `answer` of the query instead of what the server says."""
        asked: list[str] = []

        def fulfil(route):
            url = urlparse(route.request.url)
            asked.append(url.query)
            body = answer({name: value for name, (value,) in parse_qs(url.query).items()})
            route.fulfill(status=200, content_type="application/json", body=json.dumps(body))

        window.context.route(pattern, fulfil)
        return asked

    def scrolled(self, window):
        """From end to end; the best of some tries counts: a page that is slow is so each time, a busy machine is not."""
        longest = []
        for _ in range(SCROLLS_COUNT):
            window.page.evaluate(WATCH)
            seen = window.page.evaluate(SCROLL)
            self.assertGreater(seen["height"], 4 * browser.HEIGHT_PX)
            self.assertGreater(seen["frames"], 10)
            longest.append(round(seen["longest"]))
            window.page.evaluate("scrollTo(0, 0)")
        self.assertLess(min(longest), FRAME_MS_MAX, longest)
        print(f"{self.id().rpartition('.')[2]}: the longest frames took {longest} ms", flush=True)

    def test_ten_thousand_volumes(self):
        names = [f"volume{number:05}" for number in range(VOLUMES_COUNT)]
        views = {name: self.of_type("VolumeView", name=name, used_bytes=1 << 30, total_bytes=1 << 40) for name in names}

        def answer(query):
            found = [name for name in names if query.get("name", "").lower() in name]
            rest = [name for name in found if name > query.get("after", "")]
            page = rest[: int(query["limit"])]
            next_after = {"next_after": page[-1]} if len(rest) > len(page) else {}
            return self.of_type("VolumeList", volumes=[views[name] for name in page], total=len(found), **next_after)

        window = self.window(self.started)
        asked = self.answered(window, "**/api/v1/volumes?*", answer)
        page = window.page
        table = page.get_by_role("table", name="Volumes")
        page.get_by_role("link", name="Volumes", exact=True).click()
        self.shown(table, "volume00199")
        self.assertLessEqual(table.get_by_role("row").count(), ROWS_MAX)
        self.assertTrue(all("limit=200" in query for query in asked), asked)
        pages = page.get_by_role("navigation", name="Pages of volumes")
        self.shown(pages, "1 to 200 of 10,000")
        self.assertEqual(window.violations(), [])
        self.scrolled(window)

        # By keyboard alone: the next page, and the one after it, without looking for the button again.
        pages.get_by_role("button", name="Next").focus()
        page.keyboard.press("Enter")
        self.shown(table, "volume00200")
        self.shown(pages, "201 to 400 of 10,000")
        page.keyboard.press("Enter")
        self.shown(pages, "401 to 600 of 10,000")
        pages.get_by_role("button", name="Previous").press("Enter")
        self.shown(pages, "201 to 400 of 10,000")

        # A name is found wherever it is.
        filtered = page.get_by_label("Filter volumes by name")
        filtered.fill("Volume0987")
        self.shown(table, "volume09870")
        browser.playwright().expect(table.get_by_role("row")).to_have_count(11)
        took = self.interactive(page, filtered, "volume00001", table)
        self.assertLess(took, INTERACTIVE_MS_MAX)
        filtered.fill("no such")
        self.shown(page.get_by_role("main"), "No volume has such a name.")
        filtered.fill("")
        self.shown(pages, "1 to 200 of 10,000")
        self.quiet(window)

    def test_three_thousand_luns(self):
        names = [f"lun{number:04}" for number in range(LUNS_COUNT)]
        views = {f"main/{name}": self.of_type("LunView", volume="main", name=name, maps=[]) for name in names}

        def answer(query):
            found = [name for name in views if query.get("name", "").lower() in name]
            rest = [name for name in found if name > query.get("after", "")]
            page = rest[: int(query["limit"])]
            next_after = {"next_after": page[-1]} if len(rest) > len(page) else {}
            return self.of_type("LunList", luns=[views[name] for name in page], total=len(found), **next_after)

        window = self.window(self.started)
        asked = self.answered(window, "**/api/v1/luns?*", answer)
        page = window.page
        page.get_by_role("link", name="LUNs", exact=True).click()
        table = page.get_by_role("table", name="LUNs")
        self.shown(table, "lun0199")
        self.assertLessEqual(table.get_by_role("row").count(), ROWS_MAX)
        self.assertTrue(all("limit=200" in query for query in asked), asked)
        pages = page.get_by_role("navigation", name="Pages of LUNs")
        pages.get_by_role("button", name="Next").press("Enter")
        self.shown(pages, "201 to 400 of 3,000")
        self.shown(table, "lun0200")
        page.get_by_label("Filter LUNs by name").fill("Lun299")
        self.shown(table, "lun2999")
        browser.playwright().expect(table.get_by_role("row")).to_have_count(11)
        self.assertEqual(window.violations(), [])
        self.quiet(window)

    def interactive(self, page, field, text, table):
        """Milliseconds from a text that is typed until the table shows what it finds."""
        begun = page.evaluate("performance.now()")
        field.fill(text)
        self.shown(table, text)
        return page.evaluate("performance.now()") - begun

    def test_two_hundred_and_fifty_two_nodes_with_their_disks(self):
        def disk(node, number):
            return self.of_type("ClusterDiskView", id=f"{node * 100 + number:032x}", label=f"/srv/node{node:03}/disk{number}", state="ok")

        nodes = [
            self.of_type("ClusterNodeView", id=f"{node:032x}", name=f"node{node:03}", internal=f"10.0.0.{node}:7000", external=f"10.1.0.{node}",
                alive=node != 7, connected=node != 7, disks=[disk(node, number) for number in range(DISKS_OF_A_NODE)])
            for node in range(1, NODES_COUNT + 1)
        ]
        away = self.of_type("WarningView", kind="node_away", subject="node node007", message="node node007 is away", next="start its server")
        cluster = self.of_type("ClusterView", cluster="big", node="node001", nodes=nodes, volumes=[], warnings=[away])
        disks = [
            self.of_type("DiskView", id=one["id"], label=one["label"], total_bytes=1 << 40, free_bytes=1 << 39)
            for node in nodes for one in node["disks"]
        ]
        live = json.loads(self.started.get("/api/v1/live")) | {"node": "node001"}
        there = {"address": "10.1.1.1/16", "home": "node001", "node": "node001"}
        elsewhere = {"address": "10.1.1.2/16", "home": "node007", "node": "node002"}
        nowhere = {"address": "10.1.1.3/16", "home": "node003", "problem": "node node003: the address hook failed"}
        addresses = [self.of_type("PoolAddressView", **one) for one in (there, elsewhere, nowhere)]
        pools = {"pools": [self.of_type("AddressPoolView", name="lan", addresses=addresses, dns_name="files.example.com")]}

        def nodes_page(**look):
            window = self.window(self.started, **look)
            self.answered(window, "**/api/v1/live", lambda _: live)
            # Without the stream the page asks.
            window.context.route("**/api/v1/live/events", lambda route: route.fulfill(status=503, body=""))
            self.answered(window, "**/api/v1/cluster", lambda _: cluster)
            self.answered(window, "**/api/v1/cluster/address-pools", lambda _: pools)
            self.answered(window, "**/api/v1/disks", lambda _: {"disks": disks})
            window.open("nodes")
            self.shown(window.page.get_by_role("table", name="Nodes of the cluster"), "node252")
            return window

        if FOR_DOCS:
            tops = [nodes_page(width=width, colours=colours).picture_of_top() for _, width, colours in browser.LOOKS]
            browser.side_by_side(self.browser, tops, PICTURES_OF_PAGES / "nodes.jpg")
        window = nodes_page()
        page = window.page
        table = page.get_by_role("table", name="Nodes of the cluster")
        window.complaints.clear()
        self.shown(table.get_by_role("row", name="node007"), "Away")
        shared = page.get_by_role("region", name="Address pool lan", exact=True)
        self.shown(shared, "2 of 3 addresses")
        self.shown(shared.get_by_role("row", name="10.1.1.2/16"), "node002")
        self.shown(shared.get_by_role("row", name="10.1.1.3/16"), "the address hook failed")
        page.get_by_role("button", name="Remove addresses from lan").click()
        self.dialog(window).get_by_label("Addresses").fill("10.1.1.3")
        self.shown(self.dialog(window), "cairn address pool remove lan 10.1.1.3")
        self.assertEqual(window.violations(), [])
        self.dialog(window).get_by_role("button", name="Cancel").click()
        browser.playwright().expect(table.get_by_role("row")).to_have_count(NODES_COUNT + 1)
        self.assertEqual(window.violations(), [])
        self.scrolled(window)
        # A disk's folder leads to its node, whose disks open by keyboard.
        filtered = page.get_by_label("Filter by name, address or disk")
        took = self.interactive(page, filtered, "node123", table)
        self.assertLess(took, INTERACTIVE_MS_MAX)
        browser.playwright().expect(table.get_by_role("row")).to_have_count(2)
        filtered.press("Tab")
        table.locator("summary").press("Enter")
        self.shown(table, "/srv/node123/disk11")

        # All disks of the pool, of which a part is shown.
        window.open("pool")
        table = page.get_by_role("table", name="Disks of the pool")
        self.shown(table, "/srv/node001/disk0")
        self.assertEqual(len(disks), NODES_COUNT * DISKS_OF_A_NODE)
        self.assertLessEqual(table.get_by_role("row").count(), ROWS_MAX)
        self.scrolled(window)
        took = self.interactive(page, page.get_by_label("Filter by folder or id"), "node252/disk11", table)
        self.assertLess(took, INTERACTIVE_MS_MAX)
        browser.playwright().expect(table.get_by_role("row")).to_have_count(2)
