"""The registry of what backends declare."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Container
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from facts import raises

from backends import BACKENDS, registry
from backends.features import OF_THE_TEXT_LAYER
from backends.remote.protocol import RemoteProtocol
from backends.remote.start import PROTOCOLS
from lmi_handlers.config.declaration import BackendDeclaration, LmiHandler
from lmi_handlers.config.option import Option, PositiveInt
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.sampling_params import SamplingParams

ROOT = Path(__file__).parents[2]


class SameOptions(msgspec.Struct, frozen=True, kw_only=True):
    """TensorRT-LLM's option with another default and description."""

    max_num_tokens: Annotated[PositiveInt | None, Option("Maximum tokens.")] = 4096


class OtherType(msgspec.Struct, frozen=True, kw_only=True):
    max_num_tokens: Annotated[str | None, Option("Maximum tokens.")] = None


class SharedOption(msgspec.Struct, frozen=True, kw_only=True):
    max_model_len: Annotated[PositiveInt | None, Option("Maximum tokens.", aliases=("option.max_seq_len",))] = None


class TakenAlias(msgspec.Struct, frozen=True, kw_only=True):
    my_length: Annotated[PositiveInt | None, Option("Maximum tokens.", aliases=("option.max_seq_len",))] = None


def declare(**fields: Any) -> BackendDeclaration:
    return BackendDeclaration(**({"name": "mine", "location": "my_engine:MyBackend"} | fields))


def test_our_backends_are_usable() -> None:
    assert list(registry().backends) == list(BACKENDS)
    assert registry().unusable == {}


@pytest.mark.parametrize(
    ("name", "folders"),
    [
        ("transformers", ("paged", "sampling")),
        ("openvino", ("paged", "sampling")),
        ("vllm", ("vllm",)),
        ("lmi_dist", ("vllm",)),
        ("tensorrt_llm", ("tensorrt_llm",)),
    ],
)
def test_no_sampling_parameter_is_forgotten(name: str, folders: tuple[str, ...]) -> None:
    """An engine that neither reads a new parameter nor says that it does not support it would ignore it."""
    files = [file for folder in folders for file in (ROOT / "backends" / folder).glob("*.py")]
    code = "\n".join(file.read_text() for file in files if file.name != "__init__.py")
    assert _unread(code, registry().backends[name].unsupported) == []


@pytest.mark.parametrize("protocol", PROTOCOLS.values())
def test_no_sampling_parameter_is_forgotten_by_a_protocol(protocol: type[RemoteProtocol]) -> None:
    unsupported = {*registry().backends["remote"].unsupported, *protocol.unsupported}
    modules = (protocol.__module__, RemoteProtocol.__module__, "backends.remote.backend")
    code = "\n".join(inspect.getsource(importlib.import_module(module)) for module in modules)
    assert _unread(code, unsupported) == []


def _unread(code: str, unsupported: Container[str]) -> list[str]:
    """The sampling parameters that the code does not name, and that are not declared as unsupported either."""
    theirs = [name for name in SamplingParams.__struct_fields__ if name not in OF_THE_TEXT_LAYER]
    return [name for name in theirs if name not in unsupported and not re.search(rf"\b{name}\b", code)]


def test_option_that_two_backends_declare() -> None:
    known = registry().with_backend(declare(options=SameOptions, reads=("dtype",)))
    assert known.options["max_num_tokens"].read_by == ("tensorrt_llm", "mine")
    assert known.options["dtype"].read_by[-1] == "mine"
    assert registry().options["dtype"].read_by[-1] != "mine"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"reads": ("max_tokens",)}, "reads max_tokens not shared"),
        ({"options": OtherType}, "option.max_num_tokens tensorrt_llm differently"),
        ({"options": SharedOption}, "declares option.max_model_len shared"),
        ({"options": TakenAlias}, "declares name exists option.max_seq_len"),
        ({"name": "vllm"}, "declares name exists vllm"),
        ({"rolling_batch": ("scheduler",)}, "declares name exists scheduler"),
        ({"aliases": ("trtllm",)}, "declares name exists trtllm"),
        ({"aliases": ("auto",)}, "declares name exists auto"),
        ({"name": "server"}, "declares name exists server"),
        (
            {"handlers": {"djl_python.huggingface": LmiHandler()}},
            "declares handler djl_python.huggingface",
        ),
    ],
)
def test_conflicting_declaration(fields: dict[str, Any], words: str) -> None:
    backend = declare(**fields)
    with raises(ConfigError, f"backend {backend.name} {words}"):
        registry().with_backend(backend)


def test_values_are_the_options_that_the_backend_reads() -> None:
    backend = declare(options=SameOptions, reads=("dtype", "max_model_len", "quantize"))
    properties = ServingProperties(max_model_len=5, engine_options={"max_beam_width": 3})
    assert backend.values(properties) == {"dtype": "auto", "max_model_len": 5, "max_num_tokens": 4096}
    properties = ServingProperties(engine_options={"max_num_tokens": 7})
    assert backend.values(properties)["max_num_tokens"] == 7


def test_engine_process_gets_the_backends_options() -> None:
    properties = ServingProperties(engine_options={"a": True, "b": 2, "c": 0.5, "d": "text", "e": 2.0})
    again = msgspec.json.decode(msgspec.json.encode(properties), type=ServingProperties)
    assert again == properties
    assert [type(value) for value in again.engine_options.values()] == [bool, int, float, str, float]
