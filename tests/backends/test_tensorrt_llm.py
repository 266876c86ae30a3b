"""The TensorRT-LLM adapter, against a stand-in made from the engine's published interface.

The stand-in's model answers with the prompt and then ends; sampled tokens are shifted by the seed.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from standin import standin

from backends.base import ModelFiles
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import check_prompt, check_sampling_params
from lmi_handlers.core.errors import ConfigError, EngineDead, InvalidRequest
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs

with standin("tensorrt_llm"):
    import tensorrt_llm
    from tensorrt_llm.contract import CONTRACT, Misuse, accepts
    from tensorrt_llm.controls import controls
    from tensorrt_llm.executor import LoRARequest
    from tensorrt_llm.executor.worker import context_logits, logprob
    from tensorrt_llm.llmapi import GuidedDecodingParams
    from tensorrt_llm.lora_helper import TARGET_MODULES

    import backends.tensorrt_llm.backend as adapter
    import backends.tensorrt_llm.sampling as adapter_sampling
    from backends.tensorrt_llm.actor import LLMActor
    from backends.tensorrt_llm.backend import TensorRTLLMBackend
    from backends.tensorrt_llm.llm_args import llm_arguments
    from backends.tensorrt_llm.sampling import engine_sampling_params
    from backends.tensorrt_llm.sequence import Sequence

VOCAB_SIZE = 64
MAX_MODEL_LEN = 48
EOS, OTHER_EOS = 2, 3
PROMPT = [10, 11, 12, 13, 14, 15]

Load = Callable[..., TensorRTLLMBackend]


@pytest.fixture
def model(tmp_path: Path) -> ModelFiles:
    config = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": MAX_MODEL_LEN}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return ModelFiles(path=tmp_path, eos_token_ids=(EOS, OTHER_EOS), vocab_size=VOCAB_SIZE)


@pytest.fixture
def load(model: ModelFiles) -> Iterator[Load]:
    """Load backends that are closed with the test; `load(adapters=, **options)`."""
    backends: list[TensorRTLLMBackend] = []

    def load_one(adapters: dict[str, Path] | None = None, **options: Any) -> TensorRTLLMBackend:
        options.setdefault("tensor_parallel_degree", 1)
        files = msgspec.structs.replace(model, adapters=adapters or {})
        backend = TensorRTLLMBackend.load(files, ServingProperties(**options), lambda phase: None)
        backends.append(backend)
        return backend

    yield load_one
    for backend in backends:
        backend.close()


def engine(backend: TensorRTLLMBackend) -> Any:
    return backend._llm


def submitted(backend: TensorRTLLMBackend) -> Any:
    """Return what the engine was given last."""
    return engine(backend).submitted[-1]


def request(prompt: list[int], request_id: str = "r", adapter: str | None = None, **params: Any) -> TokenRequest:
    params.setdefault("temperature", 0.0)
    sampling_params = SamplingParams(**params)
    return TokenRequest(
        request_id=request_id, prompt_token_ids=prompt, sampling_params=sampling_params, adapter=adapter
    )


def steps(backend: TensorRTLLMBackend, until: Callable[[list[TokenOutput]], bool]) -> list[TokenOutput]:
    """Step until `until` holds of all outputs so far."""
    outputs: list[TokenOutput] = []
    deadline = time.monotonic() + 30
    while not until(outputs):
        assert time.monotonic() < deadline, outputs
        outputs += backend.step()
    return outputs


def finished(count: int) -> Callable[[list[TokenOutput]], bool]:
    return lambda outputs: sum(output.finish_reason is not None for output in outputs) >= count


def run(backend: TensorRTLLMBackend, prompt: list[int], **params: Any) -> list[TokenOutput]:
    backend.add_request(request(prompt, **params))
    outputs = steps(backend, finished(1))
    assert [output.finish_reason is not None for output in outputs] == [False] * (len(outputs) - 1) + [True]
    return outputs


def token_ids(outputs: list[TokenOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


# Tokens


def test_greedy_answers_with_new_tokens_only(load: Load) -> None:
    backend = load()
    outputs = run(backend, PROMPT)
    assert token_ids(outputs) == [*PROMPT, EOS]
    assert outputs[-1].finish_reason is FinishReason.EOS_TOKEN
    params = submitted(backend)
    assert (params.temperature, params.top_p, params.top_k) == (None, None, None)
    assert params.detokenize is False


def test_several_tokens_in_a_step(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "tokens_per_response", 4)
    outputs = run(load(), PROMPT, logprobs=0)
    assert [output.token_ids for output in outputs] == [PROMPT[:4], [*PROMPT[4:], EOS]]
    assert [len(output.logprobs or ()) for output in outputs] == [4, 3]


def test_outputs_stay_as_they_were(load: Load) -> None:
    outputs = run(load(), PROMPT)
    assert outputs[0].token_ids == PROMPT[: len(outputs[0].token_ids)]


def test_end_id_kept_to_itself_by_the_engine(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "end_id_in_token_ids", False)
    outputs = run(load(), PROMPT, logprobs=0)
    assert token_ids(outputs) == PROMPT
    assert outputs[-1].finish_reason is FinishReason.EOS_TOKEN


def test_length(load: Load) -> None:
    outputs = run(load(), PROMPT, max_tokens=3)
    assert token_ids(outputs) == PROMPT[:3]
    assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_without_max_tokens_up_to_the_models_length(load: Load) -> None:
    backend = load()
    outputs = run(backend, PROMPT, ignore_eos=True)
    assert len(token_ids(outputs)) == MAX_MODEL_LEN - len(PROMPT)
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert submitted(backend).max_tokens == MAX_MODEL_LEN - len(PROMPT)


def test_max_tokens_beyond_the_room(load: Load) -> None:
    backend = load()
    assert len(token_ids(run(backend, PROMPT, ignore_eos=True, max_tokens=10**6))) == MAX_MODEL_LEN - len(PROMPT)


def test_min_tokens(load: Load) -> None:
    assert token_ids(run(load(), PROMPT, min_tokens=8)) == [*PROMPT, *PROMPT[:2], EOS]


@pytest.mark.parametrize("include", [False, True])
def test_stop_token_stays(load: Load, include: bool) -> None:
    """The engine takes it out of the final list unless told not to; the text layer decides what is shown."""
    outputs = run(load(), PROMPT, stop_token_ids=(12,), logprobs=0, include_stop_str_in_output=include)
    assert token_ids(outputs) == [10, 11, 12]
    assert outputs[-1].finish_reason is FinishReason.STOP_SEQUENCE
    assert [value for output in outputs for value in output.logprobs or ()] == [
        logprob(token) for token in (10, 11, 12)
    ]


def test_every_end_of_sequence_id_ends(load: Load) -> None:
    outputs = run(load(), [10, OTHER_EOS, 12])
    assert token_ids(outputs) == [10, OTHER_EOS]
    assert outputs[-1].finish_reason is FinishReason.EOS_TOKEN


def test_ignore_eos_ignores_all_of_them(load: Load) -> None:
    outputs = run(load(), [10, OTHER_EOS, EOS], ignore_eos=True, max_tokens=5)
    assert token_ids(outputs) == [10, OTHER_EOS, EOS, 10, OTHER_EOS]


def test_stop_token_that_is_an_ignored_end(load: Load) -> None:
    outputs = run(load(), [10, OTHER_EOS, 12], ignore_eos=True, stop_token_ids=(OTHER_EOS,))
    assert token_ids(outputs) == [10, OTHER_EOS]
    assert outputs[-1].finish_reason is FinishReason.STOP_SEQUENCE


def test_model_without_an_end(model: ModelFiles) -> None:
    files = ModelFiles(path=model.path, eos_token_ids=(), vocab_size=VOCAB_SIZE)
    backend = TensorRTLLMBackend.load(files, ServingProperties(tensor_parallel_degree=1), lambda phase: None)
    assert token_ids(run(backend, PROMPT, max_tokens=7)) == [*PROMPT, PROMPT[0]]
    backend.close()


# Sampling


def test_seed(load: Load) -> None:
    backend = load()
    first, again, other = (token_ids(run(backend, PROMPT, temperature=0.7, seed=seed)) for seed in (5, 5, 6))
    assert first == again != other


def test_without_a_seed_requests_differ(load: Load) -> None:
    backend = load()
    for _ in range(2):
        run(backend, PROMPT, temperature=0.7, max_tokens=1)
    seeds = [params.seed for params in engine(backend).submitted]
    assert None not in seeds
    assert seeds[0] != seeds[1]


def test_sampling_is_never_taken_for_greedy(load: Load) -> None:
    backend = load()
    run(backend, PROMPT, temperature=1.0, max_tokens=1)
    params = submitted(backend)
    assert (params.temperature, params.top_p, params.top_k) == (1.0, 1.0, 0)


def test_every_parameter_reaches_the_engine(load: Load) -> None:
    backend = load()
    given_params: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.5,
        "min_tokens": 1,
        "seed": 2**64 - 1,
    }
    run(backend, PROMPT, max_tokens=1, **given_params)
    params = submitted(backend)
    assert {name: getattr(params, name) for name in given_params} == given_params


@pytest.mark.parametrize(("top_k", "expected"), [(-1, 0), (0, 0), (VOCAB_SIZE, 0), (2**40, 0), (5, 5)])
def test_top_k_off(load: Load, top_k: int, expected: int) -> None:
    backend = load()
    run(backend, PROMPT, temperature=1.0, top_k=top_k, max_tokens=1)
    assert submitted(backend).top_k == expected


def test_logit_bias_is_a_row_of_the_vocabulary(load: Load) -> None:
    backend = load()
    run(backend, PROMPT, logit_bias={4: 1.5, 63: -100.0}, max_tokens=1)
    bias = submitted(backend).embedding_bias.tolist()
    assert bias == [0.0] * 4 + [1.5] + [0.0] * 58 + [-100.0]


# Log probabilities


def test_logprobs_of_the_sampled_tokens(load: Load) -> None:
    outputs = run(load(), PROMPT, logprobs=0)
    assert all(output.top_logprobs is None for output in outputs)
    values = [value for output in outputs for value in output.logprobs or ()]
    assert values == [logprob(token) for token in [*PROMPT, EOS]]


def test_none_unless_asked_for(load: Load) -> None:
    outputs = run(load(), PROMPT)
    assert [(output.logprobs, output.prompt_logprobs) for output in outputs] == [(None, None)] * len(outputs)


@pytest.mark.parametrize("prompt", [PROMPT, [10]])
def test_prompt_logprobs(load: Load, prompt: list[int]) -> None:
    first, *others = run(load(), prompt, prompt_logprobs=0)
    expected = context_logits(prompt, VOCAB_SIZE).log_softmax(dim=-1)
    assert first.prompt_logprobs is not None
    assert first.prompt_logprobs[0] is None
    assert first.prompt_logprobs[1:] == pytest.approx(
        [float(expected[t, prompt[t + 1]]) for t in range(len(prompt) - 1)]
    )
    assert [output.prompt_logprobs for output in others] == [None] * len(others)


def test_best_tokens_of_each_prompt_position(load: Load) -> None:
    first, *others = run(load(), PROMPT, prompt_logprobs=3)
    assert first.prompt_top_logprobs is not None
    none, *best = first.prompt_top_logprobs
    values, ids = context_logits(PROMPT, VOCAB_SIZE).log_softmax(dim=-1)[:-1].topk(3)
    assert none is None
    assert [[token for token, _ in top or ()] for top in best] == ids.tolist()
    for top, expected in zip(best, values.tolist(), strict=True):
        assert [value for _, value in top or ()] == pytest.approx(expected)
    assert [output.prompt_top_logprobs for output in others] == [None] * len(others)


def test_prompt_logprobs_of_a_prompt_seen_before(load: Load) -> None:
    """The engine has no logits for what it finds in its cache."""
    backend = load()
    assert [run(backend, PROMPT, prompt_logprobs=0)[0].prompt_logprobs for _ in range(2)][1] is not None


def test_engine_without_the_sampled_tokens_logprob(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's other sampler may do that; a number must not be made up."""
    backend = load()
    monkeypatch.setattr(engine(backend).args, "sampler_type", "TorchSampler")
    (output,) = run(backend, PROMPT, logprobs=0)
    assert output.finish_reason is FinishReason.ERROR
    assert "no log probability" in (output.error or "")
    assert token_ids(run(backend, PROMPT)) == [*PROMPT, EOS]


