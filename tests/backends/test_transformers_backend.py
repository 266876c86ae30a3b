"""The transformers backend matches the library's own `generate` and forward, alone and in a batch."""

from __future__ import annotations

import math
import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from facts import raises, says
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import CONFIGS, EOS, SLOW_CONFIGS, VOCAB_SIZE, make_model
from tokenizers import Tokenizer

from backends.base import ModelFiles
from backends.paged.sequence import Sequence, SequenceChunk
from backends.sampling.bad_words import BadWords
from backends.transformers import DECLARATION
from backends.transformers.backend import TransformersBackend
from backends.transformers.fallback import SequentialRunner
from backends.transformers.loading import DTYPES, QUANTIZATIONS, _window_missing, load_model
from backends.transformers.lora_layers import LoraLayers
from backends.transformers.packing import LinearInputs, pack, unpack
from backends.transformers.rolling import RollingRunner
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError, InvalidRequest
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import EncodedPrompt, TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.model_files.cache_dir import default_cache_dir
from lmi_handlers.model_files.resolve import resolve_model
from lmi_handlers.text.bundle import TOKENIZER_FILE, build_byte_bundle


def make_backend(model: Any, **options: Any) -> TransformersBackend:
    return TransformersBackend(model, eos_token_ids=(EOS,), **options)


def reference(model: Any, prompt: list[int], params: SamplingParams) -> list[int]:
    """Return what `generate` returns for this greedy request alone."""
    max_tokens = params.max_tokens
    output = model.generate(
        input_ids=torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=max_tokens,
        min_new_tokens=max_tokens if params.ignore_eos else params.min_tokens or None,
        repetition_penalty=params.repetition_penalty,
        eos_token_id=None if params.ignore_eos else EOS,
        pad_token_id=0,
    )
    ids: list[int] = output[0, len(prompt) :].tolist()
    return ids


def greedy(max_tokens: int, **fields: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, **fields)


