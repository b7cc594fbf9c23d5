"""The dashboard in a real Chromium."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Iterator

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from conftest import Page
from leasehold_client import AsyncClient, Client, Lease
from support import Server, eventually, tokens_file
from under_prefix import PrefixProxy

EVIL = '<img src=x onerror="window.hit=1">&"\''


class Waiting:
    """Someone who waits for a lock in a thread, until the test ends."""

    def __init__(self, server: Server, lock: str, label: str, host: str) -> None:
        self.client = Client(server.url, label=label, host=host)
        self.lease: Lease | None = None
        self.thread = threading.Thread(target=self._run, args=(lock,), daemon=True)
        self.thread.start()

    def _run(self, lock: str) -> None:
        try:
            self.lease = self.client.acquire(lock, wait="40s", reason="hotfix" if self.client._who.host == "web-4" else None)
        except Exception:
            pass  # the server has ended, with the test


def queue_up(server: Server, client: Client, lock: str, *who: tuple[str, str]) -> list[Waiting]:
    waiting = []
    for at, (label, host) in enumerate(who):
        waiting.append(Waiting(server, lock, label, host))
        eventually(lambda: len(client.show(lock).waiters) == at + 1)
    return waiting


def cells(page: Page, name: str) -> list[str]:
    script = "return [...([...document.querySelectorAll('.locks .row')].find(r => r.querySelector('a').textContent === arguments[0])?.cells ?? [])].map(c => c.innerText.trim())"
    return list(page.run(script, name))


def test_the_table_shows_who_holds_and_who_waits(page: Page, server: Server, client: Client) -> None:
    lease = client.acquire("deploy/checkout", reason="release 42")
    queue_up(server, client, "deploy/checkout", ("make", "web-2"), ("make", "web-4"), ("rollback.sh", "ops"))
    client.acquire("index/rebuild", shared=True)
    client.acquire("index/rebuild", shared=True)
    client.acquire("gpu", permits=4)
    client.acquire(EVIL, reason="<script>window.hit=1</script>")
    page.open()
    page.wait_names([EVIL, "deploy/checkout", "gpu", "index/rebuild"])
    name, holder, held, left, waiting, oldest, token = eventually(lambda: cells(page, "deploy/checkout"))
    assert name == "deploy/checkout\nrelease 42"
    assert holder == "make web-1"
    assert held.endswith(" s") and left.endswith(" s") and oldest.endswith(" s")
    assert (waiting, token) == ("3", str(lease.token))
    assert cells(page, "index/rebuild")[1] == "2 readers"
    assert cells(page, "gpu")[0] == "gpu\n1 of 4 permits"
    page.wait_text(".tiles", "Waiting\n3")
    # The lock with the oldest wait is looked at below, its queue in order.
    assert [line.split("\n")[0] for line in page.texts("ol.queue li")] == ["make web-2", "make web-4 hotfix", "rollback.sh ops"]
    page.wait_text(".events", "rollback.sh on ops is waiting for deploy/checkout")
    page.wait_text("#engine", "memory")
    assert page.run("return window.hit") is None
    page.screenshot("locks")


def test_the_filter_finds_locks_holders_and_hosts(page: Page, server: Server, client: Client) -> None:
    for name in ("orders/1", "orders/2", "billing"):
        client.acquire(name)
    Client(server.url, label="report.sh", host="cron-2").acquire("nightly", reason="Totals")
    page.open()
    page.wait_names(["billing", "nightly", "orders/1", "orders/2"])
    filter = page.find(".filter")
    for typed, expected in (("ORDERS/", ["orders/1", "orders/2"]), ("cron-", ["nightly"]), ("totals", ["nightly"]), ("report", ["nightly"]), ("nothing", [])):
        filter.clear()
        filter.send_keys(typed)
        page.wait_names(expected)
        assert page.text(".count") == f"{len(expected)} of 4 locks"
    page.wait_text(".empty", "No lock matches")
    filter.send_keys(Keys.ESCAPE)
    page.wait_names(["billing", "nightly", "orders/1", "orders/2"])
    assert filter.get_attribute("value") == ""


def test_each_column_sorts_both_ways(page: Page, server: Server, client: Client) -> None:
    for name, ttl in (("b", "200s"), ("a", "600s"), ("c", "400s")):
        client.acquire(name, ttl=ttl)
    queue_up(server, client, "b", ("x", "h"), ("y", "h"))
    queue_up(server, client, "c", ("z", "h"))
    page.open()
    page.wait_names(["a", "b", "c"])
    orders = {"Lock": "cba", "Held for": "bac", "Time left": "bca", "Waiting": "bca", "Oldest wait": "bca", "Token": "cab"}
    for column, order in orders.items():
        button = page.driver.find_element(By.XPATH, f"//th/button[text()='{column}']")
        button.click()
        page.wait_names(list(order))
        first = button.find_element(By.XPATH, "..").get_attribute("aria-sort")
        button.click()
        assert {first, button.find_element(By.XPATH, "..").get_attribute("aria-sort")} == {"ascending", "descending"}
        if column in ("Lock", "Held for", "Time left", "Token"):
            page.wait_names(list(order[::-1]))


def test_changes_appear_without_loading_again(page: Page, client: Client) -> None:
    page.open()
    page.wait_text(".empty", "No lock is held")
    with client.hold("deploy", ttl="9s"):
        page.wait_names(["deploy"])
        page.wait_text(".events", "make on web-1 acquired deploy")
        width = "Number(document.querySelector('.left .fill').style.transform.slice(7, -1))"
        before = page.wait(width)
        page.wait(f"{width} < arguments[0]", before)  # it counts down,
        page.wait(f"{width} >= arguments[0] - 0.1", before)  # and a renewal brings it back
    page.wait_names([])
    page.wait_text(".events", "make on web-1 released deploy")


def test_a_lock_has_a_page_with_a_link(page: Page, server: Server, client: Client) -> None:
    lease = client.acquire(EVIL, reason="release 42")
    queue_up(server, client, EVIL, ("second", "web-2"), ("third", "web-3"))
    page.open()
    page.wait_names([EVIL])
    page.find(".locks .row a").click()
    page.wait_text("h2", EVIL)
    link = page.driver.current_url
    assert link.startswith(f"{server.url}/dashboard/#/lock/%3Cimg")
    page.driver.get("about:blank")
    page.driver.get(link)
    page.wait_text("h2", EVIL)
    page.wait_text("[aria-label=Holders]", str(lease.token))
    for part in ("make", "web-1", "exclusive", "release 42"):
        assert part in page.text("[aria-label=Holders]")
    assert [line.split("\n")[0] for line in page.texts("[aria-label=Queue] li")] == ["second web-2", "third web-3"]
    page.wait_text("[aria-label=Events]", "third on web-3 is waiting")
    assert page.run("return document.title").startswith(EVIL)
    page.screenshot("lock")
    lease.release()
    page.wait_text("[aria-label=Holders]", "second")
    page.wait_text("[aria-label='Last holds']", "released")
    page.open("#/lock/nobody%20has%20this")
    page.wait_text("main", "Nobody holds this lock")
    assert page.run("return window.hit") is None


def test_a_holder_can_be_asked(page: Page, client: Client) -> None:
    client.acquire("deploy")
    page.open("#/lock/deploy")
    page.find("[data-act=ask]").click()
    submit = page.find("#ask [type=submit]")
    assert not submit.is_enabled()
    page.find("#ask-reason").send_keys("a fix must go out")
    submit.click()
    page.wait_text("#status", "Asked make on web-1 for deploy")
    page.wait_text(".notice", "a fix must go out")
    page.wait_text("[aria-label=Events]", "was asked for")
    assert page.texts("dialog[open]") == []
    assert len(client.show("deploy").holders) == 1, "asking takes nothing away"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path, "--tokens", str(tokens_file(tmp_path, {"ops": ["admin"], "viewer": ["read"], "worker": ["hold"]})))
    yield server
    server.stop()


def sign_in(page: Page, token: str) -> None:
    page.open("#/lock/deploy")
    page.wait("document.querySelector('#sign-in').open")
    page.find("#access-token").send_keys(token + Keys.ENTER)


def complaints_of_refusals(page: Page) -> None:
    """Chromium logs each answer with a status of 400 or more; nothing else may be there."""
    complaints = page.complaints()
    page.driver.get("about:blank")
    assert [line for line in complaints if "the server responded with a status of" not in line] == []


def test_a_break_needs_the_name_and_is_recorded(page: Page, guarded: Server) -> None:
    page.base = guarded.url
    lease = Client(guarded.url, token="ops", label="make", host="web-1").hold("deploy", ttl="6s")
    sign_in(page, "wrong")
    page.wait_text("#sign-in-problem", "does not know this token")
    page.find("#access-token").send_keys("ops" + Keys.ENTER)
    page.find("[data-act=break]").click()
    submit = page.find("#break [type=submit]")
    name = page.find("#break-confirm")
    assert "make on web-1" in page.text("#break")
    for typed in ("", "deplo", "deploy2", "Deploy"):
        name.clear()
        name.send_keys(typed)
        assert not submit.is_enabled(), typed
    name.send_keys(Keys.ENTER)
    assert lease.is_valid() and page.run("return document.querySelector('#break').open")
    name.clear()
    name.send_keys("deploy")
    page.find("#break-reason").send_keys("stuck since noon")
    page.screenshot("break")
    submit.click()
    page.wait_text("#status", "deploy was broken")
    assert lease.lost.wait(20)
    page.wait_text("[aria-label=Events]", "the lock was broken by ops: stuck since noon")
    page.wait_text("[aria-label='Last holds']", "broken by ops")
    assert "ops" not in page.run("return JSON.stringify([localStorage, sessionStorage, document.cookie])")
    page.screenshot("broken")
    complaints_of_refusals(page)


def test_a_break_is_refused_without_permission(page: Page, guarded: Server) -> None:
    page.base = guarded.url
    lease = Client(guarded.url, token="worker").hold("deploy")
    sign_in(page, "viewer")
    page.wait_text("[aria-label=Holders]", str(lease.token))
    button = page.find("[data-act=break]")
    assert not button.is_enabled() and not page.find("[data-act=ask]").is_enabled()
    page.wait_text(".why", "does not have the scope “break”")
    page.press("b")
    assert not page.run("return document.querySelector('#break').open")
    # A page that is tampered with gets no further: the server decides.
    page.run("document.querySelector('[data-act=break]').disabled = false")
    button.click()
    page.find("#break-confirm").send_keys("deploy" + Keys.ENTER)
    page.wait_text("#break .problem", "break")
    assert lease.is_valid()
    complaints_of_refusals(page)


def test_a_read_only_server_says_so(page: Page, tmp_path: Path) -> None:
    server = Server(tmp_path, "--read-only")
    page.base = server.url
    page.open("#/lock/deploy")
    page.wait_text(".why", "This server is read-only.")
    assert not page.find("[data-act=break]").is_enabled() and not page.find("[data-act=ask]").is_enabled()
    complaints_of_refusals(page)
    server.stop()


def test_a_token_without_reading_is_told_so(page: Page, guarded: Server) -> None:
    page.base = guarded.url
    sign_in(page, "worker")
    page.wait_text("main .notice", "read")
    page.find("nav a[data-page=locks]").click()
    page.wait_text("main .notice", "read")
    complaints_of_refusals(page)


def test_deadlocks_are_marked_in_the_graph(page: Page, server: Server) -> None:
    alpha, beta = (Client(server.url, label=label, host="n1") for label in ("alpha", "beta"))
    alpha.acquire("a")
    beta.acquire("b")
    queue_up(server, alpha, "b", ("alpha", "n1"))
    page.open("#/waits-for")
    page.wait("document.querySelectorAll('.graph .edge').length === 1")
    assert page.count(".graph .edge.cycle, .graph .node.cycle") == 0
    page.wait_text("[aria-label=Graph]", "0 deadlocks")
    queue_up(server, alpha, "a", ("beta", "n1"))
    page.wait("document.querySelectorAll('.graph .edge.cycle').length === 2")
    assert page.count(".graph .node.cycle") == 2
    sentence = page.text(".cycles")
    assert sentence.startswith("Deadlock: ")
    assert "alpha on n1 waits for b, held by beta on n1" in sentence
    assert "beta on n1 waits for a, held by alpha on n1" in sentence
    Waiting(server, "a", "gamma", "n2")
    page.wait("document.querySelectorAll('.graph .edge').length === 3")
    assert page.count(".graph .edge.cycle") == 2
    assert page.count("[aria-label='The same as a table'] tbody tr") == 3
    page.screenshot("waits-for")


def test_a_graph_of_nobody_says_so(page: Page) -> None:
    page.open("#/waits-for")
    page.wait_text("main", "Nobody waits for anybody")


def test_contention_is_a_picture_of_the_last_hour(page: Page, server: Server, client: Client) -> None:
    page.open("#/contention")
    page.wait_text("main", "Nobody has waited")
    client.acquire("hot")
    queue_up(server, client, "hot", ("make", "web-2"))
    page.wait("document.querySelectorAll('.chart rect').length > 0")
    assert page.text(".legend") == "hot"
    assert "hot" in page.text("[aria-label='Locks by waited time']")
    assert page.count(".heat rect") == 60
    assert "by minute" in page.find(".chart").accessible_name
    page.screenshot("contention")


def test_history_has_filters_that_are_in_the_link(page: Page, server: Server, client: Client) -> None:
    client.acquire("a").release()
    Client(server.url, label="report.sh", host="cron-2").acquire("b").release()
    client.acquire("b")
    client.force_release("b")
    page.open("#/history")
    page.wait("document.querySelectorAll('main tbody tr').length === 3")
    page.find("select").send_keys("broken")
    page.wait("document.querySelectorAll('main tbody tr').length === 1")
    assert "make web-1" in page.text("main tbody")
    page.wait("location.hash === '#/history?end=broken'")
    page.open("#/history?lock=b&holder=cron")
    page.wait("document.querySelectorAll('main tbody tr').length === 1")
    assert "report.sh cron-2" in page.text("main tbody") and "released" in page.text("main tbody")
    page.find("input").send_keys("x")
    page.wait_text("main", "No hold that has ended matches")
    page.screenshot("history")


def test_the_engine_page_has_the_findings_of_the_doctor(driver: webdriver.Chrome, tmp_path: Path) -> None:
    file = tmp_path / "locks.db"
    server = Server(tmp_path, url=f"sqlite:{file}")
    file.chmod(0o666)
    page = Page(driver, server.url)
    page.open("#/engine")
    page.wait_text("#verdict", "Verdict: ")
    row = page.text("tr[data-finding=permissions]")
    assert "warning" in row and "chmod" in row
    assert page.texts("tr[data-finding] .tag")[0] != "ok", "the worst is first"
    assert page.complaints() == []
    page.screenshot("engine-findings")
    server.stop()


def test_the_engine_is_told_in_plain_words(page: Page) -> None:
    page.open("#/engine")
    page.wait_text("[aria-label=Capabilities]", "first come, first served")
    assert page.text("[aria-label='In plain words']").count("\n") >= 3
    page.wait_text("[aria-label=You]", "read, hold, break")
    page.screenshot("engine")


def test_five_thousand_locks_draw_only_what_is_seen(page: Page, server: Server) -> None:
    async def fill() -> None:
        async with AsyncClient(server.url, label="worker", host="node", timeout=30) as many:
            for start in range(0, 5000, 50):
                await asyncio.gather(*(many.acquire(f"shard/{at:04}", ttl="10m") for at in range(start, start + 50)))

    asyncio.run(fill())
    page.open()
    page.wait_text(".count", "5,000 locks")
    assert page.names()[0] == "shard/0000"
    assert 5 < page.count(".locks .row") < 60
    assert page.find(".locks").get_attribute("aria-rowcount") == "5001"
    for part, expected in ((0.5, "shard/2500"), (1.0, "shard/4999"), (0.0, "shard/0000")):
        page.run("const box = document.querySelector('.locks-scroll'); box.scrollTop = box.scrollHeight * arguments[0]", part)
        page.wait("[...document.querySelectorAll('.locks .row a')].some(a => a.textContent === arguments[0])", expected)
        assert page.count(".locks .row") < 60
    page.screenshot("five-thousand")
    page.find(".filter").send_keys("4321")
    page.wait_names(["shard/4321"])
    row = page.find(".locks .row").get_attribute("aria-rowindex")
    assert row == "2"
    page.find(".filter").send_keys(Keys.ESCAPE)
    page.wait_text(".count", "5,000 locks")
    # To the last by keys: the row is drawn when the focus needs it.
    page.run("document.activeElement.blur()")
    for _ in range(30):
        page.press("j")
    page.wait("document.activeElement.textContent === 'shard/0029'")


def background(page: Page) -> int:
    """How light the page is, from 0 to 255."""
    return int(page.run("return Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])"))


def test_colours_follow_the_system_and_the_button(page: Page, client: Client) -> None:
    client.acquire("deploy")
    page.media(prefers_color_scheme="dark")
    page.open()
    page.wait_names(["deploy"])
    assert background(page) < 60
    page.screenshot("dark")
    page.media(prefers_color_scheme="light")
    assert background(page) > 200
    button = page.find("#theme")
    for label, dark in (("Colours: light", False), ("Colours: dark", True)):
        button.click()
        assert button.accessible_name == label
        assert (background(page) < 60) == dark
    page.open()
    page.wait_names(["deploy"])
    assert background(page) < 60, "the choice is kept"
    page.find("#theme").click()
    assert background(page) > 200


CONTRAST = """
const parse = (c) => { const m = c.match(/[\\d.]+/g).map(Number); return [...m.slice(0, 3), m[3] ?? 1]; };
const light = ([r, g, b]) => { const f = (v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }; return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
const poor = [];
for (const e of document.querySelectorAll("body *")) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim() !== "");
  if (!own || e.closest("svg, dialog:not([open]), noscript, .visually-hidden, .skip, button:disabled") || !e.checkVisibility()) continue;
  let under = e, back = [0, 0, 0, 0];
  while (under && (back = parse(getComputedStyle(under).backgroundColor))[3] === 0) under = under.parentElement;
  if (!under) back = [255, 255, 255, 1];
  const [a, b] = [light(parse(getComputedStyle(e).color)), light(back)];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) poor.push(`${e.tagName}.${e.className} ${e.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
}
return poor;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(page: Page, server: Server, client: Client, scheme: str) -> None:
    client.acquire("deploy", ttl="31s", reason="release 42")
    queue_up(server, client, "deploy", ("make", "web-4"))
    client.acquire("gone")
    client.force_release("gone")
    page.media(prefers_color_scheme=scheme)
    for path, sign in (("", ".row"), ("#/lock/deploy", "ol.queue li"), ("#/lock/gone", "tbody tr"), ("#/history", "tbody tr"), ("#/waits-for", ".edge"), ("#/engine", "dl"), ("plain", "tbody tr")):
        page.open(path)
        page.find(sign)
        assert page.run(CONTRAST) == [], path


def test_everything_that_can_be_used_has_a_name(page: Page, server: Server, client: Client) -> None:
    client.acquire("deploy")
    queue_up(server, client, "deploy", ("make", "web-4"))
    for path, sign in (("", ".row"), ("#/lock/deploy", "[data-act=break]"), ("#/history", "select"), ("#/waits-for", ".edge"), ("#/engine", "dl"), ("#/contention", ".chart")):
        page.open(path)
        page.find(sign)
        tree = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        usable = [node for node in tree if node.get("role", {}).get("value") in ("button", "link", "textbox", "searchbox", "combobox", "region", "dialog", "table", "image")]
        assert usable
        unnamed = [node["role"]["value"] for node in usable if not node.get("ignored") and not node.get("name", {}).get("value")]
        assert unnamed == [], path
        assert page.count("h1") == 1 and page.count("main h2") == 1
        assert page.count("nav [aria-current=page]") == 1
        assert page.run("return document.documentElement.lang") == "en"


def test_the_keyboard_is_enough(page: Page, server: Server, client: Client) -> None:
    for name in ("a", "b", "c"):
        client.acquire(name)
    page.open()
    page.wait_names(["a", "b", "c"])
    focused = "document.activeElement.textContent"
    for key, name in (("j", "a"), ("j", "b"), ("j", "c"), ("j", "c"), ("k", "b")):
        page.press(key)
        page.wait(f"{focused} === arguments[0]", name)
    assert page.texts(".row.selected a") == ["b"]
    assert page.run("return getComputedStyle(document.activeElement).outlineStyle") != "none"
    # A reading of the table does not take the focus away.
    client.acquire("aa")
    page.wait_names(["a", "aa", "b", "c"])
    assert page.run(f"return {focused}") == "b"
    page.press(Keys.ENTER)
    page.wait_text("h2", "b")
    page.press("b")
    page.wait("document.querySelector('#break').open && document.activeElement.id === 'break-confirm'")
    page.press(Keys.ESCAPE)
    page.wait("!document.querySelector('#break').open")
    page.press(Keys.ESCAPE)
    page.wait_names(["a", "aa", "b", "c"])
    page.press("/")
    page.wait("document.activeElement.className === 'filter'")
    page.press("j?1")
    page.wait("document.activeElement.value === 'j?1'")
    page.press(Keys.ESCAPE)
    page.run("document.activeElement.blur()")
    page.press("?")
    page.wait("document.querySelector('#help').open")
    page.screenshot("help")
    page.press(Keys.ESCAPE)
    for key, title in (("2", "Contention"), ("3", "Who waits for whom"), ("4", "History"), ("5", "Engine"), ("1", "Locks")):
        page.press(key)
        page.wait("document.querySelector('main h2').textContent === arguments[0] && document.activeElement === document.querySelector('main h2')", title)
    page.open()
    page.wait_names(["a", "aa", "b", "c"])
    page.press(Keys.TAB)
    assert page.run(f"return {focused}") == "Skip to the content"


def test_without_javascript_there_is_a_plain_table(page: Page, server: Server, client: Client) -> None:
    lease = client.acquire(EVIL, reason="release 42")
    client.acquire("other/1")
    queue_up(server, client, EVIL, ("second", "web-2"))
    page.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page.driver.get(f"{server.url}/")
        link = page.driver.find_element(By.CSS_SELECTOR, "noscript a")
        assert link.is_displayed()
        page.screenshot("no-javascript")
        link.click()
        body = eventually(lambda: page.driver.find_element(By.CSS_SELECTOR, "table")).text
        assert EVIL in body and "make web-1" in body and str(lease.token) in body and "release 42" in body
        page.screenshot("plain")
        page.driver.find_element(By.LINK_TEXT, EVIL).click()
        assert "second web-2" in page.driver.find_element(By.TAG_NAME, "main").text
        page.driver.back()
        field = page.driver.find_element(By.NAME, "prefix")
        field.send_keys("other/" + Keys.ENTER)
        eventually(lambda: "prefix=other" in page.driver.current_url)
        rows = page.driver.find_elements(By.CSS_SELECTOR, "tbody tr")
        assert [row.text.split(" ")[0].split("\n")[0] for row in rows] == ["other/1"]
    finally:
        page.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_it_works_under_a_path(page: Page, server: Server, client: Client) -> None:
    proxy = PrefixProxy(server.address, "/tools/locks")
    client.acquire("deploy")
    page.base = f"http://{proxy.address}/tools/locks"
    page.open()
    page.wait_names(["deploy"])
    page.find(".row a").click()
    page.find("[data-act=ask]").click()
    page.find("#ask-reason").send_keys("a test" + Keys.ENTER)
    page.wait_text("[aria-label=Events]", "a test")
    page.open("plain")
    assert "deploy" in page.text("table")
    page.driver.get("about:blank")
    proxy.close()


def test_a_server_that_comes_back_is_found(page: Page, driver: webdriver.Chrome, tmp_path: Path, client: Client) -> None:
    second = Server(tmp_path)
    page.base = second.url
    Client(second.url).acquire("before")
    page.open()
    page.wait_names(["before"])
    second.stop()
    page.wait_text("#engine", "does not answer")
    page.wait_text("main .notice", "may be out of date")
    assert page.names() == ["before"], "what is not known is not taken for free"
    third = Server(tmp_path, listen=second.address)
    Client(third.url).acquire("after")
    page.wait_names(["after"])
    page.wait("document.querySelector('#dot').className === 'dot ok'")
    assert page.texts("main .notice") == []
    third.stop()
    assert all("net::ERR" in line or "Failed to fetch" in line for line in page.complaints())
