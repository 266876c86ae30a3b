"""lmi-dist's options on vLLM."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from facts import raises, tell
from serving_properties import serving_properties

from backends.lmi_dist import DECLARATION
from lmi_handlers.core.errors import ConfigError

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


def test_secure_mode_has_nothing_downloaded_that_it_cannot_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backends.lmi_dist.backend import LmiDistBackend

    monkeypatch.setenv("SAGEMAKER_SECURE_MODE", "true")
    monkeypatch.setenv("SAGEMAKER_SECURITY_CONTROLS", "DISALLOW_PICKLE_FILES")
    LmiDistBackend.check_options(serving_properties(speculative_draft_model=str(tmp_path)))
    with raises(ConfigError, "draft a/b folder secure"):
        LmiDistBackend.check_options(serving_properties(speculative_draft_model="a/b"))
