"""The table of fields in docs/openai.md is correct: each cell is tested with a request that has the field."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from capabilities import capabilities, facts
from paths import ROOT

from lmi_handlers.apis.aleph_alpha.chat import AlephAlphaBody, AlephAlphaDialect
from lmi_handlers.apis.base import Dialect, Payload
from lmi_handlers.apis.lmi.body import LmiParameters
from lmi_handlers.apis.lmi.dialect import LmiDialect
from lmi_handlers.apis.openai.body import ChatCompletionBody, CompletionBody
from lmi_handlers.apis.openai.dialect import ChatDialect, CompletionsDialect
from lmi_handlers.apis.openai.responses_body import ResponseBody
from lmi_handlers.apis.openai.responses_dialect import ResponseDialect
from lmi_handlers.apis.tgi.body import TgiCompatBody, TgiParameters
from lmi_handlers.apis.tgi.dialect import CompatDialect
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.serving.parsed import ModelFacts, Parsed
from lmi_handlers.text.infill import FORMATS

BUDGET = Budget.of(ServingProperties())

PAGE = ROOT / "docs" / "openai.md"


def model_facts() -> ModelFacts:
    return msgspec.structs.replace(facts(chat_template="{{ tools }}", adapters=("french",)), infill=FORMATS[0])


@dataclasses.dataclass(frozen=True)
class Wire:
    """A dialect, its smallest valid body, and its known fields."""

    dialect: Dialect
    body: dict[str, Any]
    fields: frozenset[str]
    beside_parameters: tuple[str, ...] | None = None
    """The fields outside `parameters`, for bodies that have most of their fields there."""

    def parse(self, fields: dict[str, Any]) -> Parsed:
        """Parse a body and check the prompt's length. Raises `InvalidRequest`."""
        if self.beside_parameters is None:
            body = self.body | fields
        else:
            beside = {name: value for name, value in fields.items() if name in self.beside_parameters}
            inside = {name: value for name, value in fields.items() if name not in beside}
            body = self.body | beside | {"parameters": inside}
        parsed = self.dialect.parse(Payload(data=json.dumps(body).encode(), request_id="r"))
        parsed.check_length(parsed.request, 0, 2, capabilities(max_model_len=10**7, vocab_size=49152))
        return parsed


MESSAGES = [{"role": "user", "content": "hi"}]
WIRES = {
    "chat": Wire(
        ChatDialect(model_facts, budget=BUDGET), {"messages": MESSAGES}, frozenset(ChatCompletionBody.__struct_fields__)
    ),
    "completions": Wire(
        CompletionsDialect(model_facts, budget=BUDGET), {"prompt": "hi"}, frozenset(CompletionBody.__struct_fields__)
    ),
    "responses": Wire(
        ResponseDialect(model_facts, budget=BUDGET), {"input": "hi"}, frozenset(ResponseBody.__struct_fields__)
    ),
    "LMI": Wire(
        LmiDialect(ServingProperties(), {}),
        {"inputs": "hi"},
        frozenset({*LmiParameters.__struct_fields__, "inputs", "stream", "adapters"}),
        ("inputs", "stream", "adapters"),
    ),
    "TGI": Wire(
        CompatDialect(ServingProperties()),
        {"inputs": "hi"},
        frozenset({*TgiParameters.__struct_fields__, *TgiCompatBody.__struct_fields__} - {"parameters"}),
        ("inputs", "stream"),
    ),
    "Aleph Alpha": Wire(
        AlephAlphaDialect(model_facts, budget=BUDGET),
        {"messages": MESSAGES, "model": "m"},
        frozenset(AlephAlphaBody.__struct_fields__),
    ),
}
"""The dialects by the table's column headings."""

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("f", "g")
]
FUNCTIONS = [tool["function"] for tool in TOOLS]
FLAT_TOOLS = [{**tool["function"], "type": "function"} for tool in TOOLS]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}

