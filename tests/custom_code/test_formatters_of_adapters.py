"""Formatters of adapters that are loaded while the server runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from lora import write_adapter
from serving import Server
from waiting import wait_until

PROCESS = "lmi_handlers.custom_code.formatting.process"
BODY = {"inputs": "one two three", "parameters": {"max_new_tokens": 2}}

FORMATTER = """
from djl_python.output_formatter import output_formatter
{first}

@output_formatter
def write(response: dict) -> dict:
    return {{"by": {name!r}}}
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def server(tiny_llama: Path, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("formatters") / "m"
    properties = (
        f"option.model_id={tiny_llama}\noption.rolling_batch=scheduler\noption.dtype=fp32\noption.enable_lora=true\n"
        f"option.adapter_formatters=true\noption.adapter_store={store}\noption.formatter_timeout=20\n"
    )
    server = Server(directory, properties, "--workers", "2")
    yield server.wait_ready()
    server.stop()


def adapter(store: Path, folder: str, name: str | None = None, first: str = "") -> dict[str, str]:
    """Write an adapter whose answers name their formatter, if there is a name. Returns what loads it as "a"."""
    write_adapter(store / folder, 0, layers=2, width=128)
    if name is not None:
        (store / folder / "model.py").write_text(FORMATTER.format(name=name, first=first))
    return {"name": "a", "src": folder}


def manage(server: Server, method: str, path: str = "/adapters", **options: object) -> requests.Response:
    return requests.request(method, f"{server.url}{path}", timeout=120, **options)  # type: ignore[arg-type]


def formatted_by(server: Server, name: str = "a") -> set[str]:
    """Return which formatters answer requests of an adapter, asked so often that every web worker answers."""
    answers = [server.invoke(BODY | ({"adapters": name} if name else {})).json() for _ in range(8)]
    return {answer.get("by", "nobody") for answer in answers}


def test_formatters_come_and_go_with_their_adapter(server: Server, store: Path) -> None:
    assert manage(server, "POST", json=adapter(store, "first", "first")).status_code == 200
    assert formatted_by(server) == {"first"}
    assert formatted_by(server, "") == {"nobody"}
    server.supervised(PROCESS).kill()
    wait_until(lambda: server.invoke(BODY | {"adapters": "a"}).status_code == 200)
    assert formatted_by(server) == {"first"}
    ready = server.log.count("engine ready")
    server.engine().kill()
    wait_until(lambda: server.log.count("engine ready") > ready, timeout=120)
    server.wait_ready()
    assert formatted_by(server) == {"first"}
    replaced = manage(server, "PUT", "/adapters/a", json=adapter(store, "second", "second"))
    assert replaced.status_code == 200
    assert formatted_by(server) == {"second"}
    assert manage(server, "PUT", "/adapters/a", json=adapter(store, "third")).status_code == 200
    assert formatted_by(server) == {"nobody"}
    assert manage(server, "PUT", "/adapters/a", json=adapter(store, "second")).status_code == 200
    assert formatted_by(server) == {"second"}
    assert manage(server, "DELETE", "/adapters/a").status_code == 200
    assert manage(server, "POST", json=adapter(store, "third")).status_code == 200
    assert formatted_by(server) == {"nobody"}
    assert manage(server, "DELETE", "/adapters/a").status_code == 200


@pytest.mark.parametrize(
    ("first", "cause"),
    [
        ("import no_such_module", "no_such_module"),
        ("import os; os._exit(3)", "ended their process with"),
        ("raise SystemExit(4)", "SystemExit"),
        ("def broken(:", "line 3"),
    ],
)
def test_formatters_that_cannot_be_imported_are_refused(server: Server, store: Path, first: str, cause: str) -> None:
    process = server.supervised(PROCESS)
    body = adapter(store, f"broken{abs(hash(first))}", "broken", first)
    refused = manage(server, "POST", json=body | {"name": "broken"})
    assert refused.status_code == 400
    assert cause in refused.json()["message"]
    assert server.invoke(BODY | {"adapters": "broken"}).status_code == 424
    assert formatted_by(server, "") == {"nobody"}
    assert server.supervised(PROCESS) == process


REPLACED = """
import sys
from pathlib import Path

from lmi_handlers.config.formatter_code import FormatterCode, script_of_adapter
from lmi_handlers.custom_code.formatting.messages import Records
from lmi_handlers.custom_code.formatting.scripts import Formatters
from lmi_handlers.custom_code.formatting.tokenizer import LazyTokenizer

def answer(formatters, place):
    try:
        return formatters.format_records(Records(1, place, b'{"generated_text": "x"}', False)).decode().strip()
    except KeyError:
        return "gone"

folders = sys.argv[1:]  # the files see arguments of their own
for kept_for in (60.0, 0.0):
    formatters = Formatters(FormatterCode(scripts=(), directory="/", properties={}), LazyTokenizer(), kept_for)
    for version, folder in enumerate(folders, 1):
        formatters.load(script_of_adapter(Path(folder), "a"), version)
    print(formatters.scripts["a"].place, answer(formatters, "a@1"), answer(formatters, "a@2"))
    print(formatters.unload("a", 1), formatters.unload("a", 2), formatters.unload("a"), answer(formatters, "a@2"))
"""


def test_requests_on_their_way_keep_their_formatters(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.py").write_text(FORMATTER.format(name=name, first=""))
    command = [sys.executable, "-c", REPLACED, str(tmp_path / "one"), str(tmp_path / "two")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout.splitlines() == [
        'a@2 {"by": "one"} {"by": "two"}',
        'False True False {"by": "two"}',
        'a@2 gone {"by": "two"}',
        "False True False gone",
    ], done.stderr