@dataclass
class Collected:
    """All outputs of one request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    prompt_logprobs: list[float | None] | None = None
    prompt_top_logprobs: list[list[tuple[int, float]] | None] | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None


class Driver:
    """Steps a backend, sorts its outputs by request and checks what every backend guarantees."""

    def __init__(self, backend: TransformersBackend) -> None:
        self.backend = backend
        self.collected: dict[str, Collected] = defaultdict(Collected)
        self.open: set[str] = set()

    def add(self, request_id: str, prompt: list[int], params: SamplingParams) -> None:
        self.backend.add_request(
            TokenRequest(request_id=request_id, prompt=EncodedPrompt(prompt), sampling_params=params)
        )
        self.open.add(request_id)

    def abort(self, request_id: str) -> None:
        self.backend.abort(request_id)
        self.open.discard(request_id)

    def step(self) -> list[TokenOutput]:
        outputs = self.backend.step()
        for output in outputs:
            assert output.request_id in self.open, "output after the end, or of an aborted request"
            request = self.collected[output.request_id]
            if not request.token_ids:
                request.prompt_logprobs = output.prompt_logprobs
                request.prompt_top_logprobs = output.prompt_top_logprobs
            request.token_ids += output.token_ids
            request.logprobs += output.logprobs or []
            request.top_logprobs += output.top_logprobs or []
            request.finish_reason, request.error = output.finish_reason, output.error
            if output.finish_reason is not None:
                self.open.discard(output.request_id)
        return outputs

    def run(self, most_steps: int = 2000) -> dict[str, Collected]:
        for _ in range(most_steps):
            if not self.open:
                return self.collected
            self.step()
        raise AssertionError(f"still open after {most_steps} steps: {self.open}")


def generate(backend: TransformersBackend, prompt: list[int], params: SamplingParams) -> Collected:
    driver = Driver(backend)
    driver.add("one", prompt, params)
    return driver.run()["one"]


def random_prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(3, VOCAB_SIZE) for _ in range(length)]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small gain nothing from threads, which wait for each other, especially on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def llama() -> Any:
    return make_model("llama")


@pytest.fixture
def backend() -> TransformersBackend:
    return make_backend(make_model("llama"))


# Every architecture


@pytest.mark.parametrize("name", [*CONFIGS, *SLOW_CONFIGS])
def test_greedy_in_a_batch_matches_generate(name: str) -> None:
    """Requests of different lengths join one step after another, long prompts in chunks. One is aborted."""
    rng = random.Random(name)
    backend = make_backend(make_model(name), max_prefill_tokens=6, max_batch_size=4)
    assert type(backend._runner) is (RollingRunner if name in CONFIGS else SequentialRunner)
    requests = {f"r{n}": (random_prompt(rng, rng.randint(1, 22)), greedy(rng.randint(4, 20))) for n in range(6)}
    driver = Driver(backend)
    driver.add("aborted", random_prompt(rng, 9), greedy(50, ignore_eos=True))
    for number, (request_id, (prompt, params)) in enumerate(requests.items()):
        driver.add(request_id, prompt, params)
        driver.step()
        if number == 3:
            driver.abort("aborted")
    collected = driver.run()
    model = make_model(name)
    for request_id, (prompt, params) in requests.items():
        expected = reference(model, prompt, params)
        assert collected[request_id].token_ids == expected, request_id
        ended = FinishReason.EOS_TOKEN if expected[-1] == EOS else FinishReason.LENGTH
        assert collected[request_id].finish_reason is ended


class AllLogits(transformers.LlamaForCausalLM):  # type: ignore[no-untyped-call]  # the library's own
    """As older checkpoints' own code is: it takes `logits_to_keep` and returns the logits of all tokens."""

    def forward(self, *args: Any, logits_to_keep: Any = 0, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


def test_a_model_that_ignores_which_logits_are_wanted(llama: Any) -> None:
    model: Any = AllLogits(llama.config)  # type: ignore[no-untyped-call]
    model.train(False)
    model.load_state_dict(llama.state_dict())
    backend = make_backend(model)
    assert type(backend._runner) is SequentialRunner
    backend.warm_up()
    assert not backend._runner._states
    prompt = random_prompt(random.Random(2), 12)
    assert generate(backend, prompt, greedy(8)).token_ids == reference(llama, prompt, greedy(8))


def test_a_model_that_no_runner_computes_right_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Its state is in the model itself, so that it has room for one sequence only."""
    with raises(ConfigError, "RecurrentGemmaForCausalLM transformers with"):
        make_backend(make_model("recurrent_gemma"))
    assert says(caplog.text, "no rolling batch")


@pytest.mark.parametrize(
    "name", ["llama", "mistral_sliding_window", "gemma2_softcap", "gpt_oss_sinks", "bloom", "falcon_h1"]
)
def test_logits_match_a_plain_forward(name: str) -> None:
    """Stricter than comparing tokens: prompt logprobs computed in chunks match those of one plain forward."""
    prompt = random_prompt(random.Random(1), 40)
    backend = make_backend(make_model(name), max_prefill_tokens=7)
    got = generate(backend, prompt, greedy(1, prompt_logprobs=2))
    with torch.inference_mode():
        expected = make_model(name)(input_ids=torch.tensor([prompt])).logits[0].log_softmax(dim=-1)
    assert got.prompt_logprobs is not None
    assert got.prompt_logprobs[0] is None
    assert got.prompt_logprobs[1:] == pytest.approx(
        [float(expected[i, token]) for i, token in enumerate(prompt[1:])], abs=1e-3
    )
    assert got.prompt_top_logprobs is not None
    assert got.prompt_top_logprobs[0] is None
    assert [[value for _, value in top or ()] for top in got.prompt_top_logprobs[1:]] == [
        pytest.approx(row, abs=1e-3) for row in expected[:-1].topk(2).values.tolist()
    ]


@pytest.mark.parametrize(
    ("fields", "windows", "fine"),
    [
        ({"sliding_window": 40}, {0: 40, 1: 40}, True),
        ({"sliding_window": 40}, {0: 40, 1: None}, False),
        ({"sliding_window": None}, {0: None, 1: None}, True),
        ({"sliding_window": None}, {0: None, 1: 40}, False),
        ({"sliding_window": 200}, {0: None, 1: None}, True),
        ({"sliding_window": 40, "layer_types": ["full_attention", "sliding_attention"]}, {0: None, 1: 40}, True),
        ({"sliding_window": 40, "layer_types": ["full_attention", "sliding_attention"]}, {0: None, 1: None}, False),
        ({"sliding_window": 40, "layer_types": ["full_attention", "chunked_attention"]}, {0: None, 1: None}, False),
    ],
)
def test_windows_longer_than_the_probe(fields: dict[str, Any], windows: dict[int, int | None], fine: bool) -> None:
    """The layers' masks match the configuration for sequences of up to 96 tokens."""
    assert (_window_missing(SimpleNamespace(**fields), windows, 96) is None) is fine


# Batches


@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_joining_and_leaving_changes_no_other_sequence(llama: Any, data: st.DataObject) -> None:
    backend = make_backend(
        make_model("llama"),
        max_prefill_tokens=data.draw(st.integers(1, 40), label="budget"),
        max_batch_size=data.draw(st.integers(1, 6), label="batch"),
    )
    driver = Driver(backend)
    requests: dict[str, tuple[list[int], SamplingParams]] = {}
    actions = data.draw(st.lists(st.sampled_from(["add", "add", "step", "step", "step", "abort"]), max_size=30))
    for number, action in enumerate(actions):
        if action == "add":
            prompt = data.draw(st.lists(st.integers(3, VOCAB_SIZE - 1), min_size=1, max_size=30))
            requests[f"r{number}"] = prompt, greedy(data.draw(st.integers(1, 15)))
            driver.add(f"r{number}", *requests[f"r{number}"])
        elif action == "abort" and driver.open:
            gone = data.draw(st.sampled_from(sorted(driver.open)))
            driver.abort(gone)
            del requests[gone]
        else:
            driver.step()
    collected = driver.run()
    for request_id, (prompt, params) in requests.items():
        assert collected[request_id].token_ids == reference(llama, prompt, params)
    assert backend.kv_cache_usage == 0


def test_seed_gives_the_same_tokens_in_any_batch(backend: TransformersBackend) -> None:
    rng = random.Random(3)
    prompt = random_prompt(rng, 12)
    params = SamplingParams(temperature=1.3, top_p=0.95, seed=7, max_tokens=25, ignore_eos=True)
    alone = generate(backend, prompt, params).token_ids
    driver = Driver(backend)
    for n in range(5):
        driver.add(f"before{n}", random_prompt(rng, 3 + n), SamplingParams(max_tokens=30, ignore_eos=True, seed=n))
        driver.step()
    driver.add("it", prompt, params)
    driver.step()
    driver.add("after", random_prompt(rng, 20), SamplingParams(max_tokens=30, ignore_eos=True, top_k=3))
    assert driver.run()["it"].token_ids == alone
    other = generate(
        backend, prompt, SamplingParams(temperature=1.3, top_p=0.95, seed=8, max_tokens=25, ignore_eos=True)
    )
    assert other.token_ids != alone


def test_answers_without_a_seed_differ(backend: TransformersBackend) -> None:
    params = SamplingParams(max_tokens=20, temperature=2.0, ignore_eos=True)
    assert len({tuple(generate(backend, [5, 6, 7], params).token_ids) for _ in range(4)}) > 1


def test_requests_beyond_the_batch_size_wait(backend: TransformersBackend, llama: Any) -> None:
    small = make_backend(make_model("llama"), max_batch_size=2)
    driver = Driver(small)
    prompts = [random_prompt(random.Random(n), 5) for n in range(5)]
    for n, prompt in enumerate(prompts):
        driver.add(str(n), prompt, greedy(6, ignore_eos=True))
    assert {output.request_id for output in driver.step()} == {"0", "1"}
    collected = driver.run()
    for n, prompt in enumerate(prompts):
        assert collected[str(n)].token_ids == reference(llama, prompt, greedy(6, ignore_eos=True))


def test_long_prompt_does_not_stop_other_sequences(backend: TransformersBackend) -> None:
    """One chunk is computed per step, and the running sequence gets a token in each of these steps."""
    slow = make_backend(make_model("llama"), max_prefill_tokens=8)
    driver = Driver(slow)
    driver.add("short", [5, 6], greedy(40, ignore_eos=True))
    driver.step()
    driver.add("long", random_prompt(random.Random(0), 60), greedy(2))
    for _ in range(7):
        assert [output.request_id for output in driver.step()] == ["short"]
    assert {output.request_id for output in driver.step()} == {"short", "long"}


def test_long_prompt_reports_progress_before_its_first_token() -> None:
    """Between steps, and between layers during a step."""
    backend = make_backend(make_model("llama"), max_prefill_tokens=8)
    driver = Driver(backend)
    driver.add("long", random_prompt(random.Random(0), 60), greedy(2))
    seen = [backend.progress]
    during: list[int] = []
    for layer in backend._runner._model.model.layers:  # type: ignore[attr-defined]  # the rolling runner's
        layer.register_forward_hook(lambda *_: during.append(backend.progress))
    for _ in range(7):
        assert driver.step() == []
        seen.append(backend.progress)
    assert len(set(seen)) == len(seen)
    assert len(set(during)) == len(during) > 7


def test_cache_usage() -> None:
    backend = make_backend(make_model("llama"), max_model_len=50, max_batch_size=2)
    backend.add_request(TokenRequest(request_id="a", prompt=EncodedPrompt([5] * 9), sampling_params=greedy(3)))
    usages = [backend.kv_cache_usage]
    for _ in range(3):
        backend.step()
        usages.append(backend.kv_cache_usage)
    assert usages == [0.0, 0.25, 0.25, 0.0], "one block of four"


def test_abort_frees_the_blocks_and_ignores_unknown_ids(backend: TransformersBackend) -> None:
    driver = Driver(backend)
    for n in range(3):
        driver.add(str(n), [4 + n, 9], greedy(50, ignore_eos=True))
    driver.step()
    driver.abort("1")
    driver.abort("never heard of")
    assert {output.request_id for output in driver.step()} == {"0", "2"}
    driver.abort("0")
    driver.abort("2")
    assert backend.step() == []
    assert backend.kv_cache_usage == 0


def test_abort_during_a_prompt(llama: Any) -> None:
    driver = Driver(make_backend(make_model("llama"), max_prefill_tokens=4))
    driver.add("gone", random_prompt(random.Random(0), 30), greedy(5))
    driver.step()
    driver.abort("gone")
    driver.add("next", [5, 6, 7], greedy(8))
    assert driver.run()["next"].token_ids == reference(llama, [5, 6, 7], greedy(8))


def test_failing_sequence_fails_alone(llama: Any) -> None:
    """Token 99's embedding is NaN, so its sequence fails. The next sequence in the same slot is not affected."""
    model = make_model("llama")
    backend = make_backend(model)
    model.get_input_embeddings().weight.data[99] = math.nan
    driver = Driver(backend)
    prompts = {"before": [5, 6, 7], "broken": [99] * 30, "beside": [8, 9]}
    for request_id, prompt in prompts.items():
        driver.add(request_id, prompt, greedy(12, ignore_eos=True))
    driver.step()
    assert driver.collected["broken"].finish_reason is FinishReason.ERROR
    assert driver.collected["broken"].error
    assert driver.collected["broken"].token_ids == []
    driver.add("heir", [10, 11, 12, 13], greedy(12, ignore_eos=True))
    collected = driver.run()
    for request_id, prompt in {"before": [5, 6, 7], "beside": [8, 9], "heir": [10, 11, 12, 13]}.items():
        assert collected[request_id].token_ids == reference(llama, prompt, greedy(12, ignore_eos=True))


# Sampling parameters


def first_tokens(model: Any, prompt: list[int], count: int) -> list[int]:
    return reference(model, prompt, greedy(count, ignore_eos=True))


def test_stop_token_ids_and_eos(backend: TransformersBackend, llama: Any) -> None:
    prompt = [5, 17, 23]
    tokens = first_tokens(llama, prompt, 6)
    third = tokens[2]
    assert third not in tokens[:2]
    stopped = generate(backend, prompt, greedy(6, ignore_eos=True, stop_token_ids=(third,)))
    assert stopped.token_ids == tokens[:3]
    assert stopped.finish_reason is FinishReason.STOP_SEQUENCE

    with_eos = TransformersBackend(make_model("llama"), eos_token_ids=(EOS, third))
    ended = generate(with_eos, prompt, greedy(6))
    assert ended.token_ids == tokens[:3]
    assert ended.finish_reason is FinishReason.EOS_TOKEN
    ignored = generate(with_eos, prompt, greedy(6, ignore_eos=True))
    assert ignored.token_ids == tokens
    assert ignored.finish_reason is FinishReason.LENGTH
    last = generate(with_eos, prompt, greedy(3))
    assert last.finish_reason is FinishReason.EOS_TOKEN, "an end is an end, also where the length is reached with it"


def test_min_tokens(llama: Any) -> None:
    prompt = [5, 17, 23]
    first = first_tokens(llama, prompt, 1)[0]
    backend = TransformersBackend(make_model("llama"), eos_token_ids=(first,))
    assert generate(backend, prompt, greedy(8)).token_ids == [first]
    held = generate(backend, prompt, greedy(8, min_tokens=4)).token_ids
    assert first not in held[:4]
    assert len(held) >= 4


def test_repetition_penalty_matches_generate(backend: TransformersBackend, llama: Any) -> None:
    params = greedy(20, repetition_penalty=1.7)
    assert generate(backend, [5, 6, 7, 8], params).token_ids == reference(llama, [5, 6, 7, 8], params)


def test_logprobs_match_a_plain_forward(backend: TransformersBackend, llama: Any) -> None:
    prompt = random_prompt(random.Random(8), 10)
    params = greedy(6, ignore_eos=True, logprobs=3, prompt_logprobs=1, presence_penalty=1.0)
    got = generate(backend, prompt, params)
    with torch.inference_mode():
        expected = llama(input_ids=torch.tensor([prompt + got.token_ids])).logits[0].log_softmax(dim=-1)
    assert len(got.logprobs) == len(got.top_logprobs) == 6
    for n, token in enumerate(got.token_ids):
        row = expected[len(prompt) - 1 + n]
        assert got.logprobs[n] == pytest.approx(float(row[token]), abs=1e-4)
        assert [token for token, _ in got.top_logprobs[n]] == row.topk(3).indices.tolist()
        assert [logprob for _, logprob in got.top_logprobs[n]] == pytest.approx(row.topk(3).values.tolist(), abs=1e-4)
    assert got.prompt_logprobs is not None
    assert got.prompt_logprobs[0] is None
    assert got.prompt_logprobs[1:] == pytest.approx(
        [float(expected[i, token]) for i, token in enumerate(prompt[1:])], abs=1e-4
    )
    assert [[token for token, _ in top or ()] for top in got.prompt_top_logprobs or ()] == [
        [],
        *expected[: len(prompt) - 1].topk(1).indices.tolist(),
    ]


def test_bad_words(tmp_path: Path) -> None:
    """Each token of the byte tokenizer is a byte, so each word has several tokens."""
    build_byte_bundle(tmp_path)
    backend = make_backend(make_model("llama"), tokenizer_file=tmp_path / TOKENIZER_FILE)
    plain = generate(backend, [65], greedy(30, ignore_eos=True)).token_ids
    word = bytes(plain[10:12]).decode()
    assert word in bytes(plain).decode()
    banned = generate(backend, [65], greedy(30, ignore_eos=True, bad_words=(word,))).token_ids
    assert word not in bytes(banned).decode()
    at = bytes(plain).decode().index(word) + 1
    assert banned[:at] == plain[:at], "nothing else is changed"
    beyond = generate(backend, [65], greedy(30, ignore_eos=True, bad_words=("é",))).token_ids
    assert beyond == plain, "the model does not have these tokens"
    backend.close()


@pytest.mark.parametrize(
    ("words", "message"), [(("a",) * 1001, "1000 words"), (("a" * 50_001,), "50001"), (("\ud800",), "Unicode")]
)
def test_too_many_or_too_long_bad_words(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    build_byte_bundle(tmp_path)
    with pytest.raises(InvalidRequest, match=f"bad_words: .*{message}"):
        BadWords(tmp_path / TOKENIZER_FILE, VOCAB_SIZE).token_ids(words)


def test_max_model_len_ends_a_sequence(llama: Any) -> None:
    backend = make_backend(make_model("llama"), max_model_len=20)
    assert backend.capabilities.max_model_len == 20
    got = generate(backend, [5] * 12, SamplingParams(temperature=0, ignore_eos=True))
    assert len(got.token_ids) == 8
    assert got.finish_reason is FinishReason.LENGTH
    assert (
        generate(backend, [5] * 19, SamplingParams(temperature=0, ignore_eos=True)).finish_reason is FinishReason.LENGTH
    )


# Loading


@pytest.fixture
def properties() -> ServingProperties:
    return ServingProperties(dtype="fp32")


def test_load_from_a_folder(tmp_path: Any, llama: Any, properties: ServingProperties) -> None:
    llama.save_pretrained(tmp_path)
    phases: list[str] = []
    files = ModelFiles(path=tmp_path, eos_token_ids=(EOS,), vocab_size=VOCAB_SIZE)
    backend = TransformersBackend.load(files, properties, phases.append)
    assert backend.capabilities.max_model_len == 96
    assert backend.capabilities.vocab_size == VOCAB_SIZE
    assert phases[0] == "loading weights"
    assert generate(backend, [5, 6], greedy(5)).token_ids == reference(llama, [5, 6], greedy(5))
    backend.close()


def test_folder_that_cannot_be_loaded(tmp_path: Any, properties: ServingProperties) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "nobody_knows_it"}')
    files = ModelFiles(path=tmp_path, eos_token_ids=(EOS,), vocab_size=VOCAB_SIZE)
    with pytest.raises(ConfigError, match=r"option\.model_id.*nobody_knows_it"):
        TransformersBackend.load(files, properties, lambda phase: None)


def test_options_that_no_model_supports(llama: Any, tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=r"option\.max_model_len.*96.*97"):
        make_backend(make_model("llama"), max_model_len=97)
    llama.save_pretrained(tmp_path)
    files = ModelFiles(path=tmp_path, eos_token_ids=(EOS,), vocab_size=VOCAB_SIZE)
    with pytest.raises(ConfigError, match=r"option\.dtype.*int8"):
        TransformersBackend.load(files, ServingProperties(dtype="int8"), lambda phase: None)


@pytest.mark.parametrize(("name", "field"), [("bitsandbytes4", "load_in_4bit"), ("bitsandbytes8", "load_in_8bit")])
def test_quantize_reaches_the_library(
    llama: Any, tmp_path: Any, name: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    llama.save_pretrained(tmp_path)
    seen: dict[str, Any] = {}

    def from_pretrained(_path: Path, **options: Any) -> Any:
        seen.update(options)
        return llama

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", from_pretrained)
    load_model(tmp_path, ServingProperties(dtype="fp32", quantize=name))
    assert getattr(seen["quantization_config"], field)
    with pytest.raises(ConfigError, match=r"option\.quantize has value 'awq': .* bitsandbytes8, bitsandbytes4"):
        load_model(tmp_path, ServingProperties(quantize="awq"))
    assert (DECLARATION.choices["dtype"], DECLARATION.choices["quantize"]) == (tuple(DTYPES), tuple(QUANTIZATIONS))


@pytest.mark.parametrize(
    ("degree", "gpus", "asked", "expected"),
    [
        ("max", 0, None, None),
        ("max", 1, None, "cuda"),
        ("max", 4, None, "auto"),
        (2, 2, None, "auto"),
        (1, 4, None, "cuda"),
        (2, 2, "cuda:1", "cuda:1"),
    ],
)
def test_layers_are_divided_among_the_gpus_of_an_engine(
    llama: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    degree: Any,
    gpus: int,
    asked: str | None,
    expected: str | None,
) -> None:
    """Stands in for a machine with GPUs: what is asked of the library is what counts."""
    llama.save_pretrained(tmp_path)
    seen: dict[str, Any] = {}

    def from_pretrained(_path: Path, **options: Any) -> Any:
        seen.update(options)
        return llama

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", from_pretrained)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    options: dict[str, Any] = {} if asked is None else {"device_map": asked}
    load_model(tmp_path, ServingProperties(dtype="fp32", tensor_parallel_degree=degree, engine_options=options))
    assert seen["device_map"] == expected


def test_packing_is_undone_exactly(llama: Any) -> None:
    model = make_model("llama")
    prompt = torch.tensor([[5, 6, 7]])
    with torch.inference_mode(), LinearInputs(model) as inputs:
        model(input_ids=prompt)
    assert inputs.siblings
    pack(model, inputs.siblings)
    assert not any(type(module) is torch.nn.Linear for module in model.modules())
    unpack(model)
    for name, weight in llama.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight), name


@pytest.mark.parametrize("name", ["bloom", "mamba"])
def test_sequential_runner_starts_again_after_a_preemption(name: str) -> None:
    """Also after a forward that did not get to its end, when its state is of another length."""
    model = make_model(name)
    runner = SequentialRunner(model, 8, LoraLayers(model, {}))
    sequence = Sequence("a", [5, 6, 7], 20)
    for token in (8, 9, 10, 11):
        start = sequence.num_computed
        chunk = SequenceChunk(sequence, start, sequence.token_ids[start:], 1)
        got = runner.forward([chunk])
        again = runner.forward([chunk])
        with torch.inference_mode():
            expected = model(input_ids=torch.tensor([sequence.token_ids])).logits[0, -1:]
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(again, expected, rtol=1e-3, atol=1e-3)
        sequence.num_computed = chunk.stop
        sequence.append(token)
        if token == 9:  # preempted
            runner.release(sequence)
            sequence.num_computed = 0


# The real model


@pytest.fixture(scope="module")
def small_model() -> Callable[[torch.dtype], Any]:
    """Loads the default model."""
    path = resolve_model(
        None, model_dir=None, revision=None, cache_dir=default_cache_dir(os.environ), report=lambda phase: None
    )
    return lambda dtype: transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype)


