"""`lmi chat`: conversations in each API, its commands, and what a terminal shows. The echo backend repeats the prompt."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import Result
from facts import says
from lmi_command import lmi
from model_store import ECHO, StoreServer
from serving import API_KEY, ENVIRON, Server, StartServer, free_port
from terminal import COLOUR, Terminal
from waiting import wait_until

from lmi_handlers.core.terminal import visible
from lmi_handlers.model_files.locate import DEFAULT_MODEL_NAME
from lmi_handlers.tools.chat.conversation import Conversation, parse_setting
from lmi_handlers.tools.chat.server import Server as ChatServer
from lmi_handlers.tools.client.apis import APIS

Pipe = Callable[..., Result]
ENDPOINT_APIS = [name for name, api in APIS.items() if api.on_endpoints]


@pytest.fixture
def pipe(echo_server: Server) -> Pipe:
    """Send lines to a chat with the server, or with `target`."""

    def chat(*lines: str, options: tuple[str, ...] = (), target: tuple[str, ...] | None = None) -> Result:
        return lmi("chat", *(target or ("--url", echo_server.url)), *options, input="\n".join(lines) + "\n")

    return chat


@pytest.fixture
def aws(echo_server: Server, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Make the server's local runtime AWS."""
    for name, value in {
        "AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME": echo_server.url,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
    }.items():
        monkeypatch.setenv(name, value)
    return ("--endpoint", "any")


@pytest.mark.parametrize("api", APIS)
def test_each_api_gets_the_conversation(pipe: Pipe, api: str) -> None:
    """Those that take a prompt get what the server's chat template makes of it, so all are asked the same."""
    ended = pipe("one", "two", options=("--api", api, "--system", "Be brief."))
    assert ended.exit_code == 0, ended.stderr
    first = "system: Be brief.\nuser: one\nassistant: "
    assert ended.stdout == f"{first}\n{first}{first}\nuser: two\nassistant: \n"


@pytest.mark.parametrize("api", ENDPOINT_APIS)
def test_an_endpoint_on_aws(pipe: Pipe, aws: tuple[str, str], api: str) -> None:
    ended = pipe("one", options=("--api", api, "--system", "Be brief."), target=aws)
    assert ended.exit_code == 0, ended.stderr
    if APIS[api].takes_messages:
        assert ended.stdout == "system: Be brief.\nuser: one\nassistant: \n"
    else:  # only the model's side knows its template, so it gets a transcript, and "\nUser:" ends its answer
        assert ended.stdout in ("Be brief.\n", "Be brief.\n\nUser:\n")


@pytest.mark.parametrize("api", ["responses", "aleph-alpha", "anthropic"])
def test_apis_that_endpoints_do_not_have(pipe: Pipe, aws: tuple[str, str], api: str) -> None:
    ended = pipe("one", options=("--api", api), target=aws)
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert says(ended.stderr, f"--api {api} mindie openai tgi")


def test_commands(pipe: Pipe, tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    ended = pipe(
        "one", "/clear", "/system Be brief.", "two", f"/save {saved}", "/retry", "/system", "/clear", "//three",
        "/set max_new_tokens 4", "/retry", "/set max_new_tokens", "/clear", "four", "", "  ", "/quit", "five",
    )  # fmt: skip
    two = "system: Be brief.\nuser: two\nassistant: \n"
    three = "user: /three\nassistant: \n"
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout == f"user: one\nassistant: \n{two}{two}{three}user\nuser: four\nassistant: \n"
    assert json.loads(saved.read_bytes()) == {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "two"},
            {"role": "assistant", "content": two[:-1]},
        ]
    }


@pytest.mark.parametrize("api", APIS)
def test_parameters_reach_the_server(pipe: Pipe, api: str) -> None:
    ended = pipe("one", options=("--api", api, "--set", "max_tokens=4", "--set", "temperature=0.5"))
    assert (ended.exit_code, ended.stdout) == (0, "user\n")
    refused = pipe("one", options=("--api", api, "--set", "temperature=-1"))
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "temperature" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert "{" not in refused.stderr


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("/nothing", "/nothing not /help"),
        ("/retry", "nothing asked"),
        ("/save", "/save name file"),
        ("/save /", "/ written exists"),
        ("/save a\0b", "a\\x00b cannot written"),
        ("/set max_tokens 0", "max_tokens integer 1 0"),
        ("/set max_tokens many", "max_tokens integer 1 many"),
        ("/set stream false", "stream not parameter"),
    ],
)
def test_commands_that_cannot_be_run(pipe: Pipe, line: str, cause: str) -> None:
    ended = pipe(line, "one")
    assert ended.exit_code == 1
    [error] = ended.stderr.splitlines()
    assert says(error, f"lmi: error: {cause}")
    assert ended.stdout == "user: one\nassistant: \n"


