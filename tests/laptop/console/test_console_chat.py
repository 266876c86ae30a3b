"""The chat of the console in a real Chromium: Markdown that streams, and conversations that the browser keeps."""

from __future__ import annotations

import json
from typing import Any

import console_pages
import pytest
from axe_playwright_python.sync_playwright import Axe
from console_pages import APIS, END, ask, delta, events, opened, send
from playwright.sync_api import Browser, Page, Route, expect
from recording_proxy import recording_proxy
from serving import Server, StartServer

pytestmark = console_pages.MARKS
browser, page, server = console_pages.browser, console_pages.page, console_pages.server

STORED = "lmi-console-conversations"
CHAT = "/v1/chat/completions"
MARKDOWN = """# Title

A **bold** word, *another*, `code`, a [link](https://example.com/a?b=c) and ~~none~~.
The same paragraph goes on
--- here.

- one
  - within
- two

  still two

3. three
4. four

```python
for x in [1, 2]:

    print(x)  # ** not bold
```

| a | b |
| - | -: |
| 1 | `2` |

> quoted
> text

    indented code

- [x] done
- [ ] to do
***
The end"""

ROUGH = "<script>x</script>\n\n<img src=x onerror=alert(1)> **a\n\n[x](y\n``` `\n\n```\nopen *code*\n- \n1"

STREAMED = """async ([text, size]) => {
  const { Markdown, markdown } = await import("/console/markdown.js");
  const view = new Markdown();
  for (let at = 0; at < text.length; at += size) {
    view.add(text.slice(at, at + size));
    view.draw();
  }
  view.draw(true);
  const whole = markdown(text);
  const tags = [...whole.querySelectorAll("*")].map((each) => each.localName);
  return [view.element.isEqualNode(whole), whole.textContent, [...new Set(tags)]];
}"""


@pytest.mark.parametrize("size", [1, 3, 50])
@pytest.mark.parametrize("text", [MARKDOWN, MARKDOWN.replace("\n", "\r\n"), ROUGH], ids=["usual", "crlf", "rough"])
def test_markdown_is_the_same_whole_and_in_pieces(server: Server, page: Page, text: str, size: int) -> None:
    opened(page, server.url)
    same, shown, tags = page.evaluate(STREAMED, [text, size])
    assert same
    assert not {"script", "img", "b"} & set(tags)
    if text is MARKDOWN:
        assert {"h3", "strong", "em", "del", "code", "a", "ul", "ol", "table", "blockquote", "hr", "pre"} <= set(tags)
        assert "for x in [1, 2]:\n\n    print(x)  # ** not bold" in shown
    elif text is ROUGH:
        assert "<img src=x onerror=alert(1)>" in shown


GROWS = """async () => {
  const { Markdown } = await import("/console/markdown.js");
  const view = new Markdown();
  document.body.append(view.element);
  const write = (text) => { view.add(text); view.draw(); };
  write("The **first");
  const early = view.element.textContent;
  write("** block.\\n\\n```js\\nlet x = 1;\\n");
  const [first, code] = [view.element.querySelector("p"), view.element.querySelector("code")];
  let changes = 0;
  const all = { subtree: true, childList: true, characterData: true };
  new MutationObserver((found) => { changes += found.length; }).observe(first, all);
  for (let line = 0; line < 300; line++) write(`let y${line} = 2;\\n`);
  const during = [first.isConnected, code.isConnected, code.textContent.split("\\n").length];
  write("```\\n\\nText that becomes a heading\\n-");
  const heading = view.element.querySelector("h4") !== null;
  await new Promise((resolve) => setTimeout(resolve));
  return { early, during, heading, changes };
}"""


def test_only_the_last_block_changes_while_an_answer_arrives(server: Server, page: Page) -> None:
    """Marks that have only begun are not shown, and nothing turns into a heading for a moment."""
    opened(page, server.url)
    assert page.evaluate(GROWS) == {"early": "The first", "during": [True, True, 301], "heading": False, "changes": 0}


LINKS = """async (targets) => {
  const { markdown } = await import("/console/markdown.js");
  const text = targets.map((target) => `[go](${target})`).join(" ");
  return [...markdown(text).querySelectorAll("a")].map(({ href, rel, target }) => [href, rel, target]);
}"""


