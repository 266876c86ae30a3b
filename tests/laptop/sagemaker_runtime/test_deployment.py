"""The image starts as SageMaker starts it."""

from __future__ import annotations

import json
import re
from importlib.metadata import distribution

import pytest
from packaging.requirements import Requirement
from paths import ROOT

DOCKERFILE = (ROOT / "sagemaker/Dockerfile").read_text()


def test_image_starts_like_on_sagemaker() -> None:
    """The entry point has the exec form and our command. Without the label, SageMaker does not set a port."""
    instructions = {match[1]: match[2] for match in re.finditer(r"^([A-Z]+) ((?:.*\\\n)*.*)", DOCKERFILE, re.MULTILINE)}
    [command] = json.loads(instructions["ENTRYPOINT"])
    assert command in {script.name for script in distribution("lmi-handlers").entry_points}
    assert json.loads(instructions["CMD"]) == ["serve"]
    assert instructions["LABEL"].replace("\\\n", "").split() == [
        "com.amazonaws.sagemaker.capabilities.accept-bind-to-port=true",
        "com.amazonaws.sagemaker.capabilities.bidirectional-streaming=true",
        "com.amazonaws.sagemaker.capabilities.multi-models=true",
    ]
    assert instructions["EXPOSE"] == "8080"
    assert "USER" not in instructions


@pytest.mark.parametrize(("target", "engine"), [("vllm", "vllm"), ("trtllm", "tensorrt-llm")])
def test_images_for_gpus_have_the_supported_engines(target: str, engine: str) -> None:
    """Their base images contain the engine, in a version that the extra accepts, so pip installs no other one."""
    given = json.loads((ROOT / "sagemaker/docker-bake.json").read_text())["target"][target]["args"]
    assert given.keys() <= set(re.findall(r"^ARG (\w+)=", DOCKERFILE, re.MULTILINE))
    ours = distribution("lmi-handlers")
    extras = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    assert all(re.search(rf"^{extra} = \[", extras, re.MULTILINE) for extra in given["EXTRAS"].split(","))
    [needed] = [item for item in map(Requirement, ours.requires or []) if item.name == engine]
    assert needed.marker is not None
    assert needed.marker.evaluate({"extra": target})
    assert given["BASE_IMAGE"].rpartition(":")[2].removeprefix("v") in needed.specifier


def test_sagemaker_folder_does_not_hide_the_sagemaker_sdk() -> None:
    names = {path.name for path in (ROOT / "sagemaker").iterdir()}
    assert not names & {"__init__.py", "serve.py", "train.py", "core.py"}
