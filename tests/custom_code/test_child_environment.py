"""Which of the server's credentials a model's own code can find: none, unless the operator passes them on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from byte_model import write_byte_model
from paths import ROOT
from serving import Server, lmi_check

from lmi_handlers.core.redaction import is_secret
from lmi_handlers.workers.environment import child_environment

SECRETS = {
    "API_KEY": "the-api-key",
    "HF_TOKEN": "hf_the-token",
    "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "the-secret-key",
    "AWS_SESSION_TOKEN": "the-session",
    "OTEL_EXPORTER_OTLP_HEADERS": "x-api-key=of-the-collector",
}
MEANT = {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/role", "AWS_REGION": "eu-west-1", "MY_API_KEY": "of-the-handler"}
KEY = {"Authorization": "Bearer the-api-key", "x-api-key": "the-api-key", "X-Mine": "yes"}

WRITE = """
import json, os
with open({path!r}, "w") as file:
    json.dump(dict(os.environ), file)
"""
HANDLER = """
import os
from djl_python import Output


def handle(inputs):
    if inputs.is_empty():
        return None
    return Output().add_as_json([dict(os.environ), dict(inputs.get_properties())])
"""
FORMATTER = """
import json, os
from djl_python.input_parser import input_formatter
from djl_python.request_io import TextInput


@input_formatter
def read(inputs, **kwargs):
    with open("seen.json", "w") as file:
        json.dump([dict(os.environ), dict(inputs.get_properties())], file)
    request = TextInput()
    request.input_text = "a"
    request.parameters = {"max_new_tokens": 1}
    return request
"""
BUILD = """
import sys
sys.path.insert(0, {support!r})
from pathlib import Path
from wheels import write_wheel


def build_wheel(folder, config_settings=None, metadata_directory=None):
    return write_wheel(Path(folder), "colours", "1.0", "").name
"""
TOKENIZER = """
from transformers import PreTrainedTokenizerFast


class Mine(PreTrainedTokenizerFast):
    pass
"""

Serve = Callable[..., Server]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    servers: list[Server] = []

    def start(files: dict[str, str], properties: str = "", **variables: str) -> Server:
        for name, text in files.items():
            (tmp_path / "m" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "m" / name).write_text(text)
        environ = SECRETS | MEANT | {"LMI_CACHE_DIR": str(tmp_path / "cache"), "PIP_NO_INDEX": "1"} | variables
        servers.append(Server(tmp_path / "m", properties, "--workers", "1", environ=environ))
        return servers[-1].wait_ready()

    yield start
    for server in servers:
        server.stop()


def check(seen: dict[str, str], *passed: str) -> None:
    assert {name: seen.get(name) for name in SECRETS if name in seen} == {name: SECRETS[name] for name in passed}
    assert {name: seen.get(name) for name in MEANT} == MEANT


def test_no_secret_of_the_pages_is_forgotten() -> None:
    pages = "".join((ROOT / "docs" / page).read_text() for page in ("options.md", "operating.md"))
    names = {name for name in re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", pages) if is_secret(name, "some text")}
    assert {"API_KEY", "HF_TOKEN", "LMI_CONTINUATION_KEY", "LMI_ENGINE_KEY"} <= names
    given = child_environment(dict.fromkeys(names, "some text"))
    assert {name for name in given if "MAX_" not in name} == {"LMI_REDACTED_KEYS"}, "which has names of keys"


def test_neither_pip_nor_a_handler_gets_credentials_or_the_requests_key(serve: Serve, tmp_path: Path) -> None:
    support = str(Path(__file__).parent.parent / "support")
    files = {
        "model.py": HANDLER,
        "requirements.txt": "./package\n",
        "package/pyproject.toml": "[build-system]\nrequires=[]\nbuild-backend='build'\nbackend-path=['.']\n",
        "package/build.py": WRITE.format(path=str(tmp_path / "seen.json")) + BUILD.format(support=support),
    }
    server = serve(files, "option.install_requirements=true\n")
    check(json.loads((tmp_path / "seen.json").read_text()))
    seen, properties = server.invoke({}, headers=KEY).json()
    check(seen)
    assert properties["X-Mine"] == "yes"
    assert not [name for name, value in properties.items() if "the-api-key" in value]
    warned = lmi_check(tmp_path / "m", "--no-code", environ=SECRETS)
    assert (
        "LMI_CODE_VARIABLES=HF_TOKEN,AWS_ACCESS_KEY_ID,AWS_SECRET_ACCESS_KEY,AWS_SESSION_TOKEN"
        in warned.stderr + warned.stdout
    )


def test_a_handler_gets_what_the_operator_names_and_the_header_if_the_server_has_no_key(serve: Serve) -> None:
    server = serve({"model.py": HANDLER}, API_KEY="", LMI_CODE_VARIABLES="HF_TOKEN, AWS_SESSION_TOKEN")
    seen, properties = server.invoke({}, headers=KEY).json()
    check(seen, "HF_TOKEN", "AWS_SESSION_TOKEN")
    assert properties["Authorization"] == "Bearer the-api-key"


def test_neither_remote_code_nor_formatters_get_credentials(serve: Serve, tmp_path: Path) -> None:
    directory = tmp_path / "m"
    directory.mkdir()
    write_byte_model(directory)
    config = {"tokenizer_class": "Mine", "eos_token": "</s>", "auto_map": {"AutoTokenizer": [None, "mine.Mine"]}}
    files = {
        "model.py": FORMATTER,
        "mine.py": WRITE.format(path=str(tmp_path / "seen.json")) + TOKENIZER,
        "tokenizer_config.json": json.dumps(config),
    }
    server = serve(
        files,
        "option.rolling_batch=echo\noption.model_id=.\noption.trust_remote_code=true\n",
        HF_MODULES_CACHE=str(tmp_path / "modules"),
    )
    check(json.loads((tmp_path / "seen.json").read_text()))
    assert server.invoke({}, headers=KEY).status_code == 200
    seen, properties = json.loads((directory / "seen.json").read_text())
    check(seen)
    assert properties["X-Mine"] == "yes"
    assert not [name for name, value in properties.items() if "the-api-key" in value]
