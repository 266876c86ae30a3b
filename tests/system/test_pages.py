"""Every code block of every page is run as it is written there, or at least parsed where this machine cannot run it.

`doc_snippets` says how a block shows what it is, and `doc_reader` runs it. What a page takes for granted is in `PAGES`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import click
import pytest
from build_site import documents
from doc_reader import Reader
from doc_snippets import REASONS, snippets
from lora import write_adapter
from paths import ROOT
from s3_server import S3Server
from serving import Server
from task_handlers import wav
from tiny_whisper import save_whisper, sound

from lmi_handlers.commands.cli import main
from lmi_handlers.commands.registry import subcommands

ECHO = "option.rolling_batch=echo\n"
CONFIG = json.dumps({"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "vocab_size": 49_152})
HELLO = '{"id": 7, "inputs": "Hello", "parameters": {"max_new_tokens": 8}, "note": "left out"}\n'
SCRIPT = """\
from djl_python import Input, Output


def handle(inputs: Input) -> Output:
    return Output().add("a text")
"""


@dataclass(frozen=True)
class Setting:
    """What a page takes for granted.

    `server` names a fixture, or has the properties of a server.
    """

    server: str = ""
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    replaced: Mapping[str, str] = field(default_factory=dict)
    s3: Mapping[str, str] | None = None
    """The files of `my-bucket`, if there is an S3 server."""
    in_repository: tuple[str, ...] = ()
    """What is used of a clone."""


MODEL = {"my-model/serving.properties": ECHO, "model/serving.properties": ECHO}
PAGES = {
    "docs/anthropic.md": Setting("echo_server"),
    "README.md": Setting("model_server_once", MODEL, replaced={"/path/to/model": "model"}),
    "docs/batch-transform.md": Setting(
        "echo_server",
        {**MODEL, "records.jsonl": HELLO},
        replaced={"s3://bucket/": "s3://my-bucket/"},
        s3={"in/a.jsonl": HELLO},
    ),
    "docs/bidirectional.md": Setting("echo_server"),
    "docs/chat.md": Setting("echo_server", replaced={"lmi chat": "lmi chat --url http://127.0.0.1:8080"}),
    "docs/conform.md": Setting("echo_server"),
    "docs/continuation.md": Setting(
        f"{ECHO}option.echo_tokens_per_second=25\noption.response_deadline=1.5\noption.stream_deadline=1.5\n",
    ),
    "docs/custom-attributes.md": Setting(f"{ECHO}option.custom_attributes=trace,tenant\n"),
    "docs/deploy.md": Setting("echo_server", {"my-model/config.json": CONFIG}),
    "docs/explain.md": Setting("echo_server", replaced={"lmi explain": "lmi explain --url http://127.0.0.1:8080"}),
    "docs/formatters.md": Setting(files=MODEL),
    "docs/lmi.md": Setting("echo_server"),
    "docs/load-generator.md": Setting("echo_server"),
    "docs/local-runtime.md": Setting("echo_server", {"serving.properties": ECHO}, s3={}),
    "docs/many-models.md": Setting(
        files={f"models/{name}/serving.properties": ECHO for name in ("small", "large", "new-model")},
        environ={"SERVING_LOAD_MODELS": "small=small,large=large", "LMI_MODEL_SOURCES": "s3://my-bucket/models/"},
        replaced={"s3://bucket/": "s3://my-bucket/"},
        s3={"models/other/serving.properties": ECHO, "models/other/model.safetensors": "weights"},
    ),
    "docs/mindie.md": Setting(f"{ECHO}option.dialect=mindie\n"),
    "docs/openai.md": Setting("echo_server"),
    "docs/receipts.md": Setting(f"{ECHO}option.receipts=true\noption.tenant_attribute=team\n"),
    "docs/replay.md": Setting("echo_server", MODEL),
    "docs/retries.md": Setting("echo_server"),
    "docs/scaling.md": Setting(files=MODEL, replaced={"/models/llama": "model"}),
    "docs/sessions.md": Setting("echo_server"),
    "docs/shadow.md": Setting("echo_server"),
    "docs/tgi.md": Setting("echo_server"),
    "docs/testing-applications.md": Setting(files=MODEL),
    "sagemaker/README.md": Setting(files={"serving.properties": ECHO}, in_repository=("examples", "sagemaker", "docs")),
}
LONG = {
    "docs/adapters.md": Setting("adapters_server", replaced={"/opt/ml/adapters/": "later/"}),
    "docs/speech.md": Setting("speech_server", {"speech.wav": wav(sound(2).tobytes())}),
    "docs/tasks.md": Setting("task_server"),
}
ELSEWHERE = {"docs/tutorial.md": "test_tutorial.py"}
"""Pages that other modules of this folder work through."""

BY_NAME = {page.relative_to(ROOT).as_posix(): page for page in documents()}


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture
def at_the_end() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def adapters_server(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("adapters") / "model"
    write_adapter(directory / "later" / "french", 0.02, layers=2, width=128)
    properties = f"option.model_id={tiny_llama}\noption.rolling_batch=scheduler\noption.enable_lora=true\n"
    server = Server(directory, properties)
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="module")
def task_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    from tiny_tasks import save_task_model

    directory = save_task_model("BertForSequenceClassification", tmp_path_factory.mktemp("tasks") / "m")
    server = Server(directory, "option.task=text-classification\n", environ={"OMP_NUM_THREADS": "1"})
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="module")
def speech_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = save_whisper(tmp_path_factory.mktemp("speech") / "m")
    server = Server(directory, "", environ={"OMP_NUM_THREADS": "1"})
    yield server.wait_ready()
    server.stop()


def with_marks(name: str) -> object:
    marks = [pytest.mark.long] if name in LONG else []
    marks += [pytest.mark.model] if "model_server_once" in PAGES.get(name, Setting()).server else []
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize(
    "name", [with_marks(name) for name, page in BY_NAME.items() if name not in ELSEWHERE and snippets(page)]
)
def test_page(
    name: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    at_the_end: ExitStack,
) -> None:
    setting = (PAGES | LONG).get(name, Setting())
    for path, text in setting.files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(text.encode() if isinstance(text, str) else text)
    for path in setting.in_repository:
        (tmp_path / path).symlink_to(ROOT / path)
    environ = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_DEFAULT_REGION": "us-east-1"}
    environ |= {**setting.environ, "CURL_HOME": str(tmp_path)}
    (tmp_path / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")  # an error is not an answer
    if setting.s3 is not None:
        s3: S3Server = request.getfixturevalue("s3")
        s3.client.create_bucket(Bucket="my-bucket")
        for key, text in setting.s3.items():
            s3.client.put_object(Bucket="my-bucket", Key=key, Body=text.encode())
        environ |= s3.environ
    port = None
    if setting.server.isidentifier():
        port = request.getfixturevalue(setting.server).port
    elif setting.server:
        server = Server(tmp_path / "running", setting.server, "--local-runtime").wait_ready()
        at_the_end.callback(server.stop)
        port = server.port
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path, port=port, environ=environ, replaced=setting.replaced)
    at_the_end.callback(reader.stop)
    for snippet in snippets(BY_NAME[name]):
        executed = reader.read(snippet)
        print(f"{snippet.where}: {'executed' if executed else 'parsed'} {snippet.reason}")
    reader.finish()


def test_every_page_is_worked_through() -> None:
    """A page without a block has nothing to do. All others are here, or in a module that exists."""
    assert {*PAGES, *LONG, *ELSEWHERE} <= {name for name, page in BY_NAME.items() if snippets(page)}
    for name, module in ELSEWHERE.items():
        assert Path(name).name in (ROOT / "tests" / "system" / module).read_text()


def test_every_reason_is_known() -> None:
    marked = {snippet.marked for page in BY_NAME.values() for snippet in snippets(page)} - {""}
    assert marked <= REASONS, f"a reason for not running a block is one of {sorted(REASONS)}"


def options_of(command: click.Command) -> set[str]:
    own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    below = [options_of(one) for one in subcommands(command).values()] if isinstance(command, click.Group) else []
    return own.union(*below) | {"--help"}


@pytest.mark.parametrize("name", BY_NAME)
def test_commands_in_the_text_exist(name: str) -> None:
    """Those of `lmi`, with all their options."""
    for words in re.findall(r"`lmi ([a-z][^`]*)`", BY_NAME[name].read_text()):
        command, *rest = words.split()
        assert command in subcommands(main), words
        given = {word.partition("=")[0] for word in rest if word.startswith("--")}
        assert given <= options_of(subcommands(main)[command]), words
