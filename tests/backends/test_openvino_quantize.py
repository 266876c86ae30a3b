"""Quantised weights lose no more than docs/openvino.md says."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from paths import DATA
from tokenizers import Tokenizer

from backends.openvino.checkpoint import convert_checkpoint
from backends.openvino.model import EXACT, MODEL_NAME, compile_model
from backends.openvino.quantize import check_method, quantize
from backends.openvino.runner import OpenVinoRunner
from backends.paged.sequence import Chunk, Sequence
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.engine.cache_dir import default_cache_dir
from lmi_handlers.engine.model_store import resolve_model


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    cache_dir = default_cache_dir(os.environ)
    return resolve_model(None, model_dir=None, revision=None, cache_dir=cache_dir, report=lambda phase: None)


@pytest.fixture(scope="module")
def exact(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exact")
    convert_checkpoint(checkpoint, folder, lambda phase: None, trust_remote_code=False)
    return folder / MODEL_NAME


@pytest.fixture(scope="module")
def loss(checkpoint: Path) -> Callable[[Path], float]:
    """Gives the mean negative log-likelihood of a token of a text, in nats: the logarithm of the perplexity."""
    text = (DATA / "alice.txt").read_text()
    token_ids = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).encode(text).ids

    def compute(ir_file: Path) -> float:
        compile_again = functools.partial(compile_model, ir_file, EXACT)
        runner = OpenVinoRunner(compile_again(), 64, compile_again)
        sequence = Sequence("a", token_ids, len(token_ids))
        sequence.blocks = list(range(-(-len(token_ids) // runner.block_size)))
        logits = runner.forward([Chunk(sequence, 0, token_ids, len(token_ids))])[:-1].astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        chosen = logits[range(len(logits)), token_ids[1:]]
        return float(np.mean(np.log(np.exp(logits).sum(axis=-1)) - chosen))

    return compute


@pytest.mark.model
@pytest.mark.long
def test_perplexity(exact: Path, loss: Callable[[Path], float], tmp_path: Path) -> None:
    expected = loss(exact)
    for method, bound, size in (("int8", 0.002, 0.65), ("int4", 0.01, 0.45)):
        quantised = tmp_path / f"{method}.xml"
        quantize(exact, quantised, method)
        assert abs(loss(quantised) - expected) < bound, method
        assert quantised.with_suffix(".bin").stat().st_size < size * exact.with_suffix(".bin").stat().st_size


def test_unknown_method() -> None:
    check_method(None)
    with pytest.raises(ConfigError, match=r"option\.quantize: the openvino backend supports int8 and int4, not awq"):
        check_method("awq")
