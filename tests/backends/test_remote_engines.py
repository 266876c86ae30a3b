"""The remote backend in front of real engines: the contract, and the tokens that the engine gives by itself.

What `lmi conform` finds on `vllm serve` is here, too, because that takes long to start.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from conforming import conform, differences
from paths import ROOT
from serving import Server, free_port
from serving_properties import load

from lmi_handlers.config.properties import LoadedProperties
from lmi_handlers.core.sampling_params import StructuredOutputs
from lmi_handlers.model_files.locate import find_gguf
from lmi_handlers.testing import BackendContract
from lmi_handlers.testing.driver import MAX_MODEL_LEN, MAX_NUM_SEQS, PROMPTS, Driver, tokens
from lmi_handlers.tools.conform.apis import APIS

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


class RemoteContract(BackendContract):
    """The contract, for an engine that the fixture `engine_url` starts."""

    name = "remote"
    protocol: str

    @pytest.fixture(scope="class")
    @classmethod
    def model_path(cls, tiny_llama: Path) -> Path:
        return tiny_llama

    @pytest.fixture(scope="class")
    @classmethod
    def options(cls, tmp_path_factory: pytest.TempPathFactory, engine_url: str) -> LoadedProperties:
        limits = f"option.max_model_len={MAX_MODEL_LEN}\noption.max_rolling_batch_size={MAX_NUM_SEQS}\n"
        where = f"option.engine_url={engine_url}\noption.engine_protocol={cls.protocol}\n"
        return load(tmp_path_factory.mktemp("options"), limits + where)


@pytest.mark.needs("vllm")
class TestVllm(RemoteContract):
    protocol = "vllm"

    @pytest.fixture(scope="class")
    @classmethod
    def engine_url(cls, tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
        port = free_port()
        command = [sys.executable, str(ROOT / "benchmarks" / "peer_vllm.py"), "serve", str(tiny_llama)]
        command += ["--host", "127.0.0.1", "--port", str(port), "--enable-scale-out", "--dtype", "float32"]
        command += ["--enforce-eager", "--kv-cache-memory-bytes", str(2**28), "--no-enable-chunked-prefill"]
        template = tmp_path_factory.mktemp("template") / "chat.jinja"
        template.write_text("{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}")
        command += ["--chat-template", str(template), "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
        server = Server(tmp_path_factory.mktemp("vllm") / "serve", "", command=command, port=port)
        yield server.url
        server.process.terminate()  # these engines need not know SIGQUIT
        server.process.wait(120)

    def test_same_tokens_as_the_engine_alone(self, driver: Driver, engine_url: str, tiny_llama: Path) -> None:
        for number, prompt in enumerate(PROMPTS):
            body = {"model": str(tiny_llama), "prompt": prompt, "temperature": 0, "max_tokens": 12, "ignore_eos": True}
            answer = requests.post(f"{engine_url}/v1/completions", json=body | {"return_token_ids": True}, timeout=60)
            assert driver.greedy(number, 12) == answer.json()["choices"][0]["token_ids"]

    def test_the_page_of_lmi_conform_has_what_it_speaks(self, driver: Driver, engine_url: str, tmp_path: Path) -> None:
        """The driver has waited for the server, which takes a while to start."""
        _, found = conform(engine_url, *APIS, tmp_path=tmp_path)
        counted = {
            name: (sum(feature["verdict"] == "conforms" for feature in api["features"]), len(api["features"]))
            for name, api in found["apis"].items()
        }
        page = (ROOT / "docs" / "conform.md").read_text()
        table = re.findall(r"^\| `([\w-]+)` \| (\d+) of (\d+) \|", page, re.MULTILINE)
        expected = {name: (int(some), int(every)) for name, some, every in table}
        assert expected == counted, json.dumps(differences(found))


@pytest.mark.needs("xllamacpp")
class TestLlamaCpp(RemoteContract):
    protocol = "llama.cpp"

    @pytest.fixture(scope="class")
    @classmethod
    def gguf_file(cls) -> Path:
        file = find_gguf(None, None)
        assert file is not None
        return file

    @pytest.fixture(scope="class")
    @classmethod
    def engine_url(cls, gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
        port = free_port()
        command = [sys.executable, str(ROOT / "benchmarks" / "peer_llama_cpp.py"), str(gguf_file), str(port), "8", "96"]
        server = Server(tmp_path_factory.mktemp("llama") / "serve", "", command=command, port=port)
        yield server.url
        server.process.terminate()  # these engines need not know SIGQUIT
        server.process.wait(120)

    def test_all_tokens_of_a_character(self, driver: Driver) -> None:
        """A stream of llama.cpp's would only have the last one."""
        wanted = json.dumps({"const": "a\N{GRINNING FACE}b"}, ensure_ascii=False)
        outputs = driver.generate(PROMPTS[1], structured_outputs=StructuredOutputs(json=wanted), ignore_eos=False)
        assert tokens(outputs)[:-1] == [18, 81, 10813, 242, 218, 82, 18]
