"""lmi-dist's options on vLLM."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from empty_weights import NO_TENSORS
from facts import raises, tell
from serving_properties import serving_properties

from backends.lmi_dist import DECLARATION
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError

if TYPE_CHECKING:
    from vllm import EngineArgs

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # vLLM's own libraries
    pytest.mark.needs("vllm"),
]


def test_options(caplog: pytest.LogCaptureFixture) -> None:
    from backends.lmi_dist.backend import with_speculation
    from backends.vllm.engine_args import engine_arguments

    properties = serving_properties(
        speculative_draft_model="draft",
        speculative_length=3,
        max_rolling_batch_size=7,
        record_acceptance_rate=True,
        tensor_parallel_degree=1,
    )
    with caplog.at_level(logging.WARNING, "backends.vllm"):
        arguments = engine_arguments(Path(), with_speculation(properties), backend=DECLARATION)
    assert arguments.speculative_config == {
        "method": "draft_model",
        "model": "draft",
        "num_speculative_tokens": 3,
        "draft_tensor_parallel_size": 1,
    }
    assert arguments.max_num_seqs == 7
    assert tell([record.message for record in caplog.records], ["option.record_acceptance_rate no effect vLLM"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speculative_draft_model": "draft", "extra": {"speculative_config": "{}"}}, "cannot be used together"),
        ({"speculative_draft_model": "draft", "enable_lora": True}, "cannot be used together"),
        ({"extra": {"max_num_seq": "4"}}, "option.max_num_seq: server vLLM"),
    ],
)
def test_invalid_options(options: dict[str, Any], message: str) -> None:
    from backends.lmi_dist.backend import LmiDistBackend

    with raises(ConfigError, message):
        LmiDistBackend.check_options(serving_properties(**options))


def hub_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *weights: str) -> Path:
    """Put a/b into a cache of the hub, as if it had been downloaded. Returns its folder."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    commit = "0" * 40
    folder = tmp_path / "models--a--b" / "snapshots" / commit
    folder.mkdir(parents=True)
    branch = tmp_path / "models--a--b" / "refs" / "main"
    branch.parent.mkdir()
    branch.write_text(commit)
    (folder / "config.json").write_text("{}")
    for name in weights:
        (folder / name).write_text(NO_TENSORS)
    return folder


def loaded(properties: ServingProperties) -> EngineArgs:
    """Return the arguments with which the engine is loaded."""
    from backends.lmi_dist.backend import with_speculation
    from backends.vllm.engine_args import engine_arguments

    return engine_arguments(Path(), with_speculation(properties), backend=DECLARATION, report=lambda _: None)


def test_a_draft_model_is_downloaded_as_the_model_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = hub_model(tmp_path, monkeypatch, "model.safetensors")
    arguments = loaded(serving_properties(speculative_draft_model="a/b"))
    assert (arguments.speculative_config or {})["model"] == str(folder)
    arguments = loaded(serving_properties(extra={"spec_model": "a/b", "spec_tokens": "2"}))
    assert arguments.spec_model == str(folder)
    with raises(ConfigError, "draft a/c hub reached"):
        loaded(serving_properties(speculative_draft_model="a/c"))


@pytest.mark.parametrize("speculation", [{"model": "ngram"}, {"method": "suffix"}, {"model": "pkg.Proposer"}])
def test_speculation_without_a_draft_model(speculation: dict[str, Any]) -> None:
    given = {**speculation, "num_speculative_tokens": 2}
    arguments = loaded(serving_properties(extra={"speculative_config": json.dumps(given)}))
    assert arguments.speculative_config == given


def test_a_draft_model_of_the_hub_has_no_pickled_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = hub_model(tmp_path, monkeypatch, "adapter.bin")
    with raises(ConfigError, "draft model a/b safetensors option.allow_pickle=true"):
        loaded(serving_properties(speculative_draft_model="a/b"))
    arguments = loaded(serving_properties(speculative_draft_model="a/b", allow_pickle=True))
    assert (arguments.speculative_config or {})["model"] == str(folder)


def test_secure_mode_searches_a_draft_model_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGEMAKER_SECURE_MODE", "true")
    monkeypatch.setenv("SAGEMAKER_SECURITY_CONTROLS", "DISALLOW_PICKLE_FILES")
    folder = hub_model(tmp_path, monkeypatch, "model.safetensors")
    loaded(serving_properties(speculative_draft_model="a/b"))
    (folder / "training_args.bin").write_bytes(b"x")
    with raises(ConfigError, "training_args.bin forbidden DISALLOW_PICKLE_FILES"):
        loaded(serving_properties(speculative_draft_model="a/b"))
    with raises(ConfigError, "draft s3://a/b folder hub secure"):
        loaded(serving_properties(speculative_draft_model="s3://a/b"))