def test_only_pages_and_letters_are_links(server: Server, page: Page) -> None:
    opened(page, server.url)
    hostile = [
        "javascript:alert(1)",
        "JaVaScRiPt:alert(1)",
        "data:text/html,x",
        "/console/data/state",
        "//evil.example",
    ]
    hostile += ["vbscript:x", "file:///etc/passwd", "&#106;avascript:x", "java%0ascript:x", "http:x", "blob:x"]
    safe = ["https://example.com/", "mailto:a@example.com"]
    assert page.evaluate(LINKS, hostile + safe) == [[each, "noopener noreferrer", "_blank"] for each in safe]


@pytest.mark.parametrize("text", ["> " * 20_000, "- " * 20_000, "*_" * 60_000, "[" * 150_000, "a." * 60_000 + "@"])
def test_hostile_markdown_is_shown_as_text(server: Server, page: Page, text: str) -> None:
    """What is nested too deeply, and what takes a time that grows with the square of its length."""
    opened(page, server.url)
    same, shown, tags = page.evaluate(STREAMED, [text, len(text)])
    assert same
    assert (tags[-1], len(shown)) == ("p", len(text)) or shown.strip() == text.strip()


def test_code_is_copied_and_images_of_answers_are_not_loaded(server: Server, page: Page) -> None:
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    with recording_proxy(server) as proxy:
        text = "![pixel](https://evil.example/p.png)\n\n```sh\nls -l\n```\n"
        proxy.answers[CHAT] = events(*[delta(content=part) for part in text], END)
        opened(page, proxy.url)
        page.click("#apis-openai-chat")
        ask(page, "?")
        page.evaluate("navigator.clipboard.writeText = text => { window.copied = text; }")
        page.locator("#answer .code .copy").click()
        expect(page.locator("#answer .code .copy")).to_have_text("Copied")
        assert page.evaluate("window.copied") == "ls -l"
        page.click("#copy")
        expect(page.locator("#copy")).to_have_text("Copied")
        assert page.evaluate("window.copied") == text
    expect(page.locator("#answer a")).to_have_text("Image: pixel")
    assert [url for url in asked if "evil" in url] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_a_chat(server: Server, browser: Browser, scheme: Any) -> None:
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)  # axe is a script from elsewhere
    with recording_proxy(server) as proxy:
        proxy.answers[CHAT] = events(delta(reasoning_content="Hm.", content=MARKDOWN), END)
        page = opened(context.new_page(), proxy.url)
        page.click("#apis-openai-chat")
        for text in ("one", "two"):
            ask(page, text)
        for edits in (False, True):
            if edits:
                page.locator("#messages .message").first.get_by_role("button", name="Edit").click()
            found = Axe().run(page).response["violations"]
            assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == [], edits
    context.close()


def said(proxy: Any) -> list[tuple[str, str]]:
    return [(each["role"], each["content"]) for each in json.loads(proxy.recorded[-1].sent)["messages"]]


def test_a_message_is_edited_and_an_answer_is_made_again(server: Server, page: Page) -> None:
    with recording_proxy(server) as proxy:
        opened(page, proxy.url)
        expect(page.locator("#prompt")).to_be_focused()
        page.click("#apis-openai-chat")
        for number in ("one", "two"):
            proxy.answers[CHAT] = events(delta(content=f"answer {number}"), END)
            ask(page, number)
        expect(page.locator("#conversation .message")).to_have_count(4)
        proxy.answers[CHAT] = events(delta(content="another"), END)
        page.fill("#prompt", "not sent yet")
        page.click("#again")
        expect(page.locator("#answer")).to_have_text("another")
        assert said(proxy) == [("user", "one"), ("assistant", "answer one"), ("user", "two")]
        expect(page.locator("#prompt")).to_have_value("not sent yet")
        first = page.locator("#messages .message").first
        first.get_by_role("button", name="Edit").click()
        expect(page.locator("#prompt")).to_be_focused()
        expect(page.locator("#prompt")).to_have_value("one")
        page.click("#cancel")
        expect(page.locator("#messages .replaced")).to_have_count(0)
        first.get_by_role("button", name="Edit").click()
        expect(page.locator("#messages .replaced")).to_have_count(3)
        proxy.answers[CHAT] = events({"error": {"message": "no"}})
        ask(page, "three")
        expect(page.locator("#failure")).to_have_text("no")
        expect(page.locator("#prompt")).to_have_value("three")  # nothing is lost
        page.locator("#messages .message").last.get_by_role("button", name="Edit").click()
        expect(page.locator("#prompt")).to_have_value("three")  # it is there already
        proxy.answers[CHAT] = events(delta(content="answer three"), END)
        ask(page, "three")
        assert said(proxy) == [("user", "three")]
        expect(page.locator("#conversation .message")).to_have_count(2)
        expect(page.locator("#answer")).to_have_text("answer three")


