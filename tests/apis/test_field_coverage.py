"""Fields that used to be dropped silently, and unknown fields: every ignored field is reported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from byte_model import write_byte_model
from serving import Server, StartServer

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
        ("/v1/responses", {"input": "a"}, "top_a"),
        ("/chat/completions", {"model": "m", "messages": MESSAGES}, "top_a"),
        ("/complete", {"model": "m", "prompt": "a", "maximum_tokens": 1}, "top_a"),
    ],
)
def test_every_route_names_ignored_fields(echo_server: Server, path: str, body: dict[str, Any], names: str) -> None:
    answer = echo_server.invoke(body | {"top_a": 1}, path=path)
    assert (answer.status_code, answer.headers.get(IGNORED)) == (200, names), answer.text
    if "parameters" not in body:
        assert IGNORED not in echo_server.invoke(body, path=path).headers


def test_dynamic_batch_and_mindie_name_ignored_fields_too(start_server: StartServer) -> None:
    server = start_server("option.backend=echo\noption.rolling_batch=disable\noption.dialect=mindie\n")
    for path in ("/invocations", "/"):
        assert server.invoke({"inputs": "a", "top_a": 1}, path=path).headers[IGNORED] == "top_a"
    ignored = server.invoke({"inputs": "a", "stream": True}).headers[IGNORED]
    assert ignored == "stream", "a dynamic batch is not streamed"
    assert IGNORED not in server.invoke({"inputs": "a", "stream": False}).headers


@pytest.fixture(scope="module")
def own_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on a model whose tokenizer prepends <s> and which has a chat template."""
    directory = tmp_path_factory.mktemp("own") / "m"
    directory.mkdir()
    write_byte_model(directory)
    template = "{% if guideline is defined %}[{{ guideline }}]{% endif %}{{ messages[0].content }}"
    properties = f"option.rolling_batch=echo\noption.model_id={directory}\noption.chat_template={template}\n"
    server = Server(directory, properties)
    yield server.wait_ready()
    server.stop()


def test_guideline_is_passed_to_the_template(own_tokenizer: Server) -> None:
    server = own_tokenizer
    for guideline, text in {"be brief": "[be brief]hi", None: "hi"}.items():
        body = {"messages": MESSAGES, "guideline": guideline}
        assert server.invoke(body, path="/chat_tokenize").json()["templated_text"] == text
        answer = server.invoke(body, path="/v1/chat/completions")
        assert answer.json()["choices"][0]["message"]["content"] == text
        assert IGNORED not in answer.headers
    named = {"messages": MESSAGES, "guideline": "a", "chat_template_kwargs": {"guideline": "b"}}
    assert server.invoke(named, path="/v1/chat/completions").json()["choices"][0]["message"]["content"] == "[b]hi"


def test_tokenize_respects_add_special_tokens(own_tokenizer: Server) -> None:
    added, a = {"id": 0, "text": "", "start": 0, "stop": 0}, {"text": "a", "start": 0, "stop": 1}
    for body, before in (({}, [added]), ({"add_special_tokens": True}, [added]), ({"add_special_tokens": False}, [])):
        answer = own_tokenizer.invoke({"inputs": "a"} | body, path="/tokenize")
        *others, last = answer.json()
        assert (others, last | a, IGNORED in answer.headers) == (before, last, False)
    answer = own_tokenizer.invoke({"inputs": "a", "add_special_tokens": "no"}, path="/tokenize")
    assert (answer.status_code, "add_special_tokens" in answer.json()["error"]) == (422, True)


def lmi(server: Server, **parameters: object) -> Any:
    return server.invoke({"inputs": "abcdef", "parameters": {"max_new_tokens": 20, "details": True} | parameters})


def test_tensorrt_llm_names(echo_server: Server) -> None:
    """Either spelling of `min_tokens` and `bad_words`. Errors for unsupported parameters use the client's spelling."""
    for name, spelling, value in (("min_tokens", "min_length", 30), ("bad_words", "bad_sequences", ["a"])):
        ours, theirs = lmi(echo_server, **{name: value}), lmi(echo_server, **{spelling: value})
        assert ours.status_code == theirs.status_code
        assert theirs.text == ours.text.replace(name, spelling)
        assert IGNORED not in theirs.headers
    assert lmi(echo_server, min_length=-1).json()["error"].startswith("parameters.min_length: ")


def test_tensorrt_llm_stop(echo_server: Server) -> None:
    plain = lmi(echo_server)
    for value, named in ((True, "stop"), (False, None)):
        answer = lmi(echo_server, stop=value)
        assert (answer.status_code, answer.text, answer.headers.get(IGNORED)) == (200, plain.text, named)
    both = lmi(echo_server, stop=True, stop_sequences=["cd"]).json()
    assert (both["generated_text"], both["details"]["finish_reason"]) == ("ab", "stop_sequence")


@pytest.mark.parametrize(("fixture", "length"), [("echo_server", 16), ("compat_server", 40)])
def test_default_length_of_a_completion(request: pytest.FixtureRequest, fixture: str, length: int) -> None:
    server: Server = request.getfixturevalue(fixture)
    for path in ("/v1/completions", "/invocations"):
        usage = server.invoke({"prompt": "x" * 40}, path=path).json()["choices"][0]["text"]
        assert usage == "x" * length
