"""`lmi run`: a model's own code, called once without a server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from custom_handlers import ON_REQUEST
from lmi_command import ended
from serving import ENVIRON
from waiting import wait_until


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run") / "m"
    directory.mkdir()
    (directory / "model.py").write_text("print('noise')\n" + ON_REQUEST)
    (directory / "serving.properties").write_text("max_request_size=10000\noption.predict_timeout=2\n")
    return directory


def command(directory: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "lmi_handlers.commands.cli", "run", "--model-dir", str(directory), *arguments]


def run(directory: Path, *arguments: str, content: bytes = b"{}") -> subprocess.CompletedProcess[bytes]:
    """In this process. The model's own code has one of its own."""
    given = arguments if "--input" in arguments else ("--input", "-", *arguments)
    _, _, _, *words = command(directory, *given)
    return ended(*words, folder=directory.parent, environ=ENVIRON, content=content)


def test_the_answer_goes_to_standard_output_and_the_rest_to_standard_error(directory: Path, tmp_path: Path) -> None:
    payload = tmp_path / "payload.json"
    payload.write_text('{"a": [1, "é"]}')
    done = run(directory, "--input", str(payload), "--header", "x-case: echo", "--include")
    assert (done.returncode, done.stdout) == (0, '{\n  "a":[\n    1,\n    "é"\n  ]\n}'.encode())
    *noise, status, first, second, empty = done.stderr.decode().splitlines()
    assert noise == ["noise"]
    assert (status, empty) == ("HTTP/1.1 200 OK", "")
    assert {first, second} == {"Content-Type: application/json", "X-Seen: yes"}


@pytest.mark.parametrize(
    ("name", "arguments", "seen"),
    [
        ("a.csv", [], b'"Content-Type":"text/csv"'),
        ("a.npy", [], b'"Content-Type":"application/x-npy"'),
        ("a", [], b'"Content-Type":"application/json"'),
        ("a.csv", ["--content-type", "text/plain; charset=utf-8"], b'"Content-Type":"text/plain"'),
    ],
)
def test_the_content_type_is_guessed_from_the_name_or_given(
    directory: Path, tmp_path: Path, name: str, arguments: list[str], seen: bytes
) -> None:
    (tmp_path / name).write_bytes(b"1,2")
    done = run(directory, "--input", str(tmp_path / name), "--header", "X-Case:properties", *arguments)
    assert seen in done.stdout.replace(b" ", b"")


def test_fields_of_a_form_are_content(directory: Path) -> None:
    form = ["--content-type", "application/x-www-form-urlencoded", "--header", "X-Case: content"]
    assert b'"a"' in run(directory, *form, content=b"a=1&b=2").stdout


@pytest.mark.parametrize(
    ("case", "content", "status", "answer"),
    [
        ("status", b"404", b"404 Not Found", b"text"),
        ("raise", b"{}", b"424 Failed Dependency", b'"error":"a good reason"'),
        ("loop", b"{}", b"504 Gateway Timeout", b"did not return within option.predict_timeout (2 s)"),
        ("os._exit", b"{}", b"424 Failed Dependency", b"ended with exit status 5"),
        ("echo", b"x" * 10_001, b"413 ", b"larger than max_request_size (10000 bytes)"),
    ],
)
def test_failures_exit_with_status_1(directory: Path, case: str, content: bytes, status: bytes, answer: bytes) -> None:
    done = run(directory, "-i", "--header", f"X-Case: {case}", content=content)
    assert done.returncode == 1
    assert b"HTTP/1.1 " + status in done.stderr
    assert answer in done.stdout


def test_a_failure_shows_the_authors_traceback(directory: Path) -> None:
    done = run(directory, "--header", "X-Case: raise")
    assert b"Traceback (most recent call last):\n" + f'  File "{directory}/model.py", line '.encode() in done.stderr
    assert b"lmi_handlers" not in done.stderr


def test_a_stream_is_printed_as_it_comes(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(ON_REQUEST)
    arguments = command(tmp_path, "--input", "-", "--header", "X-Case: stream for ever")
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=ENVIRON
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(str(tmp_path / "ended").encode())
        process.stdin.close()
        assert process.stdout.readline() == b"tick\n"
        assert process.poll() is None
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        process.terminate()
    wait_until(lambda: not any(child.is_running() for child in children))


def test_a_stream_that_fails_keeps_what_was_printed(directory: Path) -> None:
    done = run(directory, "--header", "X-Case: stream raises")
    assert (done.returncode, done.stdout) == (1, b'{"number": 0}\n{"number": 1}\n')
    assert b"lmi: error: no more numbers" in done.stderr


def test_code_that_does_not_load(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def handle(inputs):\n    return unknown\n")
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (1, b"")
    assert f"lmi: error: {tmp_path}/model.py, line 2: NameError".encode() in done.stderr


def test_a_model_that_an_engine_serves(tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_text("option.rolling_batch=echo\n")
    done = run(tmp_path)
    assert done.returncode == 1
    assert b"this model is served by the backend echo: start lmi serve" in done.stderr


def test_a_wrong_header(directory: Path) -> None:
    done = run(directory, "--header", "Bearer secret")
    assert done.returncode == 1
    assert b"--header must be NAME:VALUE" in done.stderr
    assert b"secret" not in done.stderr
