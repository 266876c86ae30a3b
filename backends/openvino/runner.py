"""Runs a model that is compiled for paged attention."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Iterator
from collections.abc import Sequence as AbstractSequence
from itertools import accumulate, chain, pairwise
from math import prod

import numpy as np
import numpy.typing as npt
import openvino

from backends.openvino.model import HIDDEN, Parts
from backends.paged.runner import Runner
from backends.paged.sequence import Sequence, SequenceChunk
from lmi_handlers.core.errors import LoadFailed

_OUT_OF_MEMORY = (
    "can't alloc",
    "bad_alloc",
    "could not create a memory",
    "allocate",
    "out of memory",
    "memalign failed",
)


class OpenVinoRunner(Runner):
    """Runs a model that `compile_model` returned, with a KV cache of `num_blocks` blocks.

    A block takes up memory from its first use until it is reclaimed. `compile_again` returns the same model once more.
    """

    def __init__(self, model: Parts, num_blocks: int, compile_again: Callable[[], Parts]) -> None:
        self.block_size, _ = kv_block(model)
        self.num_blocks = num_blocks
        self.vocab_size = model[-1].output("logits").partial_shape[-1].get_length()
        self._compile_again = compile_again
        self._tensors: dict[str, openvino.Tensor] = {}
        self._caches = []
        """The memory of each tensor of keys or values, and the bytes of a block in it."""
        for name, port in _cache_ports(model[0]).items():
            block_bytes = prod(_block_shape(port)) * port.element_type.size
            memory = _anonymous_memory(num_blocks * block_bytes)
            shape = openvino.Shape([num_blocks, *_block_shape(port)])
            array = np.frombuffer(memory, port.element_type.to_dtype())
            self._tensors[name] = openvino.Tensor(array, shape, port.element_type)
            self._caches.append((memory, block_bytes))
        self._inputs: dict[str, npt.NDArray[np.integer]] = {}
        """The memory of the first part's other inputs."""
        self._requests: list[openvino.InferRequest] | None = self._new_requests(model)
        """One per part."""

    def forward(self, chunks: list[SequenceChunk]) -> npt.NDArray[np.float32]:
        num_logits = sum(chunk.num_logits for chunk in chunks)
        try:
            if self._requests is None:
                self._requests = self._new_requests(self._compile_again())
            self._set_inputs(self._requests[0], chunks)
            for request in self._requests:
                result = request.infer(share_outputs=True)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, MemoryError) or any(words in str(error).lower() for words in _OUT_OF_MEMORY):
                # The compiled model is broken for good: some of its nodes have prepared for this step, others have not.
                self._requests = None
                raise MemoryError(str(error)) from error
            raise
        logits: npt.NDArray[np.float32] = result["logits"].reshape(-1, self.vocab_size)
        return logits[:num_logits]

    def _new_requests(self, model: Parts) -> list[openvino.InferRequest]:
        requests = [part.create_infer_request() for part in model]
        self._inputs.clear()
        for name, tensor in self._tensors.items():
            requests[0].set_tensor(name, tensor)
        if len(requests) > 1:
            port = model[1].input(HIDDEN)
            # The first part resizes it in each step.
            hidden = openvino.Tensor(port.element_type, port.partial_shape.get_min_shape())
            for request in requests:
                request.set_tensor(HIDDEN, hidden)
        return requests

    def _set_inputs(self, request: openvino.InferRequest, chunks: list[SequenceChunk]) -> None:
        for name, values in _step_inputs(chunks, self.block_size).items():
            memory = self._inputs.get(name)
            if memory is not None and memory.shape == values.shape:
                memory[...] = values  # a tensor that is set costs OpenVINO 25 us
            else:
                request.set_tensor(name, openvino.Tensor(values, shared_memory=True))
                self._inputs[name] = values

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in all layers."""
        return sum(size for _, size in self._caches)

    def read_block(self, block: int) -> bytes:
        """Return the contents of a block: the keys or values of one layer after the other."""
        return b"".join(memory[block * size : (block + 1) * size] for memory, size in self._caches)

    def write_block(self, block: int, data: bytes) -> None:
        """Fill a block with what `read_block` has returned."""
        start = 0
        for memory, size in self._caches:
            memory[block * size : (block + 1) * size] = data[start : start + size]
            start += size

    def reclaim(self, blocks: AbstractSequence[int]) -> None:
        if sys.platform != "linux":
            return
        for first, stop in _runs(sorted(blocks)):
            for memory, block_bytes in self._caches:
                # Whole pages only. What a page shares with a block in use stays.
                begin = -(-first * block_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
                end = stop * block_bytes // mmap.PAGESIZE * mmap.PAGESIZE
                if begin < end:
                    memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def _step_inputs(chunks: list[SequenceChunk], block_size: int) -> dict[str, npt.NDArray[np.integer]]:
    """Return the inputs of a step besides the KV cache, by name."""
    ends = list(accumulate((len(chunk.token_ids) for chunk in chunks), initial=0))
    tables = [chunk.sequence.blocks[: -(-chunk.stop // block_size)] for chunk in chunks]
    positions = chain.from_iterable(range(chunk.start, chunk.stop) for chunk in chunks)
    last = chain.from_iterable(range(end - chunk.num_logits, end) for chunk, end in zip(chunks, ends[1:], strict=True))
    return {
        "input_ids": np.fromiter(chain.from_iterable(chunk.token_ids for chunk in chunks), np.int64),
        "position_ids": np.fromiter(positions, np.int64),
        "past_lens": np.array([chunk.start for chunk in chunks], np.int32),
        "subsequence_begins": np.array(ends, np.int32),
        "block_indices": np.fromiter(chain.from_iterable(tables), np.int32),
        "block_indices_begins": np.fromiter(accumulate(map(len, tables), initial=0), np.int32),
        "max_context_len": np.array(max(chunk.stop for chunk in chunks), np.int32),
        "logit_indices": np.fromiter(last, np.int64),
    }


def try_out(model: Parts, compile_again: Callable[[], Parts]) -> None:
    """Compute a prompt and a token. Raises `RuntimeError` if OpenVINO lacks a kernel, which it may only find out here."""
    runner = OpenVinoRunner(model, 1, compile_again)
    sequence = Sequence("trial", [0] * 3, 3)
    sequence.blocks = [0]
    for chunk in SequenceChunk(sequence, 0, [0] * 2, 1), SequenceChunk(sequence, 2, [0], 1):
        runner.forward([chunk])


def kv_block(model: Parts) -> tuple[int, int]:
    """Return how many tokens a block of the KV cache holds, and its bytes in all layers."""
    ports = _cache_ports(model[0])
    size = _block_shape(ports["value_cache.0"])[1]
    return size, sum(prod(_block_shape(port)) * port.element_type.size for port in ports.values())


def _cache_ports(model: openvino.CompiledModel) -> dict[str, openvino.ConstOutput]:
    """Return the inputs for keys and values, `[blocks, kv_heads, block_size, head_dim]`, by name."""
    return {port.any_name: port for port in model.inputs if "_cache." in port.any_name}


def _block_shape(port: openvino.ConstOutput) -> list[int]:
    return [side.get_length() for side in list(port.partial_shape)[1:]]


def _anonymous_memory(size: int) -> mmap.mmap:
    """Return zeroed memory that the operating system commits page by page, on first use. Raises `LoadFailed`."""
    # Shared memory, the default, would not be freed by MADV_DONTNEED.
    flags = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
    try:
        return mmap.mmap(-1, max(size, 1), **flags)
    except OSError as error:
        raise LoadFailed(f"option.kv_cache_memory_bytes: that much memory cannot be reserved: {error}") from error


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the runs of consecutive numbers in a sorted list, each as its first number and the one after its last."""
    cuts = [0, *(index + 1 for index, (a, b) in enumerate(pairwise(numbers)) if b != a + 1), len(numbers)]
    for begin, end in pairwise(cuts):
        if begin < end:
            yield numbers[begin], numbers[end - 1] + 1
