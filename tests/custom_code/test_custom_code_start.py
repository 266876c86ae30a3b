"""What `lmi serve` and `lmi check` say about a model's own code before and while it starts."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from custom_handlers import PATCHED
from facts import says
from lmi_command import ended
from serving import ENVIRON, Server, lmi_check
from waiting import wait_until

from lmi_handlers.config.scripts import find_script

HANDLER = "def handle(inputs):\n    return None\n"


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    started: list[Server] = []
    yield started
    for server in started:
        server.stop()


def write(directory: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def test_check_says_what_will_run(tmp_path: Path) -> None:
    properties = "option.mine=1\noption.dtype=fp16\nminWorkers=2\n"
    checked = lmi_check(write(tmp_path / "m", {"model.py": HANDLER, "serving.properties": properties}))
    assert checked.returncode == 0, checked.stderr
    assert says(checked.stdout, f"own code {tmp_path}/m/model.py handle(inputs)")
    assert "passed on to model.py" in checked.stdout
    assert "no effect on" not in checked.stdout


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("from typing import Any\nhandle: Any = print\n", True),
        ("handle: object\n", False),
        ("other, handle = print, print\n", True),
        ("with open(__file__):\n    from mine import handle\n", True),
        ("with open(__file__) as handle:\n    pass\n", False),
        ("for handle in ():\n    pass\n", False),
        ("try:\n    import mine\nexcept ImportError:\n    def handle(inputs): ...\n", True),
        ("match 1:\n    case _:\n        def handle(inputs): ...\n", True),
        ("if 0:\n    pass\n" + "elif 0:\n    pass\n" * 1200 + "else:\n    handle = print\n", True),
        ("class A:\n    def handle(self): ...\ndef f():\n    handle = 1\n", False),
    ],
)
def test_a_function_is_found_however_the_file_defines_it(tmp_path: Path, script: str, *, found: bool) -> None:
    write(tmp_path, {"model.py": script})
    assert (find_script(tmp_path, None, {}) is not None) is found


@pytest.mark.parametrize(
    ("files", "error"),
    [
        ({"model.py": "def handle(\n"}, "{}/model.py line 1 SyntaxError"),
        ({"serving.properties": "option.entryPoint=mine.py\n"}, "option.entryPoint=mine.py {}/mine.py not exist"),
        (
            {"serving.properties": "option.entryPoint=mine.py\n", "mine.py": "x = 1\n"},
            "option.entryPoint=mine.py {}/mine.py no handle(inputs)",
        ),
    ],
)
def test_mistakes_that_need_no_import(tmp_path: Path, files: dict[str, str], error: str) -> None:
    checked = lmi_check(write(tmp_path / "m", files))
    assert checked.returncode == 1
    assert says(checked.stderr, error.format(tmp_path / "m"))


def test_check_imports_the_code_and_makes_the_first_call_unless_it_is_told_not_to(tmp_path: Path) -> None:
    script = "print('noise')\nopen('imported', 'w')\ndef handle(inputs):\n    open('called', 'w')\n"
    directory = write(tmp_path / "m", {"model.py": script})
    checked = lmi_check(directory, "--no-code")
    assert checked.returncode == 0
    assert says(checked.stdout, "not loaded --no-code")
    assert not (directory / "imported").exists()
    checked = lmi_check(directory)
    assert checked.returncode == 0
    assert f"Loading {directory}/model.py, and calling handle once without content ..\nIt works." in checked.stdout
    assert (checked.stdout.count("noise"), checked.stderr) == (0, "noise\n")
    assert (directory / "called").exists()


def test_check_says_which_formatters_it_has_loaded(tmp_path: Path) -> None:
    script = "from djl_python.input_parser import input_formatter\n\n@input_formatter\ndef parse(inputs):\n    return inputs\n"
    directory = write(tmp_path / "m", {"model.py": script, "serving.properties": "option.rolling_batch=echo\n"})
    assert says(lmi_check(directory).stdout, f"formatters {directory}/model.py loaded")
    assert says(lmi_check(directory, "--no-code").stdout, "not loaded --no-code")


HANGS = "import time\ntime.sleep(600)\n" + HANDLER
LOOPS = "def handle(inputs):\n    while True:\n        pass\n"
UNTIL_GO = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.05)\n"
LIMITS = {HANGS: "option.model_loading_timeout=6\n", LOOPS: "option.model_loading_timeout=3\n"}
"""Short limits for scripts that never load. The first one must get to its second line."""


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (
            "import json\nimport not_installed_here\n" + HANDLER,
            "line 2 ModuleNotFoundError No module",
        ),
        ("import beside\n" + HANDLER, "beside.py line 1 SyntaxError"),
        ("open('nowhere/file')\n" + HANDLER, "line 1 FileNotFoundError"),
        ("def handle(inputs):\n    return unknown\n", "line 2 NameError unknown"),
        ("import sys\nsys.exit(2)\n" + HANDLER, "line 2 SystemExit 2"),
        ("import os\nos._exit(2)\n" + HANDLER, "exit status 2"),
        ("import os\nos.kill(os.getpid(), 11)\n" + HANDLER, "ended SIGSEGV loaded"),
        ("def handle(inputs):\n    return 'text'\n", "Invalid str"),
        ("x = 1\ndef handle():\n    return None\n", "line 2 argument handle(inputs)"),
        ("def handle(a, b):\n    return None\n", "line 1 handle argument"),
        (HANGS, "line 2 not loaded option.model_loading_timeout"),
        (LOOPS, "not loaded option.model_loading_timeout"),
        ("import argparse\nargparse.ArgumentParser().parse_args()\nassert not 'reached'\n" + HANDLER, "line 3"),
        ("import os\nos.chdir('/')\nimport beside\n" + HANDLER, "beside.py line 1 SyntaxError"),
    ],
)
def test_check_shows_file_line_and_the_authors_frames(tmp_path: Path, script: str, error: str) -> None:
    files = {"model.py": script, "beside.py": "print(\n", "serving.properties": LIMITS.get(script, "")}
    checked = lmi_check(write(tmp_path / "m", files))
    assert checked.returncode == 1
    (line,) = [line for line in checked.stderr.splitlines() if line.startswith("lmi: error: ")]
    assert line.startswith(f"lmi: error: {tmp_path}/m/")
    assert says(line, error)
    assert "lmi_handlers" not in checked.stderr


@pytest.mark.parametrize(
    ("script", "line"),
    [
        (UNTIL_GO + "def handle(inputs):\n    return unknown\n", "line 5: NameError"),
        pytest.param(HANGS, "line 2: not loaded", marks=pytest.mark.long),
    ],
)
def test_code_that_does_not_load_ends_the_server_and_shows_in_ping_and_log(
    tmp_path: Path, servers: list[Server], script: str, line: str
) -> None:
    server = Server(
        write(tmp_path / "m", {"model.py": script}), "option.model_loading_timeout=8\n" if script is HANGS else ""
    )
    servers.append(server)
    server.wait_listening()
    (tmp_path / "m" / "go").touch()
    phases = []
    while server.process.poll() is None:
        with contextlib.suppress(requests.RequestException):
            phases.append(server.ping().json()["m"]["phase"])
        time.sleep(0.02)
    assert server.process.returncode == 1
    cause = f"{tmp_path}/m/model.py, {line}"
    assert phases[-1].startswith(cause)
    assert f"lmi: error: {cause}" in server.log
    (entry,) = [json.loads(text) for text in server.log.splitlines() if "cannot be loaded" in text]
    assert entry["cause"].startswith(cause)
    assert f'File "{tmp_path}/m/model.py", {line.partition(":")[0]}, in ' in entry["exception"]


FRAGILE = f"""{UNTIL_GO}
if os.path.exists("broken"):
    raise OSError("a disk has gone")


