"""Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

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
PATIENCE = 60_000
"""Milliseconds for which a page is waited for, also on a busy machine."""

needs_chromium = pytest.mark.skipif(
    "CI" not in os.environ and CHROMIUM is None, reason="needs Debian's package chromium"
)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser. End it with the module: Playwright has an event loop in this thread, which may disturb other tests."""
    with sync_playwright() as playwright:
        assert CHROMIUM is not None, "CI installs chromium"
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        expect.set_options(timeout=PATIENCE)
        yield browser
        browser.close()


@contextlib.contextmanager
def empty_page(browser: Browser) -> Iterator[Page]:
    """Open an empty page of a profile of its own."""
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
