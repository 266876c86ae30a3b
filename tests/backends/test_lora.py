"""Several LoRA adapters and the model itself in one batch of the transformers backend: each answers as it does alone."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from facts import raises, says
from lora import train_adapter
from safetensors.torch import load_file, save_file
from tiny_models import CONFIGS, EOS, VOCAB_SIZE, make_model

from backends.transformers.backend import TransformersBackend
from backends.transformers.lora import CONFIG_FILE, WEIGHTS_FILE, read_adapter
from lmi_handlers.core.errors import ConfigError, InvalidRequest
from lmi_handlers.core.request import EncodedPrompt, TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams

ADAPTERS: dict[str, dict[str, Any]] = {
    "low": {"r": 2, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    "stable": {"r": 8, "lora_alpha": 8, "use_rslora": True, "target_modules": "all-linear"},
    "mixed": {
        "r": 4,
        "target_modules": ["k_proj", "o_proj", "down_proj", "gate_proj"],
        "rank_pattern": {"o_proj": 3},
        "alpha_pattern": {"layers.1.self_attn.k_proj": 16, "o_proj": 5},
    },
}
"""Different ranks, layers and scalings."""
GPT2: dict[str, dict[str, Any]] = {
    "low": {"r": 2, "target_modules": ["c_attn"], "fan_in_fan_out": True},
    "all": {"r": 4, "target_modules": ["c_attn", "c_fc", "c_proj"], "fan_in_fan_out": True},
}
MAMBA: dict[str, dict[str, Any]] = {
    "low": {"r": 2, "target_modules": ["in_proj"]},
    "high": {"r": 4, "target_modules": ["x_proj", "in_proj"]},
}
CONFIGS_OF = {"llama": ADAPTERS, "qwen3": ADAPTERS, "gpt2": GPT2, "mamba": MAMBA}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Path]]:
    """Gives the adapters of a model, which are trained once."""

    @functools.cache
    def train(model_name: str) -> dict[str, Path]:
        model, folder = make_model(model_name), tmp_path_factory.mktemp("adapters")
        return {
            name: train_adapter(model, folder / name, seed, **config)
            for seed, (name, config) in enumerate(CONFIGS_OF[model_name].items())
        }

    return train


@pytest.fixture(scope="module")
def llama_adapters(trained: Callable[[str], dict[str, Path]]) -> dict[str, Path]:
    return trained("llama")


def make_backend(model_name: str, adapters: dict[str, Path], **options: Any) -> TransformersBackend:
    backend = TransformersBackend(make_model(model_name), eos_token_ids=(EOS,), **options)
    backend.add_adapters(adapters)
    return backend


def generate(
    backend: TransformersBackend, requests: list[tuple[str | None, list[int]]], **params: Any
) -> list[list[int]]:
    """Return the greedy answers to all requests, which are in one batch."""
    for number, (adapter, prompt) in enumerate(requests):
        backend.add_request(
            TokenRequest(
                request_id=str(number),
                prompt=EncodedPrompt(prompt, adapter),
                sampling_params=SamplingParams(**{"temperature": 0, "max_tokens": 24, "ignore_eos": True} | params),
            )
        )
    answers: list[list[int]] = [[] for _ in requests]
    for _ in range(2000):
        for output in backend.step():
            assert output.error is None, output.error
            answers[int(output.request_id)] += output.token_ids
        if all(len(answer) == 24 for answer in answers):
            return answers
    raise AssertionError(f"unfinished: {answers}")


def peft_answer(model_name: str, folder: Path | None, prompt: list[int]) -> list[int]:
    return _peft_answer(model_name, folder, tuple(prompt))


@functools.cache
def _peft_answer(model_name: str, folder: Path | None, prompt: tuple[int, ...]) -> list[int]:
    from peft import PeftModel

    model = make_model(model_name)
    if folder is not None:
        model = PeftModel.from_pretrained(model, folder).eval()
    output = model.generate(
        input_ids=torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=24,
        eos_token_id=None,
        pad_token_id=0,
    )
    ids: list[int] = output[0, len(prompt) :].tolist()
    return ids


def prompt_of(number: int, length: int) -> list[int]:
    return [(number * 31 + 7 * i + i * i) % (VOCAB_SIZE - 3) + 3 for i in range(length)]


@pytest.mark.parametrize(
    ("model_name", "options"),
    [
        ("llama", {}),
        ("llama", {"max_prefill_tokens": 5, "prompt_lookup_num_tokens": 4}),
        ("llama", {"max_loras": 1}),
        ("gpt2", {}),
        pytest.param("mamba", {}, marks=pytest.mark.long),
        pytest.param("qwen3", {"max_batch_size": 3}, marks=pytest.mark.long),
    ],
)
def test_adapters_and_the_model_in_one_batch(
    model_name: str, options: dict[str, Any], trained: Callable[[str], dict[str, Path]]
) -> None:
    """Each answer equals peft's own, and that of the same request alone. The prompts are equal, so no cache may mix them."""
    adapters = trained(model_name)
    backend = make_backend(model_name, adapters, **options)
    requests = [(name, prompt_of(n, 20 + 17 * n)) for n in (0, 1) for name in (None, *adapters)]
    together = generate(backend, requests)
    assert together == [peft_answer(model_name, adapters.get(name or ""), prompt) for name, prompt in requests]
    assert len({tuple(answer) for answer in together}) == len(requests), "an adapter changes nothing"
    half = len(requests) // 2
    assert together[half:] == [generate(backend, [request])[0] for request in requests[half:]]