# What the answer must match


@pytest.mark.parametrize("library", ["xgrammar", "llguidance"])
@pytest.mark.parametrize(
    ("wanted", "guide"),
    [
        ({"json": '{"type": "object"}'}, {"json": '{"type": "object"}'}),
        ({"json_object": True}, {"json_object": True}),
        ({"regex": "[0-9]+"}, {"regex": "[0-9]+"}),
        ({"grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
        ({"choice": ("yes", "no")}, {"regex": "yes|no"}),
        ({"choice": ("1+1", "a b-c")}, {"regex": r"1\+1|a b-c"}),
    ],
)
def test_structured_outputs(load: Load, library: str, wanted: dict[str, Any], guide: dict[str, Any]) -> None:
    backend = load(guided_decoding_backend=library)
    assert "structured_outputs" not in backend.capabilities.unsupported
    run(backend, PROMPT, structured_outputs=StructuredOutputs(**wanted))
    assert submitted(backend).guided_decoding == GuidedDecodingParams(**guide)


def test_free_answer_has_no_guide(load: Load) -> None:
    backend = load(guided_decoding_backend="xgrammar")
    run(backend, PROMPT)
    assert submitted(backend).guided_decoding is None


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5), st.text())
def test_choice_is_a_regex_of_just_these_texts(choice: list[str], other: str) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputs(choice=tuple(choice)))
    regex = engine_params(params).guided_decoding.regex
    for text in [*choice, other]:
        assert (re.fullmatch(regex, text) is not None) == (text in choice)