def test_a_question_that_failed_is_asked_again_by_retry(pipe: Pipe) -> None:
    ended = pipe("one", "/set temperature -1", "two", "/set temperature", "/retry")
    assert ended.stderr.count("\n") == 1
    first = "user: one\nassistant: "
    assert ended.stdout == f"{first}\n{first}{first}\nuser: two\nassistant: \n"


def test_failures_say_the_cause(pipe: Pipe, guarded_server: Server, aws: tuple[str, str]) -> None:
    guarded = ("--url", guarded_server.url)
    assert pipe("one", target=guarded).stderr.startswith("lmi: error: 401: UNAUTHORIZED")
    assert pipe("one", target=guarded, options=("--api-key", API_KEY)).exit_code == 0
    assert "http://127.0.0.1:1: [Errno" in pipe("one", target=("--url", "http://127.0.0.1:1")).stderr
    assert "must be an http or https URL" in pipe("one", target=("--url", "localhost")).stderr
    in_stream = pipe("RAISE@3")
    assert (in_stream.exit_code, in_stream.stdout) == (1, "us\n")
    assert len(in_stream.stderr.splitlines()) == 1
    refused = pipe("REFUSE@1", target=aws)
    assert says(refused.stderr, "echo refused prompt")
    assert "{" not in refused.stderr
    assert pipe("one", target=("--url", "http://a", "--endpoint", "b")).exit_code == 2


def test_answers_cannot_drive_the_terminal(pipe: Pipe) -> None:
    ended = pipe("\x1b]0;title\x07\x1b[2J\r\x9b1m \u202eabc\u2028 \ud55c\u200d\u3000")
    assert ended.stdout == (
        "user: \\x1b]0;title\\x07\\x1b[2J\\r\\x9b1m \\u202eabc\\u2028 \ud55c\u200d\u3000\nassistant: \n"
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x00\x7f\x85", "\\x00\\x7f\\x85"),
        ("\ud800", "\\ud800"),
        ("a\u2066b\ufeff", "a\\u2066b\\ufeff"),
        ("e\u0301 \u00a0 \U0001f468\u200d\U0001f469", "e\u0301 \u00a0 \U0001f468\u200d\U0001f469"),
    ],
)
def test_what_is_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("a 1", ("a", 1)),
        ("a  two words ", ("a", "two words")),
        ('a ["x"]', ("a", ["x"])),
        ("a", ("a", None)),
        ("a null", ("a", None)),
        ("a " + "[" * 100_000, ("a", "[" * 100_000)),
    ],
)
def test_settings(text: str, parsed: tuple[str, object]) -> None:
    assert parse_setting(text, None) == parsed


def test_the_default_model_is_asked_with_a_low_temperature(start_server: StartServer) -> None:
    server = start_server(f"{ECHO}option.model_name={DEFAULT_MODEL_NAME}\n")
    for arguments, shown in (((), "temperature 0.2\n"), (("--set", "temperature=0.7"), "temperature 0.7\n")):
        terminal = Terminal("chat", "--url", server.url, *arguments)
        terminal.wait_for("/help lists the commands")
        terminal.type("/set\r")
        terminal.wait_for(shown)
        assert ("the model is small" in terminal.text) == (not arguments)
        terminal.type("/quit\r")
        assert terminal.ended() == 0


def test_a_temperature_is_suggested_for_the_default_model_only(echo_server: Server) -> None:
    def suggested(url: str, model: str) -> dict[str, Any]:
        return ChatServer(url, "openai-chat", None).suggested(Conversation(model=model))

    assert suggested(echo_server.url, DEFAULT_MODEL_NAME) == {"temperature": 0.2}
    assert suggested(echo_server.url, "another") == suggested(echo_server.url, "") == {}
    assert suggested(f"http://127.0.0.1:{free_port()}", DEFAULT_MODEL_NAME) == {}


