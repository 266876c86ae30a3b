"""vLLM's pooling runner: the vectors and scores are those of the transformers backend, which the library's tests check."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from facts import raises
from safetensors.torch import save_file
from serving import StartServer
from serving_properties import serving_properties
from tiny_cross_encoders import save_classifier
from tiny_embedders import save_embedder, save_sparse_embedder
from tiny_models import MAX_LEN, VOCAB_SIZE

from backends import load_backend_class
from backends.base import Backend, ModelFiles
from formatters.pooling import numbers
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.pooling_params import PoolingParams
from lmi_handlers.core.request import EncodedPrompt, TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams

pytestmark = [
    pytest.mark.needs("vllm"),
    pytest.mark.timeout(900),
    pytest.mark.model,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("without_flask"),
]

TOLERANCE = 1e-4
PROMPTS = [[(13 * i + 5 * n) % (VOCAB_SIZE - 10) + 5 for i in range(n)] for n in (1, 2, 7, 7, 31, 60, MAX_LEN)]
ENCODER: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 1}
DECODER: dict[str, Any] = {"head_dim": 64}
"""vLLM's attention on a CPU takes no smaller heads."""

QUICK = {"enforce_eager": True, "extra": {"kv_cache_memory_bytes": "64M"}}
DENSE = {"in_features": 64, "out_features": 12, "bias": True, "activation_function": "torch.nn.modules.activation.Tanh"}


@contextmanager
def loaded(name: str, path: Path, task: str, **others: Any) -> Iterator[Backend]:
    options: dict[str, Any] = {"task": task, "dtype": "fp32"} | (QUICK if name == "vllm" else {}) | others
    files = ModelFiles(path=path, eos_token_ids=(), vocab_size=VOCAB_SIZE)
    backend = load_backend_class(name, pools=True).load(files, serving_properties(**options), lambda _: None)
    yield backend
    backend.close()


def ask(backend: Backend, params: list[PoolingParams], *, types: bool = False) -> dict[str, list[float]]:
    """Ask for all prompts at once, each with the next of `params`. With `types`, their second halves are of type 1."""
    for place, (prompt, asked) in enumerate(zip(PROMPTS, itertools.cycle(params))):
        halves = [0] * (len(prompt) // 2) + [1] * (len(prompt) - len(prompt) // 2)
        backend.add_request(request(place, EncodedPrompt(prompt, token_type_ids=halves if types else None), asked))
    found: dict[str, TokenOutput] = {}
    while len(found) < len(PROMPTS):
        found |= {output.request_id: output for output in backend.step()}
    return {key: numbers(output.embedding or b"") for key, output in found.items()}


def request(place: int, prompt: EncodedPrompt, params: PoolingParams) -> TokenRequest:
    return TokenRequest(request_id=str(place), prompt=prompt, sampling_params=SamplingParams(), pooling_params=params)


def check_equal(path: Path, task: str, params: list[PoolingParams], *, types: bool = False) -> None:
    with loaded("transformers", path, task) as backend:
        expected, wanted = ask(backend, params, types=types), backend.capabilities
    with loaded("vllm", path, task) as backend:
        found, has = ask(backend, params, types=types), backend.capabilities
    assert has.backend == "vllm"
    for field in ("max_model_len", "vocab_size", "pooling_tasks", "embedding_size", "labels"):
        assert getattr(has, field) == getattr(wanted, field), field
    for key, vector in expected.items():
        torch.testing.assert_close(torch.tensor(found[key]), torch.tensor(vector), atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "options", "modules"),
    [
        ("bert", ENCODER, None),
        ("bert", ENCODER, {"Pooling": {"pooling_mode": "cls"}, "Dense": DENSE, "Normalize": {}}),
        ("roberta", ENCODER, {"Pooling": {"pooling_mode": "max"}}),
        ("llama", DECODER, {"Pooling": {"pooling_mode": "lasttoken"}, "Normalize": {}}),
    ],
    ids=["mean", "cls-and-dense", "max", "last-token"],
)
def test_vectors(name: str, options: dict[str, Any], modules: dict[str, Any] | None, tmp_path: Path) -> None:
    """All kinds of requests in one batch."""
    path = save_embedder(name, tmp_path / "m", modules=modules, **options)
    if name == "roberta":  # only the model's own positions limit the texts
        config = json.loads((path / "tokenizer_config.json").read_text())
        (path / "tokenizer_config.json").write_text(json.dumps(config | {"model_max_length": 10**30}))
    if modules is not None and "Dense" in modules:
        torch.manual_seed(3)
        weights = {"linear.weight": torch.randn(12, 64) / 8, "linear.bias": torch.randn(12)}
        save_file(weights, path / "2_Dense" / "model.safetensors")
    params = [PoolingParams(normalize=False), PoolingParams(dimensions=5), PoolingParams(task="embed_all")]
    check_equal(path, "text-embedding", params)