# A value of each field that differs from the default.
SAMPLES: dict[str, Any] = {
    "messages": [{"role": "user", "content": "ho"}],
    "prompt": "ho",
    "inputs": "ho",
    "model": "french",
    "adapters": "french",
    "adapter_id": "french",
    "do_sample": True,
    "temperature": 0.5,
    "top_p": 0.5,
    "runtime_top_p": 0.5,
    "top_k": 5,
    "runtime_top_k": 5,
    "prompt_lookup_num_tokens": 4,
    "thinking_token_budget": 4,
    "min_p": 0.5,
    "typical_p": 0.5,
    "repetition_penalty": 1.5,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "seed": 7,
    "random_seed": 7,
    "logit_bias": {"5": 1.5},
    "bad_words": ["x"],
    "bad_sequences": ["x"],
    "allowed_token_ids": [5],
    "max_tokens": 5,
    "max_completion_tokens": 5,
    "max_new_tokens": 5,
    "request_output_len": 5,
    "maximum_tokens": 5,
    "min_tokens": 5,
    "min_new_tokens": 5,
    "min_length": 5,
    "n": 2,
    "best_of": 2,
    "num_beams": 2,
    "length_penalty": 0.5,
    "len_penalty": 0.5,
    "early_stopping": True,
    "stop": ["x"],
    "stop_sequences": ["x"],
    "stop_token_ids": [5],
    "include_stop_str_in_output": True,
    "ignore_eos": True,
    "ignore_eos_token": True,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "truncate": 5,
    "truncate_prompt_tokens": 5,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "priority": 5,
    "cache_salt": "x" * 256,
    "watermark": True,
    "logprobs": 5,
    "top_logprobs": 5,
    "top_n_tokens": 5,
    "prompt_logprobs": 5,
    "details": True,
    "decoder_input_details": True,
    "echo": True,
    "return_full_text": True,
    "stream": True,
    "stream_options": {"include_usage": True},
    "output_formatter": "sse",
    "response_format": {"type": "json_object"},
    "structured_outputs": {"json": SCHEMA},
    "grammar": {"type": "json", "value": SCHEMA},
    "guided_json": SCHEMA,
    "guided_regex": "a+",
    "guided_choice": ["x", "y"],
    "guided_grammar": 'root ::= "x"',
    "tools": TOOLS,
    "tool_choice": "required",
    "tool_prompt": "Call.",
    "parallel_tool_calls": False,
    "functions": FUNCTIONS,
    "function_call": {"name": "f"},
    "include_reasoning": False,
    "reasoning_effort": "low",
    "chat_template": "{{ messages }}",
    "chat_template_kwargs": {"x": 1},
    "documents": [{"title": "x"}],
    "add_generation_prompt": False,
    "continue_final_message": True,
    "suffix": "x",
    "user": "x",
    "metadata": {"x": "y"},
    "store": True,
    "service_tier": "auto",
    "guideline": "x",
    "input": "ho",
    "instructions": "x",
    "previous_response_id": "x",
    "conversation": "x",
    "background": True,
    "max_output_tokens": 5,
    "truncation": "auto",
    "include": ["message.output_text.logprobs"],
    "text": {"format": {"type": "json_object"}},
    "reasoning": {"effort": "low"},
    "safety_identifier": "x",
    "prompt_cache_key": "x",
    "max_tool_calls": 5,
}
OTHER_SAMPLES: dict[tuple[str, str], Any] = {
    ("chat", "logprobs"): True,
    ("Aleph Alpha", "logprobs"): True,
    ("TGI", "return_full_text"): False,
    ("responses", "tools"): FLAT_TOOLS,
}
"""Values for dialects with a different type or default."""

CONTEXTS: dict[str, dict[str, Any]] = {
    "stream_options": {"stream": True},
    "min_tokens": {"max_tokens": 10**7},
    "min_new_tokens": {"max_new_tokens": 10**7},
    "min_length": {"max_new_tokens": 10**7},
    "length_penalty": {"num_beams": 2},
    "len_penalty": {"num_beams": 2},
    "early_stopping": {"num_beams": 2},
    "top_logprobs": {"logprobs": True},
    "tool_choice": {"tools": TOOLS},
    "tool_prompt": {"tools": TOOLS},
    "parallel_tool_calls": {"tools": TOOLS, "tool_choice": "required"},
    "function_call": {"functions": FUNCTIONS},
}
"""Other fields that a field needs to take effect."""

OTHER_CONTEXTS: dict[tuple[str, str], dict[str, Any]] = {
    ("TGI", "best_of"): {"do_sample": True},
    ("TGI", "seed"): {"do_sample": True},
    ("LMI", "logprobs"): {"details": True},
    ("LMI", "top_n_tokens"): {"details": True},
    ("responses", "top_logprobs"): {"include": ["message.output_text.logprobs"]},
    ("responses", "tool_choice"): {"tools": FLAT_TOOLS},
    ("responses", "parallel_tool_calls"): {"tools": FLAT_TOOLS, "tool_choice": "required"},
}

BOUNDED: dict[str, Callable[[float], Any]] = {
    "logit_bias": lambda number: {"5": number},
    "stop": lambda number: ["x"] * int(number),
    "stop_sequences": lambda number: ["x"] * int(number),
}
"""What a limit applies to, if not to the field itself."""


# The table


