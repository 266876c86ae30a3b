"""The second view of the console in a real Chromium, and how the page follows the server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import console_pages
import pytest
from console_pages import ask, opened
from model_store import ECHO, StoreServer
from playwright.sync_api import Page, Route, expect
from serving import Server

pytestmark = console_pages.MARKS
browser, page, server = console_pages.browser, console_pages.page, console_pages.server

STATE = re.compile("/console/data/state")
POLL = "dispatchEvent(new Event('online'))"
"""Makes the page ask for the state at once."""


@pytest.mark.parametrize(
    ("status", "kind", "body", "notice"),
    [
        (200, "text/html", "<h1>Sign in</h1>", "something in front of it"),
        (200, "application/json", '{"models": 3}', "something in front of it"),
        (429, "application/json", '{"message": "slow <b>down</b>"}', "slow <b>down</b>"),
        (502, "text/html", "<h1>Bad gateway</h1>", "status 502"),
        (403, "application/json", '{"error": {"message": "not you"}}', "not you"),
        (401, "application/json", "{}", "needs its API key"),
        (None, "", "", "does not answer"),
    ],
)
def test_the_page_recovers_whatever_answers(
    server: Server, page: Page, status: int | None, kind: str, body: str, notice: str
) -> None:
    def answer(route: Route) -> None:
        if status is None:
            route.abort()
        else:
            route.fulfill(status=status, content_type=kind, body=body)

    page.on("pageerror", lambda error: pytest.fail(str(error)))
    opened(page, server.url)
    page.route(STATE, answer)
    page.evaluate(POLL)
    expect(page.locator("#notice")).to_contain_text(notice)
    page.unroute(STATE)
    page.evaluate(POLL)
    expect(page.locator("#status")).to_have_text("ready")
    expect(page.locator("#notice")).to_be_hidden()


def test_two_engines_and_a_restart(page: Page, tmp_path: Path) -> None:
    """Two pages, one of which has the chat. What an ended server said of its requests is not that of the next."""
    properties = ECHO + "minWorkers=2\nmaxWorkers=2\noption.echo_tokens_per_second=200\n"
    server = Server(tmp_path / "m", properties)
    other = page.context.new_page()
    try:
        opened(page, server.wait_ready().url, "watch")
        expect(page.locator("#models .engines li")).to_have_text(["Engine 0 ready", "Engine 1 ready"])
        opened(other, server.url)
        ask(other, "a few words of some length, to be repeated")
        other.goto(f"{server.url}/#configuration")
        expect(other.locator("#settings")).to_contain_text("minWorkers")
        page.evaluate(POLL)
        expect(page.locator("#requests tbody tr")).to_have_count(1)
        for plot in page.locator("#plots figure").all():  # all of them have something to plot
            if "cache" not in (plot.text_content() or ""):
                expect(plot.locator(".key-0 b")).to_have_text(re.compile(r"\d"))
        server.stop()
        page.evaluate(POLL)
        expect(page.locator("#notice")).to_contain_text("does not answer")
        server = Server(tmp_path / "m", ECHO, port=server.port)
        server.wait_ready()
        page.evaluate(POLL)
        expect(page.locator("#status")).to_have_text("ready")
        expect(page.locator("#requests tbody tr")).to_have_count(0)
        expect(page.locator("#models .engines")).to_have_count(0)
        other.evaluate(POLL)
        expect(other.locator("#settings")).not_to_contain_text("minWorkers")
        expect(other.locator("#settings")).to_contain_text("rolling_batch")
    finally:
        server.stop()
        other.close()


def test_a_load_shows_its_phase(page: Page, loading_server: Server) -> None:
    opened(page, loading_server.url, "watch")
    expect(page.locator("#models .phase")).to_have_text(re.compile(r"\w+.* · [\d.]+ (m?s|min)"))
    expect(page.locator("#models progress")).to_be_visible()
    expect(page.locator("#models .phases")).to_contain_text("starting")


def test_many_models_each_show_their_own_load(page: Page, tmp_path: Path) -> None:
    """A model that is loading shows its own phases, not those of the one that is chosen."""
    slow = ECHO + "option.echo_fault=slow_load\noption.echo_load_seconds=600\nmodel_loading_timeout=900\n"
    server = StoreServer(tmp_path, {"good": ECHO, "slow": slow}, environ={"SERVING_LOAD_MODELS": "good"})
    try:
        server.wait_ready()
        server.generate("good")
        opened(page, server.url, "watch")
        page.fill("#load-url", "slow")
        page.click("#load-model button")
        views = page.locator("article.model")
        loading = views.filter(has=page.get_by_role("heading", name="slow"))
        expect(loading.locator("progress")).to_be_visible()
        assert "warming up" not in (loading.locator(".phases").text_content() or "")
        expect(views.filter(has=page.get_by_role("heading", name="good"))).to_contain_text("0 running, 0 waiting")
        page.select_option("#model-select", "slow")
        page.select_option("#model-select", "good")
        tokens = page.locator("#plots figure").first
        expect(tokens.locator(".key-0 b")).to_have_text("0.0")
        line = tokens.locator("path.line-0").get_attribute("d") or ""
        assert set(re.findall(r" ([\d.]+)", line)) == {"83.0"}  # what was generated before is no peak
        for path in ("/info", "/openapi.json"):  # a page asks for the document again while a model is not there
            assert page.request.get(f"{server.url}{path}?model_name=missing").status == 404
        page.evaluate(POLL)
        expect(page.locator("#requests tbody")).to_contain_text("/info")
        expect(page.locator("#requests tbody")).not_to_contain_text("/openapi.json")
    finally:
        server.stop()


def test_adapters_are_listed_with_their_state(server: Server, page: Page) -> None:
    state = page.request.get(f"{server.url}/console/data/state").json()
    state["models"][0] |= {"adapters": [{"name": "legal", "pinned": True}, {"name": "short", "pinned": False}]}
    page.route(STATE, lambda route: route.fulfill(json=state))
    opened(page, server.url, "watch")
    expect(page.locator("#models .adapters li")).to_have_text(["legal pinned", "short loaded"])


HOURS = """async ([state, polls]) => {
  const { openWatch, showState } = await import("/console/watch.js");
  openWatch(true);
  const at = (time) => ({ ...state, time, requests: state.requests.map((each, index) => ({ ...each, time: time - index })) });
  for (let poll = 0; poll < polls; poll++) showState(at(state.time + 5 * poll), state.models[0], false);
  const path = () => document.querySelector("#plots .line-0").getAttribute("d").split("L").length;
  const [hours, rows] = [path(), document.querySelectorAll("#requests tbody tr").length];
  for (let poll = 0; poll < 3; poll++) showState(at(state.time - 3600 + 5 * poll), state.models[0], false);
  return [hours, rows, path(), document.querySelectorAll("#view-watch *").length];
}"""


def test_hours_of_polling_and_a_clock_that_is_set_back(server: Server, page: Page) -> None:
    """The plots keep five minutes and the table its rows. With an earlier clock, the plots begin again."""
    server.invoke({"inputs": "x"})
    opened(page, server.url, "watch")
    expect(page.locator("#requests tbody tr").first).to_be_visible()
    state: Any = page.request.get(f"{server.url}/console/data/state").json()
    state["requests"] = [state["requests"][0] | {"request_id": str(number)} for number in range(100)]
    points, rows, after, elements = page.evaluate(HOURS, [state, 150])
    assert points < 80
    assert (rows, after) == (100, 2)
    assert elements < 4000


def test_a_client_that_has_left_is_no_failure(server: Server, page: Page) -> None:
    state: Any = page.request.get(f"{server.url}/console/data/state").json()
    left = "ClientDisconnected: the client closed the connection"
    outcomes = {
        "whole": (499, left),
        "stream": (200, left),
        "refused": (400, "InvalidRequest: no"),
        "fine": (200, None),
    }
    state["requests"] = [
        {
            "time": 1.0,
            "worker": 1,
            "model": "m",
            "request_id": name,
            "path": "/",
            "status": status,
            "prompt_tokens": 1,
            "cached_tokens": 0,
            "generated_tokens": 0,
            "finish_reasons": [],
            "first_token_ms": None,
            "total_ms": 1.0,
            "phases": {},
            "error": error,
            "prompt": None,
        }
        for name, (status, error) in outcomes.items()
    ]
    page.route(STATE, lambda route: route.fulfill(json=state))
    opened(page, server.url, "watch")
    pills = {
        name: page.locator("#requests tr").filter(has_text=name).locator(".pill").get_attribute("class")
        for name in outcomes
    }
    assert pills == {"whole": "pill idle", "stream": "pill idle", "refused": "pill bad", "fine": "pill good"}
    expect(page.locator("#requests tr.failed")).to_have_count(1)


def test_a_row_of_a_request_stays(server: Server, page: Page) -> None:
    """Whoever reads the table does not lose the place when there is a new request."""
    server.invoke({"inputs": "one"}, headers={"x-request-id": "stays"})
    opened(page, server.url, "watch")
    row = page.locator("#requests tr").filter(has_text="stays").element_handle()
    server.invoke({"inputs": "two"}, headers={"x-request-id": "follows"})
    page.evaluate(POLL)
    expect(page.locator("#requests tbody tr").first).to_contain_text("follows")
    assert row is not None
    assert row.evaluate("element => element.isConnected")