DEADLINES = "option.echo_tokens_per_second=40\noption.response_deadline=1.5\noption.stream_deadline=1.5\n"


def test_an_answer_that_a_deadline_has_cut_goes_on(start_server: StartServer, page: Page) -> None:
    """In each API, streamed or not: the answer is whole, and the conversation has it."""
    server = start_server("option.rolling_batch=echo\n" + DEADLINES, "--local-runtime")
    text = "A question that takes the server longer to answer than one request may last, again and again, to its end."
    with recording_proxy(server) as proxy:
        opened(page, proxy.url)
        for api, streams in [(api, True) for api in APIS] + [("lmi", False), ("openai-responses", False)]:
            del proxy.recorded[:]
            page.click("#clear")
            page.click(f"#apis-{api}")
            page.set_checked("#stream", streams)
            page.set_checked("#probabilities", streams)
            page.fill("#parameter-max_tokens", "300")
            ask(page, text)
            expect(page.locator("#answer")).to_contain_text(text)
            expect(page.locator("#failure")).to_be_hidden()
            sent = [json.loads(body.sent) for body in proxy.recorded]
            assert len(sent) > 1, api
            assert [body.pop("continuation", None) is None for body in sent] == [True] + [False] * (len(sent) - 1)
            assert all(body == sent[0] for body in sent)
            expect(page.locator("#figures")).to_contain_text(f"{len(sent)} requests")


def test_the_rest_of_an_answer_that_comes_late_is_asked_for_again(server: Server, page: Page) -> None:
    """As `lmi chat` does. Whole calls of tools in a later part replace those of the parts before."""
    cut = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length", "continuation": "T"}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    late = (504, json.dumps({"error": {"message": "too late"}}))
    refused = (400, json.dumps({"error": {"message": "it has expired"}}))
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    parts: list[tuple[int, str]] = []
    sent: list[Any] = []

    def streamed(*records: object) -> tuple[int, str]:
        return 200, events(*records)[1].decode()

    def answer(route: Route) -> None:
        sent.append(route.request.post_data_json)
        status, body = parts.pop(0)
        kind = "text/event-stream" if body.startswith("data:") else "application/json"
        route.fulfill(status=status, content_type=kind, body=body)

    opened(page, server.url)
    page.route(f"**{CHAT}", answer)
    page.click("#apis-openai-chat")
    whole = streamed(delta(content=" two"), END, usage)
    parts += [streamed(delta(content="one"), cut, usage), late, late, late, whole]
    ask(page, "?")
    expect(page.locator("#answer")).to_have_text("one two")
    expect(page.locator("#figures")).to_contain_text("3 prompt tokens · 4 generated")
    assert [body.get("continuation") for body in sent] == [None, "T", "T", "T", "T"]
    for failed in ([late] * 4, [refused]):
        parts += [streamed(delta(content="one"), cut), *failed]
        ask(page, "again")
        expect(page.locator("#failure")).to_have_text("too late" if failed[0] is late else "it has expired")
        assert parts == []
    # A server that always has more is left.
    parts += [streamed(delta(content="one"), cut), *[streamed(cut)] * 9, streamed(delta(content="two"), cut)]
    parts += [streamed(cut)] * 10
    ask(page, "more")
    expect(page.locator("#failure")).to_contain_text("not complete")
    assert parts == []
    for token in ("T", None):
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "length", "continuation": token}
        parts.append((200, json.dumps({"choices": [choice]})))
    ask(page, "call")
    expect(page.locator("#answer")).to_have_text("weather({})")