class Templating(BaseHTTPRequestHandler):
    """A server as TGI with a model whose template and tokenizer both begin with <s>, or without its routes for tokens."""

    known = True
    prompts: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        start = {"id": 1, "text": "<s>"}
        answer: object
        if self.path == "/generate_stream":
            self.prompts.append(body["inputs"])
            answer = {"generated_text": "ok"}
        elif not self.known:
            self.send_error(404)
            return
        elif self.path == "/tokenize":
            answer = [start, start] if body["inputs"].startswith("<s>") else [start]
        else:
            answer = {"templated_text": "<s>[one]", "tokenize_response": [start]}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(("known", "prompt"), [(True, "[one]"), (False, "User: one\nAssistant:")])
def test_other_servers(pipe: Pipe, known: bool, prompt: str) -> None:
    """The first token is not there twice, and a server without TGI's routes for tokens gets a transcript."""
    prompts: list[str] = []
    handler = type("Handler", (Templating,), {"known": known, "prompts": prompts})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever)
        ended = pipe("one", target=("--url", f"http://127.0.0.1:{server.server_port}"), options=("--api", "tgi"))
        server.shutdown()
    assert (ended.exit_code, ended.stdout) == (0, "ok\n")
    assert prompts == [prompt]


class Reasoning(BaseHTTPRequestHandler):
    """A server whose model reasons, in OpenAI's chats and responses. Then its stream ends as `ending` says."""

    ending: ClassVar[bytes] = b""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        records = [
            {"choices": [{"delta": {"reasoning_content": "Let me \x1b[2J"}}]},
            {"type": "response.reasoning_text.delta", "delta": "think."},
            {"choices": [{"delta": {"content": "It is "}}]},
            {"type": "response.output_text.delta", "delta": "42."},
        ]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(
            b"".join(b"data: " + json.dumps(record).encode() + b"\n\n" for record in records) + self.ending
        )

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def reasoning() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Reasoning) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever)
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_scripts_get_no_reasoning(pipe: Pipe, reasoning: str) -> None:
    ended = pipe("why?", target=("--url", reasoning))
    assert (ended.exit_code, ended.stdout) == (0, "It is 42.\n")


