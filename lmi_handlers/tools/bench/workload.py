"""The requests and their times: prompts and answers of given lengths, arriving one after another or at a rate."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from lmi_handlers.core.errors import ConfigError

_WORDS = (  # noqa: SIM905  a list would take a page
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one "
    "you were all her she there would their we him been has when who will no more if out so up said what its about than "
    "into them can only other time new some could these two may first then do any like my now over such our man me even "
    "most made after also did many off before must well back through years where much your way down should because long"
).split()
"""Frequent words, each of which is one token in the vocabularies of English models."""

_MAX_TOKENS = 1 << 20


class Lengths(msgspec.Struct, frozen=True):
    """A distribution of numbers of tokens, as written: `128`, `64:256` (uniform) or `normal:256,64` (mean, deviation)."""

    text: str

    def sampler(self, source: random.Random) -> Callable[[], int]:
        """Return a function that draws a length, at least 1. Raises `ConfigError`."""
        try:
            if self.text.startswith("normal:"):
                mean, deviation = map(float, self.text.removeprefix("normal:").split(","))
                low = high = mean + 8 * deviation

                def draw() -> int:
                    return max(1, round(source.gauss(mean, deviation)))
            else:
                first, _, last = self.text.partition(":")
                low, high = float(int(first)), float(int(last or first))

                def draw() -> int:
                    return source.randint(int(low), int(high))
        except ValueError:
            low = high = -1.0
        if not 1 <= low <= high <= _MAX_TOKENS:
            cause = f"{self.text!r} is not a length such as 128, 64:256 or normal:256,64"
            raise ConfigError(f"--input-tokens, --output-tokens: {cause}")
        return draw


class Item(msgspec.Struct, frozen=True):
    """A prompt, and the number of tokens that its answer may have."""

    prompt: str
    output_tokens: int


def random_items(
    input_tokens: Lengths, output_tokens: Lengths, source: random.Random, tokenizer: Tokenizer | None
) -> Iterator[Item]:
    """Return endless items with random words. With a tokenizer, prompts have exactly the number of tokens, where possible."""
    draw_input, draw_output = input_tokens.sampler(source), output_tokens.sampler(source)
    return (Item(_prompt(draw_input(), source, tokenizer), draw_output()) for _ in itertools.repeat(None))


def _prompt(tokens: int, source: random.Random, tokenizer: Tokenizer | None) -> str:
    text = " ".join(source.choice(_WORDS) for _ in range(tokens))
    if tokenizer is None:
        return text
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    shortened: str = tokenizer.decode(ids[:tokens], skip_special_tokens=False)
    return shortened


class _Line(msgspec.Struct):
    prompt: str
    output_tokens: int | None = None


def items_of_file(path: Path, output_tokens: Lengths, source: random.Random) -> Iterator[Item]:
    """Return the items of a JSON-lines file, again and again: `{"prompt": .., "output_tokens": ..}`.

    `output_tokens` is drawn if a line has none. Raises `ConfigError`.
    """
    draw = output_tokens.sampler(source)
    try:
        lines = [msgspec.json.decode(line, type=_Line) for line in path.read_bytes().splitlines() if line.strip()]
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not lines:
        raise ConfigError(f"{path} has no lines")
    return (Item(line.prompt, line.output_tokens or draw()) for line in itertools.cycle(lines))


def arrival_gaps(rate: float, burstiness: float, source: random.Random) -> Iterator[float]:
    """Return the endless seconds between arrivals, `rate` per second on average.

    They are gamma-distributed with shape `burstiness`: 1 is a Poisson process, less has bursts, and a large one is even.
    At an infinite rate, all arrive at once.
    """
    if math.isinf(rate):
        return itertools.repeat(0.0)
    return (source.gammavariate(burstiness, 1 / (rate * burstiness)) for _ in itertools.repeat(None))
