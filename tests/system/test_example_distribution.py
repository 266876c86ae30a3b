"""The distribution in examples/, installed beside the server as its own package: its backend, its formatter and its API."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from environments import Environment, copy_sources
from facts import says
from paths import ROOT
from serving import Server, free_port

EXAMPLE = ROOT / "examples" / "lmi-handlers-shout"
PROPERTIES = (EXAMPLE / "serving.properties").read_text()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    directory = tmp_path_factory.mktemp("example")
    shutil.copytree(EXAMPLE, directory / "example", ignore=shutil.ignore_patterns("*.egg-info", "build"))
    return Environment(directory, copy_sources(directory / "sources"), directory / "example")


@pytest.fixture(scope="module")
def example(environment: Environment) -> Path:
    """The example's folder."""
    return environment.bin.parent.parent / "example"


def check(environment: Environment, directory: Path, properties: str) -> subprocess.CompletedProcess[str]:
    (directory / "serving.properties").write_text(properties)
    return environment.run("lmi", "check", "--model-dir", str(directory), cwd=directory)


def test_packages_come_from_the_environment(environment: Environment) -> None:
    code = "import lmi_handlers, lmi_handlers_shout; print(lmi_handlers.__file__, lmi_handlers_shout.__file__)"
    found = environment.run("python", "-c", code, cwd=environment.bin).stdout.split()
    assert all(Path(file).is_relative_to(environment.bin.parent) for file in found)


def test_check_knows_its_options(environment: Environment, example: Path) -> None:
    result = environment.run("lmi", "check", "--model-dir", str(example), cwd=example)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("Model example on backend shout: serving.properties asks for it\n\nChats ")
    assert "  option.shout_marks    3      serving.properties  read by shout\n" in result.stdout


MISTAKES = {
    "option.shout_marks=0": "option.shout_marks 0",
    "option.shout_mark=3": "unknown option.shout_mark option.shout_marks",
    "option.output_formatter=shout_line": "option.output_formatter shout_line json jsonlines shout_lines sse",
}


def test_check_refuses_mistakes(environment: Environment, tmp_path: Path) -> None:
    result = check(environment, tmp_path, "\n".join(("option.rolling_batch=shout", *MISTAKES)))
    assert result.returncode == 1
    told = (result.stdout + result.stderr).splitlines()
    assert [message for message in MISTAKES.values() if not any(says(line, message) for line in told)] == []


def test_check_warns_of_its_option_on_another_backend(environment: Environment, tmp_path: Path) -> None:
    result = check(environment, tmp_path, "option.rolling_batch=echo\noption.shout_marks=2\n")
    assert says(result.stdout, "option.shout_marks no effect echo only")


def test_its_command(environment: Environment, tmp_path: Path) -> None:
    assert environment.run("lmi", "shout", "hello", "--marks", "1", cwd=tmp_path).stdout == "HELLO!\n"


def test_its_own_tests_pass(environment: Environment, example: Path) -> None:
    result = environment.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=example / "tests")
    assert result.returncode == 0, result.stdout
    assert " passed" in result.stdout


