"""`djl_python.streaming_utils`: streams of text from a model of transformers, for `Output.add_stream_content`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any

from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

_SAMPLES = ("temperature", "top_p", "top_k", "typical_p")
_NOT_FOR_GENERATE = ("engine", "beam_size", "manual_seed")


class HFStreamer(BaseStreamer):
    """Iterates over the lists of texts that each call of `put` decodes: one text per sequence."""

    def __init__(self, tokenizer: Any, **decode_kwargs: Any) -> None:
        self.tokenizer = tokenizer
        self.decode_kwargs = decode_kwargs
        self._queue: SimpleQueue[list[str] | str | BaseException | None] = SimpleQueue()

    def put(self, value: Any) -> None:
        """Decode token ids: a vector is one sequence, a matrix has one per row."""
        rows = [value] if value.dim() == 1 else value
        self._queue.put([self.tokenizer.decode(row, **self.decode_kwargs) for row in rows])

    def put_text(self, value: str) -> None:
        """Add a text as it is."""
        self._queue.put(value)

    def fail(self, error: BaseException) -> None:
        """Let the iterator raise an error."""
        self._queue.put(error)

    def end(self) -> None:
        """End the iteration."""
        self._queue.put(None)

    def __iter__(self) -> Iterator[list[str] | str]:
        return self

    def __next__(self) -> list[str] | str:
        item = self._queue.get()
        if item is None:
            raise StopIteration
        if isinstance(item, BaseException):
            raise item
        return item


class StreamingUtils:
    """LMI's streams. Generation ends early if its stream is closed, as it is when the client leaves."""

    DEFAULT_MAX_NEW_TOKENS = 50
    BUILTIN_ENGINES = frozenset({"Accelerate"})

    @staticmethod
    def use_hf_default_streamer(
        model: Any, tokenizer: Any, inputs: Sequence[str], device: Any = None, **kwargs: Any
    ) -> Iterator[list[str] | str]:
        """Return a stream of the texts that `model.generate(**kwargs)` streams, which begins with the prompts."""
        return _stream(model, tokenizer, inputs, device, kwargs, HFStreamer(tokenizer, skip_special_tokens=True))

    @staticmethod
    def get_stream_generator(execution_engine: str) -> Callable[..., Iterator[list[str] | str]]:
        """Return `generator(model, tokenizer, inputs, device, **parameters)`, which yields a list of texts per step.

        Raises `ValueError` for other engines than "Accelerate".
        """
        if execution_engine not in StreamingUtils.BUILTIN_ENGINES:
            known = ", ".join(StreamingUtils.BUILTIN_ENGINES)
            raise ValueError(f"{execution_engine} engine is not supported for streaming: it must be {known}")
        return _new_tokens


def _new_tokens(
    model: Any, tokenizer: Any, inputs: Sequence[str], device: Any = None, **kwargs: Any
) -> Iterator[list[str] | str]:
    if isinstance(inputs, str) or not inputs:
        raise ValueError("the inputs of a stream must be a list of at least one text")
    if kwargs.get("beam_size", 1) > 1:
        raise NotImplementedError("beam search is not supported in streams")
    if "manual_seed" in kwargs:
        import torch

        torch.manual_seed(kwargs["manual_seed"])
    options = {name: value for name, value in kwargs.items() if name not in _NOT_FOR_GENERATE}
    options.setdefault("max_new_tokens", StreamingUtils.DEFAULT_MAX_NEW_TOKENS)
    if any(name in options for name in _SAMPLES):
        options.setdefault("do_sample", True)
    items = _stream(model, tokenizer, inputs, device, options, _OfBatch(tokenizer))
    if not getattr(model.config, "is_encoder_decoder", False):
        next(items, None)  # the prompts
    yield from items


class _OfBatch(HFStreamer):
    """`generate` passes the prompts as a matrix, and then one token per sequence as a vector."""

    def put(self, value: Any) -> None:
        super().put(value.unsqueeze(-1) if value.dim() == 1 else value)


def _stream(
    model: Any, tokenizer: Any, inputs: Sequence[str], device: Any, options: dict[str, Any], streamer: HFStreamer
) -> Iterator[list[str] | str]:
    if not tokenizer.pad_token:
        tokenizer.pad_token = tokenizer.eos_token
    tokens = tokenizer(list(inputs), padding=True, return_tensors="pt").to(model.device if device is None else device)
    closed = _Closed()
    criteria = StoppingCriteriaList([*(options.pop("stopping_criteria", None) or ()), closed])
    arguments = {**tokens, "streamer": streamer, "stopping_criteria": criteria, **options}

    def generate() -> None:
        try:
            model.generate(**arguments)
        except BaseException as error:  # noqa: BLE001  the reader of the stream raises it
            streamer.fail(error)
        finally:
            streamer.end()

    thread = threading.Thread(target=generate, daemon=True)
    thread.start()
    try:
        yield from streamer
    finally:
        closed.event.set()
        thread.join()


class _Closed(StoppingCriteria):
    def __init__(self) -> None:
        self.event = threading.Event()

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:  # noqa: ARG002  transformers' signature
        import torch

        return torch.full((input_ids.shape[0],), self.event.is_set(), device=input_ids.device, dtype=torch.bool)
