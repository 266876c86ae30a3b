"""The tokens of the marks around a model's thoughts."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers

from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs
from lmi_handlers.text.bundle import TOKENIZER_FILE, TextBundle, build_byte_bundle
from lmi_handlers.text.output_parsers.reasoning import REASONING_FORMATS, ReasoningFormat
from lmi_handlers.text.thinking import thinking_marks
from lmi_handlers.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TextBundle]:
    directory = tmp_path_factory.mktemp("bundle")
    return directory, build_byte_bundle(directory)


def with_tokens(bundle: tuple[Path, TextBundle], directory: Path, *tokens: str) -> Tokenizer:
    """A tokenizer in which `tokens` are one token each, from 257 on."""
    backend = tokenizers.Tokenizer.from_file(str(bundle[0] / TOKENIZER_FILE))
    backend.add_special_tokens(list(tokens))
    backend.save(str(directory / TOKENIZER_FILE))
    return Tokenizer(directory, bundle[1])


@pytest.mark.parametrize("form", REASONING_FORMATS.values(), ids=lambda form: form.name)
def test_every_format_has_marks(bundle: tuple[Path, TextBundle], form: ReasoningFormat) -> None:
    marks = thinking_marks(form, Tokenizer(*bundle), 257)
    assert marks is not None
    assert [bytes(ids).decode() for ids in marks.begins] == list(form.begins)
    assert [bytes(ids).decode() for ids in marks.ends] == list(form.ends)
    assert bytes(marks.forced_end).decode() == (form.forced_end or form.ends[0])
    assert marks.special == {256}


def test_a_model_has_its_marks_as_tokens_or_as_text(bundle: tuple[Path, TextBundle], tmp_path: Path) -> None:
    form = REASONING_FORMATS["mistral"]
    marks = thinking_marks(form, with_tokens(bundle, tmp_path, "[THINK]", "[/THINK]"), 259)
    assert marks is not None
    assert (marks.begins, marks.ends, marks.forced_end) == (((257,),), ((258,),), (258,))
    marks = thinking_marks(form, with_tokens(bundle, tmp_path, "<think>", "</think>"), 259)
    assert marks is not None
    assert (marks.begins, marks.ends, marks.forced_end) == (((257,),), ((258,),), (258,))


def test_tokens_that_the_model_does_not_have_are_no_marks(bundle: tuple[Path, TextBundle], tmp_path: Path) -> None:
    tokenizer = with_tokens(bundle, tmp_path, "<think>", "</think>")
    assert thinking_marks(REASONING_FORMATS["deepseek_r1"], tokenizer, 258) is None


@pytest.mark.parametrize(
    ("asked", "default", "budget"),
    [(None, None, None), (None, 5, 5), (3, 5, 3), (0, 5, 0), (-1, 5, None), (-1, None, None), (9, None, 9)],
)
def test_which_budget_applies(asked: int | None, default: int | None, budget: int | None) -> None:
    params = SamplingParams(thinking_token_budget=asked)
    assert params.with_thinking_budget(default).thinking_token_budget == budget
    constrained = SamplingParams(thinking_token_budget=asked, structured_outputs=StructuredOutputs(regex="a+"))
    assert constrained.with_thinking_budget(default).thinking_token_budget is None