@pytest.fixture(scope="module")
def real_backend(small_model: Callable[[torch.dtype], Any]) -> TransformersBackend:
    model = small_model(torch.float32)
    file = Path(model.config._name_or_path) / TOKENIZER_FILE
    return make_backend(model, max_prefill_tokens=48, max_batch_size=3, tokenizer_file=file)


@pytest.mark.model
@pytest.mark.timeout(600)
def test_real_model_in_float32_under_a_random_schedule(
    real_backend: TransformersBackend, small_model: Callable[[torch.dtype], Any]
) -> None:
    rng = random.Random(20)
    assert type(real_backend._runner) is RollingRunner
    model = small_model(torch.float32)
    requests: dict[str, tuple[list[int], SamplingParams]] = {}
    driver = Driver(real_backend)
    for n, length in enumerate((5, 60, 1, 30)):
        prompt = [rng.randrange(20, 40_000) for _ in range(length)]
        requests[f"r{n}"] = prompt, greedy(rng.randint(4, 8))
        driver.add(f"r{n}", *requests[f"r{n}"])
        for _ in range(rng.randint(0, 4)):
            driver.step()
        if n == 2:
            gone = rng.choice(sorted(driver.open))
            driver.abort(gone)
            del requests[gone]
    collected = driver.run()
    for request_id, (prompt, params) in requests.items():
        assert collected[request_id].token_ids == reference(model, prompt, params), request_id


