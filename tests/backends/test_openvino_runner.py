"""The OpenVINO runner computes what transformers computes in float32, however the scheduler splits and batches it.

The model is the default one with two of its layers and 1,000 of its tokens, which are as wide as all others.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence as AbstractSequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino
import psutil
import pytest
import torch
import transformers
from facts import raises
from mixed_gguf import Q, write_mixed_gguf

from backends.openvino.gguf import convert_gguf
from backends.openvino.model import EXACT, MODEL_NAME, Parts, compile_model
from backends.openvino.runner import OpenVinoRunner, kv_block
from backends.paged.sequence import Sequence, SequenceChunk
from lmi_handlers.core.errors import LoadFailed
from lmi_handlers.model_files.locate import locate_model

pytestmark = pytest.mark.model

PROMPTS = [[(seed * 131 + i * 7) % 900 + 100 for i in range(20 + 9 * seed)] for seed in (0, 2, 5)]
MAX_NEW = 14
NEAR = 2e-3
"""Logits that are closer than this may be ordered differently. Those of two libraries differ by about 1e-4."""


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    default = locate_model(None, model_dir=None, revision=None, cache_dir=Path())
    assert default is not None
    file = tmp_path_factory.mktemp("gguf") / "short.gguf"
    write_mixed_gguf(default, file, 2, lambda name: Q.Q8_0 if "token_embd" in name else Q.Q4_1, vocab_size=1000)
    return file


@pytest.fixture(scope="module")
def converted(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted")
    convert_gguf(gguf_file, folder, lambda phase: None)
    assert sorted(file.name for file in folder.iterdir()) == ["openvino_model.bin", "openvino_model.xml"]
    return folder / MODEL_NAME


@pytest.fixture(scope="module")
def model(converted: Path) -> Parts:
    """Compiled once: that takes as long as many steps."""
    return compile_model(converted, EXACT)


def make_runner(model: Parts, num_blocks: int) -> OpenVinoRunner:
    return OpenVinoRunner(model, num_blocks, lambda: model)


@pytest.fixture(scope="module")
def runner(model: Parts) -> OpenVinoRunner:
    return make_runner(model, 32)


class Tables:
    """Gives sequences their blocks."""

    def __init__(self, runner: OpenVinoRunner) -> None:
        self._runner = runner
        self._free = list(range(runner.num_blocks))

    def sequence(
        self, token_ids: AbstractSequence[int], *, shared: Sequence | None = None, blocks: int = 0
    ) -> Sequence:
        """A sequence whose first `blocks` are those of `shared`."""
        sequence = Sequence(str(len(self._free)), list(token_ids), len(token_ids) + MAX_NEW)
        sequence.blocks = shared.blocks[:blocks] if shared else []
        sequence.num_computed = blocks * self._runner.block_size
        while len(sequence.blocks) * self._runner.block_size < sequence.max_len:
            sequence.blocks.append(self._free.pop())
        return sequence


def chunk(sequence: Sequence, count: int, *, num_logits: int) -> SequenceChunk:
    """The next `count` tokens of a sequence, which count as computed afterwards."""
    start = sequence.num_computed
    sequence.num_computed += count
    return SequenceChunk(sequence, start, sequence.token_ids[start : start + count], num_logits)


def generate(runner: OpenVinoRunner, sequences: list[Sequence]) -> list[list[int]]:
    """Greedily generate `MAX_NEW` tokens for all sequences in one batch."""
    for _ in range(MAX_NEW):
        logits = runner.forward([chunk(sequence, sequence.num_left, num_logits=1) for sequence in sequences])
        for sequence, row in zip(sequences, logits, strict=True):
            sequence.append(int(row.argmax()))
    return [sequence.token_ids[sequence.prompt_len :] for sequence in sequences]


def all_logits(runner: OpenVinoRunner, token_ids: list[int]) -> npt.NDArray[np.float32]:
    sequence = Tables(runner).sequence(token_ids)
    logits = runner.forward([chunk(sequence, len(token_ids), num_logits=len(token_ids))])
    return np.array(logits)


def test_greedy_tokens_are_those_of_transformers_in_float32(runner: OpenVinoRunner, gguf_file: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        gguf_file.parent,
        gguf_file=gguf_file.name,
        quantization_config=transformers.GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    tables = Tables(runner)
    generated = generate(runner, [tables.sequence(prompt) for prompt in PROMPTS])
    ties = 0
    for prompt, tokens in zip(PROMPTS, generated, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].numpy()
        lead = logits.max(axis=-1) - logits[range(len(tokens)), tokens]  # 0 if the token is the most likely one
        assert lead.max() < NEAR, prompt
        ties += np.count_nonzero(lead)
        np.testing.assert_allclose(all_logits(runner, prompt + tokens)[len(prompt) - 1 : -1], logits, atol=NEAR)
    print(f"{ties} ties in {sum(map(len, generated))} tokens")


def test_batch_changes_nothing(runner: OpenVinoRunner) -> None:
    tables = Tables(runner)
    together = generate(runner, [tables.sequence(prompt) for prompt in PROMPTS])
    assert together == [generate(runner, [Tables(runner).sequence(prompt)])[0] for prompt in PROMPTS]


@pytest.mark.parametrize("size", [7, 32, 50])
def test_prompt_may_be_computed_in_chunks(runner: OpenVinoRunner, size: int) -> None:
    prompt = PROMPTS[-1]
    whole = all_logits(runner, prompt)
    tables = Tables(runner)
    sequence, other = tables.sequence(prompt), tables.sequence(PROMPTS[0])
    while sequence.num_left > size:
        assert runner.forward([chunk(sequence, size, num_logits=0)]).shape == (0, runner.vocab_size)
    last = [chunk(other, other.num_left, num_logits=2), chunk(sequence, sequence.num_left, num_logits=1)]
    logits = runner.forward(last)
    assert logits.shape == (3, runner.vocab_size)
    np.testing.assert_allclose(logits[2], whole[-1], atol=NEAR)


def test_sequences_may_share_blocks(runner: OpenVinoRunner) -> None:
    prompt = PROMPTS[-1]
    tables = Tables(runner)
    first = tables.sequence(prompt)
    expected = generate(runner, [first])
    seconds = [tables.sequence(prompt, shared=first, blocks=blocks) for blocks in (1, 2)]
    assert generate(runner, seconds) == expected * 2


def test_blocks_may_hold_anything_before_their_first_use(runner: OpenVinoRunner) -> None:
    """Also NaN, which a failed sequence leaves, and which a mask would not hide."""
    expected = generate(runner, [Tables(runner).sequence(PROMPTS[0])])
    for memory, _ in runner._caches:
        np.frombuffer(memory, np.float32)[:] = np.nan
    assert generate(runner, [Tables(runner).sequence(PROMPTS[0])]) == expected


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux takes the memory back")
def test_reclaimed_blocks_take_up_no_memory(model: Parts) -> None:
    runner = make_runner(model, 200)
    process = psutil.Process()
    tables = Tables(runner)
    kept, *others = [tables.sequence(PROMPTS[0] * 7) for _ in range(6)]
    expected = generate(runner, [Tables(runner).sequence(kept.token_ids)])
    for sequence in (kept, *others):
        runner.forward([chunk(sequence, sequence.num_left - 1, num_logits=0)])
    blocks = [block for sequence in others for block in sequence.blocks]
    full = process.memory_info().rss
    runner.reclaim(blocks)
    freed = full - process.memory_info().rss
    assert freed > 0.9 * len(others) * len(PROMPTS[0]) * 7 / runner.block_size * kv_block(model)[1]
    assert generate(runner, [kept]) == expected
    again = Sequence("again", PROMPTS[0] * 7, kept.max_len)
    again.blocks = others[0].blocks
    assert generate(runner, [again]) == expected


OUT_OF_MEMORY = """
import resource, sys
from functools import partial
from pathlib import Path

