"""Fields of the published schemas that were once dropped, and names that no schema has: none goes unsaid."""

from __future__ import annotations

from typing import Any

import pytest
from serving import Server, StartServer

from lmi_handlers.dialects.base import Payload
from lmi_handlers.dialects.tgi_request import TokenizeBody, decode_body

MESSAGES = [{"role": "user", "content": "hi"}]
IGNORED = "x-lmi-ignored-parameters"


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        ("/invocations", {"inputs": "a"}, "top_a"),
        ("/invocations", {"inputs": "a", "parameters": {"top_b": 1}}, "top_a, top_b"),
        ("/invocations", {"messages": MESSAGES}, "top_a"),
        ("/invocations", {"prompt": "a"}, "top_a"),
        ("/predictions/m", {"inputs": "a", "stream": True}, "top_a"),
        ("/", {"inputs": "a"}, "top_a"),
        ("/generate", {"inputs": "a", "parameters": {"top_b": 1}}, "top_a, top_b"),
        ("/generate_stream", {"inputs": "a"}, "top_a"),
        ("/tokenize", {"inputs": "a", "parameters": {"top_b": 1}}, "top_a, top_b"),
        ("/chat_tokenize", {"messages": MESSAGES, "temperature": 1}, "top_a"),
        ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}, "top_a"),
        ("/v1/completions", {"prompt": "a"}, "top_a"),
        ("/chat/completions", {"model": "m", "messages": MESSAGES}, "top_a"),
        ("/complete", {"model": "m", "prompt": "a", "maximum_tokens": 1}, "top_a"),
    ],
)
def test_every_route_names_what_it_ignores(echo_server: Server, path: str, body: dict[str, Any], names: str) -> None:
    answer = echo_server.invoke(body | {"top_a": 1}, path=path)
    assert (answer.status_code, answer.headers.get(IGNORED)) == (200, names), answer.text
    if "parameters" not in body:
        assert IGNORED not in echo_server.invoke(body, path=path).headers


def test_dynamic_batch_and_mindie_name_it_too(start_server: StartServer) -> None:
    server = start_server("option.backend=echo\noption.rolling_batch=disable\noption.dialect=mindie\n")
    for path in ("/invocations", "/"):
        assert server.invoke({"inputs": "a", "top_a": 1}, path=path).headers[IGNORED] == "top_a"


def test_guideline_is_a_variable_of_the_template(start_server: StartServer) -> None:
    template = "{% if guideline is defined %}[{{ guideline }}]{% endif %}{{ messages[0].content }}"
    server = start_server(f"option.rolling_batch=echo\noption.chat_template={template}\n")
    for guideline, text in {"be brief": "[be brief]hi", None: "hi"}.items():
        body = {"messages": MESSAGES, "guideline": guideline}
        assert server.invoke(body, path="/chat_tokenize").json()["templated_text"] == text
        answer = server.invoke(body, path="/v1/chat/completions")
        assert answer.json()["choices"][0]["message"]["content"] == text
        assert IGNORED not in answer.headers
    named = {"messages": MESSAGES, "guideline": "a", "chat_template_kwargs": {"guideline": "b"}}
    assert server.invoke(named, path="/v1/chat/completions").json()["choices"][0]["message"]["content"] == "[b]hi"


def test_tokenize_reads_add_special_tokens(echo_server: Server) -> None:
    for data, expected in ((b'{"inputs": "a", "add_special_tokens": false}', False), (b'{"inputs": "a"}', True)):
        body, ignored = decode_body(Payload(data=data, request_id="r"), TokenizeBody)
        assert (body.add_special_tokens, ignored) == (expected, ())
    answer = echo_server.invoke({"inputs": "a", "add_special_tokens": "no"}, path="/tokenize")
    assert (answer.status_code, "add_special_tokens" in answer.json()["error"]) == (422, True)


def lmi(server: Server, **parameters: object) -> Any:
    return server.invoke({"inputs": "abcdef", "parameters": {"max_new_tokens": 20, "details": True} | parameters})


def test_tensorrt_llms_names(echo_server: Server) -> None:
    """As `min_tokens` and `bad_words`, one way or another: what the engine cannot do is refused by the name given."""
    for name, spelling, value in (("min_tokens", "min_length", 30), ("bad_words", "bad_sequences", ["a"])):
        ours, theirs = lmi(echo_server, **{name: value}), lmi(echo_server, **{spelling: value})
        assert ours.status_code == theirs.status_code
        assert theirs.text == ours.text.replace(name, spelling)
        assert IGNORED not in theirs.headers
    assert lmi(echo_server, min_length=-1).json()["error"].startswith("parameters.min_length: ")


def test_tensorrt_llms_stop(echo_server: Server) -> None:
    plain = lmi(echo_server)
    for value, named in ((True, "stop"), (False, None)):
        answer = lmi(echo_server, stop=value)
        assert (answer.status_code, answer.text, answer.headers.get(IGNORED)) == (200, plain.text, named)
    both = lmi(echo_server, stop=True, stop_sequences=["cd"]).json()
    assert (both["generated_text"], both["details"]["finish_reason"]) == ("ab", "stop_sequence")


@pytest.mark.parametrize(("option", "length"), [("", 16), ("option.tgi_compat=true\n", 40)])
def test_how_long_a_completion_is_by_default(start_server: StartServer, option: str, length: int) -> None:
    server = start_server("option.rolling_batch=echo\n" + option)
    for path in ("/v1/completions", "/invocations"):
        usage = server.invoke({"prompt": "x" * 40}, path=path).json()["choices"][0]["text"]
        assert usage == "x" * length
