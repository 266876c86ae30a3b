"""Models of code that fill in the middle of a text: their tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from code_models import ADDED, FILLING, write_code_model
from tokenizers import Tokenizer

from lmi_handlers.text.infill import FORMATS, InfillFormat, find_infill


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.prefix)
def test_a_format_is_found_by_its_tokens(form: InfillFormat) -> None:
    tokens = {"<s>", form.prefix, form.suffix, form.middle, form.ends[0]}
    found = find_infill(tokens)
    assert found is not None
    assert (found.prompt("a", "b"), found.ends) == (f"{form.prefix}a{form.suffix}b{form.middle}", form.ends[:1])
    assert (found.repository, found.file) == (None, None)
    for token in (form.prefix, form.suffix, form.middle):
        assert find_infill(tokens - {token}) is None


def test_formats_share_no_token() -> None:
    marks = [token for form in FORMATS for token in (form.prefix, form.suffix, form.middle)]
    assert len(set(marks)) == len(marks) == 3 * len(FORMATS)


ENDS = {
    "Qwen 2.5 Coder": {"<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"},
    "StarCoder 2": {"<|endoftext|>", "<fim_pad>", "<repo_name>", "<file_sep>"},
    "Code Llama": {"▁<EOT>"},
    "DeepSeek Coder": {"<｜end▁of▁sentence｜>", "<|EOT|>"},  # noqa: RUF001  its tokens contain full-width bars
}


@pytest.mark.parametrize("model", ADDED)
def test_the_tokens_of_published_models(model: str, tmp_path: Path) -> None:
    """Each text is between single tokens, whose ids are the model's."""
    write_code_model(tmp_path, model)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    found = find_infill({token.content for token in tokenizer.get_added_tokens_decoder().values()})
    assert found is not None
    assert set(found.ends) == ENDS[model]
    prefix, suffix, middle = (ADDED[model][token] for token in FILLING[model])
    a, b = (tokenizer.token_to_id(letter) for letter in "ab")
    assert tokenizer.encode(found.prompt("a", "b"), add_special_tokens=False).ids == [prefix, a, suffix, b, middle]


@pytest.mark.parametrize("model", ADDED)
def test_other_files_go_before_the_gap(model: str) -> None:
    """As in the answers of llama.cpp's server to models with these tokens: tests/apis/test_llama_cpp_peer.py."""
    found = find_infill(ADDED[model])
    assert found is not None
    marked = "<|repo_name|>myproject\n{}<|file_sep|>filename\n"
    if model == "Qwen 2.5 Coder":
        assert found.context([]) == marked.format("")
        assert found.context([("a.py", "x"), ("tmp", "y")]) == marked.format("<|file_sep|>a.py\nx<|file_sep|>tmp\ny")
    else:
        snippet = "\n\n--- snippet ---\n\n"
        assert (found.context([]), found.context([("a.py", "x"), ("b", "y")])) == ("", f"{snippet}x{snippet}y")
