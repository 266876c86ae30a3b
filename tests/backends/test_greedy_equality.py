"""Greedy answers of the default model equal `model.generate` in float32, with all on that must not change them."""

from __future__ import annotations

import copy
import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from paths import DATA
from serving_properties import serving_properties
from tokenizers import Tokenizer

from backends.base import ModelFiles
from backends.openvino.backend import OpenVinoBackend
from backends.paged.backend import PagedBackend
from backends.transformers.backend import TransformersBackend
from lmi_handlers.core.request import EncodedPrompt, TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.model_files.cache_dir import default_cache_dir
from lmi_handlers.model_files.locate import locate_model
from lmi_handlers.model_files.resolve import prepare_gguf
from lmi_handlers.text.bundle import TOKENIZER_FILE

pytestmark = [pytest.mark.model, pytest.mark.long, pytest.mark.timeout(900)]

NUM_PROMPTS = 8
MAX_NEW = 40
DRAFT = 4
NEAR = 2e-3
"""Logits that are closer than this may be ordered differently. Those of two libraries differ by about 1e-4."""


@dataclass
class Reference:
    """The model in float32, prompts with a common beginning, and what `generate` says to them."""

    gguf_file: Path
    folder: Path
    model: Any
    prompts: list[list[int]]
    answers: list[list[int]]


@pytest.fixture(scope="module")
def reference() -> Reference:
    cache_dir = default_cache_dir(os.environ)
    gguf_file = locate_model(None, model_dir=None, revision=None, cache_dir=cache_dir)
    assert gguf_file is not None
    folder = prepare_gguf(gguf_file, cache_dir, lambda phase: None)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        gguf_file.parent,
        gguf_file=gguf_file.name,
        quantization_config=transformers.GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    text = Tokenizer.from_file(str(folder / TOKENIZER_FILE)).encode((DATA / "alice.txt").read_text()).ids
    prompts = [text[:70] + text[70 + 25 * n : 80 + 27 * n] for n in range(NUM_PROMPTS)]
    longest = max(map(len, prompts))
    output = model.generate(
        input_ids=torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts]),
        attention_mask=torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]),
        do_sample=False,
        max_new_tokens=MAX_NEW,
        eos_token_id=None,
        pad_token_id=0,
    )
    return Reference(gguf_file, folder, model, prompts, output[:, longest:].tolist())


def make_openvino(reference: Reference, cache: Path) -> PagedBackend:
    return OpenVinoBackend.load(
        ModelFiles(
            path=reference.folder,
            gguf_file=reference.gguf_file,
            cache=cache,
            eos_token_ids=(),
            vocab_size=reference.model.config.vocab_size,
        ),
        serving_properties(rolling_batch="openvino", dtype="fp32", prompt_lookup_num_tokens=DRAFT),
        lambda phase: None,
    )


def make_transformers(reference: Reference, cache: Path) -> PagedBackend:
    return TransformersBackend(copy.deepcopy(reference.model), prompt_lookup_num_tokens=DRAFT)


def answers(backend: PagedBackend, prompts: list[list[int]]) -> list[list[int]]:
    """Return the greedy answers to prompts that join one batch, another one in each step."""
    tokens: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
    joining = iter(zip(tokens, prompts, strict=True))
    params = SamplingParams(temperature=0, max_tokens=MAX_NEW, ignore_eos=True)
    while any(len(answer) < MAX_NEW for answer in tokens.values()):
        for name, prompt in itertools.islice(joining, 1):
            backend.add_request(TokenRequest(request_id=name, prompt=EncodedPrompt(prompt), sampling_params=params))
        for output in backend.step():
            assert output.error is None
            tokens[output.request_id] += output.token_ids
    return list(tokens.values())


@pytest.mark.parametrize("make", [make_openvino, make_transformers])
def test_greedy_answers_are_those_of_generate(reference: Reference, make: Any, tmp_path: Path) -> None:
    """A tie may be decided differently, and then the rest of the answer differs too. Such answers are printed."""
    backend = make(reference, tmp_path)
    given = answers(backend, reference.prompts)
    counters = backend.counters
    assert counters.prefix_cache_hits >= (NUM_PROMPTS - 1) * 64
    assert counters.spec_decode_num_accepted_tokens > 0
    ties = 0
    for prompt, answer, expected in zip(reference.prompts, given, reference.answers, strict=True):
        if answer != expected:
            ties += 1
            with torch.inference_mode():
                logits = reference.model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
            lead = logits.max(dim=-1).values - logits[range(MAX_NEW), answer]  # 0 if the token is the most likely one
            at = next(index for index in range(MAX_NEW) if answer[index] != expected[index])
            print(f"token {at}: {answer[at]} instead of {expected[at]}, whose logit is {lead[at]:.1e} greater")
            assert lead.max() < NEAR
    assert ties <= 2