def test_adapters_out_of_memory_are_read_again(llama_adapters: dict[str, Path], tmp_path: Path) -> None:
    """Memory for two of three adapters, one of which is pinned. The one used last stays, too."""
    folders = {name: Path(shutil.copytree(folder, tmp_path / name)) for name, folder in llama_adapters.items()}
    backend = make_backend("llama", {}, max_loras=1, max_cpu_loras=2)
    cache = backend._adapters
    assert cache is not None
    for name, folder in folders.items():
        cache.add(name, folder, cache.read(name, folder), pinned=name == "low")
    assert backend.capabilities.adapters == ("low", "stable", "mixed")
    assert set(cache._loaded) == {"low", "mixed"}
    prompts = {name: prompt_of(3, 20) for name in folders}
    alone = {name: peft_answer("llama", folder, prompts[name]) for name, folder in folders.items()}
    for names in (["stable", "low"], ["mixed", "stable", "mixed"]):
        assert generate(backend, [(name, prompts[name]) for name in names]) == [alone[name] for name in names]
        assert len(cache._loaded) == 2
    with raises(InvalidRequest, "mixed pinned: 1 2"):
        cache.add("mixed", folders["mixed"], cache.read("mixed", folders["mixed"]), pinned=True)
    evicted = ({*folders} - {*cache._loaded}).pop()
    (folders[evicted] / WEIGHTS_FILE).unlink()
    backend.add_request(
        TokenRequest(request_id="r", prompt=EncodedPrompt([3], evicted), sampling_params=SamplingParams(max_tokens=1))
    )
    outputs = [output for _ in range(100) for output in backend.step()]
    assert [output.invalid_request for output in outputs] == [True]
    assert f"adapter '{evicted}' has no " in (outputs[0].error or "")


def test_request_that_waits_for_its_adapter_may_be_aborted(llama_adapters: dict[str, Path]) -> None:
    backend = make_backend("llama", llama_adapters, max_loras=1, max_cpu_loras=3)
    for name in ("low", "stable"):
        backend.add_request(
            TokenRequest(
                request_id=name,
                prompt=EncodedPrompt([3, 4], name),
                sampling_params=SamplingParams(max_tokens=3, ignore_eos=True),
            )
        )
    assert backend.num_preparing == 1
    backend.abort("stable")
    assert backend.num_preparing == 0
    assert {output.request_id for _ in range(5) for output in backend.step()} == {"low"}


def test_adapter_replaced_by_another_of_its_name(llama_adapters: dict[str, Path]) -> None:
    """The prefix that the first one has computed is not the second one's."""
    backend = make_backend("llama", {"a": llama_adapters["low"]})
    prompt = prompt_of(1, 40)
    first = generate(backend, [("a", prompt)])
    backend.add_adapters({"a": llama_adapters["stable"]})
    assert generate(backend, [("a", prompt)]) == [peft_answer("llama", llama_adapters["stable"], prompt)] != first