def test_conversations_are_kept_until_they_are_deleted(server: Server, page: Page) -> None:
    opened(page, server.url)
    ask(page, "the first")
    page.click("#clear")
    expect(page.locator("#messages .message")).to_have_count(0)
    ask(page, "the second")
    page.reload()
    expect(page.locator("#kept option")).to_have_text(["New chat", "the second", "the first"])
    page.select_option("#kept", label="the first")
    expect(page.locator("#messages .user .text")).to_have_text("the first")
    expect(page.get_by_role("button", name="Regenerate")).to_be_visible()
    ask(page, "and more")
    expect(page.locator("#answer")).to_contain_text("and more")
    expect(page.locator("#conversation .message")).to_have_count(4)
    page.click("#forget")
    expect(page.locator("#kept option")).to_have_text(["New chat", "the second"])
    page.reload()
    expect(page.locator("#kept option")).to_have_text(["New chat", "the second"])
    page.select_option("#kept", label="the second")
    page.click("#forget")
    expect(page.locator("#kept")).to_be_hidden()
    assert page.evaluate("localStorage.length") == 0


def test_what_another_page_has_stored_is_checked(server: Server, page: Page) -> None:
    opened(page, server.url)
    user: dict[str, Any] = {"role": "user", "content": "<b>bold</b>"}
    bad: list[Any] = [
        None,
        {"id": "1"},
        {"id": "2", "messages": []},
        {"id": 3, "messages": [user]},
        {"id": "4", "messages": [user | {"role": "system"}]},
        {"id": "5", "messages": [user | {"images": ["https://evil.example/p.png"]}]},
        {"id": "6", "messages": [user | {"calls": [{"id": 1}]}]},
        {"id": "7", "messages": [{"role": "tool", "content": ""}]},
    ]
    for stored in ("nonsense", "7", json.dumps([*bad, {"id": "good", "messages": [user]}])):
        page.evaluate("([key, text]) => localStorage.setItem(key, text)", [STORED, stored])
        page.reload()
        expect(page.locator("#status")).to_have_text("ready")
    expect(page.locator("#kept option")).to_have_text(["New chat", "<b>bold</b>"])


BOUNDED = """async () => {
  const { conversations, keep } = await import("/console/conversations.js");
  const message = (content, images) => [{ role: "user", content, images }];
  for (let number = 0; number < 60; number++) keep(String(number), message("x".repeat(50_000)));
  const many = conversations().map(({ id }) => id);
  keep("images", message("see", ["data:image/png;base64," + "A".repeat(1_900_000)]));
  const [first] = conversations();
  keep("huge", message("x".repeat(3_000_000)));
  const [images, kept, last] = ["images" in first.messages[0], conversations().length, conversations()[0].id];
  return { newest: many[0], many: many.length, images, kept, last };
}"""


def test_there_is_room_for_a_number_of_conversations(server: Server, page: Page) -> None:
    """The oldest goes first. Images are left out if they would displace others, and what is too long is not kept."""
    opened(page, server.url)
    found = page.evaluate(BOUNDED)
    assert (found["newest"], found["images"], found["last"]) == ("59", False, "images")
    assert 35 < found["many"] <= 40
    assert found["kept"] > 30


PASTED = """(box, kind) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([new Uint8Array(9)], "a.png", { type: "image/png" }));
  const init = { bubbles: true, cancelable: true };
  const pasted = () => new ClipboardEvent("paste", { ...init, clipboardData: transfer });
  const event = kind === "paste" ? pasted() : new DragEvent("drop", { ...init, dataTransfer: transfer });
  box.dispatchEvent(event);
  return event.defaultPrevented;
}"""


def test_images_are_pasted_and_dropped(server: Server, page: Page) -> None:
    opened(page, server.url)
    prompt = page.locator("#prompt")
    assert prompt.evaluate(PASTED, "drop")  # or else, the browser opens the file
    expect(page.locator("#image-note")).to_have_text("a.png was left out: this model takes no images.")
    state = page.request.get(f"{server.url}/console/data/state").json()
    state["models"][0]["capabilities"]["takes_images"] = True
    page.route("**/console/data/state*", lambda route: route.fulfill(json=state))
    page.reload()
    expect(page.locator("#image-box")).to_be_visible()
    for number, kind in enumerate(("paste", "drop")):
        assert prompt.evaluate(PASTED, kind)
        expect(page.locator("#images img")).to_have_count(number + 1)


