"""The number of times that the CPU waits for a GPU in a step does not grow with the number of sequences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from counted_device import DEVICE, CountedDevice
from tiny_models import MAX_LEN, make_model

from backends.grammar import GrammarMatcher, Vocabulary, grammar_text
from backends.paged.sequence import Sequence, SequenceChunk
from backends.sampling.sampler import SamplerState, sample_drafts
from backends.transformers.attention import ATTENTION_NAME
from backends.transformers.lora_layers import LoraLayers
from backends.transformers.rolling import RollingRunner
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs
from lmi_handlers.text.bundle import TOKENIZER_FILE, build_byte_bundle

VOCAB_SIZE = 257


@pytest.fixture
def device() -> Iterator[CountedDevice]:
    with CountedDevice() as device, torch.inference_mode():
        yield device


def test_what_is_counted(device: CountedDevice) -> None:
    there = torch.arange(6, device=DEVICE)
    assert (there + 1).sum().item() == 21
    assert there[2:].tolist() == [2, 3, 4, 5]
    assert torch.tensor([1, 2]).to(DEVICE, non_blocking=True).device == DEVICE
    assert device.waits == Counter({"_local_scalar_dense": 1, "_to_copy": 1})
    assert device.copies == Counter({"_to_copy": 1})
    there[[1, 2]] = 0
    assert there[there > 3].tolist() == [4, 5]
    assert device.waits["index"] + device.waits["_to_copy"] > 2
    assert device.waits["nonzero"] == 1


# The forward pass


def forward(device: CountedDevice, runner: RollingRunner, chunks: list[SequenceChunk]) -> tuple[int, int]:
    """Compute the chunks. Returns how often the CPU waits, and the number of other copies."""
    device.waits.clear()
    device.copies.clear()
    assert runner.forward(chunks).device == DEVICE
    return device.waits.total(), device.copies.total()


@pytest.mark.parametrize("num_tokens", [1, 4], ids=["tokens", "drafts"])
def test_forward_pass_of_generating_sequences(device: CountedDevice, num_tokens: int) -> None:
    runner = make_runner()
    counts = {}
    for num_seqs in (2, 12):
        sequences = [make_sequence(number, 20 + number) for number in range(num_seqs)]
        forward(device, runner, [SequenceChunk(sequence, 0, sequence.token_ids, 1) for sequence in sequences])
        chunks = [
            SequenceChunk(sequence, len(sequence.token_ids), [5] * num_tokens, num_tokens) for sequence in sequences
        ]
        counts[num_seqs] = forward(device, runner, chunks)
    assert counts[2] == counts[12]
    assert counts[2][0] == 0, "nothing to wait for"


def test_forward_pass_of_prompts_is_not_waited_for(device: CountedDevice) -> None:
    runner = make_runner()
    sequences = [make_sequence(number, 60 + number) for number in range(12)]
    for start, stop in ((0, 20), (20, 60)):
        chunks = [SequenceChunk(sequence, start, sequence.token_ids[start:stop], 0) for sequence in sequences]
        assert forward(device, runner, chunks)[0] == 0


def make_runner() -> RollingRunner:
    model = make_model("llama").requires_grad_(False).to(DEVICE)
    model.set_attn_implementation(ATTENTION_NAME)
    return RollingRunner(model, 40, LoraLayers(model, {}))


def make_sequence(number: int, length: int) -> Sequence:
    sequence = Sequence(str(number), [3 + number] * length, MAX_LEN)
    sequence.blocks = [3 * number, 3 * number + 1, 3 * number + 2]
    return sequence


# The sampler


PARAMS = {
    "greedy": SamplingParams(temperature=0),
    "random": SamplingParams(temperature=0.8, top_k=9, top_p=0.9, min_p=0.01, typical_p=0.9, seed=1),
    "logprobs": SamplingParams(seed=1, logprobs=3),
    "penalties": SamplingParams(seed=1, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.5),
    "bias": SamplingParams(seed=1, logit_bias={7: 1.0, 8: -1.0}, allowed_token_ids=tuple(range(5, 99))),
    "bad_words": SamplingParams(temperature=0, bad_words=("x",)),
    "min_tokens": SamplingParams(temperature=0, min_tokens=50),
    "grammar": SamplingParams(temperature=0, structured_outputs=StructuredOutputs(regex="[a-z]*"), min_tokens=50),
}


@pytest.mark.parametrize("draft", [[], [97, 97, 97]], ids=["tokens", "drafts"])
@pytest.mark.parametrize("name", PARAMS)
def test_sampling(device: CountedDevice, tmp_path: Path, name: str, draft: list[int]) -> None:
    build_byte_bundle(tmp_path)
    tokenizer = Vocabulary(str(tmp_path / TOKENIZER_FILE), VOCAB_SIZE, (256,)).load()
    params = PARAMS[name]
    counts = {}
    for num_seqs in (2, 12):
        states = []
        for _ in range(num_seqs):
            bad_words = [[98], [97, 99]] if params.bad_words else None
            states.append(SamplerState(params, [1], frozenset({256}), bad_words=bad_words))
            if params.structured_outputs is not None:
                states[-1].grammar = GrammarMatcher(tokenizer, grammar_text(params.structured_outputs), VOCAB_SIZE)
        for _ in range(2):  # the first time, each sequence's tables are made
            logits = torch.zeros(num_seqs * (len(draft) + 1), VOCAB_SIZE)
            logits[:, 97] = 20.0
            logits = logits.to(DEVICE)
            device.waits.clear()
            chosen = sample_drafts(logits, states, [draft] * num_seqs)
            assert [[choice.token_id for choice in choices] for choices in chosen] == [[97, *draft]] * num_seqs
        counts[num_seqs] = device.waits.total()
    assert counts[2] == counts[12]
