"""The first view of the console in a real Chromium, and the page as a whole."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import console_pages
import pytest
from axe_playwright_python.sync_playwright import Axe
from browsers import Seen
from console_pages import APIS, END, VIEWS, ask, delta, events, opened, send, wire
from model_store import ECHO, StoreServer
from paths import ROOT
from playwright.sync_api import Browser, FilePayload, Page, expect
from recording_proxy import recording_proxy
from serving import API_KEY, Server, StartServer
from waiting import wait_until

from lmi_handlers.model_files.locate import DEFAULT_MODEL_NAME

pytestmark = console_pages.MARKS
browser, page, server = console_pages.browser, console_pages.page, console_pages.server


def test_page_complains_about_nothing_and_asks_no_other_host(server: Server, page: Page) -> None:
    seen = Seen(page)
    opened(page, server.url)
    expect(page.locator("#status")).to_have_text("ready")
    expect(page.locator("#model-name")).to_have_text("m")
    ask(page, "hello there")
    expect(page.locator("#answer")).to_contain_text("hello there")
    expect(page.locator("#parameter-temperature")).to_be_visible()  # from the OpenAPI document
    for view in VIEWS:
        page.click(f"nav a[href='#{view}']")
        expect(page.locator(f"#view-{view}")).to_be_visible()
    expect(page.locator("#settings")).to_contain_text("rolling_batch")
    assert seen.complaints == []
    assert {url for url in seen.urls if not url.startswith(server.url + "/")} == set()
    assert page.context.cookies() == []
    assert page.evaluate("Object.keys(localStorage).concat(Object.keys(sessionStorage))") == [
        "lmi-console-conversations"
    ]


def test_stop_frees_the_place_in_the_batch(server: Server, page: Page) -> None:
    opened(page, server.url)
    page.fill("#prompt", "a long story HANG@25")
    page.click("#send")
    expect(page.locator("#answer")).to_contain_text("a long")  # before it has ended: it never does
    server.wait_for_sequences(1)
    page.click("#stop")
    server.wait_for_sequences(0)
    expect(page.locator("#figures")).to_contain_text("stopped")
    expect(page.locator("#send")).to_be_enabled()
    page.click("#clear")  # or else, the next chat has the same prompt again
    ask(page, "and again")
    expect(page.locator("#answer")).to_contain_text("and again")


@pytest.mark.parametrize(("mode", "streams"), [("chat", True), ("prompt", True), ("prompt", False)])
def test_tabs_show_what_was_on_the_wire(server: Server, page: Page, mode: str, streams: bool) -> None:
    with recording_proxy(server) as proxy:
        opened(page, proxy.url)
        page.locator(f"input[name=mode][value={mode}]").check()
        page.set_checked("#stream", streams)
        page.set_checked("#probabilities", True)
        page.fill("#parameter-max_tokens", "30")
        page.fill("#prompt", 'one two é 漢 ‮ "three"')
        page.click("#send-all")
        expect(page.locator("#apis .answered")).to_have_count(len(APIS))
        recorded = {body.path: body for body in proxy.recorded}
        assert len(recorded) == len(proxy.recorded) == len(APIS)
        for api in APIS:
            page.click(f"#apis-{api}")
            route = (page.locator("#route").text_content() or "").removeprefix("POST ")
            assert wire(page, "sent").encode() == recorded[route].sent
            assert wire(page, "received").encode() == recorded[route].received
            assert json.loads(recorded[route].sent).get("stream", False) is (streams and api != "tgi")
        page.check("#hex-received")
        assert recorded[route].received[:16].hex(" ") in (page.locator("[data-wire=received]").text_content() or "")


def test_all_apis_are_shown_side_by_side(server: Server, page: Page) -> None:
    opened(page, server.url)
    page.click("#wire-tabs-all")
    expect(page.locator("#wire-panel")).to_contain_text("Nothing has been sent yet")
    page.fill("#prompt", "side by side")
    page.click("#send-all")
    expect(page.locator("#apis .answered")).to_have_count(len(APIS))
    articles = page.locator("#wire-panel article:visible")
    expect(articles).to_have_count(len(APIS))
    for article in articles.all():
        assert "side by side" in (article.locator(".wire-text").first.text_content() or "")
        assert "200 OK" in (article.locator(".head").last.text_content() or "")


def test_a_request_is_explained_before_it_is_sent(server: Server, page: Page) -> None:
    opened(page, server.url)
    page.click("#wire-tabs-explained")
    page.fill("#prompt", "explain me")
    shown = page.locator("[data-wire=explained]")
    expect(shown).to_contain_text("explain me")
    page.click("#apis-openai-chat")
    expect(shown).to_contain_text('"dialect": "openai chat"')
    page.click("#apis-lmi")
    page.fill("#prompt", "x" * 5000)
    expect(page.locator("#wire-panel .note")).to_contain_text("4095")
    expect(shown).to_be_hidden()


def test_a_chat_has_a_system_prompt_a_history_and_tools(server: Server, page: Page) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
    call = (
        '{"id": "call_7", "type": "function", "function": {"name": "weather", "arguments": "{\\"in\\": \\"Rome\\"}"}}'
    )
    with recording_proxy(server) as proxy:
        opened(page, proxy.url)
        page.click("#apis-openai-chat")
        page.click("#system-box summary")
        page.fill("#system", "Be brief.")
        page.click("#tools-box summary")
        page.fill("#prompt", "one")
        for nonsense in ("[nonsense", "{}"):
            page.fill("#tools", nonsense)
            page.click("#send")
            assert page.evaluate("document.getElementById('tools').validity.customError")
        page.fill("#tools", json.dumps(tools))
        page.fill("#tools", "")
        ask(page, "one")
        page.fill("#tools", json.dumps(tools))
        proxy.answers["/v1/chat/completions"] = (
            "text/event-stream",
            f'data: {{"choices": [{{"delta": {{"tool_calls": [{call}]}}, "finish_reason": "tool_calls"}}]}}\n\n'.encode(),
        )
        ask(page, "two")
        expect(page.locator("#answer")).to_contain_text('weather({"in": "Rome"})')
        expect(page.locator("#conversation .message")).to_have_count(4)
        del proxy.answers["/v1/chat/completions"]
        page.get_by_label("Result of weather").fill("sunny")
        send(page)
        expect(page.locator("#failure")).to_be_hidden()
    first, second, result = (json.loads(body.sent) for body in proxy.recorded)
    assert first["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"}]
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "user"]
    assert ("tools" in first, second["tools"]) == (False, tools)
    assert result["messages"][-2]["tool_calls"] == [json.loads(call)]
    assert result["messages"][-1] == {"role": "tool", "content": "sunny", "tool_call_id": "call_7"}


@pytest.mark.parametrize("api", ["openai-chat", "lmi"])
def test_each_of_several_calls_of_tools_gets_its_result(server: Server, page: Page, api: str) -> None:
    calls = [
        {"index": index, "id": f"call_{index}", "type": "function", "function": {"name": "weather", "arguments": given}}
        for index, given in enumerate(['{"in": "Rome"}', '{"in": "Oslo"}'])
    ]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    with recording_proxy(server) as proxy:
        opened(page, proxy.url)
        page.click(f"#apis-{api}")
        route = (page.locator("#route").text_content() or "").removeprefix("POST ")
        proxy.answers[route] = events(*[delta(tool_calls=[call]) for call in calls], end)
        ask(page, "Where is it warmer?")
        expect(page.locator("#prompt")).to_be_hidden()
        expect(page.locator("#results textarea").first).to_be_focused()
        page.keyboard.type("20 degrees")
        page.get_by_label('Result of weather({"in": "Oslo"})').fill("2 degrees")
        results = [
            {"role": "tool", "content": "20 degrees", "tool_call_id": "call_0"},
            {"role": "tool", "content": "2 degrees", "tool_call_id": "call_1"},
        ]
        assert json.loads(wire(page, "sent"))["messages"][2:] == results
        del proxy.answers[route]  # the server itself accepts them
        page.locator("#results textarea").first.focus()
        page.keyboard.press("Control+Enter")
        expect(page.locator("#conversation .role")).to_have_text(
            ["user", "assistant", "result of weather", "result of weather", "assistant"]
        )
        expect(page.locator("#results")).to_be_hidden()
        expect(page.locator("#prompt")).to_be_focused()
        wait_until(lambda: len(proxy.recorded) == 2)  # the page changes before it sends
        assert json.loads(proxy.recorded[-1].sent)["messages"][2:] == results


def test_the_temperature_that_suits_the_model_is_entered(server: Server, page: Page) -> None:
    opened(page, server.url)
    entered = page.locator("#parameter-temperature")
    expect(entered).to_have_value("")
    state = page.request.get(f"{server.url}/console/data/state").json()
    assert state["models"][0]["temperature"] is None
    state["models"][0] |= {"name": DEFAULT_MODEL_NAME, "temperature": 0.2}
    page.route(re.compile("/console/data/state"), lambda route: route.fulfill(json=state))
    expect(entered).to_have_value("0.2")
    page.click("#reset")
    expect(entered).to_have_value("")


PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def test_images_are_sent_where_the_model_takes_them(server: Server, page: Page) -> None:
    opened(page, server.url)
    expect(page.locator("#image-box")).to_be_hidden()  # the echo backend takes text only
    state = page.request.get(f"{server.url}/console/data/state").json()
    state["models"][0]["capabilities"]["takes_images"] = True
    page.route(re.compile("/console/data/state"), lambda route: route.fulfill(json=state))
    with recording_proxy(server) as proxy:
        proxy.answers["/v1/chat/completions"] = events(delta(content="a pixel"), END)
        opened(page, proxy.url)
        page.click("#apis-openai-chat")
        expect(page.locator("#image-box")).to_be_visible()
        files = [(f"{name}.png", PIXEL) for name in "abc"] + [("large.png", bytes(9_000_000))]
        page.locator("#image").set_input_files(
            [FilePayload(name=name, mimeType="image/png", buffer=data) for name, data in files]
        )
        expect(page.locator("#images img")).to_have_count(3)
        expect(page.locator("#image-note")).to_have_text("large.png was left out: it has more than 8 MB.")
        page.get_by_role("button", name="Remove b.png").click()
        expect(page.locator("#images img")).to_have_count(2)
        ask(page, "What is this?")
        expect(page.locator("#conversation img")).to_have_count(2)
        page.click("#apis-tgi")
        expect(page.locator("#api-note")).to_contain_text("only the last message is sent")
    (body,) = proxy.recorded
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"}}
    assert json.loads(body.sent)["messages"][0]["content"] == [{"type": "text", "text": "What is this?"}, image, image]


def test_parameters_have_their_bounds(server: Server, page: Page) -> None:
    with recording_proxy(server) as proxy:
        opened(page, proxy.url)
        page.click("#apis-openai-chat")
        page.fill("#parameter-temperature", "-1")
        page.fill("#prompt", "x")
        page.click("#send")
        assert not page.evaluate("document.getElementById('parameter-temperature').validity.valid")
        page.fill("#parameter-temperature", "0.5")
        page.fill("#parameter-stop", '["a, b", "\\n"]')
        page.click("#parameters summary")
        page.fill("#parameter-logit_bias", '{"97": 1}')
        ask(page, "x")
        (body,) = proxy.recorded
    sent = json.loads(body.sent)
    assert (sent["temperature"], sent["stop"], sent["logit_bias"]) == (0.5, ["a, b", "\n"], {"97": 1})


def test_a_token_shows_how_likely_it_was(server: Server, page: Page) -> None:
    opened(page, server.url)
    page.check("#probabilities")
    ask(page, "abcdefgh")
    page.locator("#answer [data-index='3']").hover()
    expect(page.locator("#token")).to_contain_text(re.compile(r"\d %"))
    slider = page.get_by_role("slider", name="Token")
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#answer .current")).to_have_attribute("data-index", "4")
    expect(slider).to_have_attribute("aria-valuetext", re.compile(r"^5 of \d+: \S+ [\d.]+ %, of "))
    page.keyboard.press("Home")
    expect(slider).to_have_attribute("aria-valuetext", re.compile(r"^1 of "))


HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> \u202egnp.exe \u2066 &lt;"
)


def test_what_others_wrote_is_shown_as_text(server: Server, page: Page) -> None:
    opened(page, server.url)
    for api in ("lmi", "tgi"):
        page.click(f"#apis-{api}")
        ask(page, HOSTILE)
        expect(page.locator("#answer")).to_contain_text(HOSTILE)
        page.click("#clear")
    hostile_id = "<img/src=x/onerror=alert(1)>"
    server.invoke({"inputs": "x", "parameters": {"temperature": -1}}, headers={"x-request-id": hostile_id})
    server.invoke({"inputs": "x", "model": HOSTILE[:80], "parameters": {}}, headers={"x-request-id": hostile_id})
    opened(page, server.url, "watch")
    expect(page.locator("#requests tbody tr").first).to_be_visible()
    assert (
        page.locator("#answer script, #answer img, #conversation script, #conversation img, #requests img").count() == 0
    )
    assert "owned" not in page.title()


def test_a_hostile_server_leaves_the_page_usable(server: Server, page: Page) -> None:
    """Names, causes and answers that ours would not send: markup, a megabyte without a space, a thousand models."""
    word = "x" * 1_000_000
    with recording_proxy(server) as proxy:
        state = page.request.get(f"{server.url}/console/data/state").json()
        model = state["models"][0] | {"name": HOSTILE, "url": HOSTILE}
        model["adapters"] = [{"name": name, "pinned": False} for name in (HOSTILE, "y" * 100_000)]
        broken = model | {"name": "<b>broken</b>", "state": "failed", "phase": HOSTILE + word[:10_000]}
        request: dict[str, Any] = {
            "time": 1,
            "worker": 1,
            "model": HOSTILE,
            "request_id": HOSTILE,
            "path": HOSTILE,
            "status": 500,
            "prompt_tokens": 0,
            "cached_tokens": 0,
            "generated_tokens": 0,
            "finish_reasons": [HOSTILE],
            "first_token_ms": None,
            "total_ms": 1.0,
            "phases": {},
            "error": HOSTILE + word[:10_000],
            "prompt": None,
        }
        state |= {"models": [model, broken], "requests": [request] * 100}
        state["server"] |= {"has_several_models": True, "manages": True}
        proxy.answers["/console/data/state"] = ("application/json", json.dumps(state).encode())
        record = json.dumps({"token": {"id": 1, "text": word, "log_prob": -1}})
        proxy.answers["/v1/chat/completions"] = (
            "text/event-stream",
            b"data: " + json.dumps({"choices": [{"delta": {"content": HOSTILE + word}}]}).encode() + b"\n\n",
        )
        proxy.answers["/invocations"] = ("application/jsonlines", record.encode() + b"\n")
        opened(page, proxy.url)
        page.click("#apis-openai-chat")
        ask(page, "?")
        expect(page.locator("#answer")).to_contain_text("characters that are not shown")
        expect(page.locator("#answer")).to_contain_text(HOSTILE)
        page.locator("input[name=mode][value=prompt]").check()
        page.click("#apis-lmi")
        ask(page, "?")
        assert len(wire(page, "received")) == 200_000
        for view in VIEWS:
            page.click(f"nav a[href='#{view}']")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
        page.click("nav a[href='#watch']")
        expect(page.locator("#models .failure")).to_contain_text("<script>")
        assert "\u202e" not in (page.locator("#view-watch").text_content() or "")
    images = page.locator("img:not(.brand img)").count()
    assert (page.title() != "owned", images, page.locator("b:text('broken')").count()) == (True, 0, 0)


def test_long_answers_do_not_grow_the_page_without_a_limit(server: Server, page: Page) -> None:
    """50,000 tokens with probabilities, and as many of a reasoning."""
    logprobs = {"content": [{"token": "word ", "logprob": -0.1, "top_logprobs": []}]}
    token = {"choices": [{"index": 0, "delta": {"content": "word "}, "logprobs": logprobs}]}
    with recording_proxy(server) as proxy:
        proxy.answers["/v1/chat/completions"] = events(
            *[delta(reasoning_content="hm ")] * 50_000, *[token] * 50_000, END
        )
        opened(page, proxy.url)
        page.click("#apis-openai-chat")
        page.check("#probabilities")
        ask(page, "?")
    expect(page.locator("#answer .reasoning")).to_contain_text("hm hm")
    expect(page.locator("#answer .more")).to_contain_text("characters that are not shown")
    nodes = "box => { let n = 0; for (const walk = document.createTreeWalker(box); walk.nextNode(); ) n++; return n; }"
    assert page.locator("#answer").evaluate(nodes) < 10_000


@pytest.mark.parametrize(
    ("kind", "body", "cause"),
    [
        (*events(delta(content="half")), "ended before it was complete"),
        (*events(delta(content="half"), [], None, 7), "is not an answer of this API"),
        ("text/html", b"<h1>Sign in</h1>", "is not an answer of this API"),
        ("application/json", b"{", "is not an answer of this API"),
        (
            *events(delta(content="half"), {"error": {"message": "the engine <b>failed</b>"}}),
            "the engine <b>failed</b>",
        ),
    ],
)
def test_an_answer_that_is_broken_says_so(server: Server, page: Page, kind: str, body: bytes, cause: str) -> None:
    with recording_proxy(server) as proxy:
        proxy.answers["/v1/chat/completions"] = (kind, body)
        opened(page, proxy.url)
        page.click("#apis-openai-chat")
        ask(page, "?")
        expect(page.locator("#failure")).to_contain_text(cause)
        expect(page.locator("#answer")).to_have_text("half" if b"half" in body else "")
        expect(page.locator("#prompt")).to_have_value("?")  # to be sent again
        proxy.promised = 10**9
        ask(page, "?")
        expect(page.locator("#failure")).to_contain_text("The connection broke in the middle of the answer.")


def test_keyboard_is_enough(server: Server, page: Page) -> None:
    opened(page, server.url)
    focused = "document.activeElement.id || document.activeElement.getAttribute('href')"

    def tab_to(name: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate(focused) == name:
                return
        raise AssertionError(f"Tab does not reach {name}")

    tab_to("apis-lmi")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused) == "apis-tgi"
    expect(page.locator("#route")).to_have_text("POST /generate_stream")
    tab_to("prompt")
    page.keyboard.type("typed HANG@9")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#answer")).to_contain_text("typed")
    page.keyboard.press("Escape")
    expect(page.locator("#figures")).to_contain_text("stopped")
    expect(page.locator("#prompt")).to_be_focused()
    tab_to("wire-tabs-sent")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#wire-tabs-code")).to_have_attribute("aria-selected", "true")
    expect(page.locator("[data-wire=code]")).to_contain_text("curl")
    tab_to("#watch")
    page.keyboard.press("Enter")
    expect(page.locator("#view-watch")).to_be_visible()
    tab_to("#configuration")
    page.keyboard.press("Enter")
    tab_to("filter")
    page.keyboard.type("max_model_len")
    expect(page.locator("#settings tbody tr").first).to_contain_text("4096")


COMPOSED = """(box, [key, options]) => {
  const event = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...options });
  box.dispatchEvent(event);
  return event.defaultPrevented;
}"""


def test_enter_sends_and_shift_enter_begins_a_line(server: Server, page: Page) -> None:
    """An Enter that ends what an input method composes does neither."""
    opened(page, server.url)
    page.click("#prompt")
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    expect(page.locator("#prompt")).to_have_value("one\ntwo")
    for options in ({"isComposing": True}, {"keyCode": 229}):
        assert page.locator("#prompt").evaluate(COMPOSED, ["Enter", options]) is False
    expect(page.locator("#answer")).to_be_empty()
    page.keyboard.press("Enter")
    expect(page.locator("#answer")).to_contain_text("two")


RECEIVED = """async () => {
  const { Wire } = await import("/console/wire.js");
  const { DIALECTS: [api] } = await import("/console/dialects/all.js");
  const record = { sent: {}, status: 200, statusText: "OK", headers: [], pieces: [], size: 0, started: 0, first: 1 };
  const wire = new Wire(() => ({ mode: "prompt", prompt: "", parameters: {} }));
  wire.keep(api, record);
  document.querySelector("#wire-tabs-received").click();
  const text = "é 漢 🙂 ".repeat(40_000);
  const data = new TextEncoder().encode(text);
  let [written, nodes] = [0, 0];
  new MutationObserver((changes) => {
    for (const { addedNodes } of changes) nodes += addedNodes.length;
  }).observe(document.querySelector("[data-wire=received]"), { childList: true });
  for (let at = 0; at < data.length; at += 4999) { // also in the middle of a character
    record.pieces.push(data.subarray(at, at + 4999));
    record.size += 4999;
    wire.refresh();
    written += 1;
  }
  const body = document.querySelector("[data-wire=received]");
  await new Promise((resolve) => setTimeout(resolve));
  const shown = body.textContent;
  return [text.startsWith(shown), shown.length, nodes, written];
}"""


def test_what_arrives_is_appended(server: Server, page: Page) -> None:
    """What is shown already is neither decoded nor laid out again, and there is a limit."""
    opened(page, server.url)
    begins, length, nodes, written = page.evaluate(RECEIVED)
    assert begins
    assert 100_000 < length < 200_000
    assert nodes == 1
    assert written > 90


def test_a_view_has_an_address(server: Server, page: Page) -> None:
    opened(page, server.url, "configuration")
    expect(page.locator("#settings")).to_contain_text("rolling_batch")


def test_the_skip_link_stays_in_the_view(server: Server, page: Page) -> None:
    opened(page, server.url, "watch")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    expect(page.locator("#view-watch")).to_be_visible()


def test_what_is_on_the_wire_keeps_its_place(server: Server, page: Page) -> None:
    """A reader of a body does not lose focus, selection or scrolling when more arrives."""
    opened(page, server.url)
    page.click("#wire-tabs-received")
    ask(page, "one")
    body = page.locator("[data-wire=received]").element_handle()
    ask(page, "two")
    expect(page.locator("[data-wire=received]")).to_contain_text("two")
    assert body is not None
    assert body.evaluate("element => element.isConnected")


def test_it_fits_a_phone(server: Server, page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    opened(page, server.url)
    ask(page, "w" * 300)
    for view in VIEWS:
        page.click(f"nav a[href='#{view}']")
        page.wait_for_function("id => !document.getElementById(id).hidden", arg=f"view-{view}")
        assert page.evaluate("document.documentElement.scrollWidth") == 360, view


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(server: Server, browser: Browser, scheme: Any) -> None:
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)  # axe is a script from elsewhere
    page = opened(context.new_page(), server.url)
    page.check("#probabilities")
    ask(page, "hello")
    for view in VIEWS:
        page.click(f"nav a[href='#{view}']")
        expect(page.locator(f"#view-{view} table tbody tr, #view-{view} #apis button").first).to_be_visible()
        found = Axe().run(page).response["violations"]
        assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == [], view
    context.close()


def test_plots_move(server: Server, page: Page) -> None:
    opened(page, server.url, "watch")
    page.evaluate("setInterval(() => dispatchEvent(new Event('online')), 500)")  # asks for the state more often
    plot = page.locator("#plots figure").first
    expect(plot).to_contain_text("Tokens per second")
    expect(plot.locator("path.line-0")).to_have_attribute("d", re.compile("M"))
    before = plot.locator("path.line-0").get_attribute("d")
    server.invoke({"inputs": "count these " * 40, "parameters": {"max_new_tokens": 400}})
    expect(plot.locator(".most")).to_have_text(re.compile(r"[1-9]"))  # the axis stays; the last value may be 0 again
    expect(plot.locator("path.line-0")).not_to_have_attribute("d", before or "")
    expect(page.locator("#requests tbody tr").first).to_contain_text("/invocations")


def test_a_failed_load_shows_its_cause(browser: Browser, page: Page, tmp_path: Path) -> None:
    server = StoreServer(
        tmp_path,
        {"good": ECHO, "bad": ECHO + "option.echo_fault=raise_in_load\n"},
        environ={"SERVING_LOAD_MODELS": "good"},
    )
    try:
        server.wait_ready()
        opened(page, server.url, "watch")
        page.fill("#load-url", "bad")
        page.click("#load-model button")
        bad = page.locator("article.model").filter(has=page.get_by_role("heading", name="bad"))
        expect(bad.locator(".failure")).to_contain_text("the echo backend fails to load, as requested")
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Unload model good").click()
        expect(page.get_by_role("heading", name="good")).to_have_count(0)
    finally:
        server.stop()


def test_a_key_opens_it(page: Page, start_server: StartServer) -> None:
    server = start_server("option.rolling_batch=echo\noption.console=true\n", environ={"API_KEY": API_KEY})
    opened(page, server.url)
    expect(page.locator("#notice")).to_contain_text("needs its API key")
    page.fill("#key", API_KEY)
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_have_text("ready")
    ask(page, "with a key")
    expect(page.locator("#answer")).to_contain_text("with a key")
    assert API_KEY not in wire(page, "sent") + (page.locator("#wire-panel").text_content() or "")
    for language in ("boto3", "openai", "huggingface_hub", "curl"):
        page.click("#wire-tabs-code")
        page.select_option("#language", language)
        assert "API_KEY" in wire(page, "code")
        assert API_KEY not in wire(page, "code")
    page.fill("#prompt", "from curl")
    expect(page.locator("[data-wire=code]")).to_contain_text("from curl")
    done = run("sh", "-c", wire(page, "code"), API_KEY=API_KEY)
    assert "data: [DONE]" in done or '"finish_reason"' in done
    assert API_KEY not in page.evaluate("JSON.stringify(localStorage)")
    page.fill("#key", "schlüssel")
    assert page.evaluate("document.getElementById('key').validity.customError")
    page.reload()
    expect(page.locator("#notice")).to_contain_text("needs its API key")  # it was nowhere but in the page's memory


HARD = 'it\'s "quoted" $HOME `id` \\n\nsecond line é 漢 🙂 \u202e \U000e0041 !x %s'
"""For the shell, for Python and for readers."""


def run(*command: str, stdin: str = "", **environ: str) -> str:
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=240, check=False, env={**os.environ, **environ}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("mode", "language"),
    [("chat", "boto3"), ("chat", "openai"), ("chat", "huggingface_hub"), ("prompt", "openai"), ("prompt", "boto3")],
)
def test_code_runs(server: Server, page: Page, mode: str, language: str) -> None:
    """What it prints is what the echo backend says to the same prompt."""
    opened(page, server.url)
    page.locator(f"input[name=mode][value={mode}]").check()
    page.set_checked("#stream", language != "boto3")
    page.fill("#parameter-max_tokens", "200")
    page.fill("#prompt", HARD)
    page.click("#wire-tabs-code")
    page.select_option("#language", language)
    expect(page.locator("[data-wire=code]")).to_contain_text("quoted")
    printed = run(sys.executable, "-c", wire(page, "code"))
    if language == "boto3":
        answer = json.loads(printed)
        printed = answer["choices"][0]["message"]["content"] if mode == "chat" else answer["generated_text"]
    assert HARD in printed


def test_curl_sends_what_each_api_is_sent(server: Server, page: Page) -> None:
    """Also an image that is too long for an argument of a command."""
    image = base64.b64encode(os.urandom(150_000)).decode()
    with recording_proxy(server) as proxy:
        opened(page, proxy.url)
        page.click("#wire-tabs-code")
        for api in APIS:
            page.click(f"#apis-{api}")
            page.fill("#prompt", f"{HARD} {api}")
            expect(page.locator("[data-wire=code]")).to_contain_text(api)
            code = wire(page, "code")
            assert "\u202e" not in code
            run("sh", "-c", code)
            sent = wire(page, "sent")
            page.click("#wire-tabs-code")
            assert json.loads(proxy.recorded[-1].sent) == json.loads(sent)
        page.click("#apis-openai-chat")
        page.locator("#image").set_input_files(
            {"name": "a.png", "mimeType": "image/png", "buffer": base64.b64decode(image)}
        )
        expect(page.locator("#images img")).to_have_count(1)
        page.evaluate("navigator.clipboard.writeText = text => { window.copied = text; }")
        page.get_by_role("button", name="Copy").click()
        run("sh", stdin=page.evaluate("window.copied"))
        parts = json.loads(proxy.recorded[-1].sent)["messages"][-1]["content"]
        assert parts[1] == {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}


PICTURED = """Use `sorted` for a new list, or `list.sort` to sort in place:

