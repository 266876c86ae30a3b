"""The vLLM adapter gives the tokens and log probabilities of vLLM's own `LLM` for the same sampling parameters."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from architectures import VOCAB_SIZE, save_architecture
from serving_properties import serving_properties

from backends import load_backend_class
from backends.base import ModelFiles
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.request import EncodedPrompt, TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams

pytestmark = [
    pytest.mark.needs("vllm"),
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("without_flask"),
]

_RNG = random.Random(3)
PROMPTS = [[_RNG.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in (40, 17, 5)]
MAX_TOKENS = 16

FIELDS: list[dict[str, Any]] = [
    {"temperature": 0.0, "logprobs": 3, "prompt_logprobs": 2},
    {"seed": 7, "logprobs": 0},
    {"seed": 7, "temperature": 0.5, "top_k": 20},
    {"seed": 2**63 - 1, "top_p": 0.7, "min_p": 0.02},
    {"seed": 11, "n": 3, "logprobs": 1},
    {"temperature": 0.0, "repetition_penalty": 1.8, "logprobs": 2},
    {"temperature": 0.0, "presence_penalty": 1.5, "frequency_penalty": 1.2, "logprobs": 2},
    {"seed": 5, "repetition_penalty": 0.7, "frequency_penalty": -1.0},
    {"temperature": 0.0, "logit_bias": {9: 100.0, 4: -100.0}, "max_tokens": 4},
    {"temperature": 0.0, "allowed_token_ids": (5, 6, 7, 8), "logprobs": 2},
]

Answer = tuple[list[int], list[float] | None, list[float | None] | None]
"""The tokens, their log probabilities, and those of the prompt."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    save_architecture("llama", directory)
    return directory


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[list[Answer]]]:
    """What `LLM` answers: for each of `FIELDS` and each prompt, `n` sequences."""
    import vllm

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        llm = vllm.LLM(
            str(folder), skip_tokenizer_init=True, dtype="float32", enforce_eager=True, kv_cache_memory_bytes=2**25
        )
    answers = []
    for original in FIELDS:
        fields = {name: list(value) if isinstance(value, tuple) else value for name, value in original.items()}
        params = vllm.SamplingParams(
            **({"max_tokens": MAX_TOKENS, "temperature": 1.0} | fields), ignore_eos=True, detokenize=False
        )
        results = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params, use_tqdm=False)
        answers.append(
            [
                [_answer(prompt, result, output) for output in result.outputs]
                for prompt, result in zip(PROMPTS, results, strict=True)
            ]
        )
    return answers


def _answer(prompt: list[int], result: Any, output: Any) -> Answer:
    logprobs = None
    if output.logprobs is not None:
        logprobs = [top[token].logprob for token, top in zip(output.token_ids, output.logprobs, strict=True)]
    of_prompt = None
    if result.prompt_logprobs is not None:
        pairs = zip(prompt, result.prompt_logprobs, strict=True)
        of_prompt = [None if top is None else top[token].logprob for token, top in pairs]
    return list(output.token_ids), logprobs, of_prompt


@pytest.fixture(scope="module")
def backend(folder: Path, expected: object) -> Iterator[Any]:
    files = ModelFiles(path=folder, eos_token_ids=(2,), vocab_size=VOCAB_SIZE)
    properties = serving_properties(dtype="fp32", enforce_eager=True, extra={"kv_cache_memory_bytes": "32M"})
    engine = load_backend_class("vllm").load(files, properties, lambda phase: None)
    yield engine
    engine.close()


@pytest.mark.parametrize("number", range(len(FIELDS)))
def test_sampling_is_that_of_vllm(backend: Any, expected: list[list[list[Answer]]], number: int) -> None:
    params = SamplingParams(**({"max_tokens": MAX_TOKENS} | FIELDS[number]), ignore_eos=True)
    wanted = {}
    for row, prompt in enumerate(PROMPTS):
        for sample in range(params.n):
            name = f"{row}.{sample}"
            wanted[name] = expected[number][row][sample]
            request = TokenRequest(
                request_id=name, prompt=EncodedPrompt(prompt), sampling_params=params.for_sample(sample)
            )
            backend.add_request(request)
    outputs: dict[str, list[TokenOutput]] = {name: [] for name in wanted}
    running = set(wanted)
    while running:
        for output in backend.step():
            outputs[output.request_id].append(output)
            if output.finish_reason is not None:
                running.discard(output.request_id)
    for name, (token_ids, logprobs, of_prompt) in wanted.items():
        parts = outputs[name]
        assert [token for part in parts for token in part.token_ids] == token_ids, name
        if logprobs is not None:
            assert [value for part in parts for value in part.logprobs or ()] == pytest.approx(logprobs, abs=1e-4)
        if of_prompt is not None:
            assert parts[0].prompt_logprobs is not None
            assert parts[0].prompt_logprobs[0] is of_prompt[0] is None
            assert parts[0].prompt_logprobs[1:] == pytest.approx(of_prompt[1:], abs=1e-4)
