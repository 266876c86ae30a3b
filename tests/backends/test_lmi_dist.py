"""lmi-dist: the package, on a stand-in made from the calls that LMI makes, and vLLM with lmi-dist's options.

The stand-in's model repeats the prompt and then ends. Sampled tokens are shifted by the seed.
"""

from __future__ import annotations

import importlib
import json
import logging
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from paths import SUPPORT
from serving_properties import serving_properties
from standin import standin

from backends.base import Backend, ModelFiles
from backends.lmi_dist.backend import LmiDistBackend
from backends.lmi_dist.engine_args import engine_arguments
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import check_cache_salt, check_sampling_params
from lmi_handlers.core.errors import ConfigError, EngineDead, InvalidRequest, UnsupportedFeature
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import EncodedPrompt, TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs

VOCAB_SIZE = 64
MAX_MODEL_LEN = 48
EOS, OTHER_EOS = 2, 3
PROMPT = [10, 11, 12, 13, 14, 15]

Load = Callable[..., LmiDistBackend]


@pytest.fixture
def model(tmp_path: Path) -> ModelFiles:
    config = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": MAX_MODEL_LEN, "eos_token_id": EOS}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return ModelFiles(path=tmp_path, eos_token_ids=(EOS, OTHER_EOS), vocab_size=VOCAB_SIZE)


@pytest.fixture
def lmi_dist() -> Iterator[types.ModuleType]:
    with standin("lmi_dist"):
        yield importlib.import_module("lmi_dist.api")


@pytest.fixture
def load(model: ModelFiles, lmi_dist: types.ModuleType) -> Load:
    def load_one(adapters: dict[str, Path] | None = None, **options: Any) -> LmiDistBackend:
        files = ModelFiles(
            path=model.path, eos_token_ids=model.eos_token_ids, vocab_size=VOCAB_SIZE, adapters=adapters or {}
        )
        backend = LmiDistBackend.load(files, serving_properties(**options), lambda phase: None)
        assert isinstance(backend, LmiDistBackend)
        return backend

    return load_one


def engine(backend: LmiDistBackend) -> Any:
    return backend._engine._engine


def request(prompt: list[int], request_id: str = "r", adapter: str | None = None, **params: Any) -> TokenRequest:
    params.setdefault("temperature", 0.0)
    sampling_params = SamplingParams(**params)
    return TokenRequest(request_id=request_id, prompt=EncodedPrompt(prompt, adapter), sampling_params=sampling_params)


def run(backend: Backend, prompt: list[int], **params: Any) -> list[TokenOutput]:
    backend.add_request(request(prompt, **params))
    outputs: list[TokenOutput] = []
    while not outputs or outputs[-1].finish_reason is None:
        outputs += backend.step()
    return outputs


