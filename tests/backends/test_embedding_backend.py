"""Embeddings on transformers: the vectors are those that the library computes for each input alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from facts import raises, says
from safetensors.torch import save_file
from serving import StartServer
from serving_properties import serving_properties
from tiny_embedders import CONFIGS, make_embedder, save_embedder, save_sparse_embedder
from tiny_models import MAX_LEN, VOCAB_SIZE
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from backends.base import ModelFiles
from backends.max_model_len import choose_max_model_len
from backends.pooling.pooler import Pooler, SpladePooler, read_pooler, stated_lengths
from backends.transformers.heads import Embedder
from backends.transformers.loading import position_limit
from backends.transformers.pooling_backend import PoolingBackend
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.pooling_params import PoolingParams
from lmi_handlers.core.request import EncodedPrompt, TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams

LENGTHS = (1, 2, 7, 7, 8, 30, 31, 60, MAX_LEN)
PROMPTS = [[(13 * i + 5 * n) % (VOCAB_SIZE - 10) + 5 for i in range(n)] for n in LENGTHS]
TOLERANCE = 1e-4


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small gain nothing from threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def ask(backend: PoolingBackend, prompts: list[list[int]], **params: Any) -> None:
    for place, prompt in enumerate(prompts):
        request = TokenRequest(
            request_id=str(place),
            prompt=EncodedPrompt(prompt),
            sampling_params=SamplingParams(),
            pooling_params=PoolingParams(**params),
        )
        backend.add_request(request)


def answers(backend: PoolingBackend, count: int) -> dict[str, TokenOutput]:
    found: dict[str, TokenOutput] = {}
    while len(found) < count:
        outputs = backend.step()
        assert outputs
        found |= {output.request_id: output for output in outputs}
    return found


def vectors(backend: PoolingBackend, prompts: list[list[int]], **params: Any) -> torch.Tensor:
    ask(backend, prompts, **params)
    found = answers(backend, len(prompts))
    assert all(output.finish_reason is FinishReason.EOS_TOKEN for output in found.values())
    return torch.stack(
        [torch.frombuffer(bytearray(found[str(i)].embedding or b""), dtype=torch.float32) for i in range(len(prompts))]
    )


def hidden(model: Any, prompt: list[int]) -> torch.Tensor:
    """The vectors of a prompt's tokens, `[tokens, size]`."""
    with torch.inference_mode():
        states: torch.Tensor = model(input_ids=torch.tensor([prompt])).last_hidden_state[0]
    return states


@pytest.mark.parametrize("name", CONFIGS)
def test_vectors_are_the_librarys_own(name: str) -> None:
    model = make_embedder(name)
    expected = torch.stack([hidden(model, prompt).mean(dim=0) for prompt in PROMPTS])
    backend = PoolingBackend(Embedder(model, Pooler()), max_model_len=MAX_LEN)
    assert backend.capabilities.embedding_size == 32
    torch.testing.assert_close(vectors(backend, PROMPTS, normalize=False), expected, atol=TOLERANCE, rtol=TOLERANCE)
    scaled = torch.nn.functional.normalize(expected, dim=-1)
    torch.testing.assert_close(vectors(backend, PROMPTS), scaled, atol=TOLERANCE, rtol=TOLERANCE)


def test_dimensions_are_cut_before_vectors_are_scaled() -> None:
    model = make_embedder("bert")
    expected = torch.stack([hidden(model, prompt).mean(dim=0)[:5] for prompt in PROMPTS])
    backend = PoolingBackend(Embedder(model, Pooler()), max_model_len=MAX_LEN)
    scaled = torch.nn.functional.normalize(expected, dim=-1)
    torch.testing.assert_close(vectors(backend, PROMPTS, dimensions=5), scaled, atol=TOLERANCE, rtol=TOLERANCE)


def test_aborted_inputs_are_not_computed() -> None:
    backend = PoolingBackend(Embedder(make_embedder("bert"), Pooler()), max_model_len=MAX_LEN, max_batch_tokens=100)
    ask(backend, PROMPTS)
    for place in range(1, len(PROMPTS)):
        backend.abort(str(place))
    assert [output.request_id for output in backend.step()] == ["0"]


