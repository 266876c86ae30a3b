"""The declared options: values, ranges, names, and the generated page."""

from __future__ import annotations

import re
from typing import Any

import javaproperties
import msgspec
import pytest
from facts import raises
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT
from serving_properties import serving_properties

from backends import BACKENDS, declaration, registry
from backends.options_page import options_page
from lmi_handlers.config.no_effect import DEPRECATED_KEYS, NO_EFFECT
from lmi_handlers.config.option import DeclaredOption, InvalidValue, Option, text_of
from lmi_handlers.config.properties import ServingProperties, load_properties
from lmi_handlers.model_files.locate import DEFAULT_MODEL_NAME

OPTIONS = registry().options
KEYS = registry().keys
TRANSFORMERS = declaration("transformers")


# Casts


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("trust_remote_code", "True", True),
        ("trust_remote_code", "1", True),
        ("trust_remote_code", "NO", False),
        ("max_model_len", "4096", 4096),
        ("max_model_len", "+4096", 4096),
        ("gpu_memory_utilization", "1", 1.0),
        ("gpu_memory_utilization", ".9", 0.9),
        ("gpu_memory_utilization", "9e-1", 0.9),
        ("tensor_parallel_degree", "MAX", "max"),
        ("tensor_parallel_degree", "2", 2),
        ("enable_streaming", "True", "true"),
        ("dtype", "bfloat16", "bf16"),
        ("dtype", "Float16", "fp16"),
        ("dtype", "float32", "fp32"),
        ("dtype", "AUTO", "auto"),
        ("rolling_batch", "lmi_dist", "lmi-dist"),
        ("rolling_batch", "my-Plugin", "my-Plugin"),
        ("rolling_batch", "vLLM", "vllm"),
        ("rolling_batch", "TRTLLM", "trtllm"),
        ("rolling_batch", "Disable", "disable"),
        ("rolling_batch", "off", "disable"),
        ("rolling_batch", "yes", "auto"),
        ("backend", "Transformers", "transformers"),
        ("task", "Text-Embedding", "text-embedding"),
        ("backend", "pytorch", "tensorrt_llm"),
        ("echo_load_seconds", "2", 2.0),
    ],
)
def test_cast(name: str, text: str, value: object) -> None:
    parsed = OPTIONS[name].parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "cause"),
    [
        ("max_rolling_batch_size", "abc", "integer least 1"),
        ("max_rolling_batch_size", "1_0", "integer least 1"),
        ("max_rolling_batch_size", "1.0", "integer least 1"),
        ("max_rolling_batch_size", "٣", "integer least 1"),  # an Arabic digit, which int() accepts
        ("max_rolling_batch_size", "9" * 5000, "integer least 1"),
        ("tensor_parallel_degree", "maximum", "integer 1 max"),
        ("tensor_parallel_degree", "0", "integer 1 max"),
        ("gpu_memory_utilization", "nan", "number 0 1"),
        ("gpu_memory_utilization", "inf", "number 0 1"),
        ("gpu_memory_utilization", "0", "number 0 1"),
        ("gpu_memory_utilization", "1.01", "number 0 1"),
        ("echo_load_seconds", "1e999", "number least 0"),
        ("trust_remote_code", "ja", "true false"),
        ("trust_remote_code", "2", "true false"),
        ("dtype", "fp8", "auto fp32 fp16 bf16 int8"),
        ("echo_fault", "explode", "none exit_in_load out_of_memory_in_load raise_in_load slow_load"),
    ],
)
def test_strict_cast(name: str, text: str, cause: str) -> None:
    with raises(InvalidValue, cause):
        OPTIONS[name].parse(text)


@pytest.mark.parametrize("declared", [item for item in OPTIONS.values() if item.range], ids=lambda item: item.name)
def test_range_limits_are_inclusive(declared: DeclaredOption) -> None:
    bounds = declared.bounds
    step = 1 if int in declared.types else 0.25
    inside = [bounds.ge, bounds.le, None if bounds.gt is None else bounds.gt + step]
    outside = [
        None if bounds.ge is None else bounds.ge - step,
        bounds.gt,
        None if bounds.le is None else bounds.le + step,
    ]
    for number in inside:
        assert number is None or declared.parse(str(number)) == number
    for number in outside:
        if number is not None:
            with pytest.raises(InvalidValue, match=f"must be .*{declared.range}"):
                declared.parse(str(number))


@pytest.mark.parametrize("declared", OPTIONS.values(), ids=lambda item: item.name)
def test_declaration(declared: DeclaredOption) -> None:
    """The default is a valid value, and the option is used."""
    if declared.default is not None:
        assert declared.parse(text_of(declared.default)) == declared.default
    assert declared.option.help.endswith(".")
    assert set(declared.read_by) <= {"server", *BACKENDS}
    assert declared.read_by
    assert not set(declared.keys) & set(NO_EFFECT)


def test_names_are_unique() -> None:
    assert len(KEYS) == sum(len(declared.keys) for declared in OPTIONS.values())
    assert set(DEPRECATED_KEYS) <= set(KEYS)


def test_every_field_is_declared() -> None:
    fields = {field.name for field in msgspec.structs.fields(ServingProperties)}
    derived = {"has_asynchronous_handler", "has_vllm_variables", "is_named"}
    assert fields - set(OPTIONS) == {"model_dir", "engine_options", "extra", *derived}


def test_option_declarations_are_immutable() -> None:
    with pytest.raises(AttributeError):
        Option("Help.").help = "Other."  # type: ignore[misc]  # what the test is about


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_accepted_or_rejected_by_each_option(text: str) -> None:
    for declared in OPTIONS.values():
        try:
            value: Any = declared.parse(text)
        except InvalidValue:
            continue
        properties = serving_properties(**{declared.name: value})
        assert msgspec.json.decode(msgspec.json.encode(properties), type=ServingProperties) == properties


# Files in this repository


def test_example_file_has_known_names_with_their_defaults() -> None:
    text = (ROOT / "serving.properties").read_text(encoding="utf-8")
    shown = javaproperties.loads(re.sub(r"^#(?=\S+=)", "", text, flags=re.MULTILINE))
    assert len(shown) > 10
    for key, value in shown.items():
        assert key in KEYS
        assert value == (DEFAULT_MODEL_NAME if key == "option.model_id" else text_of(KEYS[key].default)), key


def test_example_file_changes_no_default() -> None:
    loaded = load_properties(ROOT, {}, registry())
    assert loaded.warnings(TRANSFORMERS) == ()
    name = loaded.properties.name
    assert loaded.properties == ServingProperties(model_dir=str(ROOT), model_id=DEFAULT_MODEL_NAME, model_name=name)


def test_options_page_tells_what_an_engine_only_accepts() -> None:
    rows = dict(re.findall(r"^\| `(\S+)` (.*)", options_page(), re.MULTILINE))
    for backend in map(declaration, BACKENDS):
        for name, reason in backend.without_effect.items():
            assert re.search(rf"No effect on .*\b{backend.name}\b.*{re.escape(reason)}", rows[OPTIONS[name].key]), name


def test_options_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert page == options_page(), "run: python -m backends.options_page > docs/options.md"
    for declared in OPTIONS.values():
        assert f"| `{declared.key}` |" in page