@pytest.mark.parametrize(("name", "options"), [("bert", ENCODER), ("qwen3", DECODER)], ids=["bert", "qwen3"])
def test_scores(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    path = save_classifier(name, tmp_path / "m", 3, id2label={0: "good", 1: "bad", 2: "ugly"}, **options)
    params = [PoolingParams(task="classify", activation=activation) for activation in ("none", "softmax", "model")]
    check_equal(path, "text-ranking", params, types=name == "bert")


def test_aborted_prompts_are_not_computed(tmp_path: Path) -> None:
    with loaded("vllm", save_embedder("bert", tmp_path / "m", **ENCODER), "text-embedding") as backend:
        for place, prompt in enumerate(PROMPTS[:3]):
            backend.add_request(request(place, EncodedPrompt(prompt), PoolingParams()))
        backend.abort("1")
        backend.abort("unknown")
        assert {output.request_id for output in backend.step()} == {"0", "2"}
        assert backend.step() == []


def test_what_vllm_does_not_pool_is_named(tmp_path: Path) -> None:
    sparse = save_sparse_embedder(tmp_path / "splade")
    for path, task, cause in (
        (sparse, "text-embedding", "vLLM computes no sparse embeddings"),
        (save_embedder("bert", tmp_path / "bert"), "text-ranking", "needs a cross-encoder .* not BertModel"),
        (save_embedder("t5", tmp_path / "t5"), "text-embedding", "option.model_id: vLLM cannot serve .*T5"),
    ):
        with pytest.raises(ConfigError, match=cause), loaded("vllm", path, task):
            pass


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"enable_prefix_caching": True}, "option.enable_prefix_caching true vLLM"),
        ({"enable_chunked_prefill": True}, "option.enable_chunked_prefill true vLLM"),
        ({"extra": {"pooler_config": '{"dimensions": 8}'}}, "option.pooler_config: dimensions not supported"),
    ],
    ids=["prefix-caching", "chunked-prefill", "dimensions"],
)
def test_option_that_would_end_the_engine_at_a_request(options: dict[str, Any], cause: str, tmp_path: Path) -> None:
    path = save_embedder("llama", tmp_path / "m", **DECODER)
    with raises(ConfigError, cause), loaded("vllm", path, "text-embedding", **options):
        pass


def test_model_in_float32_is_computed_in_float32(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """vLLM's own choice is float16."""
    caplog.set_level("INFO")
    path = save_embedder("bert", tmp_path / "m", **ENCODER)
    with loaded("vllm", path, "text-embedding", dtype="auto") as backend:
        assert backend.capabilities.dtype == "float32"
    assert "the model's own" in [vars(record).get("reason") for record in caplog.records]


def test_server(tmp_path: Path, start_server: StartServer) -> None:
    path = save_embedder("bert", tmp_path / "m", **ENCODER)
    options = "option.dtype=fp32\noption.enforce_eager=true\noption.kv_cache_memory_bytes=64M\n"
    answers = []
    for engine in ("vllm", "auto"):
        server = start_server(
            f"option.model_id={path}\noption.task=text-embedding\noption.rolling_batch={engine}\n{options}"
        )
        answers.append(server.invoke({"input": ["Hello", "x" * 90]}, path="/v1/embeddings").json())
        server.stop()
    found, expected = ([item["embedding"] for item in answer["data"]] for answer in answers)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), atol=TOLERANCE, rtol=TOLERANCE)