def engine_params(params: SamplingParams) -> Any:
    return engine_sampling_params(params, max_tokens=1, eos_token_ids=(EOS,), vocab_size=VOCAB_SIZE)


def test_without_a_library_for_grammars_no_structured_outputs(load: Load) -> None:
    assert "structured_outputs" in load().capabilities.unsupported


# Adapters


@pytest.fixture
def adapters(tmp_path: Path) -> dict[str, Path]:
    return {
        name: write_adapter(tmp_path / "adapters" / name, targets)
        for name, targets in {"one": ["q_proj", "v_proj"], "two": ["o_proj", "q_proj"]}.items()
    }


def write_adapter(folder: Path, target_modules: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"r": 8, "target_modules": target_modules}))
    return folder


def test_adapters(load: Load, adapters: dict[str, Path]) -> None:
    """The stand-in's add their number to every token."""
    backend = load(adapters, enable_lora=True)
    assert backend.capabilities.adapters == ("one", "two")
    for name in ("one", None, "two"):
        backend.add_request(request(PROMPT, str(name), adapter=name))
    outputs = steps(backend, finished(3))
    for name, shift in (("one", 1), (None, 0), ("two", 2)):
        own = [output for output in outputs if output.request_id == str(name)]
        assert token_ids(own) == [*(token + shift for token in PROMPT), EOS]