@pytest.fixture(scope="module")
def server(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = serve(environment, tmp_path_factory.mktemp("server") / "m", PROPERTIES)
    yield server.wait_ready()
    server.stop()


def serve(environment: Environment, directory: Path, properties: str) -> Server:
    port = free_port()
    command = [str(environment.bin / "lmi"), "serve", "--host", "127.0.0.1", "--port", str(port)]
    return Server(directory, properties, command=command, port=port, environ={"PYTHONPATH": ""})


CHAT = {"messages": [{"role": "user", "content": "hi"}], "model": "m"}
SHOUTED_CHAT = "USER: HI\nASSISTANT: !!!"


def field(value: Any, path: str) -> Any:
    """Follow a path such as `choices.0.text`. Returns "" if it leads nowhere."""
    with contextlib.suppress(KeyError, IndexError):
        for name in path.split("."):
            value = value[int(name) if name.isdigit() else name]
        return value or ""
    return ""


@pytest.mark.parametrize(
    ("route", "body", "path", "expected"),
    [
        ("/invocations", {"inputs": "hi"}, "generated_text", "HI!!!"),
        ("/generate", {"inputs": "hi"}, "generated_text", "HI!!!"),
        ("/v1/chat/completions", CHAT, "choices.0.message.content", SHOUTED_CHAT),
        ("/v1/completions", {"prompt": "hi", "model": "m"}, "choices.0.text", "HI!!!"),
        ("/chat/completions", CHAT, "choices.0.message.content", SHOUTED_CHAT),
        ("/complete", {"prompt": "hi", "model": "m"}, "completions.0.completion", "HI!!!"),
        ("/shout", {"text": "hi"}, "text", "HI!!!"),
    ],
)
def test_answer(server: Server, route: str, body: dict[str, Any], path: str, expected: str) -> None:
    answer = server.invoke(body, path=route)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/json"), answer.text
    assert field(answer.json(), path) == expected


@pytest.mark.parametrize(
    ("route", "body", "path", "expected"),
    [
        ("/invocations", {"inputs": "hi"}, "token.text", "HI!!!"),
        ("/generate_stream", {"inputs": "hi"}, "token.text", "HI!!!"),
        ("/v1/chat/completions", CHAT, "choices.0.delta.content", SHOUTED_CHAT),
        ("/v1/completions", {"prompt": "hi", "model": "m"}, "choices.0.text", "HI!!!"),
        ("/chat/completions", CHAT, "choices.0.delta.content", SHOUTED_CHAT),
        ("/complete", {"prompt": "hi", "model": "m"}, "completion", "HI!!!"),
        ("/shout", {"text": "hi"}, "text", "HI!!!"),
    ],
)
def test_stream(server: Server, route: str, body: dict[str, Any], path: str, expected: str) -> None:
    answer = server.invoke(body | {"stream": True}, path=route)
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data:").strip() for line in answer.text.splitlines()]
    records = [json.loads(line) for line in lines if line not in ("", "[DONE]")]
    assert "Content-Length" not in answer.headers
    assert "".join(field(record, path) for record in records).removesuffix("<|endoftext|>") == expected


def test_unsupported_field_is_refused_by_name(server: Server) -> None:
    answer = server.invoke({"prompt": "hi", "model": "m", "logit_bias": {"65": 1}}, path="/v1/completions")
    assert answer.status_code == 400
    assert "logit_bias" in answer.text
    assert "shout" in answer.text


def test_its_page(server: Server) -> None:
    answer = requests.get(f"{server.url}/shout", headers={"Accept": "text/html"}, timeout=60)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "<p>m SHOUTS!" in answer.text


@pytest.mark.parametrize("body", [{"text": 1}, {"text": "hi", "max_tokens": 0}, {"text": "hi", "loud": True}])
def test_its_own_errors(server: Server, body: dict[str, Any]) -> None:
    answer = server.invoke(body, path="/shout")
    assert answer.status_code == 400
    assert answer.json().keys() == {"error"}


def test_document_has_its_route(server: Server) -> None:
    document = requests.get(f"{server.url}/openapi.json", timeout=60).json()
    assert document["paths"]["/shout"]["post"]["operationId"] == "shout"
    assert {"ShoutBody", "Shout", "ShoutError"} <= document["components"]["schemas"].keys()


@pytest.mark.long
def test_its_formatter_on_another_api(environment: Environment, tmp_path: Path) -> None:
    server = serve(environment, tmp_path / "m", PROPERTIES + "option.output_formatter=shout_lines\n")
    try:
        answer = server.wait_ready().invoke({"inputs": "hi"})
    finally:
        server.stop()
    assert answer.headers["Content-Type"] == "application/jsonlines"
    assert "".join(json.loads(line)["text"] for line in answer.text.splitlines()) == "HI!!!"
