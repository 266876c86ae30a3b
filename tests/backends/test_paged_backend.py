"""PagedBackend: results depend on nothing but the request, whatever the memory, the batch, and the drafts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from facts import raises, says
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from paged_runner import StoredTokensBackend, StoredTokensRunner
from paths import ROOT
from waiting import wait_until

from backends.paged import backend as paged_backend
from backends.paged.adapter_cache import AdapterCache
from backends.paged.backend import PagedBackend
from backends.paged.sequence import SequenceChunk
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import EncodedPrompt, TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.core.thinking import ThinkingMarks

EOS = 2
THINKING = ThinkingMarks(begins=((3,),), ends=((4, 5),), forced_end=(4, 5))


def make_backend(runner: StoredTokensRunner, **options: object) -> PagedBackend:
    capabilities = Capabilities(backend="paged", max_model_len=100, vocab_size=runner.vocab_size, max_num_seqs=6)
    options = {"eos_token_ids": (EOS,), "max_prefill_tokens": 16, "thinking": THINKING, **options}
    return StoredTokensBackend(runner, capabilities, **options)  # type: ignore[arg-type]


def request(name: str, prompt: list[int], **params: object) -> TokenRequest:
    return TokenRequest(
        request_id=name,
        prompt=EncodedPrompt(prompt),
        sampling_params=SamplingParams(**params),  # type: ignore[arg-type]
    )


def run(backend: PagedBackend, requests: list[TokenRequest]) -> dict[str, list[TokenOutput]]:
    for item in requests:
        backend.add_request(item)
    outputs: dict[str, list[TokenOutput]] = {item.request_id: [] for item in requests}
    for _ in range(5000):
        if all(out and out[-1].finish_reason for out in outputs.values()):
            return outputs
        for output in backend.step():
            outputs[output.request_id].append(output)
    pytest.fail("sequences do not end")


def tokens(outputs: list[TokenOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


prompts = st.lists(st.integers(3, 5), min_size=1, max_size=30)
sampling = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 25),
        "temperature": st.sampled_from([0.0, 1.0]),
        "seed": st.integers(0, 3),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "logprobs": st.sampled_from([None, 2]),
        "prompt_logprobs": st.sampled_from([None, None, 1]),
        "thinking_token_budget": st.sampled_from([None, 0, 3]),
    }
)


@given(
    st.lists(st.tuples(prompts, sampling), min_size=1, max_size=8),
    st.integers(14, 40),
    st.booleans(),
    st.sampled_from([0, 4]),
)
@settings(max_examples=30, deadline=None)
def test_small_cache_shared_prefixes_and_drafts_change_no_result(
    wanted: list[tuple[list[int], dict[str, object]]], num_blocks: int, caching: bool, lookup: int
) -> None:
    requests = [request(f"r{n}", prompt, **params) for n, (prompt, params) in enumerate(wanted)]
    together = run(
        make_backend(StoredTokensRunner(num_blocks), enable_prefix_caching=caching, prompt_lookup_num_tokens=lookup),
        requests,
    )
    for item in requests:
        alone = run(make_backend(StoredTokensRunner(100), enable_prefix_caching=False), [item])[item.request_id]
        outputs = together[item.request_id]
        assert tokens(outputs) == tokens(alone)
        assert outputs[-1].finish_reason is alone[-1].finish_reason
        assert [p for o in outputs for p in o.logprobs or ()] == [p for o in alone for p in o.logprobs or ()]
        assert outputs[0].prompt_logprobs == alone[0].prompt_logprobs
        assert outputs[0].prompt_top_logprobs == alone[0].prompt_top_logprobs


@given(
    prompts,
    st.lists(st.tuples(prompts, sampling), max_size=4),
    sampling,
    st.fixed_dictionaries(
        {
            "max_tokens": st.integers(2, 25),
            "min_tokens": st.integers(0, 2),
            "presence_penalty": st.sampled_from([0.0, 1.0]),
            "frequency_penalty": st.sampled_from([0.0, 0.5]),
            "stop_token_ids": st.sampled_from([(), (7, 8)]),
            "logit_bias": st.sampled_from([None, {9: 2.0}]),
        }
    ),
    st.integers(0, 23),
    st.integers(14, 40),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 4]),
)
@settings(max_examples=30, deadline=None)
def test_a_sequence_that_was_cut_goes_on_as_if_it_had_not_been(
    prompt: list[int],
    others: list[tuple[list[int], dict[str, object]]],
    params: dict[str, object],
    more: dict[str, object],
    cut: int,
    num_blocks: int,
    partial: bool,
    same_engine: bool,
    lookup: int,
) -> None:
    item = request("whole", prompt, **params | more)
    first = make_backend(StoredTokensRunner(num_blocks, partial=partial), prompt_lookup_num_tokens=lookup)
    whole = run(first, [item])["whole"]
    expected = tokens(whole)
    assume(len(expected) > 1)
    cut = 1 + cut % (len(expected) - 1)
    backend = first if same_engine else make_backend(StoredTokensRunner(num_blocks), prompt_lookup_num_tokens=lookup)
    continued = msgspec.structs.replace(item, request_id="continued", generated=tuple(expected[:cut]))
    beside = [request(f"r{n}", prompt, **params) for n, (prompt, params) in enumerate(others)]
    outputs = run(backend, [*beside, continued])["continued"]
    assert tokens(outputs) == expected[cut:]
    assert outputs[-1].finish_reason is whole[-1].finish_reason
    assert [p for o in outputs for p in o.logprobs or ()] == [p for o in whole for p in o.logprobs or ()][cut:]
    assert [p for o in outputs for p in o.top_logprobs or ()] == [p for o in whole for p in o.top_logprobs or ()][cut:]
    assert outputs[0].prompt_logprobs == whole[0].prompt_logprobs
    assert outputs[0].prompt_top_logprobs == whole[0].prompt_top_logprobs


@pytest.mark.parametrize(("salt", "computed"), [("a", 1), ("b", 33 + 30)])
def test_a_continuation_computes_what_is_not_cached_under_its_salt(salt: str, computed: int) -> None:
    runner = StoredTokensRunner(100)
    backend = make_backend(runner)
    asked = TokenRequest(
        request_id="cut",
        prompt=EncodedPrompt(list(range(3, 36)), cache_salt="a"),
        sampling_params=SamplingParams(max_tokens=60, ignore_eos=True),
    )
    backend.add_request(asked)
    generated: list[int] = []
    while len(generated) < 30:
        generated += tokens(backend.step())
    backend.abort("cut")
    runner.forwards.clear()
    prompt = EncodedPrompt(asked.prompt.token_ids, cache_salt=salt)
    backend.add_request(
        msgspec.structs.replace(asked, request_id="continued", prompt=prompt, generated=tuple(generated))
    )
    outputs: list[TokenOutput] = []
    while not outputs:
        outputs = backend.step()
    assert sum(len(chunk.token_ids) for chunks in runner.forwards for chunk in chunks) == computed
    assert outputs[0].num_cached_tokens == (33 if salt == "a" else 0)  # of the prompt


def test_cache_that_is_too_small_for_all_preempts() -> None:
    runner = StoredTokensRunner(14)
    backend = make_backend(runner)
    run(backend, [request(f"r{n}", [n + 3] * 9, max_tokens=40, ignore_eos=True) for n in range(6)])
    assert backend.counters.num_preemptions > 0
    assert backend.kv_cache_usage == 0


def test_samples_of_one_prompt_are_one_prefill() -> None:
    runner = StoredTokensRunner(100)
    run(make_backend(runner), [request(f"r{n}", list(range(3, 36)), max_tokens=1, seed=n) for n in range(6)])
    assert sum(len(chunk.token_ids) for chunks in runner.forwards for chunk in chunks) == 33 + 5


def test_drafts_save_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_backend, "time", SimpleNamespace(monotonic=lambda: 0.0))  # drafts cost nothing
    steps = {}
    for lookup in (0, 4):
        runner = StoredTokensRunner(100)
        backend = make_backend(runner, prompt_lookup_num_tokens=lookup)
        run(backend, [request("r", list(range(3, 13)), max_tokens=80, temperature=0.0, ignore_eos=True)])
        steps[lookup] = len(runner.forwards)
    counters = backend.counters
    assert steps[4] == steps[0] - counters.spec_decode_num_accepted_tokens
    assert counters.spec_decode_num_draft_tokens >= counters.spec_decode_num_accepted_tokens > 10


class TimedRunner(StoredTokensRunner):
    """A step takes a second, and `per_token` seconds for each token. With few different tokens, texts repeat themselves."""

    def __init__(self, per_token: float) -> None:
        super().__init__(100, vocab_size=8)
        self.now = 0.0
        self._per_token = per_token

    def forward(self, chunks: list[SequenceChunk]) -> Any:
        self.now += 1 + self._per_token * sum(len(chunk.token_ids) for chunk in chunks)
        return super().forward(chunks)


def test_drafts_that_cost_more_than_they_save_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    drafted, texts = {}, []
    for per_token in (0.01, 5.0):
        runner = TimedRunner(per_token)
        monkeypatch.setattr(paged_backend, "time", SimpleNamespace(monotonic=lambda runner=runner: runner.now))
        backend = make_backend(runner, prompt_lookup_num_tokens=4)
        backend.warm_up()
        items = [request(f"r{n}", [n, 3, 4, 5, 6], max_tokens=80, seed=n, ignore_eos=True) for n in range(4)]
        texts.append([tokens(outputs) for outputs in run(backend, items).values()])
        drafted[per_token] = backend.counters.spec_decode_num_draft_tokens
    assert drafted[5.0] < drafted[0.01] / 2
    assert texts[0] == texts[1]


def test_cached_tokens_are_told_once() -> None:
    backend = make_backend(StoredTokensRunner(100))
    first = run(backend, [request("first", list(range(3, 36)), max_tokens=3, ignore_eos=True)])["first"]
    assert [output.num_cached_tokens for output in first] == [0, None, None]
    second = run(backend, [request("second", list(range(3, 36)), max_tokens=2, ignore_eos=True)])["second"]
    assert [output.num_cached_tokens for output in second] == [32, None]
    assert backend.counters.prefix_cache_queries == 66
    assert backend.counters.prefix_cache_hits == 32


def test_adapters_do_not_share_a_prefix() -> None:
    cache = AdapterCache(lambda name, folder: name)
    backend = make_backend(StoredTokensRunner(100), adapters=cache)
    for known in "ab":
        cache.add(known, Path(), known)
    for name, adapter in (("first", None), ("second", "a"), ("third", "b"), ("fourth", "a")):
        item = TokenRequest(
            request_id=name,
            prompt=EncodedPrompt(list(range(3, 36)), adapter),
            sampling_params=SamplingParams(max_tokens=1),
        )
        cached = run(backend, [item])[name][0].num_cached_tokens
        assert cached == (32 if name == "fourth" else 0)


@given(
    st.lists(st.tuples(st.sampled_from([None, "a", "b"]), st.sampled_from([None, "a", "1", "0", "\0"])), max_size=12)
)
@settings(max_examples=25, deadline=None)
def test_only_equal_salts_and_adapters_share_a_prefix(asked: list[tuple[str | None, str | None]]) -> None:
    cache = AdapterCache(lambda name, folder: name)
    backend = make_backend(StoredTokensRunner(100), adapters=cache)
    for known in "ab":
        cache.add(known, Path(), known)
    for number, (adapter, salt) in enumerate(asked):
        item = TokenRequest(
            request_id=f"{number}",
            prompt=EncodedPrompt(list(range(3, 36)), adapter, cache_salt=salt),
            sampling_params=SamplingParams(max_tokens=1),
        )
        cached = run(backend, [item])[f"{number}"][0].num_cached_tokens
        assert cached == (32 if (adapter, salt) in asked[:number] else 0)


def test_adapter_that_cannot_be_read_again() -> None:
    """Its request is refused, whatever the reason is. The engine goes on."""

    def read(name: str, folder: Path) -> str:
        raise RuntimeError("no memory")

    cache = AdapterCache(read, max_loras=1)
    for known in "ab":
        cache.add(known, Path(), known)  # there is memory for one
    with raises(InvalidRequest, "a read: no memory"):
        wait_until(lambda: cache.get("a", ()))
    assert cache.get("b", ()) == "b"


def test_a_request_that_allows_no_token_takes_no_prefix_from_others() -> None:
    backend = make_backend(StoredTokensRunner(100))
    prompt = list(range(3, 36))
    run(backend, [request("first", prompt, max_tokens=1)])
    impossible = request("impossible", prompt, max_tokens=5, min_tokens=5, allowed_token_ids=(EOS,))
    last = run(backend, [impossible])["impossible"][-1]
    assert says(last.error, "no token is left")
    assert last.invalid_request
    assert run(backend, [request("second", prompt, max_tokens=1)])["second"][0].num_cached_tokens == 32


def test_a_request_with_extreme_penalties_takes_no_prefix_from_others() -> None:
    """Nor is the model blamed for it."""
    backend = make_backend(StoredTokensRunner(100))
    prompt = list(range(3, 36))
    run(backend, [request("first", prompt, max_tokens=1)])
    assert run(backend, [request("odd", prompt, max_tokens=5, repetition_penalty=1e-320)])["odd"][-1].error is None
    assert run(backend, [request("second", prompt, max_tokens=1)])["second"][0].num_cached_tokens == 32


def test_out_of_memory_fails_one_sequence() -> None:
    backend = make_backend(StoredTokensRunner(100, memory=13))
    requests = [
        request("long", list(range(3, 60)), max_tokens=3),
        request("short", [3, 4], max_tokens=3, ignore_eos=True),
    ]
    outputs = run(backend, requests)
    assert outputs["long"][-1].finish_reason is FinishReason.ERROR
    assert "out of memory" in (outputs["long"][-1].error or "")
    assert len(tokens(outputs["short"])) == 3
    assert backend.kv_cache_usage == 0


@given(
    st.lists(st.tuples(prompts, sampling), min_size=2, max_size=6),
    st.integers(14, 40),
    st.sampled_from([0, 4]),
    st.sets(st.integers(0, 30), min_size=1, max_size=4),
)
@settings(max_examples=20, deadline=None)
def test_steps_that_run_out_of_memory_spoil_nothing_but_the_sequence_that_fails(
    wanted: list[tuple[list[int], dict[str, object]]], num_blocks: int, lookup: int, failing: set[int]
) -> None:
    requests = [request(f"r{n}", prompt, **params) for n, (prompt, params) in enumerate(wanted)]
    backend = make_backend(StoredTokensRunner(num_blocks, failing=failing), prompt_lookup_num_tokens=lookup)
    together = run(backend, requests)
    assert backend.kv_cache_usage == 0
    failed = [item for item in requests if together[item.request_id][-1].finish_reason is FinishReason.ERROR]
    assert len(failed) <= len(failing)
    for item in requests:
        if item not in failed:
            alone = run(make_backend(StoredTokensRunner(100), enable_prefix_caching=False), [item])[item.request_id]
            assert tokens(together[item.request_id]) == tokens(alone)
            assert together[item.request_id][0].prompt_logprobs == alone[0].prompt_logprobs


def test_requests_longer_than_the_cache_are_refused() -> None:
    assert make_backend(StoredTokensRunner(10)).capabilities.max_model_len == 40
    assert make_backend(StoredTokensRunner(1000)).capabilities.max_model_len == 100


def test_model_without_a_tokenizer_file_has_neither_grammars_nor_bad_words(tmp_path: Path) -> None:
    backend = make_backend(StoredTokensRunner(20), tokenizer_file=tmp_path / "tokenizer.json")
    assert {"bad_words", "structured_outputs"}.issubset(backend.capabilities.unsupported)


def test_warm_up_of_a_model_for_a_single_token() -> None:
    runner = StoredTokensRunner(20)
    StoredTokensBackend(runner, Capabilities(backend="paged", max_model_len=1, vocab_size=64)).warm_up()
    assert runner.forwards == []


@pytest.mark.parametrize("partial", [True, False])
def test_warm_up_leaves_nothing_behind(partial: bool) -> None:
    runner = StoredTokensRunner(20, partial=partial)
    backend = make_backend(runner)
    backend.warm_up()
    assert len(runner.forwards) == 4
    assert backend.kv_cache_usage == 0
    assert backend.counters.prefix_cache_queries == 0
    item = request("r", [0] * 20, max_tokens=5, temperature=0.0)
    assert tokens(run(backend, [item])["r"]) == tokens(run(make_backend(StoredTokensRunner(20)), [item])["r"])


FIRST_REQUEST = """
import sys
from test_paged_backend import StoredTokensRunner, make_backend, request, run