def token_ids(outputs: list[TokenOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


# The choice between lmi-dist and vLLM


def test_lmi_dist_is_used_if_installed(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "backends.lmi_dist"):
        load()
    assert [record.message for record in caplog.records] == ["using lmi_dist"]


@pytest.mark.filterwarnings("ignore")  # vLLM's own libraries
@pytest.mark.needs("vllm")
def test_vllm_is_used_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    nothing = ModelFiles(path=None, eos_token_ids=(), vocab_size=1)
    with caplog.at_level(logging.INFO, "backends.lmi_dist"), pytest.raises(ConfigError, match="the lmi_dist backend"):
        LmiDistBackend.load(nothing, ServingProperties(), lambda phase: None)
    assert [record.message for record in caplog.records] == [
        "lmi_dist is not installed; using vLLM with lmi-dist's options"
    ]


def in_a_new_process(code: str) -> str:
    """Run code in a Python process without any of these tests' modules. Returns what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_module_imports_no_engine() -> None:
    code = "import sys, backends.lmi_dist.backend; print({'lmi_dist', 'vllm', 'torch'} & set(sys.modules))"
    assert in_a_new_process(code) == "set()\n"


def test_lmi_dist_works_without_current_vllm(model: ModelFiles) -> None:
    standins = str(SUPPORT / "standins")
    code = f"""if True:
        import sys, pathlib
        sys.path.insert(0, {standins!r})
        sys.modules["vllm"] = None
        from backends.base import ModelFiles
        from backends.lmi_dist.backend import LmiDistBackend
        from lmi_handlers.config.properties import ServingProperties
        files = ModelFiles(path=pathlib.Path({str(model.path)!r}), eos_token_ids=(2,), vocab_size=64)
        print(LmiDistBackend.load(files, ServingProperties(), print).capabilities.max_model_len)
    """
    assert in_a_new_process(code) == f"loading weights\n{MAX_MODEL_LEN}\n"


def test_neither_is_installed() -> None:
    code = """if True:
        import sys
        sys.modules["vllm"] = None
        from backends.base import ModelFiles
        from backends.lmi_dist.backend import LmiDistBackend
        from lmi_handlers.core.errors import ConfigError
        from lmi_handlers.config.properties import ServingProperties
        try:
            LmiDistBackend.load(ModelFiles(path=None, eos_token_ids=(), vocab_size=1), ServingProperties(), print)
        except ConfigError as error:
            print(error)
    """
    assert in_a_new_process(code).startswith("backend 'lmi_dist' cannot be imported: ModuleNotFoundError:")


# lmi-dist's options on vLLM


@pytest.mark.filterwarnings("ignore")  # vLLM's own libraries
@pytest.mark.needs("vllm")
def test_options_on_vllm(model: ModelFiles, caplog: pytest.LogCaptureFixture) -> None:
    from backends.lmi_dist import DECLARATION
    from backends.lmi_dist.on_vllm import with_speculation
    from backends.vllm.engine_args import engine_arguments as vllm_arguments

    properties = serving_properties(
        speculative_draft_model="draft",
        speculative_length=3,
        max_rolling_batch_size=7,
        record_acceptance_rate=True,
        tensor_parallel_degree=1,
    )
    assert model.path is not None
    arguments = vllm_arguments(model.path, with_speculation(properties), backend=DECLARATION)
    assert arguments.speculative_config == {
        "method": "draft_model",
        "model": "draft",
        "num_speculative_tokens": 3,
        "draft_tensor_parallel_size": 1,
    }
    assert arguments.max_num_seqs == 7
    assert [record.message for record in caplog.records] == [
        "option.record_acceptance_rate has no effect: vLLM counts accepted tokens itself"
    ]


@pytest.mark.filterwarnings("ignore")  # vLLM's own libraries
@pytest.mark.needs("vllm")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speculative_draft_model": "draft", "extra": {"speculative_config": "{}"}}, "cannot be used together"),
        ({"speculative_draft_model": "draft", "enable_lora": True}, "cannot be used together"),
        ({"extra": {"max_num_seq": "4"}}, r"option\.max_num_seq: neither this server nor vLLM"),
    ],
)
def test_invalid_options_on_vllm(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LmiDistBackend.check_options(serving_properties(**options))


# Tokens


@pytest.fixture(params=["deltas", "cumulative"])
def either(request: pytest.FixtureRequest, load: Load, lmi_dist: Any, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Load engines of a version that can return deltas, and of one that cannot."""
    if request.param == "cumulative":
        monkeypatch.setattr(lmi_dist, "RequestParams", lmi_dist.CumulativeRequestParams)
    return load


def test_new_tokens_only(either: Load) -> None:
    outputs = run(either(), PROMPT)
    assert [output.token_ids for output in outputs] == [[token] for token in [*PROMPT, EOS]]
    assert outputs[-1].finish_reason is FinishReason.EOS_TOKEN


def test_logprobs(either: Load) -> None:
    outputs = run(either(), PROMPT, logprobs=2, prompt_logprobs=0)
    assert {len(output.logprobs or ()) for output in outputs} == {1}
    for output in outputs:
        assert output.logprobs is not None
        assert output.top_logprobs is not None
        [best] = output.top_logprobs
        assert best[0] == (output.token_ids[0], output.logprobs[0])
        assert best[0][1] > best[1][1]
        assert len(best) == 2
    assert [output.prompt_logprobs is None for output in outputs] == [False] + [True] * (len(outputs) - 1)
    assert outputs[0].prompt_logprobs is not None
    assert outputs[0].prompt_logprobs[0] is None
    assert len(outputs[0].prompt_logprobs) == len(PROMPT)


def test_no_alternatives_unless_requested(either: Load) -> None:
    outputs = run(either(), PROMPT, logprobs=0, prompt_logprobs=0)
    assert {(output.top_logprobs, output.prompt_top_logprobs) for output in outputs} == {(None, None)}


def test_top_prompt_logprobs(either: Load) -> None:
    first, *others = run(either(), PROMPT, prompt_logprobs=2)
    assert first.prompt_logprobs is not None
    assert first.prompt_top_logprobs is not None
    assert first.prompt_top_logprobs[0] is None
    for token, logprob, top in zip(PROMPT, first.prompt_logprobs, first.prompt_top_logprobs, strict=True):
        assert top is None or (len(top), top[0]) == (2, (token, logprob))
    assert {output.prompt_top_logprobs is None for output in others} == {True}


def test_long_prompt_in_chunks(either: Load) -> None:
    """Steps without tokens produce no output. The prompt's log probabilities come with the first token."""
    prompt = PROMPT * 4
    outputs = run(either(enable_chunked_prefill=True), prompt, max_tokens=3, prompt_logprobs=0)
    assert [output.token_ids for output in outputs] == [[10], [11], [12]]
    assert len(outputs[0].prompt_logprobs or ()) == len(prompt)


def test_stop_ids(load: Load) -> None:
    backend = load()
    outputs = run(backend, PROMPT, stop_token_ids=(12,))
    assert (token_ids(outputs), outputs[-1].finish_reason) == ([10, 11, 12], FinishReason.STOP_SEQUENCE)
    outputs = run(backend, [10, OTHER_EOS, 12])
    assert (token_ids(outputs), outputs[-1].finish_reason) == ([10, OTHER_EOS], FinishReason.EOS_TOKEN)
    outputs = run(backend, [10, OTHER_EOS, EOS], ignore_eos=True, max_tokens=4)
    assert (token_ids(outputs), outputs[-1].finish_reason) == ([10, OTHER_EOS, EOS, 10], FinishReason.LENGTH)


def test_no_max_tokens(load: Load) -> None:
    """The engine's own default is 16."""
    assert len(token_ids(run(load(), PROMPT, ignore_eos=True))) == MAX_MODEL_LEN - len(PROMPT)


def test_parameters_reach_the_engine(load: Load) -> None:
    backend = load()
    given: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.5,
        "seed": 5,
        "min_tokens": 1,
        "logit_bias": {4: 1.5},
    }
    run(backend, PROMPT, max_tokens=1, **given)
    params = engine(backend).submitted[-1].params
    assert {name: getattr(params, name) for name in given} == given


@pytest.mark.parametrize("top_k", [0, -1])
def test_top_k_is_off(load: Load, top_k: int) -> None:
    backend = load()
    run(backend, PROMPT, temperature=1.0, top_k=top_k, max_tokens=1)
    assert engine(backend).submitted[-1].params.top_k == -1


def test_largest_seed(load: Load) -> None:
    backend = load()
    run(backend, PROMPT, seed=2**64 - 1, max_tokens=1)
    assert engine(backend).submitted[-1].params.seed == 2**63 - 1


def test_abort(load: Load) -> None:
    backend = load()
    backend.add_request(request(PROMPT, "gone"))
    backend.add_request(request(PROMPT, "stays"))
    backend.step()
    backend.abort("gone")
    backend.abort("never there")
    assert {output.request_id for output in backend.step()} == {"stays"}
    assert list(engine(backend)._jobs) == ["stays"]


# Limits and failures


def test_rejected_by_the_engine(load: Load) -> None:
    backend = load()
    with pytest.raises(InvalidRequest, match="more than 20 logprobs"):
        backend.add_request(request(PROMPT, logprobs=21))
    assert engine(backend).submitted == []
    assert token_ids(run(backend, PROMPT)) == [*PROMPT, EOS]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("structured_outputs", StructuredOutputs(json_object=True)),
        ("watermark", True),
        ("typical_p", 0.5),
        ("bad_words", ("no",)),
        ("allowed_token_ids", (5,)),
    ],
)
def test_parameter_that_this_version_lacks(load: Load, field: str, value: Any) -> None:
    with pytest.raises(UnsupportedFeature, match=f"{field}: is not supported by the lmi_dist backend"):
        check_sampling_params(SamplingParams(**{field: value}), load().capabilities)