def handle(inputs):
    if not inputs.is_empty():
        os._exit(1)
"""


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose code has been loaded only after the first test."""
    directory = write(tmp_path_factory.mktemp("fragile") / "m", {"model.py": FRAGILE})
    server = Server(directory, "").wait_listening()
    yield server
    server.stop()


@pytest.fixture
def loaded(fragile: Server) -> Server:
    (fragile.directory / "go").touch()
    return fragile.wait_ready()


def test_ping_says_what_is_being_loaded(fragile: Server) -> None:
    wait_until(lambda: fragile.ping().json()["m"].get("phase") == "preparing the model")
    assert fragile.invoke({}).status_code == 503


def test_code_that_cannot_be_loaded_again_shows_in_ping(loaded: Server) -> None:
    (loaded.directory / "broken").touch()
    assert requests.post(f"{loaded.url}/invocations", b"x", timeout=60).status_code == 424
    wait_until(lambda: "a disk has gone" in loaded.ping().text)
    assert f"{loaded.directory}/model.py, line 6: OSError: a disk has gone" in loaded.ping().json()["m"]["phase"]
    (loaded.directory / "broken").unlink()
    loaded.wait_ready()


def test_a_pool_that_dies_is_restarted(loaded: Server) -> None:
    before = loaded.log
    pool = loaded.supervised("lmi_handlers.custom_code.pool")
    children = pool.children(recursive=True)
    pool.kill()
    wait_until(lambda: not any(child.is_running() for child in children))
    wait_until(lambda: loaded.log.count("model code ready") > before.count("model code ready"))
    loaded.wait_ready()
    assert loaded.supervised("lmi_handlers.custom_code.pool") != pool
    messages = [json.loads(line)["message"] for line in loaded.log.splitlines() if line.startswith("{")]
    assert "pool process ended" in messages
    assert not [message for message in messages if "engine" in message]


