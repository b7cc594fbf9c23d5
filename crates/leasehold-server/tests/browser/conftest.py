"""One Chromium for all tests, driven by WebDriver, and a server for each test."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Iterator

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "clients" / "python" / "tests"))

from leasehold_client import Client  # noqa: E402
from support import Server, eventually  # noqa: E402

DEADLINE = 150  # seconds for one test: most take one or two, but five thousand locks take a while on a busy machine

FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,900", "--force-device-scale-factor=1",
    # It must not look for the network.
    "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
]


class Page:
    """What is seen in the browser. Reads happen in one script each, so that a page that changes does not disturb them."""

    def __init__(self, driver: webdriver.Chrome, base: str) -> None:
        self.driver = driver
        self.base = base

    def open(self, path: str = "") -> None:
        # Another page first: a change of the hash alone loads nothing.
        self.driver.get("about:blank")
        self.driver.get(f"{self.base}/{path}")

    def run(self, script: str, *args: Any) -> Any:
        return self.driver.execute_script(script, *args)

    def texts(self, css: str) -> list[str]:
        return list(self.run("return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility()).map(e => e.innerText.trim())", css))

    def text(self, css: str) -> str:
        return "\n".join(self.texts(css))

    def count(self, css: str) -> int:
        return int(self.run("return document.querySelectorAll(arguments[0]).length", css))

    def wait_text(self, css: str, expected: str) -> None:
        try:
            eventually(lambda: expected in self.text(css))
        except AssertionError:
            raise AssertionError(f"{expected!r} is not in {css}: {self.text(css)!r}") from None

    def wait(self, script: str, *args: Any) -> Any:
        try:
            return eventually(lambda: self.run(f"return {script}", *args))
        except AssertionError:
            raise AssertionError(f"never true: {script}; the page says {self.text('body')!r}") from None

    def find(self, css: str) -> WebElement:
        self.wait("document.querySelector(arguments[0]) !== null", css)
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def press(self, keys: str) -> None:
        ActionChains(self.driver).send_keys(keys).perform()

    def names(self) -> list[str]:
        """The locks in the table, as they are drawn."""
        return self.texts(".locks .row .name a")

    def wait_names(self, expected: list[str]) -> None:
        try:
            eventually(lambda: self.names() == expected)
        except AssertionError:
            raise AssertionError(f"expected {expected}, the table has {self.names()}") from None

    def media(self, **features: str) -> None:
        listed = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": listed})

    def complaints(self) -> list[str]:
        """What the browser wrote to its console: errors of scripts, and violations of the policy."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def screenshot(self, name: str) -> None:
        folder = os.environ.get("LEASEHOLD_SCREENSHOTS")
        if folder:
            self.driver.save_screenshot(str(Path(folder) / f"{name}.png"))


@pytest.fixture(scope="session")
def driver() -> Iterator[webdriver.Chrome]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = Options()
        options.binary_location = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        for flag in [*FLAGS, f"--user-data-dir={profile}"]:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(os.environ.get("CHROMEDRIVER", "/usr/bin/chromedriver")))
        driver.set_page_load_timeout(30)
        driver.set_script_timeout(20)
        yield driver
        driver.quit()


@pytest.fixture(autouse=True)
def _deadline() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"the test took longer than {DEADLINE} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(DEADLINE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.stop()


@pytest.fixture
def page(driver: webdriver.Chrome, server: Server) -> Iterator[Page]:
    page = Page(driver, server.url)
    page.media(prefers_color_scheme="light")
    driver.get_log("browser")
    yield page
    complaints = page.complaints()
    page.driver.get("about:blank")
    assert complaints == []


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url, label="make", host="web-1") as client:
        yield client
