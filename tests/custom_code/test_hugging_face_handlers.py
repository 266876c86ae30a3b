"""Handlers that adapt LMI's own for transformers: `HuggingFaceService` and `StreamingUtils`, with a tiny model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from facts import says
from serving import Server, lmi_check
from tiny_models import make_model

HANDLE = "from djl_python.huggingface import handle\n"

ADAPTED = """
import types
from djl_python import Input, Output
from djl_python.encode_decode import decode
from djl_python.huggingface import HuggingFaceService

_service = HuggingFaceService()


def custom_parse_input(self, inputs):
    batch = inputs.get_batches()
    bodies = [decode(item, item.get_property("Content-Type")) for item in batch]
    return [body["prompt"] for body in bodies], [1] * len(bodies), [{"max_new_tokens": 4}] * len(bodies), {}, batch


def handle(inputs: Input) -> Output:
    if not _service.initialized:
        _service.initialize(inputs.get_properties())
        _service.parse_input = types.MethodType(custom_parse_input, _service)
    if inputs.is_empty():
        return None
    return _service.inference(inputs)
"""

STREAMS = """
import torch
from djl_python import Input, Output
from djl_python.streaming_utils import StreamingUtils
from transformers import AutoModelForCausalLM, AutoTokenizer

model = None


def handle(inputs: Input) -> Output:
    global model, tokenizer
    if model is None:
        torch.set_num_threads(1)
        where = inputs.get_property("model_dir")
        model, tokenizer = AutoModelForCausalLM.from_pretrained(where), AutoTokenizer.from_pretrained(where)
    if inputs.is_empty():
        return None
    data = inputs.get_as_json()
    generate = StreamingUtils.get_stream_generator("Accelerate")
    output = Output().add_property("content-type", "application/jsonlines")
    return output.add_stream_content(generate(model, tokenizer, data["inputs"], None, **data["parameters"]))
"""


STREAM = {"X-Stream": "yes"}
BOTH = """
import streams
from djl_python.huggingface import handle as handle_of_lmi


def handle(inputs):
    if inputs.is_empty():
        streams.handle(inputs)
        return handle_of_lmi(inputs)
    return (streams.handle if inputs.get_property("X-Stream") else handle_of_lmi)(inputs)
"""


@pytest.fixture(scope="module")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny language model whose tokenizer has one token per byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    directory = tmp_path_factory.mktemp("tiny")
    make_model("llama").save_pretrained(directory)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:124]
    vocabulary = {name: index for index, name in enumerate(["<pad>", "<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    make: Any = PreTrainedTokenizerFast
    fast = make(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def server(model_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """LMI's handler, and one that streams: torch is imported once."""
    directory = shutil.copytree(model_files, tmp_path_factory.mktemp("both") / "m")
    (directory / "model.py").write_text(BOTH)
    (directory / "streams.py").write_text(STREAMS)
    server = Server(directory, "")
    yield server.wait_ready()
    server.stop()


def test_the_handler_of_lmi_may_be_all_of_a_model_py(model_files: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(model_files, tmp_path / "m")
    (directory / "model.py").write_text(HANDLE)
    checked = lmi_check(directory, "--no-code")
    assert checked.returncode == 0, checked.stderr
    assert says(checked.stdout, f"own code {directory}/model.py")


def test_the_handler_of_lmi(server: Server) -> None:
    body = {"inputs": ["abc", "de"], "parameters": {"max_new_tokens": 5, "do_sample": False}}
    answer = server.invoke(body)
    assert answer.status_code == 200, answer.text
    first, second = (item["generated_text"] for item in answer.json())
    assert first.startswith("abc")
    assert second.startswith("de")
    assert server.invoke({"inputs": "abc", "parameters": body["parameters"]}).json() == [{"generated_text": first}]
    wrong = requests.post(
        f"{server.url}/invocations", data=b"{", headers={"Content-Type": "application/json"}, timeout=60
    )
    assert wrong.status_code == 424
    assert "the request cannot be read" in wrong.json()["error"]


def test_a_parser_of_the_handlers_own_and_a_dynamic_batch(model_files: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(model_files, tmp_path / "m")
    (directory / "model.py").write_text(ADAPTED)
    server = Server(directory, "batch_size=2\nmax_batch_delay=50\n")
    try:
        answer = server.wait_ready().invoke({"prompt": "abc"})
        assert answer.status_code == 200, answer.text + server.log
        assert answer.headers["Content-Type"] == "application/json"
        assert answer.json()[0]["generated_text"].startswith("abc")
    finally:
        server.stop()


def test_a_stream_of_texts(server: Server) -> None:
    parameters = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    answer = server.invoke({"inputs": ["abc", "de"], "parameters": parameters}, headers=STREAM)
    assert answer.headers["Content-Type"] == "application/jsonlines"
    steps = [json.loads(line)["outputs"] for line in answer.text.splitlines()]
    assert [len(step) for step in steps] == [2] * 6
    failed = server.invoke({"inputs": ["abc"], "parameters": {"max_new_tokens": 6, "nonsense": True}}, headers=STREAM)
    assert failed.status_code == 424  # nothing had been sent
    assert "nonsense" in failed.json()["error"]
    assert server.invoke({"inputs": ["abc"], "parameters": parameters}, headers=STREAM).status_code == 200
