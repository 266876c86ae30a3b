"""Which options start together, and how the invoke routes stream: `lmi check` and the server agree on both."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from facts import says
from serving import Server, StartServer

from lmi_handlers.commands.cli import main

EVENTS, LINES = "text/event-stream", "application/jsonlines"
VLLM_HANDLER = "djl_python.lmi_vllm.vllm_async_service"

ROLLING = {
    "auto": "option.backend=echo",
    "echo": "option.rolling_batch=echo",
    "disable": "option.rolling_batch=disable\noption.backend=echo",
}
FORMATTERS = (None, "json", "jsonlines", "sse", "morse")


def written(rolling: str, formatter: str | None, *, compat: bool) -> str:
    lines = [ROLLING[rolling], "option.max_model_len=4096", *(["option.tgi_compat=true"] if compat else [])]
    return "\n".join([*lines, *([] if formatter is None else [f"option.output_formatter={formatter}"])]) + "\n"


def refusal(formatter: str | None, *, compat: bool, rolling: str) -> str:
    """The beginning of the error, or "" if the options start together."""
    if compat and formatter in ("jsonlines", "morse") and (formatter == "jsonlines" or rolling == "disable"):
        return f"option.output_formatter={formatter} conflicts with option.tgi_compat=true"
    if formatter == "morse" and rolling != "disable":  # a dynamic batch does not read the option
        return "option.output_formatter has value 'morse'"
    return ""


def checked(directory: Path, properties: str) -> tuple[int, str, str]:
    directory.mkdir()
    (directory / "serving.properties").write_text(properties)
    result = CliRunner().invoke(main, ["check", "--model-dir", str(directory)], env={"LOG_FORMAT": "text"})
    return result.exit_code, result.stdout, result.stderr


def error_of(text: str) -> str:
    found = re.findall(r"lmi: error: (.*)", text)
    return found[0] if found else ""


SERVED = (
    ("echo", "json", True),
    ("auto", "jsonlines", True),
    ("echo", "sse", True),
    ("disable", "morse", False),
    ("disable", "sse", True),
)
"""Each kind of answer, and a refusal. The server reads its configuration with the code of `lmi check`."""


@pytest.mark.parametrize(("rolling", "formatter", "compat"), [*itertools.product(ROLLING, FORMATTERS, (False, True))])
def test_what_starts_together(
    tmp_path: Path, start_server: StartServer, rolling: str, formatter: str | None, compat: bool
) -> None:
    properties, expected = (
        written(rolling, formatter, compat=compat),
        refusal(formatter, compat=compat, rolling=rolling),
    )
    status, _, stderr = checked(tmp_path / "checked", properties)
    assert (status, error_of(stderr)[: len(expected)]) == (1 if expected else 0, expected)
    if (rolling, formatter, compat) not in SERVED:
        return
    server = start_server(properties, ready=not expected)
    if expected:
        assert server.process.wait(60) != 0
        assert error_of(server.log) == error_of(stderr)
        return
    answer = server.invoke({"inputs": "ab", "parameters": {"max_new_tokens": 2}})
    assert answer.status_code == 200
    if compat:  # TGI's array or events
        assert answer.headers["Content-Type"] == (EVENTS if formatter == "sse" else "application/json")
        text = answer.text.removeprefix("data:") if formatter == "sse" else answer.text
        assert text.lstrip().startswith('{"index":1' if formatter == "sse" else '[{"generated_text":"ab')
        if rolling != "disable":
            check_that_the_formatter_decides(server, EVENTS if formatter == "sse" else "application/json")


def check_that_the_formatter_decides(server: Server, content_type: str) -> None:
    """Not the body, as in LMI: `json` never streams, and `sse` always does. `/` stays as it is in TGI."""
    for stream, root in ((False, "application/json"), (True, EVENTS)):
        body = {"inputs": "ab", "stream": stream, "parameters": {"max_new_tokens": 2}}
        assert server.invoke(body).headers["Content-Type"] == content_type
        assert server.invoke(body, path="/").headers["Content-Type"] == root


# Chats

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "stream": True}
PROMPT = {"prompt": "hi", "max_tokens": 2, "stream": True}


def streamed(server: Server, body: object, **headers: str) -> tuple[str, str]:
    """The content type, and the body without what differs from answer to answer."""
    answer = server.invoke(body, headers=headers)
    assert answer.status_code == 200, answer.text
    text = re.sub(r'"(created)":\d+', r'"\1":0', answer.content.decode())
    text = text.replace(answer.headers["x-request-id"], "R").replace(f'"model":"{server.name}"', '"model":"m0"')
    return answer.headers["Content-Type"], re.sub(r'"lmi-handlers-[^"]*"', '"F"', text)


def chunk(choice: str) -> str:
    return (
        '{"id":"chatcmpl-R","object":"chat.completion.chunk","created":0,"model":"m0","system_fingerprint":"F",'
        f'"choices":[{choice}],"usage":null}}'
    )


CHUNKS = [
    chunk('{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'),
    chunk('{"index":0,"delta":{"content":"u"},"logprobs":null,"finish_reason":null}'),
    chunk('{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"length"}'),
]
AS_LINES = "".join(f"{item}\n" for item in CHUNKS)
AS_EVENTS = "".join(f"data: {item}\n\n" for item in CHUNKS) + "data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("options", "default"),
    [
        pytest.param("", LINES, id="rolling batch"),
        pytest.param("option.output_formatter=json", LINES, id="json"),
        pytest.param("option.output_formatter=sse", EVENTS, id="sse"),
        pytest.param("option.tgi_compat=true", EVENTS, id="tgi_compat"),
    ],
)
def test_streamed_chat(tmp_path: Path, request: pytest.FixtureRequest, options: str, default: str) -> None:
    properties = f"option.rolling_batch=echo\noption.max_model_len=4096\n{options}\n"
    fixture = {"": "echo_server", "option.tgi_compat=true": "compat_server"}.get(options, "start_server")
    found = request.getfixturevalue(fixture)
    server: Server = found if isinstance(found, Server) else found(properties)
    golden = {LINES: (LINES, AS_LINES), EVENTS: (EVENTS, AS_EVENTS)}
    for accept, expected in (
        (None, default),
        ("*/*", default),
        ("application/json", default),
        (LINES, LINES),
        (EVENTS, EVENTS),
        (f"application/json, {EVENTS}, {LINES}", EVENTS),
        (f"{LINES}, {EVENTS}", LINES),
    ):
        headers = {} if accept is None else {"Accept": accept}
        assert streamed(server, CHAT, **headers) == golden[expected], accept
        assert streamed(server, PROMPT, **headers)[0] == expected, accept
    answer = server.invoke(CHAT, path="/v1/chat/completions", headers={"Accept": LINES})
    assert answer.headers["Content-Type"] == EVENTS, "OpenAI's own routes always stream events"
    _, stdout, _ = checked(tmp_path / "checked", properties)
    format_ = "JSON lines" if default == LINES else "server-sent events"
    assert says(stdout, f"Chats streamed {format_}")


def test_default_accept_applies_to_streamed_chats(start_server: StartServer) -> None:
    server = start_server(f"option.rolling_batch=echo\noption.default_accept={EVENTS}\n")
    assert streamed(server, CHAT)[0] == EVENTS, "requests sends `Accept: */*`"


def test_variables_of_vllms_image_keep_its_events(tmp_path: Path) -> None:
    directory = tmp_path / "m"
    directory.mkdir()
    (directory / "serving.properties").write_text("option.rolling_batch=echo\n")
    environ = {"SM_VLLM_MAX_MODEL_LEN": "4096", "LOG_FORMAT": "text"}
    result = CliRunner().invoke(main, ["check", "--model-dir", str(directory)], env=environ)
    assert says(result.stdout, "Chats server-sent events")


def test_asynchronous_handler_streams_lines_whatever_the_options_say(tmp_path: Path) -> None:
    """As in LMI, which ignores `output_formatter` and `tgi_compat` with it."""
    properties = f"option.entryPoint={VLLM_HANDLER}\noption.output_formatter=sse\n"
    assert "as JSON lines" in checked(tmp_path / "m", properties)[1]
