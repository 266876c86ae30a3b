"""The console in a real Chromium: its fixtures, and how pages are opened and looked at.

A module takes the fixtures over by their names: `browser = console_pages.browser`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from browsers import chromium, empty_page, needs_chromium
from playwright.sync_api import Browser, Page, expect
from serving import Server

VIEWS = ("try", "watch", "configuration")
APIS = ("lmi", "tgi", "mindie", "openai-chat", "openai-completions", "openai-responses", "aleph-alpha")
"""Those that generate text."""
MARKS = [pytest.mark.long, pytest.mark.timeout(300), needs_chromium]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for all tests of the module."""
    with chromium() as browser:
        yield browser


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
    with empty_page(browser) as page:
        yield page


def opened(page: Page, url: str, view: str = "try") -> Page:
    page.goto(f"{url}/#{view}")
    expect(page.locator("#status")).not_to_have_text("connecting")
    return page


def ask(page: Page, text: str) -> None:
    """Send a message, and wait for the end of the answer."""
    page.fill("#prompt", text)
    send(page)


def send(page: Page) -> None:
    """Send what is written, and wait for the end of the answer."""
    page.click("#send")
    expect(page.locator("#stop")).to_be_hidden()
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")


def wire(page: Page, tab: str) -> str:
    """Return the body on the wire that a tab shows."""
    page.click(f"#wire-tabs-{tab}")
    return page.locator(f"[data-wire={tab}]").text_content() or ""


def events(*records: object) -> tuple[str, bytes]:
    """Return the content type and the body of a stream of these records."""
    return "text/event-stream", b"".join(b"data: " + json.dumps(record).encode() + b"\n\n" for record in records)


def delta(**fields: Any) -> dict[str, Any]:
    """Return a record of OpenAI's chat with a part of a message."""
    return {"choices": [{"index": 0, "delta": fields}]}


END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