def run(directory: Path) -> bytes:
    """What `lmi run` prints."""
    arguments = ("run", "--model-dir", str(directory), "--input", "-")
    done = ended(*arguments, folder=directory, environ=ENVIRON, content=b"{}")
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_code_may_patch_the_standard_library_as_gevent_does(tmp_path: Path) -> None:
    assert run(write(tmp_path / "m", {"model.py": PATCHED})) == b"part" * 3


ASYNC_HANDLE = """
async def handle(inputs):
    return None if inputs.is_empty() else Output().add(b"mine")
"""


def test_asynchronous_handle_takes_the_place_of_lmis_asynchronous_handler(tmp_path: Path) -> None:
    """As in LMI, whose documents set both. One that is not asynchronous is refused beside an engine."""
    name = "djl_python.lmi_vllm.vllm_async_service"
    properties = f"option.entryPoint={name}\noption.async_mode=true\noption.rolling_batch=disable\n"
    files = {"model.py": "from djl_python import Output\n" + ASYNC_HANDLE, "serving.properties": properties}
    directory = write(tmp_path / "m", files)
    assert run(directory) == b"mine"
    (directory / "model.py").write_text(HANDLER)
    assert says(lmi_check(directory).stderr, "model.py handle not supported")


def test_functions_for_adapters_are_named_if_nobody_calls_them(tmp_path: Path) -> None:
    script = HANDLER + "def update_adapter(inputs):\n    pass\n"
    checked = lmi_check(write(tmp_path / "m", {"model.py": script}), "--no-code")
    assert checked.returncode == 0
    assert says(checked.stdout, "m/model.py update_adapter not register_adapter(inputs) beside")
    with_all = script + "def register_adapter(inputs):\n    pass\n"
    checked = lmi_check(write(tmp_path / "all", {"model.py": with_all}), "--no-code")
    assert (checked.returncode, "is not called" in checked.stdout) == (0, False)