@pytest.mark.model
def test_bad_words_on_the_real_model(real_backend: TransformersBackend) -> None:
    file = Path(real_backend._runner._model.config._name_or_path) / TOKENIZER_FILE  # type: ignore[attr-defined]
    tokenizer = Tokenizer.from_file(str(file))
    words = BadWords(file, 49152)
    for word in ("Paris", " Paris"):  # at the start of a text and after a space
        assert words.token_ids((word,)) == [tokenizer.encode("Paris").ids, tokenizer.encode(" Paris").ids]
    prompt = tokenizer.encode("The capital of France is").ids
    plain = tokenizer.decode(generate(real_backend, prompt, greedy(4)).token_ids)
    assert "Paris" in plain
    banned = tokenizer.decode(generate(real_backend, prompt, greedy(4, bad_words=("Paris",))).token_ids)
    assert "Paris" not in banned


@pytest.mark.model
def test_real_model_in_bfloat16(small_model: Callable[[torch.dtype], Any]) -> None:
    """Rounding depends on the batch, so only the next token is compared, not a whole text."""
    model = small_model(torch.bfloat16)
    backend = make_backend(small_model(torch.bfloat16))
    assert type(backend._runner) is RollingRunner
    prompt = [1, 504, 3575, 282, 4649, 314]
    got = generate(backend, prompt, greedy(1, logprobs=5))
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([prompt])).logits[0, -1].float().log_softmax(dim=-1)
    assert float(expected.max() - expected[got.token_ids[0]]) < 0.2
    assert got.logprobs[0] == pytest.approx(float(expected[got.token_ids[0]]), abs=0.2)
