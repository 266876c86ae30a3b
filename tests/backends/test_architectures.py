"""Greedy answers of many architectures equal `generate` in float32: both runners of transformers, OpenVINO, and vLLM."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import ARCHITECTURES, VLLM, VOCAB_SIZE, make_architecture, save_architecture
from serving_properties import serving_properties

from backends import load_backend_class
from backends.base import Backend, ModelFiles
from backends.openvino import DECLARATION
from backends.transformers import backend as transformers_backend
from backends.transformers.backend import TransformersBackend
from backends.transformers.fallback import SequentialRunner
from backends.transformers.loading import sequential_runner
from lmi_handlers.core.request import EncodedPrompt, TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")]

MAX_NEW = 16
NEAR = 1e-3
"""Logits that are closer than this may be ordered differently. Those of two ways to compute them differ by about 1e-5."""

_RNG = random.Random(24)
PROMPTS = [[_RNG.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in (70, 33, 7)]
"""Two are longer than the sliding windows."""


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def generated(model: Any) -> list[list[int]]:
    """Return what the library's `generate` says to each prompt alone."""
    answers = []
    for prompt in PROMPTS:
        output = model.generate(
            input_ids=torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=MAX_NEW,
            eos_token_id=None,
            pad_token_id=0,
        )
        answers.append(output[0, len(prompt) :].tolist())
    return answers


def served(backend: Backend) -> list[list[int]]:
    """Return the answers to all prompts in one batch."""
    tokens: dict[str, list[int]] = {str(number): [] for number in range(len(PROMPTS))}
    params = SamplingParams(temperature=0, max_tokens=MAX_NEW, ignore_eos=True)
    for name, prompt in zip(tokens, PROMPTS, strict=True):
        backend.add_request(TokenRequest(request_id=name, prompt=EncodedPrompt(prompt), sampling_params=params))
    while any(len(answer) < MAX_NEW for answer in tokens.values()):
        for output in backend.step():
            assert output.error is None
            tokens[output.request_id] += output.token_ids
    return list(tokens.values())


def check(model: Any, answers: list[list[int]], expected: list[list[int]]) -> None:
    """Compare answers. Where they part, the two tokens must be as good as equally likely."""
    for prompt, answer, right in zip(PROMPTS, answers, expected, strict=True):
        if answer != right:
            at = next(index for index in range(MAX_NEW) if answer[index] != right[index])
            with torch.inference_mode():
                logits = model(torch.tensor([prompt + right[:at]]), use_cache=False).logits[0, -1]
            assert logits[right[at]] - logits[answer[at]] < NEAR, (at, answer, right)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_answers_are_those_of_generate(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_architecture(name)
    expected = generated(model)
    assert len({token for answer in expected for token in answer}) > 3
    backend = TransformersBackend(make_architecture(name), max_prefill_tokens=48)
    check(model, served(backend), expected)
    if name in SEQUENTIAL and type(backend._runner) is not SequentialRunner:
        monkeypatch.setattr(
            transformers_backend,
            "choose_runner",
            lambda model, max_model_len, **options: sequential_runner(model, **options),
        )
        check(model, served(TransformersBackend(make_architecture(name))), expected)


SEQUENTIAL = {"gemma3", "llama", "mixtral"}
"""Those that are also computed one by one, as the architectures are for which the library has no other way."""

OPENVINO = {
    "ernie4_5",
    "gemma",
    "granite",
    "llama",
    "llama_llama3",
    "mistral",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen3",
    "smollm3",
    "starcoder2",
}


def saved(name: str, folder: Path) -> tuple[Any, ModelFiles]:
    """Return the model and its files, which are in float32, in `folder`."""
    model = save_architecture(name, folder)
    return model, ModelFiles(path=folder, cache=folder / "cache", eos_token_ids=(), vocab_size=VOCAB_SIZE)


CONVERT_ALL = """
import json, sys, warnings
from pathlib import Path
from backends.openvino.tracing import convert
warnings.simplefilter("ignore")
for path, folder in json.loads(sys.argv[1]):
    print(path)
    Path(folder).mkdir(parents=True)
    convert(Path(path), Path(folder), trust_remote_code=False)
"""
"""In one process, because its imports take longest. Elsewhere, each model has one of its own."""


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, ModelFiles]]:
    """The models of `OPENVINO`, with what the backend converts them to in its cache."""
    models = {name: saved(name, tmp_path_factory.mktemp(name)) for name in sorted(OPENVINO)}
    folders = [
        (str(files.path), str(files.cache / f"openvino-{version('openvino')}"))
        for _, files in models.values()
        if files.cache is not None
    ]
    subprocess.run([sys.executable, "-c", CONVERT_ALL, json.dumps(folders)], check=True, timeout=250)
    return models


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(OPENVINO))
def test_answers_of_openvino(name: str, converted: dict[str, tuple[Any, ModelFiles]]) -> None:
    model, files = converted[name]
    assert type(model).__name__ in DECLARATION.architectures
    properties = serving_properties(rolling_batch="openvino", dtype="fp32")
    phases: list[str] = []
    backend = load_backend_class("openvino").load(files, properties, phases.append)
    assert not any("converting" in phase for phase in phases), "it was converted before, with the others"
    check(model, served(backend), generated(model))


def test_all_that_openvino_claims_is_compared() -> None:
    assert {type(make_architecture(name)).__name__ for name in OPENVINO} == set(DECLARATION.architectures)


@pytest.mark.needs("vllm")
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("without_flask")
@pytest.mark.parametrize("name", VLLM)
def test_answers_of_vllm(name: str, tmp_path: Path) -> None:
    model, files = saved(name, tmp_path)
    properties = serving_properties(dtype="fp32", enforce_eager=True, extra={"kv_cache_memory_bytes": "32M"})
    backend = load_backend_class("vllm").load(files, properties, lambda phase: None)
    try:
        check(model, served(backend), generated(model))
    finally:
        backend.close()