LAYER = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("config", "tensors", "reason"),
    [
        ({"peft_type": "IA3"}, {}, "peft_type IA3 only LORA supported"),
        ({"use_dora": True}, {}, "use_dora not supported"),
        ({"bias": "all"}, {}, "bias=all not supported"),
        ({"init_lora_weights": "pissa"}, {}, "init_lora_weights=pissa not supported"),
        ({"alpha_pattern": {"(a+)+$": 1}}, {}, "alpha_pattern only not (a+)+$"),
        (
            {"lora_alpha": "x"},
            {},
            "adapter_config.json float str $.lora_alpha",
        ),
        ({}, {}, "no weights"),
        ({}, {f"{LAYER}.lora_A.weight": (4, 32)}, f"{LAYER} only lora_A lora_B"),
        (
            {},
            {f"{LAYER}.lora_A.weight": (4, 64), f"{LAYER}.lora_B.weight": (64, 4)},
            f"lora_A lora_B {LAYER} 4 64 32",
        ),
        (
            {},
            {f"{LAYER}.lora_A.weight": (17, 32), f"{LAYER}.lora_B.weight": (32, 17)},
            "rank 17 option.max_lora_rank 16",
        ),
        (
            {},
            {"model.layers.9.self_attn.q_proj.lora_A.weight": (4, 32)},
            "no linear model.layers.9.self_attn.q_proj",
        ),
        (
            {},
            {"lm_head.lora_A.weight": (4, 32)},
            "no linear lm_head",
        ),
        (
            {},
            {"model.embed_tokens.lora_embedding_A": (4, 128)},
            "lora_A lora_B base_model.model.model.embed_tokens.lora_embedding_A",
        ),
        (
            {},
            {f"{LAYER}.lora_magnitude_vector": (32,)},
            f"lora_A lora_B base_model.model.{LAYER}.lora_magnitude_vector",
        ),
        (
            {"lora_alpha": 1e38, "use_rslora": True},
            {f"{LAYER}.lora_A.weight": (4, 32), f"{LAYER}.lora_B.weight": (32, 4)},
            "not weights finite float32",
        ),
    ],
)
def test_adapter_that_does_not_fit_is_refused(
    config: dict[str, Any], tensors: dict[str, tuple[int, ...]], reason: str, tmp_path: Path
) -> None:
    (tmp_path / CONFIG_FILE).write_text(json.dumps({"peft_type": "LORA"} | config))
    weights = {f"base_model.model.{name}": torch.full(shape, 10.0) for name, shape in tensors.items()}
    save_file(weights, tmp_path / WEIGHTS_FILE)
    backend = make_backend("llama", {})
    with pytest.raises(ConfigError) as failure:
        backend.add_adapters({"mine": tmp_path})
    assert says(failure.value, f"option.enable_lora: mine {reason}")
    assert backend.capabilities.adapters == ()


LLAMA4 = {"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size_mlp": 48, "moe_layers": [0]}


@pytest.mark.parametrize(
    ("model_name", "layer", "shape"),
    [
        ("llama4", "model.layers.0.feed_forward.router", (32, 2)),  # returns two tensors
        ("mamba", "backbone.layers.0.mixer.dt_proj", (2, 64)),  # the model reads its weights
    ],
)
def test_layer_that_an_adapter_cannot_change(
    model_name: str, layer: str, shape: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONFIGS, "llama4", ("Llama4TextConfig", LLAMA4))
    (tmp_path / CONFIG_FILE).write_text('{"peft_type": "LORA"}')
    matrices = {"A": torch.ones(1, shape[0]), "B": torch.ones(shape[1], 1)}
    save_file(
        {f"base_model.model.{layer}.lora_{name}.weight": weights for name, weights in matrices.items()},
        tmp_path / WEIGHTS_FILE,
    )
    backend = make_backend(model_name, {})
    with raises(InvalidRequest, f"no linear {layer}"):
        backend.read_adapter("mine", tmp_path)
    assert len(generate(backend, [(None, [3, 4])])[0]) == 24


def test_files_that_are_no_adapter_are_refused(llama_adapters: dict[str, Path], tmp_path: Path) -> None:
    def reason() -> str:
        with pytest.raises(InvalidRequest) as failure:
            read_adapter("mine", tmp_path, {}, max_rank=1, dtype=torch.float32)
        return str(failure.value)

    assert reason() == "adapter 'mine' has no adapter_config.json or no adapter_model.safetensors"
    shutil.copy(llama_adapters["low"] / CONFIG_FILE, tmp_path)
    (tmp_path / WEIGHTS_FILE).write_bytes((llama_adapters["low"] / WEIGHTS_FILE).read_bytes()[:-1])
    assert says(reason(), "adapter mine cannot read:")
    (tmp_path / CONFIG_FILE).write_bytes(b" " * (1 << 20) + b"{}")
    assert says(reason(), "mine adapter_config.json 1048576")


def test_without_adapters_in_use_the_model_has_no_hooks(llama_adapters: dict[str, Path]) -> None:
    backend = make_backend("llama", llama_adapters)
    model: Any = backend._runner._model  # type: ignore[attr-defined]

    def num_hooks() -> int:
        return sum(len(module._forward_hooks) for module in model.modules())

    generate(backend, [(None, [3, 4])])
    assert num_hooks() == 0
    generate(backend, [("low", [3, 4]), ("stable", [3, 4])])
    assert num_hooks() == len(load_file(llama_adapters["stable"] / WEIGHTS_FILE)) / 2
    generate(backend, [(None, [3, 4])])
    assert num_hooks() == 0
