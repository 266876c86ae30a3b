"""What the tools do with answers that no server of ours gives: they say so, and lose nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from facts import says
from lmi_command import lmi

from lmi_handlers.tools.bench.load import Timing
from lmi_handlers.tools.bench.report import as_json, make_report
from lmi_handlers.tools.client import answer
from lmi_handlers.tools.client.errors import error_document

Answering = Callable[[str, bytes], str]

HALF = "\ud83d"
"""Half of a surrogate pair: servers that cut texts write it, as \\ud83d."""


@pytest.fixture
def answering() -> Iterator[Answering]:
    """Starts a server that answers every request with 200, a content type and a body. Returns its URL."""
    servers: list[ThreadingHTTPServer] = []

    def start(content_type: str, body: bytes) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments: object) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"", b"[]", b"{}", b'{"dialect": 1, "model": 2, "engine": 3}'])
def test_a_server_that_explains_nothing(answering: Answering, body: bytes) -> None:
    ended = lmi("explain", "--url", url := answering("text/html", body), '{"inputs": "x"}')
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert says(ended.stderr, f"{url} not explain")


LONG = json.dumps({"choices": [{"message": {"content": "a" * 300_000}, "text": "a" * 300_000}]}).encode()


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("tool", ["invoke", "chat", "bench", "explain"])
def test_a_document_without_an_end_is_not_read(
    answering: Answering, monkeypatch: pytest.MonkeyPatch, tool: str, content_type: str
) -> None:
    """It would take all memory."""
    monkeypatch.setattr(answer, "MAX_DOCUMENT", 1000)
    url = answering(content_type, LONG)
    arguments = {
        "invoke": ("{}",),
        "chat": (),
        "bench": ("--api", "openai", "--requests", "1", "--input-tokens", "2"),
        "explain": ("{}",),
    }
    ended = lmi(tool, "--url", url, *arguments[tool], input="one\n")
    assert says(ended.output, "answer is longer than 1000 bytes")
    assert "aaaa" not in ended.output
    assert ("--raw" in ended.output) is (tool == "invoke")


def test_a_conversation_with_half_a_character_is_saved(answering: Answering, tmp_path: Path) -> None:
    url = answering("application/json", json.dumps({"choices": [{"message": {"content": f"é{HALF}"}}]}).encode())
    saved = tmp_path / "chat.json"
    ended = lmi("chat", "--url", url, input=f"one\n/save {saved}\n")
    assert ended.exit_code == 0, ended.output
    assert json.loads(saved.read_bytes())["messages"][1]["content"] == f"é{HALF}"
    assert "é" in saved.read_text()


def test_errors_with_half_a_character_are_reported() -> None:
    """The report was lost, after whatever time the load had taken."""
    report = make_report([Timing(0.0, 1.0, error=f"500: {HALF}")], 1.0, {})
    assert json.loads(as_json(report, {"url": "x"}))["report"]["errors"] == {f"500: {HALF}": 1}
    assert error_document(400, f"é{HALF}") == '{"error":"é\\ud83d","code":400}'.encode()
