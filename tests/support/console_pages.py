"""The console in a real Chromium: its fixtures, and how pages are opened and looked at.

A module takes the fixtures over by their names: `browser = console_pages.browser`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright
from serving import Server

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 30_000
"""Milliseconds for which the page is waited for, also on a busy machine."""

VIEWS = ("try", "watch", "configuration")
APIS = ("lmi", "tgi", "mindie", "openai-chat", "openai-completions", "aleph-alpha")

MARKS = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif("CI" not in os.environ and CHROMIUM is None, reason="needs Debian's package chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser. It ends with the module: Playwright has an event loop in this thread, which may disturb others."""
    with sync_playwright() as playwright:
        assert CHROMIUM is not None, "CI installs chromium"
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        expect.set_options(timeout=PATIENCE)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a console."""
    properties = "option.rolling_batch=echo\noption.echo_faults=true\noption.max_model_len=4096\n"
    server = Server(tmp_path_factory.mktemp("console") / "m", properties, "--local-runtime")
    yield server.wait_ready()
    server.stop()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page of a profile of its own."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    yield page
    context.close()


class Seen:
    """What a page has asked for, and what it has complained about."""

    def __init__(self, page: Page) -> None:
        self.urls: list[str] = []
        self.complaints: list[str] = []
        page.on("request", self._asked)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))

    def _asked(self, request: Request) -> None:
        self.urls.append(request.url)


def opened(page: Page, url: str, view: str = "try") -> Page:
    page.goto(f"{url}/#{view}")
    expect(page.locator("#status")).not_to_have_text("connecting")
    return page


def ask(page: Page, text: str) -> None:
    """Send a message, and wait for the end of the answer."""
    page.fill("#prompt", text)
    page.click("#send")
    expect(page.locator("#stop")).to_be_hidden()
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")


def wire(page: Page, tab: str) -> str:
    """Return the body on the wire that a tab shows."""
    page.click(f"#wire-tabs-{tab}")
    return page.locator(f"[data-wire={tab}]").text_content() or ""
