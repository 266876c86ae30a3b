"""The TensorRT-LLM adapter: sequences that join and leave, limits, failures and shutdown."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from facts import raises
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorrt_llm_adapter import (
    CONTRACT,
    EOS,
    PROMPT,
    Load,
    TensorRTLLMBackend,
    controls,
    engine,
    finished,
    loading,
    request,
    run,
    steps,
    token_ids,
)

from lmi_handlers.core.capabilities import check_prompt, check_sampling_params
from lmi_handlers.core.errors import EngineDead, InvalidRequest
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.sampling_params import SamplingParams


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    with loading(tmp_path) as load:
        yield load


# Batches


def test_rolling_batch(load: Load) -> None:
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
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_other_sequences_and_aborts_do_not_change_an_answer(
    load_once: TensorRTLLMBackend, runs: list[tuple[list[int], int, int]]
) -> None:
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


def test_aborted_id_can_be_used_again(load: Load) -> None:
    backend = load()
    backend.add_request(request([20, 21, 22], "r", ignore_eos=True))
    while backend._actor._outputs.qsize() < 3:
        time.sleep(0.001)
    backend.abort("r")
    assert token_ids(run(backend, PROMPT)) == [*PROMPT, EOS]


def test_idle_step(load: Load) -> None:
    assert load().step() == []


# Limits and failures


def test_alternatives_only_for_prompt_tokens(load: Load) -> None:
    limits = load().capabilities
    check_sampling_params(SamplingParams(logprobs=0, prompt_logprobs=20), limits)
    with pytest.raises(InvalidRequest, match=r"^logprobs: must be at most 0"):
        check_sampling_params(SamplingParams(logprobs=1), limits)
    with raises(InvalidRequest, "prompt_logprobs: 20"):
        check_sampling_params(SamplingParams(prompt_logprobs=21), limits)


def test_unsupported(load: Load) -> None:
    backend = load()
    assert "typical_p" in backend.capabilities.unsupported
    assert not set(backend.capabilities.unsupported) & set(CONTRACT["SamplingParams"]["fields_in_order"])


def test_rejected_by_the_engine(load: Load) -> None:
    backend = load(max_num_tokens=5, enable_chunked_prefill=False)
    with pytest.raises(InvalidRequest, match="should not exceed max_num_tokens"):
        backend.add_request(request(PROMPT))
    assert token_ids(run(backend, PROMPT[:5])) == [*PROMPT[:5], EOS]


def test_max_input_len_and_max_output_len(load: Load) -> None:
    backend = load(max_input_len=4, max_output_len=6)
    assert backend.capabilities.max_model_len == 10
    assert len(token_ids(run(backend, [10], ignore_eos=True))) == 6
    with pytest.raises(InvalidRequest, match="from 1 to 4 tokens, got 5"):
        check_prompt([10] * 5, backend.capabilities)
    with raises(InvalidRequest, "max_tokens: 6"):
        check_sampling_params(SamplingParams(max_tokens=7), backend.capabilities)


@pytest.mark.parametrize(
    ("fault", "finish_reason", "error"),
    [
        ("error", FinishReason.ERROR, "could not go on"),
        ("timeout", FinishReason.ERROR, "timeout"),
        ("cancel", FinishReason.ABORT, ""),
    ],
)
def test_failure_of_one_sequence(
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


def test_worker_error_kills_the_engine(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(controls.faults, 60, "die")
    backend = load()
    backend.add_request(request([60, *PROMPT]))
    with pytest.raises(EngineDead, match="CUDA out of memory"):
        steps(backend, finished(1))
    with pytest.raises(EngineDead, match="shutting down"):
        backend.add_request(request(PROMPT, "next"))


def test_dead_worker_is_detected(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
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
        thread.join(60)
        assert not thread.is_alive(), thread