def test_engine_is_told_which_layers_adapters_change(load: Load, adapters: dict[str, Path]) -> None:
    config = engine(load(adapters, enable_lora=True, max_lora_rank=8)).args.lora_config
    assert config.lora_target_modules == ["attn_dense", "attn_q", "attn_v"]
    assert (config.lora_dir, config.max_lora_rank, config.max_loras) == ([], 8, None)


@pytest.mark.parametrize("target_modules", ["all-linear", ["q_proj", "in_proj"], None])
def test_adapter_that_may_change_any_layer(
    load: Load, adapters: dict[str, Path], tmp_path: Path, target_modules: object
) -> None:
    adapters["three"] = write_adapter(tmp_path / "three", target_modules)
    config = engine(load(adapters, enable_lora=True)).args.lora_config
    assert config.lora_target_modules == list(TARGET_MODULES)


def test_adapter_without_a_config(load: Load, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"option.enable_lora: adapter 'x' has no readable config"):
        load({"x": tmp_path}, enable_lora=True)


# Many at once


def test_many_join_and_leave(load: Load) -> None:
    backend = load(max_rolling_batch_size=4)
    prompts = {str(number): [10 + (number * k) % 50 for k in range(1, 3 + number % 9)] for number in range(40)}
    outputs: list[TokenOutput] = []
    for request_id, prompt in prompts.items():
        backend.add_request(request(prompt, request_id))
        outputs += backend.step()
    outputs += steps(backend, lambda more: finished(len(prompts))(outputs + more))
    for request_id, prompt in prompts.items():
        own = [output for output in outputs if output.request_id == request_id]
        assert token_ids(own) == [*prompt, EOS]
        assert [output.finish_reason for output in own if output.finish_reason] == [FinishReason.EOS_TOKEN]