backend = make_backend(StoredTokensRunner(20, partial=sys.argv[1] == "partial"))
backend.warm_up()
imported = set(sys.modules)
run(backend, [request("first", [0] * 20, max_tokens=5, logprobs=2, seed=1)])
print(sorted(set(sys.modules) - imported))
"""


@pytest.mark.parametrize("prompts", ["partial", "whole"])
def test_the_first_request_imports_nothing(prompts: str) -> None:
    folders = [str(ROOT / "tests" / "backends"), str(ROOT / "tests" / "support")]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    done = subprocess.run(
        [sys.executable, "-c", FIRST_REQUEST, prompts], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_idle_engine_gives_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = StoredTokensRunner(100)
    backend = make_backend(runner)
    run(backend, [request("first", list(range(3, 36)), max_tokens=1)])
    monkeypatch.setattr(paged_backend, "IDLE_SECONDS", 1000.0)  # more than a busy machine takes to get here
    backend.on_idle()
    assert runner.reclaimed == []  # not at once: the next request may come soon
    monkeypatch.setattr(paged_backend, "IDLE_SECONDS", 0.0)
    backend.on_idle()
    assert len(runner.reclaimed) == 1  # the block that is not full
    monkeypatch.setattr(paged_backend, "UNUSED_SECONDS", 0.0)
    backend.on_idle()
    assert len(runner.reclaimed) == 9
    assert run(backend, [request("again", list(range(3, 36)), max_tokens=1)])["again"][0].num_cached_tokens == 0


@pytest.mark.parametrize(("option", "asked", "drafts"), [(0, 4, True), (4, 0, False), (4, None, True)])
def test_request_may_turn_drafts_on_and_off(option: int, asked: int | None, drafts: bool) -> None:
    backend = make_backend(StoredTokensRunner(100), prompt_lookup_num_tokens=option)
    params = {"max_tokens": 80, "temperature": 0.0, "ignore_eos": True, "prompt_lookup_num_tokens": asked}
    run(backend, [request("r", list(range(3, 13)), **params)])
    assert bool(backend.counters.spec_decode_num_draft_tokens) is drafts


class Clock:
    """A clock that only steps advance: by a second per forward pass."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class SecondPerStep(StoredTokensRunner):
    """Each forward pass takes a second of `clock`."""

    clock: Clock

    def forward(self, chunks: list[SequenceChunk]) -> Any:
        self.clock.now += 1
        return super().forward(chunks)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def test_a_step_is_divided_by_tokens_and_blocks_count_while_they_are_held(clock: Clock) -> None:
    runner = SecondPerStep(100)
    runner.clock = clock
    backend = make_backend(runner, enable_prefix_caching=False)
    size = runner.block_size
    first = request("first", [3] * (size - 1), max_tokens=3, ignore_eos=True)
    second = request("second", [4] * (size - 1), max_tokens=1, ignore_eos=True)
    backend.add_request(first)
    backend.step()
    assert (first.meter.engine_time, first.meter.kv_block_time) == (1.0, 1.0)
    backend.add_request(second)
    backend.step()  # one token of the first, and the second's prompt
    assert first.meter.engine_time == pytest.approx(1 + 1 / size)
    assert second.meter.engine_time == pytest.approx(1 - 1 / size)
    assert (first.meter.kv_block_time, second.meter.kv_block_time) == (2.0, 1.0)
    clock.now += 5  # between two steps, the first holds its block, and the second holds none
    backend.step()  # the first needs a second block
    assert first.meter.engine_time == pytest.approx(2 + 1 / size)
    assert (first.meter.kv_block_time, second.meter.kv_block_time) == (9.0, 1.0)


@given(st.lists(st.tuples(prompts, st.integers(1, 25)), min_size=1, max_size=8), st.integers(14, 40))
@settings(max_examples=15, deadline=None)
def test_all_steps_are_divided_among_the_requests(wanted: list[tuple[list[int], int]], num_blocks: int) -> None:
    clock, runner = Clock(), SecondPerStep(num_blocks)
    runner.clock = clock
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", clock)
        requests = [request(f"r{n}", prompt, max_tokens=most) for n, (prompt, most) in enumerate(wanted)]
        run(make_backend(runner, prompt_lookup_num_tokens=4, enable_prefix_caching=False), requests)
    assert sum(item.meter.engine_time for item in requests) == pytest.approx(clock.now - 100)
    held = sum(item.meter.kv_block_time or 0.0 for item in requests)
    assert 0 < held <= num_blocks * (clock.now - 100)
