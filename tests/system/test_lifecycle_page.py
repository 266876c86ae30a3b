"""The page about a request's lifecycle and its drawing agree with the code."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from build_site import ROOT
from draw_lifecycle import STEPS, Step, drawing, layers

from lmi_handlers.engine import messages

PAGE = (ROOT / "docs" / "request-lifecycle.md").read_text()


def test_the_drawing_is_up_to_date() -> None:
    picture = (ROOT / "docs" / "request-lifecycle.svg").read_text()
    assert picture == drawing(), "run: python docs/site/draw_lifecycle.py > docs/request-lifecycle.svg"


def test_the_drawing_has_every_step_and_its_layer() -> None:
    texts = [text.text for text in ElementTree.fromstring(drawing()).iter("{http://www.w3.org/2000/svg}text")]
    for number, step in enumerate(STEPS, start=1):
        assert texts.count(str(number)) == 1
        assert {step.does, step.module, step.layer.removeprefix("lmi_handlers.") + "/"} <= {*texts}


def test_the_layers_are_drawn_in_the_order_of_the_contract() -> None:
    labels = re.findall(r'<text class="layer end"[^>]*>(\w+)/</text>', drawing())
    drawn = [name.removeprefix("lmi_handlers.") for name in layers()]
    assert labels == [name for name in drawn if name in labels]
    assert {step.layer.removeprefix("lmi_handlers.") for step in STEPS} == {*labels}


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.does)
def test_the_modules_exist_in_their_layer(step: Step) -> None:
    assert list(ROOT.glob(step.module))
    assert step.module.startswith(step.layer.replace(".", "/") + "/")


def test_the_messages_exist() -> None:
    arrows = re.findall(r'<text class="small middle"[^>]*>([^<]+)</text>', drawing())
    names = [name for arrow in arrows for name in arrow.split(", ")]
    assert len(names) == 4
    assert [name for name in names if not hasattr(messages, name)] == []


def test_a_text_that_is_too_wide_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draw_lifecycle.STEPS", (STEPS[0]._replace(does="a" * 40), *STEPS[1:]))
    with pytest.raises(ValueError, match="too wide"):
        drawing()


def test_the_page_describes_the_same_steps() -> None:
    items = re.findall(r"^\*\*(\d+)\.\*\* (.*?)\n\n", PAGE, re.MULTILINE | re.DOTALL)
    assert [int(number) for number, _ in items] == [*range(1, len(STEPS) + 1)]
    for step, (number, text) in zip(STEPS, items, strict=True):
        assert f"`{step.module.removeprefix('lmi_handlers/')}`" in text, number


def test_the_files_on_the_page_exist() -> None:
    named = re.findall(r"`([\w*]+/[\w*/]+\.py)`", PAGE)
    assert named
    assert [name for name in named if not [*ROOT.glob(name), *ROOT.glob(f"lmi_handlers/{name}")]] == []
