"""Every program in examples/ is run as its own text says, in front of a real server."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from client_scripts import CLIENTS_PYTHON
from doc_reader import Reader
from doc_snippets import parse
from lora import write_adapter
from paths import ROOT
from s3_server import S3Server
from serving import Server

EXAMPLES = ROOT / "examples"


@dataclass(frozen=True)
class Example:
    """What an example prints, as a regular expression. With `echo`, the echo backend takes the place of its model."""

    prints: str
    echo: bool = False


CLIENTS = {
    "boto3_invoke.py": r"^The meaning of life is\n$",
    "boto3_stream.py": r"^The meaning of life is\n$",
    "curl.sh": r"(?s)^/invocations\n.*The cap.*^/generate\n.*The cap.*^/v1/chat.*content.*^/complete\n.*The cap.*^/v1/resp.*text",
    "huggingface_hub_client.py": r"^The capital of F\n.*\w",
    "lmi_rolling_batch.py": r"(?s)^The capi\n.*  'T'\n.*The capi\n$",
    "openai_chat.py": r"(?s)capital of Jap.*\n\d+ tokens asked, \d+ answered\n$",
    "tgi_http.py": r"^The capital of F\n16 tokens, length\n$",
}
"""Clients that run on an echo server, which they share."""
CLIENTS_OF_THE_MODEL = {
    "clients/openai_structured_output.py": r", (Africa|America|Asia|Europe|Oceania)\n$",
    "clients/openai_tools.py": r"^get_weather\((Paris|Rome)\)\n.*\w",
}
LONG_CLIENTS_OF_THE_MODEL = {
    "tasks/chat/ask_chat.py": r"(?s)capital of Japan\?\n.*Tokyo.*And of China\?\n.*\w",
    "tasks/structured-output/read_address.py": r"^name: .*\nstreet: .*\nnumber: \d+\ncity: .*\n$",
    "tasks/tool-use/multiply.py": r"^\d+ x \d+ = \d+\n.*\w",
}

TASKS = {
    "clients/mindie_http.py": Example(r"^The capital of F\n16 tokens, length\n$", echo=True),
    "tasks/custom-code/ask.sh": Example(r'"mean": ?2.5'),
    "tasks/custom-formatter/ask.sh": Example(r'"answer": ?"What is", ?"tokens": ?7'),
    "tasks/deploy/deploy.sh": Example(r'(?s)put_object.*create_model.*create_endpoint_config.*"create_endpoint"'),
    "tasks/embeddings/find_text.py": Example(r"^0\.\d+  .+\n-?0\.\d+  .+\n$", echo=True),
    "tasks/many-models/ask_models.py": Example(
        r"^small: What is Deep Learning\?\nlarge: What is Deep Learning\?\n.*Sleeping.*\nlarge: What is Deep Learning\?\n$"
    ),
    "tasks/reranking/sort_texts.py": Example(r"^(0\.\d+  .+\n){2}$", echo=True),
    "tasks/sessions/ask_session.py": Example(r"(?s)My name is Ada.*closed True\n$", echo=True),
}
LONG_TASKS = {
    "clients/lmi_dynamic_batch.py": Example(
        r"(?s)^The capital of France is Paris.*\nThe three primary colours are \w+"
    ),
    "tasks/batch-transform/transform.sh": Example(
        r'(?s)"id":1,"SageMakerOutput":.*Paris.*"id":2.*Rome.*"id":3.*parameters.top_p'
    ),
}
WITH_THEIR_OWN_TESTS = {
    "clients/aleph_alpha_client_chat.py",
    "tasks/adapters/ask_adapters.py",
    "tasks/classification/classify.py",
    "tasks/s3/upload_model.py",
}


def programs() -> set[str]:
    found = {path for kind in ("py", "sh") for path in EXAMPLES.glob(f"*/**/*.{kind}")}
    names = {path.relative_to(EXAMPLES).as_posix() for path in found if path.name != "model.py"}
    return {name for name in names if name.startswith(("clients/", "tasks/"))}


def steps(path: Path) -> list[str]:
    """The commands with which to run an example, which are lines of the text at its beginning."""
    text = path.read_text()
    intro = ast.get_docstring(ast.parse(text)) or "" if path.suffix == ".py" else text.partition("\nset ")[0]
    return re.findall(r"^[# ]*((?:[A-Z_]+=\S+ )*(?:lmi|python|bash) .*)$", intro, re.MULTILINE)


@pytest.fixture
def reader(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Reader]:
    example: Example = request.param
    reader = reader_of(tmp_path, {"OPTION_ROLLING_BATCH": "echo"} if example.echo else {})
    if example.echo:
        for path in tmp_path.rglob("serving.properties"):
            path.write_text(re.sub("^option.model_id=.*", "", path.read_text(), flags=re.MULTILINE))
    yield reader
    reader.stop()


def reader_of(folder: Path, environ: Mapping[str, str]) -> Reader:
    """Someone with a copy of the examples, which a server may write to."""
    ignored = shutil.ignore_patterns("lmi-handlers-shout", "__pycache__")
    shutil.copytree(EXAMPLES, folder / "examples", ignore=ignored)
    return Reader(folder, environ=environ)


def work_through(reader: Reader, name: str) -> str:
    """Run all steps. Returns what the last one printed."""
    output = ""
    for step in steps(EXAMPLES / name):
        output = reader.run(step)
    return output


def assert_prints(name: str, expected: str, output: str) -> None:
    assert re.search(expected, output, re.MULTILINE), f"{name} printed:\n{output}"


def call(name: str, server: Server, folder: Path, python: str = "python") -> str:
    """Call a server that runs, and check the command that would start one."""
    (folder / "examples").symlink_to(EXAMPLES)
    serve, ask = steps(EXAMPLES / name)
    parse("sh", serve)
    assert serve.startswith("lmi serve --model-dir examples/tasks/")
    return Reader(folder, port=server.port).run(re.sub("^python", python, ask))


@pytest.mark.parametrize("name", CLIENTS)
def test_client(name: str, echo_server: Server, tmp_path: Path) -> None:
    assert_prints(name, CLIENTS[name], call(f"clients/{name}", echo_server, tmp_path))


@pytest.mark.parametrize("name", CLIENTS_OF_THE_MODEL)
def test_client_of_the_model(name: str, model_server_once: Server, tmp_path: Path) -> None:
    assert_prints(name, CLIENTS_OF_THE_MODEL[name], call(name, model_server_once, tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("name", LONG_CLIENTS_OF_THE_MODEL)
def test_long_client_of_the_model(name: str, model_server_once: Server, tmp_path: Path) -> None:
    assert_prints(name, LONG_CLIENTS_OF_THE_MODEL[name], call(name, model_server_once, tmp_path))


@pytest.mark.long
def test_aleph_alpha(echo_server: Server, tmp_path: Path) -> None:
    output = call("clients/aleph_alpha_client_chat.py", echo_server, tmp_path, CLIENTS_PYTHON)
    assert_prints("aleph_alpha_client_chat.py", r"^The capi\n.*\w", output)


@pytest.mark.parametrize(("name", "reader"), TASKS.items(), indirect=["reader"], ids=TASKS)
def test_task(name: str, reader: Reader) -> None:
    assert_prints(name, TASKS[name].prints, work_through(reader, name))


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.stop()


@pytest.mark.long
def test_s3(s3: S3Server, tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "my-model").symlink_to(tiny_llama)
    s3.client.create_bucket(Bucket="my-bucket")
    environ = {
        **s3.environ,
        "AWS_ENDPOINT_URL_S3": s3.client.meta.endpoint_url,
        "LMI_CACHE_DIR": str(tmp_path / "cache"),
        "OPTION_ROLLING_BATCH": "scheduler",
        "OPTION_DTYPE": "fp32",
    }
    reader = reader_of(tmp_path, environ)
    upload, serve, _ = steps(EXAMPLES / "tasks/s3/upload_model.py")
    try:
        assert "s3://my-bucket/models/llama/config.json\n" in reader.run(upload)
        reader.run(serve)
        generate = (
            "curl -sf http://127.0.0.1:8080/generate -H 'Content-Type: application/json' -d '{\"inputs\": \"a\"}'"
        )
        assert "generated_text" in reader.run(generate)  # the checkpoint has no chat template
    finally:
        reader.stop()


@pytest.mark.long
def test_adapters(tiny_llama: Path, tmp_path: Path) -> None:
    reader = reader_of(tmp_path, {"OPTION_MODEL_ID": str(tiny_llama), "OPTION_ROLLING_BATCH": "scheduler"})
    write_adapter(tmp_path / "examples/tasks/adapters/adapters/english", 0.5, layers=2, width=128)
    try:
        assert_prints("adapters", r"^model: .*\nenglish: .*\n$", work_through(reader, "tasks/adapters/ask_adapters.py"))
    finally:
        reader.stop()


@pytest.mark.long
def test_classification(tmp_path: Path) -> None:
    from tiny_tasks import save_task_model

    model = save_task_model("BertForSequenceClassification", tmp_path / "bert")
    reader = reader_of(tmp_path, {"OMP_NUM_THREADS": "1"})
    properties = tmp_path / "examples/tasks/classification/serving.properties"
    properties.write_text(re.sub("(?m)^option.model_id=.*", f"option.model_id={model}", properties.read_text()))
    try:
        output = work_through(reader, "tasks/classification/classify.py")
    finally:
        reader.stop()
    assert_prints("classification", r"^([ABC] [01]\.\d+  .*\n){2}$", output)


@pytest.mark.long
@pytest.mark.model
@pytest.mark.parametrize(("name", "reader"), LONG_TASKS.items(), indirect=["reader"], ids=LONG_TASKS)
def test_task_with_the_model(name: str, reader: Reader) -> None:
    assert_prints(name, LONG_TASKS[name].prints, work_through(reader, name))


def test_every_program_is_run() -> None:
    assert (
        programs()
        == {f"clients/{name}" for name in CLIENTS}
        | {*CLIENTS_OF_THE_MODEL}
        | {*LONG_CLIENTS_OF_THE_MODEL}
        | {*TASKS}
        | {*LONG_TASKS}
        | WITH_THEIR_OWN_TESTS
    )


def test_the_index_has_every_program() -> None:
    index = (EXAMPLES / "README.md").read_text()
    assert programs() <= set(re.findall(r"\]\(((?:clients|tasks)/[^)]+)\)", index))


@pytest.mark.parametrize(
    "path", sorted(EXAMPLES.glob("tasks/**/serving.properties")), ids=lambda path: path.parent.name
)
def test_options_exist(path: Path) -> None:
    parse("properties", path.read_text())