from backends.openvino.model import EXACT, compile_model
from backends.openvino.runner import OpenVinoRunner
from backends.paged.sequence import SequenceChunk, Sequence

compile_again = partial(compile_model, Path(sys.argv[1]), EXACT)
runner = OpenVinoRunner(compile_again(), 128, compile_again)
sequence = Sequence("long", [100 + i % 900 for i in range(4000)], 4001)
sequence.blocks = list(range(128))
short = SequenceChunk(sequence, 0, sequence.token_ids[:10], 1)
expected = runner.forward([short]).copy()
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (24 << 20), resource.RLIM_INFINITY))
try:
    runner.forward([SequenceChunk(sequence, 0, sequence.token_ids, 1)])
except MemoryError:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert (runner.forward([short]) == expected).all()
    print("recovered")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_next_step_works_after_one_that_did_not_fit_into_memory(converted: Path) -> None:
    command = [sys.executable, "-c", OUT_OF_MEMORY, str(converted)]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.stdout == "recovered\n", child.stderr


def test_compiling_again_may_run_out_of_memory_too(converted: Path, model: Parts) -> None:
    """The other sequences go on once there is memory."""
    failures = [MemoryError("bad_alloc"), RuntimeError("can't allocate 7 bytes")]

    def compile_if_there_is_memory() -> Parts:
        if failures:
            raise failures.pop()
        return compile_model(converted, EXACT)

    runner = OpenVinoRunner(model, 8, compile_if_there_is_memory)
    expected = generate(runner, [Tables(runner).sequence(PROMPTS[0])])
    runner._requests = None
    sequence = Tables(runner).sequence(PROMPTS[0])
    for _ in range(2):
        with pytest.raises(MemoryError):
            runner.forward([SequenceChunk(sequence, 0, sequence.token_ids, 1)])
    assert generate(runner, [sequence]) == expected


def test_the_next_step_works_after_one_whose_inputs_were_not_set(model: Parts) -> None:
    """The request's inputs keep their memory, and it must not be taken for theirs when OpenVINO refused it."""

    class Refusing:
        def __init__(self, request: openvino.InferRequest) -> None:
            self._request = request
            self.refused = ""

        def set_tensor(self, name: str, tensor: openvino.Tensor) -> None:
            if name == self.refused:
                raise RuntimeError(name)
            self._request.set_tensor(name, tensor)

        def infer(self, **options: bool) -> Any:
            return self._request.infer(**options)

    runner = make_runner(model, 32)
    expected = [all_logits(runner, prompt) for prompt in (PROMPTS[0], PROMPTS[1])]
    assert runner._requests is not None
    runner._requests = [request := Refusing(runner._requests[0])]
    request.refused = "input_ids"
    with raises(RuntimeError, "input_ids"):
        all_logits(runner, PROMPTS[0])
    request.refused = ""
    for prompt, logits in zip(PROMPTS, expected, strict=False):
        np.testing.assert_array_equal(all_logits(runner, prompt), logits)


def test_cache_that_does_not_fit_into_memory_is_named(model: Parts) -> None:
    with raises(LoadFailed, "option.kv_cache_memory_bytes: memory reserved"):
        make_runner(model, 2**62 // kv_block(model)[1])


def test_nothing_is_sent_about_the_use_of_openvino(tmp_path: Path) -> None:
    """Its telemetry keeps an identifier of the user in the home directory."""
    code = "import backends.openvino.model, sys; assert not sys.modules['openvino_telemetry']"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "HOME": str(tmp_path)}, check=True)
    assert list(tmp_path.iterdir()) == []