def test_responses_have_their_own_bodies(server: Server, page: Page) -> None:
    """Streamed and whole answers, with probabilities, tools and their results."""
    tools: list[dict[str, Any]] = [
        {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
    ]
    call = {"type": "function_call", "call_id": "call_7", "name": "weather", "arguments": "{}"}
    with recording_proxy(server) as proxy:
        opened(page, proxy.url)
        page.click("#apis-openai-responses")
        page.click("#system-box summary")
        page.fill("#system", "Be brief.")
        page.check("#probabilities")
        ask(page, "one")
        expect(page.locator("#answer")).to_contain_text("one")
        expect(page.locator("#answer [data-index]").first).to_be_attached()
        expect(page.locator("#figures")).to_contain_text("completed")
        page.uncheck("#stream")
        page.uncheck("#probabilities")
        ask(page, "two")
        expect(page.locator("#answer")).to_contain_text("two")
        page.click("#tools-box summary")
        page.fill("#tools", json.dumps(tools))
        done = {"type": "response.output_item.done", "output_index": 0, "item": call}
        proxy.answers["/v1/responses"] = events(
            done, {"type": "response.completed", "response": {"status": "completed"}}
        )
        ask(page, "three")
        del proxy.answers["/v1/responses"]
        page.get_by_label("Result of weather({})").fill("sunny")
        send(page)
        expect(page.locator("#conversation .message")).to_have_count(8)
    bodies = [json.loads(each.sent) for each in proxy.recorded]
    assert bodies[0]["instructions"] == "Be brief."
    assert bodies[0]["input"] == [{"role": "user", "content": "one"}]
    assert [each.get("stream", False) for each in bodies] == [True, False, False, False]
    assert bodies[2]["tools"] == [{"type": "function", **tools[0]["function"]}]
    assert bodies[3]["input"][-2:] == [call, {"type": "function_call_output", "call_id": "call_7", "output": "sunny"}]


def test_embeddings_show_how_similar_texts_are(server: Server, page: Page) -> None:
    vectors = [[3.0, 4.0], [6.0, 8.0], [-4.0, 3.0]]
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    with recording_proxy(server) as proxy:
        opened(page, proxy.url)
        ask(page, "a chat")
        page.click("#apis-embeddings")
        expect(page.locator("#live")).to_be_hidden()
        expect(page.locator("#api-note")).to_contain_text("option.task=text-embedding")  # this one generates text
        page.fill("#prompt", "one\n\ntwo\nthree")
        page.click("#send")
        expect(page.locator("#failure")).to_contain_text("embeddings need a server with option.task=text-embedding")
        usage = {"prompt_tokens": 9, "total_tokens": 9}
        body = json.dumps({"object": "list", "data": data, "model": "m", "usage": usage}).encode()
        proxy.answers["/v1/embeddings"] = ("application/json", body)
        page.click("#send")
        expect(page.locator("#answer")).to_contain_text("3 embeddings of 2 numbers")
        first, second = page.locator("#answer table").all()
        assert first.locator("tbody tr").first.locator("td").all_text_contents() == ["1", "5.000", "3.0000, 4.0000"]
        rows = [row.locator("td").all_text_contents()[1:] for row in second.locator("tbody tr").all()]
        assert rows == [["1.000", "1.000", "0.000"], ["1.000", "1.000", "0.000"], ["0.000", "0.000", "1.000"]]
        assert json.loads(proxy.recorded[-1].sent) == {"model": "m", "input": ["one", "two", "three"]}
        page.click("#wire-tabs-code")
        for language, call in (
            ("openai", "embeddings.create("),
            ("huggingface_hub", "feature_extraction("),
            ("boto3", '"inputs"'),
        ):
            page.select_option("#language", language)
            expect(page.locator("[data-wire=code]")).to_contain_text(call)
        page.click("#apis-openai-chat")
        expect(page.locator("#conversation .message:visible")).to_have_count(2)  # what was embedded is no part of it
        state = page.request.get(f"{server.url}/console/data/state").json()
        state["models"][0]["generates"] = False
        page.route("**/console/data/state*", lambda route: route.fulfill(json=state))
        page.reload()
        expect(page.locator("#apis-embeddings")).to_have_attribute("aria-selected", "true")