@dataclasses.dataclass(frozen=True)
class Cell:
    """The table's entry for a field in a dialect."""

    dialect: str
    field: str
    text: str

    def __str__(self) -> str:
        return f"{self.dialect}-{self.field}"

    @property
    def wire(self) -> Wire:
        return WIRES[self.dialect]

    @property
    def verdict(self) -> str:
        return re.split(r"\W", self.text)[0]

    @property
    def sample(self) -> Any:
        return OTHER_SAMPLES.get((self.dialect, self.field), SAMPLES[self.field])

    @property
    def context(self) -> dict[str, Any]:
        return CONTEXTS.get(self.field, {}) | OTHER_CONTEXTS.get((self.dialect, self.field), {})

    def with_number(self, number: float) -> dict[str, Any]:
        """The field with the given number, and the fields that it needs."""
        whole = isinstance(self.sample, (int, list))
        make = BOUNDED.get(self.field, int if whole else float)
        return self.context | {self.field: make(number)}

    def bounds(self) -> Iterator[tuple[float, float]]:
        """The extreme valid numbers that the cell states, each with the adjacent invalid number."""
        step = 1 if isinstance(self.sample, (int, list)) else 0.001
        for low, high in re.findall(rf"({NUMBER}) to ({NUMBER})", self.text):
            yield from ((int(low), int(low) - step), (int(high), int(high) + step))
        for words, inside, outside in (
            ("above", step, 0),
            ("at least", 0, -step),
            ("below", -step, 0),
            ("up to", 0, step),
        ):
            for bound in re.findall(rf"{words} ({NUMBER})", self.text):
                yield int(bound) + inside, int(bound) + outside


NUMBER = r"-?\d+"


def table() -> Iterator[Cell]:
    """Every cell, except those in the row for unlisted fields."""
    section = PAGE.read_text().partition("\n## Fields\n")[2].partition("\n## ")[0]
    head, _, *rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    dialects = [name.strip() for name in head[1:]]
    assert dialects == list(WIRES)
    for names, *texts in rows:
        for name in re.findall("`(.*?)`", names) or [UNKNOWN]:
            yield from (Cell(dialect, name, text.strip()) for dialect, text in zip(dialects, texts, strict=True))


UNKNOWN = "unheard_of"
"""Represents any field that the table does not list."""


CELLS = list(table())
FIELDS = {cell.field for cell in CELLS}
SAMPLES[UNKNOWN] = 1


def meaning(parsed: Parsed) -> str:
    """What to generate and how to format the answer."""
    request = msgspec.structs.replace(parsed.request, ignored_parameters=())
    return re.sub(r"created(_at)?=\d+", "", repr((request, parsed.formatter)))


def refused(cell: Cell, fields: dict[str, Any]) -> bool:
    """Whether the request is rejected. If so, checks that the error is a client error that names the cell's field."""
    try:
        cell.wire.parse(fields)
    except InvalidRequest as error:
        status, message = cell.wire.dialect.error(error).status, str(error)
    else:
        return False
    assert 400 <= status < 500
    assert re.search(rf"\b{cell.field}\b", message), message
    return True


def having(verdict: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.verdict == verdict], ids=str)


def test_every_cell_begins_with_its_verdict() -> None:
    assert [str(cell) for cell in CELLS if cell.verdict not in ("honoured", "ignored", "refused")] == []


def test_table_has_every_field_exactly_once() -> None:
    known = frozenset().union(*(wire.fields for wire in WIRES.values()))
    refusals = {cell.field for cell in CELLS if cell.verdict == "refused"}
    assert known <= FIELDS
    assert FIELDS - known - {UNKNOWN} <= refusals
    assert len(CELLS) == len(FIELDS) * len(WIRES)
    assert set(SAMPLES) == FIELDS


@having("honoured")
def test_supported(cell: Cell) -> None:
    asked = cell.wire.parse(cell.context | {cell.field: cell.sample})
    assert meaning(asked) != meaning(cell.wire.parse(cell.context))
    assert cell.field not in asked.request.ignored_parameters


@having("ignored")
def test_ignored(cell: Cell) -> None:
    """Any value is ignored if the dialect does not know the field."""
    for value in [cell.sample] if cell.field in cell.wire.fields else [cell.sample, [[0]]]:
        asked = cell.wire.parse({cell.field: value})
        assert meaning(asked) == meaning(cell.wire.parse({}))
        assert (cell.field in asked.request.ignored_parameters) is not ("unnamed" in cell.text)


@having("refused")
def test_rejected(cell: Cell) -> None:
    assert refused(cell, {cell.field: cell.sample})


@pytest.mark.parametrize(
    "cell",
    [cell for cell in CELLS if cell.verdict == "honoured"],
    ids=str,
)
def test_limits(cell: Cell) -> None:
    """Stated limits are exact, and no limit is missing in the table."""
    below, above = False, False
    for inside, outside in cell.bounds():
        assert not refused(cell, cell.with_number(inside))
        assert refused(cell, cell.with_number(outside))
        below, above = below or outside < inside, above or outside > inside
    if isinstance(cell.sample, (int, float)) and not isinstance(cell.sample, bool):
        assert below or not refused(cell, cell.with_number(-1_000_000))
        assert above or not refused(cell, cell.with_number(1_000_000))


@pytest.mark.parametrize("cell", [cell for cell in CELLS if "default" in cell.text], ids=str)
def test_defaults(cell: Cell) -> None:
    [default] = re.findall(rf"default ({NUMBER})", cell.text)
    said = cell.wire.parse(cell.with_number(int(default)))
    assert meaning(said) == meaning(cell.wire.parse(cell.context))
