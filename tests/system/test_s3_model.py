"""`lmi serve` and `lmi check` with a model in S3."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from facts import says
from lmi_command import ended
from s3_server import S3Server
from serving import ENVIRON, StartServer, lmi_check
from waiting import wait_until

from lmi_handlers.model_files.locate import DEFAULT_MODEL, find_gguf


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    server = S3Server()
    server.put("checked", {"m/model.safetensors": b"weights", "m/config.json": b"{}", "m/pytorch_model.bin": b"x" * 5})
    yield server
    server.stop()


def check(directory: Path, properties: str, environ: dict[str, str]) -> tuple[int, str]:
    (directory / "serving.properties").write_text(properties)
    done = lmi_check(directory, environ=environ, folder=directory)
    return done.returncode, done.stdout + done.stderr


def test_check_says_what_would_be_downloaded(server: S3Server, tmp_path: Path) -> None:
    environ = server.environ | {"LMI_CACHE_DIR": str(tmp_path / "cache")}
    properties = "option.rolling_batch=echo\noption.model_id=s3://checked/"
    status, output = check(tmp_path, f"{properties}m\n", environ)
    assert (status, says(output, "s3://checked/m 2 0.0 MB downloaded")) == (0, True), output
    assert not (tmp_path / "cache").exists()
    status, output = check(tmp_path, f"{properties}n\n", environ)
    assert (status, says(output, "lmi: error: s3://checked/n nothing below")) == (1, True), output
    status, output = check(tmp_path, f"{properties}m\noption.model_cache_size=much\n", environ)
    assert (status, says(output, "lmi: error: option.model_cache_size: number bytes")) == (1, True), output
    with server.proxy.breaking("denied", "list-type"):
        anonymous = environ | {"HOME": str(tmp_path), "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
        status, output = check(tmp_path, f"{properties}m\n", anonymous)
    warnings = output.partition("Warnings\n")[2]
    assert (status, says(warnings, "s3://checked/m: access denied")) == (0, True), output


@pytest.mark.model
def test_model_in_s3_is_served(server: S3Server, start_server: StartServer, tmp_path: Path) -> None:
    """SIGTERM ends a download at once, and the next start finds what was complete."""
    gguf_file = find_gguf(None, None)
    assert gguf_file is not None
    server.put("models", {f"smol/{DEFAULT_MODEL}": gguf_file.read_bytes(), "smol/README.md": b"small"})
    going_on, nobody_waits = threading.Event(), threading.Semaphore(1)

    def pause(method: str, path: str) -> None:
        """Hold up a part of the large file, but not so many that no connection is left for the small one."""
        if method == "GET" and path.endswith(".gguf") and nobody_waits.acquire(blocking=False):
            going_on.wait(280)
            nobody_waits.release()

    server.proxy.before = pause
    properties = "option.rolling_batch=openvino\noption.model_id=s3://models/smol/\n"
    environ = server.environ | {"LMI_CACHE_DIR": str(tmp_path / "cache")}
    first = start_server(properties, ready=False, environ=environ).wait_listening()
    wait_until(lambda: "downloading s3://models/smol/ (2 files, " in first.ping().text, timeout=120)
    assert first.ping().status_code == 503
    wait_until(lambda: list((tmp_path / "cache/models").glob("smol-*.partial/files/README.md")))
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(60) == 0  # while the part is held up
    going_on.set()
    server.proxy.before = lambda method, path: None
    server.proxy.gets.clear()
    second = start_server(properties, environ=environ)
    assert "models/smol/README.md" not in server.proxy.gets
    answer = second.invoke({"inputs": "The capital of France is", "parameters": {"max_new_tokens": 4}})
    assert "Paris" in answer.text
    page = requests.get(f"{second.url}/metrics", timeout=60).text
    size = float(gguf_file.stat().st_size + 5)
    figures = {line.split()[0]: line.split()[1] for line in page.splitlines() if line.startswith("lmi_download_")}
    assert {name: float(value) for name, value in figures.items()} == {
        "lmi_download_bytes": size,
        "lmi_download_size_bytes": size,
    }


MODEL_PY = """
from pathlib import Path

from djl_python import Input, Output

config = None

def handle(inputs):
    global config
    if inputs.is_empty():
        config = (Path(inputs.get_properties()["model_id"]) / "config.json").read_text()
        return None
    return Output().add(config + inputs.get_as_string())
"""


def test_a_model_of_own_code_is_in_s3(server: S3Server, start_server: StartServer, tmp_path: Path) -> None:
    environ = server.environ | {"LMI_CACHE_DIR": str(tmp_path / "cache")}
    properties = "option.model_id=s3://checked/m\n"
    directory = tmp_path / "checked"
    directory.mkdir()
    (directory / "model.py").write_text(MODEL_PY)
    status, output = check(directory, properties, environ)
    assert (status, says(output, "not loaded download model")) == (0, True), output
    assert not (tmp_path / "cache").exists()
    arguments = ("run", "--model-dir", str(directory), "--input", "-")
    ran = ended(*arguments, folder=directory, environ=ENVIRON | environ, content=b"x")
    assert (ran.returncode, ran.stdout) == (0, b"{}x"), ran.stderr
    assert b"downloading s3://checked/m (2 files, 0.0 MB) .." in ran.stderr
    (tmp_path / "m0").mkdir()
    (tmp_path / "m0/model.py").write_text(MODEL_PY)
    served = start_server(properties, environ=environ)
    assert requests.post(f"{served.url}/invocations", data="y", timeout=60).text == "{}y"