@given(
    st.lists(
        st.tuples(st.lists(st.integers(10, 60), min_size=1, max_size=8), st.integers(1, 12), st.integers(0, 4)),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_company(load_once: TensorRTLLMBackend, runs: list[tuple[list[int], int, int]]) -> None:
    """Whatever runs together and whichever are aborted, the others are answered as if alone."""
    backend = load_once
    kept = {}
    for number, (prompt, max_tokens, steps_before_abort) in enumerate(runs):
        backend.add_request(request(prompt, str(number), max_tokens=max_tokens, ignore_eos=True))
        if steps_before_abort == 0:
            backend.abort(str(number))
        else:
            kept[str(number)] = [prompt[k % len(prompt)] for k in range(max_tokens)]
    outputs = steps(backend, finished(len(kept)))
    assert {key: token_ids([o for o in outputs if o.request_id == key]) for key in kept} == kept
    assert {output.request_id for output in outputs} == set(kept)


@pytest.fixture
def load_once(load: Load) -> TensorRTLLMBackend:
    return load(max_rolling_batch_size=3)


def test_abort(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "step_seconds", 0.002)
    backend = load()
    backend.add_request(request(PROMPT, "gone", ignore_eos=True))
    steps(backend, lambda outputs: len(outputs) > 2)
    backend.abort("gone")
    backend.abort("never there")
    backend.add_request(request(PROMPT, "stays"))
    outputs = steps(backend, finished(1))
    assert {output.request_id for output in outputs} == {"stays"}
    assert engine(backend)._executor._jobs == {}


def test_aborted_id_may_be_used_again(load: Load) -> None:
    backend = load()
    backend.add_request(request([20, 21, 22], "r", ignore_eos=True))
    while backend._actor._outputs.qsize() < 3:
        time.sleep(0.001)
    backend.abort("r")
    assert token_ids(run(backend, PROMPT)) == [*PROMPT, EOS]


def test_idle_step_returns_nothing(load: Load) -> None:
    assert load().step() == []


# Limits and errors


def test_alternatives_only_for_prompt_tokens(load: Load) -> None:
    limits = load().capabilities
    check_sampling_params(SamplingParams(logprobs=0, prompt_logprobs=20), limits)
    with pytest.raises(InvalidRequest, match=r"^logprobs: must be at most 0"):
        check_sampling_params(SamplingParams(logprobs=1), limits)
    with pytest.raises(InvalidRequest, match="prompt_logprobs: must be at most 20"):
        check_sampling_params(SamplingParams(prompt_logprobs=21), limits)


def test_unsupported(load: Load) -> None:
    backend = load()
    assert "typical_p" in backend.capabilities.unsupported
    assert not set(backend.capabilities.unsupported) & set(CONTRACT["SamplingParams"]["fields_in_order"])


def test_refused_by_the_engine_at_once(load: Load) -> None:
    backend = load(max_num_tokens=5)
    with pytest.raises(InvalidRequest, match="should not exceed max_num_tokens"):
        backend.add_request(request(PROMPT))
    assert token_ids(run(backend, PROMPT[:5])) == [*PROMPT[:5], EOS]


def test_lmis_lengths(load: Load) -> None:
    backend = load(max_input_len=4, max_output_len=6)
    assert backend.capabilities.max_model_len == 10
    assert len(token_ids(run(backend, [10], ignore_eos=True))) == 6
    with pytest.raises(InvalidRequest, match="from 1 to 4 tokens, got 5"):
        check_prompt([10] * 5, backend.capabilities)
    with pytest.raises(InvalidRequest, match=r"max_tokens: must be at most 6"):
        check_sampling_params(SamplingParams(max_tokens=7), backend.capabilities)


@pytest.mark.parametrize(
    ("fault", "finish_reason", "error"),
    [
        ("error", FinishReason.ERROR, "could not go on"),
        ("timeout", FinishReason.ERROR, "timeout"),
        ("cancel", FinishReason.ABORT, ""),
    ],
)
def test_fails_alone(
    load: Load, monkeypatch: pytest.MonkeyPatch, fault: str, finish_reason: FinishReason, error: str
) -> None:
    monkeypatch.setitem(controls.faults, 60, fault)
    backend = load()
    backend.add_request(request(PROMPT, "other"))
    backend.add_request(request([60, *PROMPT], "faulty"))
    outputs = steps(backend, finished(2))
    faulty = [output for output in outputs if output.request_id == "faulty"]
    assert token_ids(faulty) == [60, 10]
    assert faulty[-1].finish_reason is finish_reason
    assert error in (faulty[-1].error or "")
    assert token_ids([output for output in outputs if output.request_id == "other"]) == [*PROMPT, EOS]


def test_error_of_the_worker_kills_the_engine(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(controls.faults, 60, "die")
    backend = load()
    backend.add_request(request([60, *PROMPT]))
    with pytest.raises(EngineDead, match="CUDA out of memory"):
        steps(backend, finished(1))
    with pytest.raises(EngineDead, match="shutting down"):
        backend.add_request(request(PROMPT, "next"))


def test_silence_of_a_dead_worker_is_noticed(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(controls.faults, 60, "vanish")
    backend = load()
    backend.check_health()
    backend.add_request(request([60, *PROMPT]))
    steps(backend, lambda outputs: len(token_ids(outputs)) == 2)
    while engine(backend)._check_health():
        time.sleep(0.001)
    with pytest.raises(EngineDead, match="has shut down"):
        backend.check_health()


def test_close_ends_threads_and_requests(load: Load) -> None:
    before = set(threading.enumerate())
    backend = load()
    backend.add_request(request(PROMPT, ignore_eos=True))
    started = set(threading.enumerate()) - before
    assert started
    backend.close()
    for thread in started | set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive(), thread


# Options


def test_options_become_arguments(load: Load) -> None:
    backend = load(
        tensor_parallel_degree=2,
        pipeline_parallel_degree=2,
        max_rolling_batch_size=17,
        max_rolling_batch_prefill_tokens=123,
        max_model_len=40,
        dtype="bf16",
        trust_remote_code=True,
        enable_chunked_prefill=True,
        batch_scheduler_policy="max_utilization",
        enable_overlap_scheduler=False,
        use_cuda_graph=False,
        kv_cache_free_gpu_mem_fraction=0.5,
        enable_kv_cache_reuse=False,
        tokens_per_block=64,
        kv_cache_dtype="fp8",
        max_attention_window="1024, 2048",
        host_cache_size=4096,
        max_tokens=99,
        enable_lora=True,
        max_loras=3,
        max_lora_rank=8,
        max_input_len=30,
        attn_backend="FLASHINFER",
    )
    args = engine(backend).args
    expected = {
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
        "max_batch_size": 17,
        "max_num_tokens": 123,
        "max_seq_len": 40,
        "dtype": "bfloat16",
        "trust_remote_code": True,
        "skip_tokenizer_init": True,
        "enable_chunked_prefill": True,
        "disable_overlap_scheduler": True,
        "cuda_graph_config": None,
        "enable_lora": True,
        "max_input_len": 30,
        "attn_backend": "FLASHINFER",
    }
    assert {name: getattr(args, name) for name in expected} == expected
    assert args.scheduler_config.capacity_scheduler_policy.value == "MAX_UTILIZATION"
    assert (args.lora_config.max_loras, args.lora_config.max_lora_rank, args.lora_config.max_cpu_loras) == (3, 8, None)
    cache = args.kv_cache_config
    assert (cache.free_gpu_memory_fraction, cache.enable_block_reuse, cache.tokens_per_block) == (0.5, False, 64)
    assert (cache.dtype, cache.max_attention_window, cache.host_cache_size) == ("fp8", [1024, 2048], 4096)
    assert cache.max_tokens == 99


def test_engines_own_defaults_hold(load: Load) -> None:
    args = engine(load()).args
    assert (args.max_num_tokens, args.max_seq_len, args.dtype) == (8192, MAX_MODEL_LEN, "auto")
    assert args.kv_cache_config.free_gpu_memory_fraction == 0.9


def test_tokenizer_only_for_grammars(load: Load) -> None:
    args = engine(load(guided_decoding_backend="xgrammar")).args
    assert (args.guided_decoding_backend, args.skip_tokenizer_init) == ("xgrammar", False)


def test_dynamic_batch_sets_the_batch_size(load: Load) -> None:
    assert engine(load(rolling_batch="disable", batch_size=5)).args.max_batch_size == 5


def test_setting_without_counterpart_is_reported(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    load(batching_type="inflight")
    assert [getattr(record, "option", None) for record in caplog.records] == ["option.batching_type"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "option.dtype"),
        ({"guided_decoding_backend": "outlines"}, "option.guided_decoding_backend"),
        ({"guided_decoding_backend": "xgrammar", "skip_tokenizer_init": True}, "option.skip_tokenizer_init"),
        ({"tokenizer_mode": "fast"}, "option.tokenizer_mode"),
        ({"batch_scheduler_policy": "greedy"}, "option.batch_scheduler_policy"),
        ({"max_attention_window": "many"}, "option.max_attention_window"),
        ({"max_attention_window": "0"}, "option.max_attention_window"),
        ({"max_num_tokens": 5, "max_rolling_batch_prefill_tokens": 6}, "option.max_num_tokens"),
        ({"quantize": "awq"}, "option.quantize"),
        ({"load_format": "gguf"}, "Invalid LoadFormat: gguf"),
        ({"tensor_parallel_degree": 16}, "Only 8 GPUs are available, but 16 are required"),
    ],
)
def test_wrong_option(load: Load, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        load(**options)
    assert "\n" not in str(raised.value)


def test_quantised_checkpoint_needs_no_quantising(load: Load, model: ModelFiles) -> None:
    assert model.path is not None
    (model.path / "hf_quant_config.json").write_text("{}")
    load(quantize="fp8")


def test_model_without_a_stated_length(load: Load, model: ModelFiles) -> None:
    assert model.path is not None
    (model.path / "config.json").write_text(json.dumps({"vocab_size": VOCAB_SIZE}))
    with pytest.raises(ConfigError, match=r"option.max_model_len"):
        load()
    assert load(max_model_len=20).capabilities.max_model_len == 20


@pytest.mark.parametrize("path", [None, Path("model.gguf")])
def test_no_checkpoint(path: Path | None) -> None:
    with pytest.raises(ConfigError, match=r"option.model_id"):
        TensorRTLLMBackend.load(
            ModelFiles(path=path, eos_token_ids=(EOS,), vocab_size=VOCAB_SIZE), ServingProperties(), lambda phase: None
        )


# The stand-in notices mistakes. Each of these is the adapter with one put in.


def test_misspelt_sampling_parameter(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        adapter, "engine_sampling_params", lambda params, **_: tensorrt_llm.SamplingParams(end_id=EOS, max_new_tokens=5)
    )
    with pytest.raises(TypeError, match="max_new_tokens"):
        load().add_request(request(PROMPT))


def test_sampling_parameter_of_the_wrong_type(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        adapter,
        "engine_sampling_params",
        lambda params, **_: tensorrt_llm.SamplingParams(end_id=EOS, stop_token_ids=(5,)),
    )
    with pytest.raises(TypeError, match="stop_token_ids"):
        load().add_request(request(PROMPT))


@pytest.mark.parametrize(
    ("name", "message"),
    [("max_num_seqs", "LLM got invalid argument: max_num_seqs"), ("build_config", "specific to TensorRT backend")],
)
def test_misspelt_engine_argument(load: Load, monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    monkeypatch.setattr(adapter, "llm_arguments", lambda *given, **named: {**llm_arguments(*given, **named), name: 4})
    with pytest.raises(ConfigError, match=message):
        load()


def test_engine_argument_of_the_wrong_type(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        adapter, "llm_arguments", lambda *given, **named: {**llm_arguments(*given, **named), "max_batch_size": "4"}
    )
    with pytest.raises(ConfigError, match="validation error for TorchLlmArgs max_batch_size"):
        load()


def test_sampling_params_used_again(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def make_once(params: SamplingParams, **options: Any) -> Any:
        made.append(made[0] if made else engine_sampling_params(params, **options))
        return made[0]

    monkeypatch.setattr(adapter, "engine_sampling_params", make_once)
    backend = load()
    backend.add_request(request(PROMPT, "1"))
    with pytest.raises(Misuse, match="submitted before"):
        backend.add_request(request(PROMPT, "2"))


def test_sampling_params_changed_afterwards(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "step_seconds", 0.01)
    backend = load()
    backend.add_request(request(PROMPT, ignore_eos=True))
    submitted(backend).max_tokens = 99
    with pytest.raises(EngineDead, match="Misuse: a SamplingParams was changed"):
        steps(backend, finished(1))


class CumulativeSequence(Sequence):
    """Takes the engine's list for what is new in it."""

    def take(self, result: Any) -> TokenOutput | None:
        self._taken = 0
        return super().take(result)


def test_cumulative_ids_taken_for_deltas(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "Sequence", CumulativeSequence)
    assert token_ids(run(load(), PROMPT))[:3] == [10, 10, 11]


def test_list_kept_without_a_copy(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's list goes on growing after it has been handed out."""
    kept: list[tuple[list[int], int]] = []

    class KeepingSequence(Sequence):
        def take(self, result: Any) -> TokenOutput | None:
            kept.append((result.outputs[0].token_ids, len(result.outputs[0].token_ids)))
            return super().take(result)

    monkeypatch.setattr(adapter, "Sequence", KeepingSequence)
    run(load(), PROMPT)
    assert len({id(token_list) for token_list, _ in kept}) == 1
    assert [length for _, length in kept] == list(range(1, len(PROMPT) + 2))
    assert {len(token_list) for token_list, _ in kept} == {len(PROMPT) + 1}


def test_stop_id_left_to_the_engine(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_it(params: SamplingParams, **options: Any) -> Any:
        made = engine_sampling_params(params, **options)
        made.include_stop_str_in_output = False
        return made

    monkeypatch.setattr(adapter, "engine_sampling_params", without_it)
    outputs = run(load(), PROMPT, stop_token_ids=(12,), logprobs=0)
    assert token_ids(outputs) == [10, 11]
    assert [len(output.logprobs or ()) for output in outputs] == [len(output.token_ids) for output in outputs]


def test_generation_started_outside_the_loop(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result then has no queue that the reading loop could wait on."""

    def submit(self: LLMActor, sequence: Sequence, prompt: list[int], params: Any) -> None:
        result = self._llm.generate_async(prompt, params, streaming=True)

        async def read() -> None:
            self._results[sequence] = result, asyncio.create_task(self._read(sequence, result))

        asyncio.run_coroutine_threadsafe(read(), self._loop).result()

    monkeypatch.setattr(LLMActor, "submit", submit)
    backend = load()
    backend.add_request(request(PROMPT))
    with pytest.raises(EngineDead, match="event loop was not present"):
        steps(backend, finished(1))


def test_guide_that_the_engine_would_ignore(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = load()
    monkeypatch.setattr(backend, "_guided_decoding", True)
    with pytest.raises(Misuse, match="ignores guided_decoding"):
        backend.add_request(request(PROMPT, structured_outputs=StructuredOutputs(json_object=True)))


@pytest.mark.parametrize(
    ("guide", "error"),
    [
        ({"choice": ["a", "b"]}, TypeError),
        ({"regex": ("a", "b")}, TypeError),
        ({"regex": "a", "json_object": True}, InvalidRequest),
        ({}, Misuse),
    ],
)
def test_wrong_guide(
    load: Load, monkeypatch: pytest.MonkeyPatch, guide: dict[str, Any], error: type[Exception]
) -> None:
    backend = load(guided_decoding_backend="xgrammar")
    monkeypatch.setattr(adapter_sampling, "_guided_decoding", lambda wanted: GuidedDecodingParams(**guide))
    with pytest.raises(error):
        backend.add_request(request(PROMPT))


def test_grammars_without_a_tokenizer(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        adapter,
        "llm_arguments",
        lambda *given, **named: {**llm_arguments(*given, **named), "skip_tokenizer_init": True},
    )
    with pytest.raises(ConfigError, match="guided decoding needs the tokenizer"):
        load(guided_decoding_backend="xgrammar")


def test_adapter_that_the_engine_would_ignore(load: Load, adapters: dict[str, Path]) -> None:
    backend = load(adapters)
    with pytest.raises(Misuse, match="ignores lora_request"):
        backend.add_request(request(PROMPT, adapter="one"))


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"lora_int_id": "1"}, TypeError),
        ({"lora_path": "nowhere"}, ValueError),
        ({"lora_path": ""}, ValueError),
        ({"lora_ckpt_source": "peft"}, ValueError),
        ({"long_lora_max_len": 5}, TypeError),
    ],
)
def test_wrong_adapter_request(tmp_path: Path, wrong: dict[str, Any], error: type[Exception]) -> None:
    right: dict[str, Any] = {"lora_name": "one", "lora_int_id": 1, "lora_path": str(tmp_path)}
    LoRARequest(**right)
    with pytest.raises(error):
        LoRARequest(**right | wrong)


def test_two_adapters_of_one_number(load: Load, adapters: dict[str, Path]) -> None:
    backend = load(adapters, enable_lora=True)
    backend.add_request(request(PROMPT, "first", adapter="one"))
    backend._adapters["two"] = LoRARequest("two", 1, str(adapters["two"]))
    with pytest.raises(Misuse, match="of the same number"):
        backend.add_request(request(PROMPT, "second", adapter="two"))


def test_adapters_folder_in_place_of_its_request(load: Load, adapters: dict[str, Path]) -> None:
    backend = load(adapters, enable_lora=True)
    backend._adapters["one"] = adapters["one"]
    with pytest.raises(TypeError, match="must be a LoRARequest"):
        backend.add_request(request(PROMPT, adapter="one"))


def test_several_folders_for_the_engine_to_look_into(
    load: Load, adapters: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_folders(*given: Any, **named: Any) -> dict[str, Any]:
        arguments = llm_arguments(*given, **named)
        arguments["lora_config"].lora_dir = [str(path) for path in adapters.values()]
        arguments["lora_config"].lora_target_modules = []
        return arguments

    monkeypatch.setattr(adapter, "llm_arguments", with_folders)
    with pytest.raises(ConfigError, match="at least one lora target module"):
        load(adapters, enable_lora=True)


# The stand-in itself, where it states the contract


def test_arguments_come_from_the_contract() -> None:
    fields = CONTRACT["SamplingParams"]["fields_in_order"]
    params = tensorrt_llm.SamplingParams(end_id=EOS)
    assert {name: getattr(params, name) for name in fields} == {
        name: about["default"] for name, about in fields.items()
    } | {"end_id": EOS, "pad_id": EOS, "best_of": 1}
    with pytest.raises(AttributeError):
        params.max_new_tokens = 5


def test_greedy_with_several_answers() -> None:
    with pytest.raises(ValueError, match="Greedy decoding"):
        tensorrt_llm.SamplingParams(end_id=EOS, best_of=2)


def test_engines_prompt_logprobs_lack_the_prompts_tokens(load: Load) -> None:
    """Why the adapter asks for logits instead."""
    backend = load()
    llm = engine(backend)

    async def ask() -> Any:
        return await llm.generate_async(
            PROMPT, tensorrt_llm.SamplingParams(end_id=EOS, prompt_logprobs=1), streaming=True
        )

    rows = asyncio.run(ask()).outputs[0].prompt_logprobs
    assert len(rows) == len(PROMPT)
    assert any(token not in row for token, row in zip(PROMPT[1:], rows, strict=False))


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        ("Optional[int] (None -> 2048)", None, True),
        ("Optional[int]", 3, True),
        ("int", True, False),
        ("float", 1, True),
        ("Optional[List[int]]", [1, 2], True),
        ("Optional[List[int]]", (1, 2), False),
        ("Union[str, Path]", Path(), True),
        ("Literal['auto','slow']", "fast", False),
        ("Dict[str,str]", {"a": 1}, False),
        ("SomethingElse", object(), False),
    ],
)
def test_types_of_the_contract(annotation: str, value: object, expected: bool) -> None:
    assert accepts(annotation, value) is expected