def test_salts_are_refused(load: Load) -> None:
    with pytest.raises(UnsupportedFeature, match="cache_salt: is not supported by the lmi_dist backend"):
        check_cache_salt("tenant", load().capabilities)


def test_version_with_more_parameters(load: Load, lmi_dist: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    later = msgspec.defstruct("Later", [("typical_p", float, 1.0)], bases=(lmi_dist.RequestParams,), kw_only=True)
    monkeypatch.setattr(lmi_dist, "RequestParams", later)
    backend = load()
    assert "typical_p" not in backend.capabilities.unsupported
    run(backend, PROMPT, typical_p=0.5)
    assert engine(backend).submitted[-1].params.typical_p == 0.5


def test_failed_step_kills_the_engine(load: Load) -> None:
    backend = load()
    assert backend.step() == []
    backend.add_request(request(PROMPT))
    engine(backend).fail_next_step = True
    with pytest.raises(EngineDead, match="lmi_dist: CUDA error: an illegal memory access was encountered"):
        backend.step()


# Adapters


@pytest.fixture
def adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Two adapter folders, and the parts of lmi-dist's own vLLM that are used."""

    class LoRARequest:
        def __init__(self, *, lora_name: str, lora_int_id: int, lora_path: str) -> None:
            self.lora_name, self.lora_int_id, self.lora_path = lora_name, lora_int_id, lora_path

    LoRARequest.__module__ = "vllm.lora.request"
    for name in ("vllm", "vllm.lora", "vllm.lora.request"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(sys.modules["vllm.lora.request"], "LoRARequest", LoRARequest, raising=False)
    folders = {name: tmp_path / name for name in ("one", "two")}
    for folder in folders.values():
        folder.mkdir()
        (folder / "adapter_config.json").write_text("{}")
    return folders


def test_adapters(load: Load, adapters: dict[str, Path]) -> None:
    """The stand-in's adapters add their id to every token."""
    backend = load(adapters, enable_lora=True)
    assert backend.capabilities.adapters == ("one", "two")
    for adapter, shift in (("two", 2), (None, 0), ("one", 1)):
        assert token_ids(run(backend, PROMPT, adapter=adapter)) == [*(token + shift for token in PROMPT), EOS]


def test_adapter_that_does_not_load(load: Load, adapters: dict[str, Path]) -> None:
    (adapters["two"] / "adapter_config.json").unlink()
    with pytest.raises(ConfigError, match=r"option.enable_lora: lmi_dist does not load adapter 'two'"):
        load(adapters, enable_lora=True)


# Options


def test_options_become_arguments(load: Load) -> None:
    backend = load(
        max_rolling_batch_size=17,
        max_rolling_batch_prefill_tokens=123,
        max_model_len=40,
        dtype="bf16",
        quantize="awq",
        cpu_offload_gb_per_gpu=2,
        enforce_eager=True,
        long_lora_scaling_factors="1.0, 2",
        speculative_draft_model="draft",
        speculative_length=3,
    )
    expected = {
        "max_num_seqs": 17,
        "max_num_batched_tokens": 123,
        "max_model_len": 40,
        "dtype": "bfloat16",
        "quantization": "awq",
        "cpu_offload_gb": 2,
        "enforce_eager": True,
        "long_lora_scaling_factors": (1.0, 2.0),
        "draft_model": "draft",
        "speculate_length": 3,
        "draft_model_tp_size": 1,
    }
    args = engine(backend).args
    assert {name: getattr(args, name) for name in expected} == expected
    assert (backend.capabilities.max_model_len, backend.capabilities.max_num_seqs) == (40, 17)


def test_dynamic_batch_size(load: Load) -> None:
    assert load(rolling_batch="disable", batch_size=5).capabilities.max_num_seqs == 5


def test_option_without_counterpart_is_logged(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    load(max_logprobs=5)
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "option.max_logprobs has no effect: LMI does not pass it to lmi_dist"
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, r"option\.dtype has value .int8.: backend lmi_dist supports"),
        ({"tensor_parallel_degree": 2}, r"option\.tensor_parallel_degree: must be 1"),
        ({"pipeline_parallel_degree": 2}, r"option\.pipeline_parallel_degree: must be 1"),
        ({"long_lora_scaling_factors": "many"}, r"option\.long_lora_scaling_factors"),
        ({"extra": {"swap_space": "4"}}, r"option\.swap_space"),
        ({"distributed_executor_backend": "ray"}, r"option\.distributed_executor_backend: lmi_dist does not have"),
        ({"speculative_draft_model": "draft", "enable_lora": True}, "cannot be used together"),
    ],
)
@pytest.mark.usefixtures("lmi_dist")
def test_invalid_option(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LmiDistBackend.check_options(serving_properties(**options))


@pytest.mark.parametrize("path", [None, Path("model.gguf")])
@pytest.mark.usefixtures("lmi_dist")
def test_no_checkpoint(path: Path | None) -> None:
    files = ModelFiles(path=path, eos_token_ids=(EOS,), vocab_size=VOCAB_SIZE)
    with pytest.raises(ConfigError, match=r"option\.model_id"):
        LmiDistBackend.load(files, ServingProperties(), lambda phase: None)


# The stand-in notices mistakes. Each of these tests puts one into the adapter.


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_rolling_batch_size": 4}, "unexpected keyword argument 'max_rolling_batch_size'"),
        ({"max_num_seqs": "4"}, r"VllmEngineArgs\.max_num_seqs must be"),
        ({"enable_lora": 1}, r"VllmEngineArgs\.enable_lora must be"),
    ],
)
def test_invalid_engine_argument(
    load: Load, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], message: str
) -> None:
    adapter = importlib.import_module("backends.lmi_dist.engine")
    monkeypatch.setattr(adapter, "engine_arguments", lambda *given: engine_arguments(*given) | wrong)
    with pytest.raises(ConfigError, match=message):
        load()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"max_new_tokens": 5}, TypeError),
        ({"stop_token_ids": (5,)}, TypeError),
        ({"top_k": 0}, ValueError),
        ({"max_tokens": 0}, ValueError),
    ],
)
def test_invalid_parameter(lmi_dist: Any, wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        lmi_dist.RequestParams(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"id": 1}, {"prompt": PROMPT}, {"prompt": "text"}, {"params": {}}, {"lora_request": "one"}, {"inputs": 1}]
)
def test_invalid_request(lmi_dist: Any, wrong: dict[str, Any]) -> None:
    right = {"id": "1", "prompt": {"prompt_token_ids": PROMPT}, "params": lmi_dist.RequestParams()}
    lmi_dist.Request(**right)
    with pytest.raises(TypeError):
        lmi_dist.Request(**right | wrong)


def test_cumulative_ids_mistaken_for_deltas(load: Load, lmi_dist: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmi_dist, "RequestParams", lmi_dist.CumulativeRequestParams)
    backend = load()
    backend.add_request(request(PROMPT))
    backend._sequences["r"]._deltas = True
    assert [output.token_ids for _ in range(2) for output in backend.step()] == [[10], [10, 11]]


def test_deltas_mistaken_for_cumulative_ids(load: Load) -> None:
    backend = load()
    backend.add_request(request(PROMPT))
    backend._sequences["r"]._deltas = False
    assert [output.token_ids for _ in range(2) for output in backend.step()] == [[10]]


def test_abort_by_a_bare_id(load: Load) -> None:
    backend = load()
    backend.add_request(request(PROMPT))
    with pytest.raises(TypeError, match="several"):
        engine(backend).reset("r")


def test_adapter_that_was_not_added(load: Load, adapters: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    backend = load(adapters, enable_lora=True)
    engine(backend).adapters.clear()
    with pytest.raises(AssertionError, match="has not been added"):
        backend.add_request(request(PROMPT, adapter="one"))
