"""The page at `/docs` in a real Chromium."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from axe_playwright_python.sync_playwright import Axe
from browsers import Seen, chromium, empty_page, needs_chromium
from model_store import ECHO, StoreServer
from playwright.sync_api import Browser, Locator, Page, expect
from recording_proxy import recording_proxy
from serving import API_KEY, Server, StartServer

pytestmark = [pytest.mark.long, pytest.mark.timeout(300), needs_chromium]

UPSTREAMS = {
    "color-contrast": "grey and green labels of Swagger UI's style",
    "heading-order": "tags are h3 below an h1",
    "label": "the editor of a body has no name",
    "nested-interactive": "a summary contains a button to copy its path",
    "region": "the title is outside of any landmark",
    "scrollable-region-focusable": "a long answer scrolls",
    "select-name": "the list of a body's examples has no name",
}
"""What axe-core finds in Swagger UI itself."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for all tests here."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page of a profile of its own."""
    with empty_page(browser) as page:
        yield page


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a page."""
    server = Server(tmp_path_factory.mktemp("docs") / "m", "option.rolling_batch=echo\noption.max_model_len=4096\n")
    yield server.wait_ready()
    server.stop()


def opened(page: Page, url: str) -> Page:
    page.goto(f"{url}/docs")
    expect(page.locator(".opblock").first).to_be_visible()
    return page


def operation(page: Page, method: str, path: str) -> Locator:
    """Open an operation."""
    found = page.locator(f".opblock-{method}").filter(has=page.locator(f"[data-path='{path}']"))
    found.locator(".opblock-summary-control").click()
    expect(found.locator(".execute")).to_be_visible()
    return found


def sent(operation: Locator, status: int = 200) -> str:
    """Send an operation's example, and return the answer that is shown."""
    operation.locator(".execute").click()
    shown = operation.locator(".live-responses-table")
    expect(shown.locator(".response-col_status").last).to_contain_text(str(status))
    return shown.inner_text()


def test_operations_are_sent_and_no_other_host_is_asked(server: Server, page: Page) -> None:
    seen = Seen(page)
    opened(page, server.url)
    described = requests.get(f"{server.url}/openapi.json", timeout=30).json()["paths"]
    expect(page.locator(".opblock")).to_have_count(sum(map(len, described.values())))
    assert "Deep" in sent(operation(page, "post", "/generate"))
    stream = sent(operation(page, "post", "/generate_stream"))
    assert len(re.findall(r"data: \{", stream)) > 5
    assert '"model_id"' in sent(operation(page, "get", "/info"))
    assert seen.complaints == []
    assert {url for url in seen.urls if not url.startswith(server.url + "/")} == set()
    assert page.context.cookies() == []
    assert page.evaluate("localStorage.length + sessionStorage.length") == 0


def test_a_key_is_sent_and_not_kept(page: Page, start_server: StartServer) -> None:
    server = start_server("option.rolling_batch=echo\noption.console=true\n", environ={"API_KEY": API_KEY})
    opened(page, server.url)
    generate = operation(page, "post", "/generate")
    sent(generate, 401)
    page.locator(".auth-wrapper .authorize").first.click()
    page.locator(".modal-ux input").fill(API_KEY)
    page.locator(".modal-ux button.authorize").click()
    page.keyboard.press("Escape")
    expect(page.locator(".modal-ux")).to_have_count(0)
    assert "Deep" in sent(generate)
    assert page.context.cookies() == []
    assert page.evaluate("localStorage.length + sessionStorage.length") == 0
    page.goto("about:blank")
    opened(page, server.url)
    sent(operation(page, "post", "/generate"), 401)


HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def test_what_others_wrote_is_shown_as_text(server: Server, page: Page) -> None:
    """Names of models, and texts of a document that ours would not send."""
    document: dict[str, Any] = requests.get(f"{server.url}/openapi.json", timeout=30).json()
    document["info"]["description"] = HOSTILE
    for path in ("/info", "/generate"):
        for described in document["paths"][path].values():
            described |= {"summary": HOSTILE, "description": f"{HOSTILE} [x](javascript:document.title='owned')"}
    names = [{"id": HOSTILE}, {"id": "b" * 3000}]
    with recording_proxy(server) as proxy:
        proxy.answers["/openapi.json"] = ("application/json", json.dumps(document).encode())
        proxy.answers["/v1/models"] = ("application/json", json.dumps({"data": names}).encode())
        proxy.answers["/info"] = ("application/json", json.dumps({"model_id": HOSTILE}).encode())
        opened(page, proxy.url)
        expect(page.locator("#model option").first).to_have_text(HOSTILE)
        assert "onerror" in sent(operation(page, "get", "/info"))
        page.set_viewport_size({"width": 360, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        assert page.locator("[onerror], #swagger-ui script, [href^='javascript']").count() == 0
        assert "owned" not in page.title()


def test_keyboard_is_enough(server: Server, page: Page) -> None:
    opened(page, server.url)

    def tab_to(selector: str) -> None:
        for _ in range(80):
            page.keyboard.press("Tab")
            if page.evaluate("selector => document.activeElement.matches(selector)", selector):
                return
        raise AssertionError(f"Tab does not reach {selector}")

    tab_to(".operation-filter-input")
    page.keyboard.type("vLLM")
    tab_to(".opblock-summary-control[aria-expanded=false]")
    page.keyboard.press("Enter")
    expect(page.locator(".opblock.is-open")).to_have_count(1)
    tab_to("textarea.body-param__text")
    tab_to(".execute")
    page.keyboard.press("Enter")
    expect(page.locator(".live-responses-table").first).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_and_axe(server: Server, browser: Browser, scheme: Any) -> None:
    context = browser.new_context(
        color_scheme=scheme, bypass_csp=True, viewport={"width": 360, "height": 740}
    )  # axe is a script from elsewhere
    page = opened(context.new_page(), server.url)
    sent(operation(page, "post", "/generate"))
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    found = Axe().run(page).response["violations"]
    nodes = [(each["id"], node["html"]) for each in found for node in each["nodes"]]
    assert [node for node in nodes if node[0] not in UPSTREAMS] == []
    assert Axe().run(page, "header").response["violations"] == []  # ours
    context.close()


def test_models_can_be_chosen(page: Page, tmp_path: Path) -> None:
    server = StoreServer(tmp_path, {"a": ECHO, "b": ECHO})
    try:
        server.wait_ready()
        opened(page, server.url)
        page.select_option("#model", "b")
        expect(page.locator("#document")).to_have_attribute("href", "openapi.json?model_name=b")
        expect(page.locator(".opblock").first).to_be_visible()
        predictions = operation(page, "post", "/predictions/{model}")
        expect(predictions.locator("tr[data-param-name=model] select")).to_contain_text("b")
    finally:
        server.stop()
