"""Holds our own engines to `BackendContract`. A new engine is a new class here."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from standin import standin

from lmi_handlers.testing import BackendContract

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # engines cause warnings in the libraries that they use
    pytest.mark.usefixtures("without_flask"),
]


class TestEcho(BackendContract):
    name = "echo"


class TinyModel(BackendContract):
    """The contract on a random checkpoint. Agreement on the real model: test_greedy_equality and test_vllm.

    Integers are not exact: tokens of a sequence may depend on the batch where two are almost equally likely.
    """

    @pytest.fixture(scope="class")
    @classmethod
    def model_path(cls, tiny_llama: Path) -> Path:
        return tiny_llama

    @pytest.fixture(scope="class")
    @classmethod
    def cache(cls, tiny_llama: Path) -> Path:
        """Converting takes longer than all checks."""
        (cache := tiny_llama.parent / "cache").mkdir(exist_ok=True)
        return cache


@pytest.mark.model
@pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="needs lmi-handlers[openvino]")
class TestOpenVinoTinyModel(TinyModel):
    """Converted from safetensors."""

    name = "openvino"


@pytest.mark.model
class TestOpenVinoSmallCache(TestOpenVinoTinyModel):
    """Five blocks of 32 tokens: sequences are preempted all the time."""

    properties = "option.dtype=fp32\noption.kv_cache_memory_bytes=160K\noption.prompt_lookup_num_tokens=4"


@pytest.mark.model
class TestTransformersTinyModel(TinyModel):
    name = "transformers"
    properties = "option.dtype=fp32"


@pytest.mark.model
@pytest.mark.needs("vllm")
class TestVllm(TinyModel):
    name = "vllm"
    properties = "option.dtype=fp32\noption.enforce_eager=true\noption.kv_cache_memory_bytes=32M"


@pytest.mark.model
class TestTensorRTLLM(BackendContract):
    """The library needs hardware: a stand-in takes its place unless it is installed."""

    name = "tensorrt_llm"

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def library(cls) -> Iterator[None]:
        installed = importlib.util.find_spec(cls.name) is not None
        with contextlib.nullcontext() if installed else standin(cls.name):
            yield
