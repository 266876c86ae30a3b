"""The stand-in for TensorRT-LLM notices mistakes of the adapter. Most tests here put one in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorrt_llm_adapter import (
    CONTRACT,
    EOS,
    PROMPT,
    DeltaReader,
    GuidedDecodingParams,
    LLMActor,
    Load,
    LoRARequest,
    Misuse,
    accepts,
    adapter,
    adapter_sampling,
    controls,
    engine,
    engine_sampling_params,
    finished,
    llm_arguments,
    loading,
    request,
    run,
    steps,
    submitted,
    tensorrt_llm,
    token_ids,
    write_adapters,
)

from lmi_handlers.core.errors import ConfigError, EngineDead, InvalidRequest
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    with loading(tmp_path) as load:
        yield load


@pytest.fixture
def adapters(tmp_path: Path) -> dict[str, Path]:
    return write_adapters(tmp_path / "adapters")


def test_misspelled_sampling_parameter(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_misspelled_engine_argument(load: Load, monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    monkeypatch.setattr(adapter, "llm_arguments", lambda *given, **named: {**llm_arguments(*given, **named), name: 4})
    with pytest.raises(ConfigError, match=message):
        load()


def test_engine_argument_of_the_wrong_type(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        adapter, "llm_arguments", lambda *given, **named: {**llm_arguments(*given, **named), "max_batch_size": "4"}
    )
    with pytest.raises(ConfigError, match="validation error for TorchLlmArgs max_batch_size"):
        load()


def test_reused_sampling_params(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def make_once(params: SamplingParams, **options: Any) -> Any:
        made.append(made[0] if made else engine_sampling_params(params, **options))
        return made[0]

    monkeypatch.setattr(adapter, "engine_sampling_params", make_once)
    backend = load()
    backend.add_request(request(PROMPT, "1"))
    with pytest.raises(Misuse, match="submitted before"):
        backend.add_request(request(PROMPT, "2"))


def test_sampling_params_changed_after_submission(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "step_seconds", 0.01)
    backend = load()
    backend.add_request(request(PROMPT, ignore_eos=True))
    submitted(backend).max_tokens = 99
    with pytest.raises(EngineDead, match="Misuse: a SamplingParams was changed"):
        steps(backend, finished(1))


class CumulativeSequence(DeltaReader):
    """Mistakes the engine's whole list for its new part."""

    def take(self, result: Any) -> TokenOutput | None:
        self._taken = 0
        return super().take(result)


def test_cumulative_ids_mistaken_for_deltas(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "DeltaReader", CumulativeSequence)
    assert token_ids(run(load(), PROMPT))[:3] == [10, 10, 11]


def test_list_that_is_not_copied(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine appends to a list that it has already returned."""
    kept: list[tuple[list[int], int]] = []

    class KeepingSequence(DeltaReader):
        def take(self, result: Any) -> TokenOutput | None:
            kept.append((result.outputs[0].token_ids, len(result.outputs[0].token_ids)))
            return super().take(result)

    monkeypatch.setattr(adapter, "DeltaReader", KeepingSequence)
    run(load(), PROMPT)
    assert len({id(token_list) for token_list, _ in kept}) == 1
    assert [length for _, length in kept] == list(range(1, len(PROMPT) + 2))
    assert {len(token_list) for token_list, _ in kept} == {len(PROMPT) + 1}


def test_stop_id_removed_by_the_engine(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_it(params: SamplingParams, **options: Any) -> Any:
        made = engine_sampling_params(params, **options)
        made.include_stop_str_in_output = False
        return made

    monkeypatch.setattr(adapter, "engine_sampling_params", without_it)
    outputs = run(load(), PROMPT, stop_token_ids=(12,), logprobs=0)
    assert token_ids(outputs) == [10, 11]
    assert [len(output.logprobs or ()) for output in outputs] == [len(output.token_ids) for output in outputs]


def test_generation_started_outside_the_loop(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result then has no queue for the event loop to wait on."""

    def submit(self: LLMActor, sequence: DeltaReader, prompt: list[int], params: Any, **_: Any) -> None:
        result = self._llm.generate_async(prompt, params, streaming=True)

        async def read() -> None:
            self._results[sequence] = result, asyncio.create_task(self._read(sequence, result))

        asyncio.run_coroutine_threadsafe(read(), self._loop).result()

    monkeypatch.setattr(LLMActor, "submit", submit)
    backend = load()
    backend.add_request(request(PROMPT))
    with pytest.raises(EngineDead, match="event loop was not present"):
        steps(backend, finished(1))


def test_ignored_guide(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_invalid_guide(
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


def test_ignored_adapter(load: Load, adapters: dict[str, Path]) -> None:
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
def test_invalid_adapter_request(tmp_path: Path, wrong: dict[str, Any], error: type[Exception]) -> None:
    right: dict[str, Any] = {"lora_name": "one", "lora_int_id": 1, "lora_path": str(tmp_path)}
    LoRARequest(**right)
    with pytest.raises(error):
        LoRARequest(**right | wrong)


def test_two_adapters_with_the_same_id(load: Load, adapters: dict[str, Path]) -> None:
    backend = load(adapters, enable_lora=True)
    backend.add_request(request(PROMPT, "first", adapter="one"))
    backend._adapters["two"] = LoRARequest("two", 1, str(adapters["two"]))
    with pytest.raises(Misuse, match="of the same number"):
        backend.add_request(request(PROMPT, "second", adapter="two"))


def test_path_instead_of_an_adapter_request(load: Load, adapters: dict[str, Path]) -> None:
    backend = load(adapters, enable_lora=True)
    backend._adapters["one"] = adapters["one"]
    with pytest.raises(TypeError, match="must be a LoRARequest"):
        backend.add_request(request(PROMPT, adapter="one"))


def test_lora_dir_without_target_modules(
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


# The stand-in's contract


def test_sampling_params_follow_the_contract() -> None:
    fields = CONTRACT["SamplingParams"]["fields_in_order"]
    params = tensorrt_llm.SamplingParams(end_id=EOS)
    assert {name: getattr(params, name) for name in fields} == {
        name: about["default"] for name, about in fields.items()
    } | {"end_id": EOS, "pad_id": EOS, "best_of": 1}
    with pytest.raises(AttributeError):
        params.max_new_tokens = 5


def test_greedy_with_best_of() -> None:
    with pytest.raises(ValueError, match="Greedy decoding"):
        tensorrt_llm.SamplingParams(end_id=EOS, best_of=2)


def test_engine_omits_prompt_tokens_from_prompt_logprobs(load: Load) -> None:
    """This is why the adapter requests logits instead."""
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