```python
people = [("Ada", 36), ("Grace", 45)]
people.sort(key=lambda person: person[1])
```

| | returns | sorts in place |
| --- | --- | --- |
| `sorted(items)` | a new list | no |
| `items.sort()` | `None` | **yes** |

Both are *stable*: equal items keep their order."""


def test_pictures_in_the_documentation(browser: Browser, tmp_path: Path, start_server: StartServer) -> None:
    """With LMI_PICTURES=docs/images, this test draws the pictures again."""
    draws = "LMI_PICTURES" in os.environ
    server = start_server("option.rolling_batch=echo\noption.max_model_len=4096\noption.echo_tokens_per_second=200\n")
    context = browser.new_context(viewport={"width": 1100, "height": 760}, color_scheme="light")
    page = context.new_page()
    pictures = {}
    with recording_proxy(server) as proxy:
        proxy.answers["/v1/chat/completions"] = events(
            *[delta(content=line) for line in re.split("( )", PICTURED)], END
        )
        opened(page, proxy.url)
        expect(page.locator("#parameter-temperature")).to_be_visible()
        page.click("#apis-openai-chat")
        ask(page, "How do I sort a list in Python?")
        pictures["console-try"] = page.screenshot()
    opened(page, server.url)
    expect(page.locator("#parameter-temperature")).to_be_visible()
    page.check("#probabilities")
    ask(page, "Why is the sky blue?")
    page.locator("#answer [data-index='12']").hover()
    expect(page.locator("#token")).to_be_visible()
    pictures["console-tokens"] = page.screenshot()
    page.click("nav a[href='#watch']")
    for _ in range(3 if draws else 1):
        server.invoke({"inputs": "Count. " * 20, "parameters": {"max_new_tokens": 200, "ignore_eos_token": True}})
        page.wait_for_timeout(5000 if draws else 0)
    expect(page.locator("#requests tbody tr").first).to_be_visible()
    pictures["console-watch"] = page.screenshot()
    for name, picture in pictures.items():
        (Path(os.environ.get("LMI_PICTURES", tmp_path)) / f"{name}.png").write_bytes(picture)
        kept = (ROOT / "docs" / "images" / f"{name}.png").read_bytes()
        assert kept[:24] == picture[:24]  # the signature and the size
        assert len(kept) < 150_000
    context.close()