# What goes wrong


def test_an_input_without_a_finite_vector_fails_alone() -> None:
    model = make_embedder("bert")
    with torch.no_grad():
        model.get_input_embeddings().weight[3] = torch.nan
    expected = hidden(model, [7, 8]).mean(dim=0)
    backend = PoolingBackend(Embedder(model, Pooler()), max_model_len=MAX_LEN)
    ask(backend, [[7, 8], [7, 3]], normalize=False)
    found = answers(backend, 2)
    good, bad = found["0"], found["1"]
    assert (bad.finish_reason, says(bad.error, "computed number not finite")) == (
        FinishReason.ERROR,
        True,
    )
    torch.testing.assert_close(torch.frombuffer(bytearray(good.embedding or b""), dtype=torch.float32), expected)


class SmallMemory(torch.nn.Module):
    """A model that runs out of memory if a batch has more than `room` tokens."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.model = make_embedder("bert")
        self.config, self.dtype, self.room = self.model.config, self.model.dtype, room

    def get_input_embeddings(self) -> Any:
        return self.model.get_input_embeddings()

    def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        if input_ids.numel() > self.room:
            raise torch.OutOfMemoryError("as the test asked")
        return self.model(input_ids=input_ids, **kwargs)


def test_inputs_for_which_memory_runs_out_fail_alone() -> None:
    backend = PoolingBackend(Embedder(SmallMemory(20), Pooler()), max_model_len=MAX_LEN)
    ask(backend, [[5] * 12, [6] * 12, [7] * 50])
    found = answers(backend, 3)
    assert [found[key].finish_reason for key in "012"] == [
        FinishReason.EOS_TOKEN,
        FinishReason.EOS_TOKEN,
        FinishReason.ERROR,
    ]
    assert says(found["2"].error, "out of memory input")


# The model's files

STATES = torch.randn(9, 6, generator=torch.Generator().manual_seed(1))
WEIGHTS = torch.arange(1, 10)[:, None]
POOLED = {
    "cls": STATES[0],
    "max": STATES.max(dim=0).values,
    "mean": STATES.mean(dim=0),
    "mean_sqrt_len_tokens": STATES.sum(dim=0) / 3,
    "weightedmean": (STATES * WEIGHTS).sum(dim=0) / WEIGHTS.sum(),
    "lasttoken": STATES[-1],
}


def modules(path: Path, *, first: str = "Transformer", **configs: Any) -> Path:
    path.mkdir(exist_ok=True)
    listed = [{"path": "", "type": f"sentence_transformers.models.{first}"}]
    for kind, config in configs.items():
        listed.append({"path": kind, "type": f"sentence_transformers.models.{kind}"})
        (path / kind).mkdir()
        (path / kind / "config.json").write_text(json.dumps(config))
    (path / "modules.json").write_text(json.dumps(listed))
    return path


def pooled(pooler: Pooler | SpladePooler) -> torch.Tensor:
    """Pool `STATES` beside a longer input, so it is padded with numbers that must not count."""
    padded = torch.stack([torch.cat([STATES, torch.full((2, 6), 100.0)]), torch.ones(11, 6)])
    with torch.inference_mode():
        vectors: torch.Tensor = pooler(padded, torch.tensor([9, 11]))
    return vectors[0]


@pytest.mark.parametrize("mode", POOLED)
def test_pooling_modes(mode: str, tmp_path: Path) -> None:
    flag = {"cls": "cls_token", "lasttoken": "lasttoken", "mean_sqrt_len_tokens": "mean_sqrt_len_tokens"}
    old = {f"pooling_mode_{flag.get(mode, mode + '_tokens')}": True, "pooling_mode_mean_tokens": mode == "mean"}
    for place, config in enumerate((old, {"pooling_mode": mode}, {"pooling_mode": [mode]})):
        pooler = read_pooler(modules(tmp_path / str(place), Pooling=config))
        torch.testing.assert_close(pooled(pooler), POOLED[mode])


def test_modes_are_concatenated_and_further_modules_applied(tmp_path: Path) -> None:
    dense = {
        "in_features": 12,
        "out_features": 3,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    config = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
    path = modules(tmp_path / "m", Pooling=config, Dense=dense, Dropout={}, Normalize={})
    weight, bias = torch.randn(3, 12), torch.randn(3)
    save_file({"linear.weight": weight, "linear.bias": bias}, path / "Dense" / "model.safetensors")
    both = torch.cat([POOLED["cls"], POOLED["mean"]])
    expected = torch.nn.functional.normalize(torch.tanh(weight @ both + bias), dim=0)
    torch.testing.assert_close(pooled(read_pooler(path)), expected)


def test_a_model_without_modules_gets_the_mean(tmp_path: Path) -> None:
    torch.testing.assert_close(pooled(read_pooler(tmp_path)), POOLED["mean"])


WEIGHT = STATES.relu().log1p()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, WEIGHT.amax(dim=0)),
        ({"pooling_strategy": "sum"}, WEIGHT.sum(dim=0)),
        ({"activation_function": "log1p_relu"}, WEIGHT.log1p().amax(dim=0)),
    ],
)
def test_sparse_pooling(config: dict[str, str], expected: torch.Tensor, tmp_path: Path) -> None:
    path = modules(tmp_path / "m", first="MLMTransformer", SpladePooling=config)
    torch.testing.assert_close(pooled(read_pooler(path)), expected)


DENSE = {"in_features": 6, "out_features": 3}


@pytest.mark.parametrize(
    ("configs", "cause"),
    [
        ({"Pooling": {}, "WordWeights": {}}, "the module WordWeights"),
        ({"Pooling": {"pooling_mode": "median"}}, "the pooling mode median"),
        ({"Pooling": {"include_prompt": False}}, "include_prompt=false"),
        ({"Dense": DENSE | {"activation_function": "my.Swish"}}, "the activation function Swish"),
        ({"Dense": DENSE | {"use_residual": True}}, "use_residual=true"),
        ({"Dense": DENSE}, "model.safetensors is missing"),
        ({"first": "MLMTransformer", "SpladePooling": {"pooling_strategy": "mean"}}, "the pooling strategy mean"),
        ({"first": "MLMTransformer", "SpladePooling": {"activation_function": "tanh"}}, "the activation function tanh"),
    ],
)
def test_what_is_not_supported_is_named(configs: dict[str, Any], cause: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=cause):
        read_pooler(modules(tmp_path / "m", **configs))


@pytest.mark.parametrize(
    ("file", "content", "cause"),
    [
        ("modules.json", b"[]", "asks for no module at all"),
        ("modules.json", b'[{"type": "\xff"}]', "modules.json cannot be read"),
        ("Pooling/config.json", b'{"a": "\xff"}', "config.json cannot be read"),
        ("Pooling/config.json", b'{"a": ' + b"[" * 100_000, "config.json cannot be read"),
    ],
    ids=["no module", "modules", "text", "depth"],
)
def test_a_file_that_cannot_be_read_is_named(file: str, content: bytes, cause: str, tmp_path: Path) -> None:
    path = modules(tmp_path / "m", Pooling={})
    (path / file).write_bytes(content)
    with pytest.raises(ConfigError, match=cause):
        read_pooler(path)


@pytest.mark.parametrize(
    ("name", "trained", "limit"),
    [("bert", None, MAX_LEN), ("bert", 40, 40), ("roberta", None, MAX_LEN), ("t5", None, 4096)],
)
def test_longest_input(name: str, trained: int | None, limit: int, tmp_path: Path) -> None:
    if trained is not None:
        (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": trained}))
    positions, stated = position_limit(make_embedder(name)), stated_lengths(tmp_path)
    assert choose_max_model_len(positions, None, *stated) == limit
    assert choose_max_model_len(positions, 50, *stated) == 50
    if name != "t5":
        with raises(ConfigError, f"{MAX_LEN} limit 97"):
            choose_max_model_len(positions, 97, *stated)


# As a server


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_server_embeds_texts_as_the_model_does(name: str, tmp_path: Path, start_server: StartServer) -> None:
    mode = "cls" if name == "bert" else "lasttoken"
    path = save_embedder(name, tmp_path / name, modules={"Pooling": {"pooling_mode": mode}, "Normalize": {}})
    (path / "config_sentence_transformers.json").write_text('{"prompts": {"query": "find: "}}')
    server = start_server(f"option.model_id={path}\noption.task=text-embedding\n")
    texts = ["Hello world", "a", "x" * 200]
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()
    expected = []
    for text in texts:
        states = hidden(model, tokenizer(text, truncation=True, max_length=MAX_LEN).input_ids)
        expected.append(torch.nn.functional.normalize(states[0 if mode == "cls" else -1], dim=0))
    found = torch.tensor(server.invoke({"inputs": texts}).json())
    torch.testing.assert_close(found, torch.stack(expected), atol=TOLERANCE, rtol=TOLERANCE)
    prompted = server.invoke({"inputs": texts[1], "prompt_name": "query"}, path="/embed").json()
    assert prompted == server.invoke({"inputs": ["find: a"]}, path="/embed").json()
    answer = server.invoke({"input": texts[:2]}, path="/v1/embeddings").json()
    torch.testing.assert_close(
        torch.tensor(answer["data"][0]["embedding"]), expected[0], atol=TOLERANCE, rtol=TOLERANCE
    )
    assert answer["usage"]["prompt_tokens"] == 13 + 3


def test_sparse_embeddings(tmp_path: Path) -> None:
    path = save_sparse_embedder(tmp_path / "splade")
    files = ModelFiles(path=path, eos_token_ids=(), vocab_size=VOCAB_SIZE)
    backend = PoolingBackend.load(files, serving_properties(task="text-embedding"), lambda phase: None)
    assert backend.capabilities.pooling_tasks == ("embed_sparse",)
    ask(backend, PROMPTS, task="embed_sparse")
    found = answers(backend, len(PROMPTS))
    model = AutoModelForMaskedLM.from_pretrained(path).eval()
    for place, prompt in enumerate(PROMPTS):
        with torch.inference_mode():
            expected = model(torch.tensor([prompt])).logits[0].relu().log1p().amax(dim=0)
        data = found[str(place)].embedding or b""
        half = len(data) // 2
        weights = torch.zeros(VOCAB_SIZE)
        weights[torch.frombuffer(bytearray(data[:half]), dtype=torch.int32)] = torch.frombuffer(
            bytearray(data[half:]), dtype=torch.float32
        )
        torch.testing.assert_close(weights, expected, atol=TOLERANCE, rtol=TOLERANCE)
        assert 0 < half // 4 < VOCAB_SIZE


def test_embeddings_of_each_token() -> None:
    model = make_embedder("bert")
    backend = PoolingBackend(Embedder(model, Pooler()), max_model_len=MAX_LEN)
    ask(backend, PROMPTS, task="embed_all")
    for key, output in answers(backend, len(PROMPTS)).items():
        states = torch.frombuffer(bytearray(output.embedding or b""), dtype=torch.float32).view(-1, 32)
        torch.testing.assert_close(states, hidden(model, PROMPTS[int(key)]), atol=TOLERANCE, rtol=TOLERANCE)


def test_load_reads_the_options(tmp_path: Path) -> None:
    path = save_embedder("bert", tmp_path / "bert")
    files = ModelFiles(path=path, eos_token_ids=(), vocab_size=VOCAB_SIZE)
    options = serving_properties(max_model_len=50, max_rolling_batch_size=3, max_rolling_batch_prefill_tokens=20)
    backend = PoolingBackend.load(files, options, lambda phase: None)
    assert (backend.capabilities.max_model_len, backend.capabilities.max_num_seqs) == (50, 3)
    ask(backend, [[5] * 10] * 3)
    assert [len(backend.step()), len(backend.step())] == [2, 1]