@pytest.mark.parametrize("environ", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_shows_the_reasoning(reasoning: str, environ: dict[str, str]) -> None:
    """Before the answer, and without colours where there are none. Ctrl-C twice ends the chat."""
    terminal = Terminal("chat", "--url", reasoning, **environ)
    try:
        terminal.wait_for("> ")
        terminal.type("why?\n")
        terminal.wait_for("[reasoning]\nLet me \\x1b[2Jthink.\n[answer]\nIt is 42.\n> ")
        terminal.type("/save /dev/null/x\n")
        terminal.wait_for("/dev/null/x cannot be written: Not a directory\n> ")
        assert bool(COLOUR.search(terminal.raw)) is not bool(environ)
        assert terminal.interrupted() == 0
        assert says(terminal.text, "Ctrl-C Ctrl-D ends")
        assert "Traceback" not in terminal.text
    finally:
        terminal.close()


def test_bytes_that_are_no_text(reasoning: str) -> None:
    terminal = Terminal("chat", "--url", reasoning, PYTHONIOENCODING="ascii:strict")
    try:
        terminal.wait_for("> ")
        terminal.type("caf\u00e9\n")
        terminal.wait_for("This is not text in ascii.\n> ")
        terminal.type("\x04")
        assert terminal.ended() == 0
    finally:
        terminal.close()


def test_another_encoding(echo_server: Server) -> None:
    """What Windows-1252 does not have is escaped, and bytes are read as what they are there."""
    command = [sys.executable, "-m", "lmi_handlers.commands.interruptible", "lmi_handlers.commands.cli"]
    command += ["chat", "--url", echo_server.url]
    ended = subprocess.run(
        command, input="\u00e9\u20ac\n".encode("cp1252"), capture_output=True, timeout=120, check=False,
        env=ENVIRON | {"PYTHONIOENCODING": "cp1252"},
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout.decode("cp1252") == "user: \u00e9\u20ac\nassistant: \n"
    ended = subprocess.run(
        command, input="\u6f22\n".encode(), capture_output=True, timeout=120, check=False,
        env=ENVIRON | {"PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    assert "\u6f22" in ended.stdout.decode()


def test_lines_that_are_too_long(pipe: Pipe) -> None:
    refused = pipe("x" * 2_000_000)
    assert (refused.exit_code, len(refused.stderr.splitlines())) == (1, 1)
    assert refused.stderr.startswith("lmi: error: ")
    too_long = pipe("x" * (16 * 2**20 + 1))
    assert too_long.exit_code == 1
    assert says(too_long.stderr, "line longer 16777216")


def test_a_stream_that_breaks(pipe: Pipe) -> None:
    """The connection ends in the middle of an answer: the cause is one line, and the question is not answered."""

    class Breaking(Reasoning):
        def end_headers(self) -> None:
            self.send_header("Content-Length", "1000000")
            super().end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Breaking) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever)
        ended = pipe("one", target=("--url", f"http://127.0.0.1:{server.server_port}"))
        server.shutdown()
    assert (ended.exit_code, ended.stdout) == (1, "It is 42.\n")
    assert "before the end of the answer" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.long
def test_the_real_model(pipe: Pipe, model_server_once: Server) -> None:
    """A conversation of two turns with the small model, on this network and through the local runtime."""
    options = ("--set", "max_tokens=12", "--set", "temperature=0")
    for api in ("openai-chat", "lmi"):
        ended = pipe(
            "What is 2 + 2?", "And 3 + 3?", target=("--url", model_server_once.url), options=(*options, "--api", api)
        )
        assert ended.exit_code == 0, ended.stderr
        assert len(ended.stdout.split()) > 4
        assert "<|im" not in ended.stdout


@pytest.mark.long
def test_one_of_several_models(pipe: Pipe, tmp_path: Path) -> None:
    server = StoreServer(tmp_path, {"one": ECHO, "two": ECHO}, environ={"SERVING_LOAD_MODELS": "ALL"})
    try:
        server.wait_ready()
        for api in APIS:
            ended = pipe("hello", target=("--url", server.url), options=("--api", api, "--model", "two"))
            assert (ended.exit_code, ended.stdout) == (0, "user: hello\nassistant: \n"), (api, ended.stderr)
    finally:
        server.stop()


@pytest.fixture
def slow_server(start_server: StartServer) -> Server:
    return start_server("option.rolling_batch=echo\noption.echo_tokens_per_second=10\n")


@pytest.fixture
def terminal(slow_server: Server, tmp_path: Path) -> Iterator[Terminal]:
    shown = Terminal("chat", "--url", slow_server.url, "--history-file", str(tmp_path / "history"))
    yield shown
    shown.close()


def test_a_terminal(terminal: Terminal, slow_server: Server, tmp_path: Path) -> None:
    """An answer streams, Ctrl-C stops it and frees its place, and the chat goes on."""
    terminal.wait_for("> ")
    terminal.type("tell me " + "a long story " * 100 + "\n")
    terminal.wait_for("\nuser: te")
    slow_server.wait_for_sequences(1)
    terminal.type("\x03")
    slow_server.wait_for_sequences(0)
    terminal.wait_for("stopped\n")
    terminal.type("unfinished")
    terminal.wait_for("> unfinished")
    terminal.press_ctrl_c("> unfinished\nCtrl-C again, or Ctrl-D, ends the chat\n> ")
    terminal.type("/clear\n/set max_new_tokens 5\nhi\n")
    terminal.wait_for("\nuser:\n> ")
    terminal.type("/set\n")
    terminal.wait_for("max_new_tokens 5\n> ")
    terminal.type("\x1b[A\x1b[A\n")  # the arrow up, twice
    wait_until(lambda: terminal.text.count("\nuser:\n> ") == 2)
    terminal.type("\x04")
    assert terminal.ended() == 0
    assert "Traceback" not in terminal.text
    assert "\x1b[31m" not in terminal.raw
    history = tmp_path / "history"
    assert "hi\n" in history.read_text()
    assert stat.S_IMODE(os.stat(history).st_mode) == 0o600  # noqa: PTH116
