"""What the server does not import: tools, and pages where others can reach it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from facts import raises
from serving import ENVIRON

from lmi_handlers.config.local_runtime import LocalRuntimeSettings
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.config.server_settings import ALL_INTERFACES, LOOPBACK, ServerSettings
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.preflight.pages import PAGES, shown_pages

PROPERTIES = ServingProperties()
ON_LOOPBACK = ServerSettings(model_dir=None, host=LOOPBACK)
FOR_ALL = ServerSettings(model_dir=None, host=ALL_INTERFACES)
CONTROLS = {"SAGEMAKER_SECURITY_CONTROLS": "DISALLOW_PICKLE_FILES", "SAGEMAKER_UNTRUSTED_CHANNELS": "/opt/ml/model"}
SECURE = {"SAGEMAKER_SECURE_MODE": "true", **CONTROLS}


def names(settings: ServerSettings, environ: dict[str, str], properties: ServingProperties = PROPERTIES) -> list[str]:
    return [type(page).__name__ for page in shown_pages(settings, properties, environ)]


def test_pages_are_shown_where_only_this_machine_can_connect() -> None:
    assert names(ON_LOOPBACK, {}) == ["ConsolePage", "ExplainPage", "DocsPage"]
    assert names(FOR_ALL, {}) == []
    assert names(ON_LOOPBACK, {"API_KEY": "k"}) == []
    assert names(ON_LOOPBACK, SECURE) == []
    assert names(FOR_ALL, {}, ServingProperties(console=True)) == ["ConsolePage", "ExplainPage", "DocsPage"]


def test_the_local_runtime_is_there_if_it_was_asked_for() -> None:
    settings = msgspec.structs.replace(FOR_ALL, local_runtime=LocalRuntimeSettings(enabled=True))
    assert names(settings, {}) == ["LocalRuntimePage"]


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution with a page whose name is ours, and one that is no page."""
    information = tmp_path / "staged-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: staged\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[lmi_handlers.pages]\nconsole = staged:Nothing\nstaged = staged:STAGE\n"
    )
    (tmp_path / "staged.py").write_text("STAGE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_page_that_is_none_is_an_error_only_where_it_is_shown(distribution: Path) -> None:
    with raises(ConfigError, "staged not lmi_handlers.preflight.pages.Page staged:STAGE"):
        names(ON_LOOPBACK, {})
    assert names(FOR_ALL, {}) == []


_LOADED = """
import os, sys
from lmi_handlers.app import create_app
create_app()
print(*sorted(sys.modules), sep="\\n", flush=True)
os._exit(0)  # whatever else waits for an engine
"""


@pytest.mark.parametrize(
    "environ", [{"LMI_HOST": ALL_INTERFACES}, {"LMI_HOST": LOOPBACK, **SECURE}], ids=["all", "secure"]
)
def test_a_server_that_others_can_reach_imports_no_guest(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_text("option.rolling_batch=echo\n")
    given = {"LMI_MODEL_DIR": str(tmp_path), "LMI_ENGINE_SOCKET": str(tmp_path / "engine.sock"), **environ}
    loaded = modules({name: text for name, text in ENVIRON.items() if not name.startswith("LMI_")} | given)
    assert "lmi_handlers.launch.app" in loaded
    guests = ("lmi_handlers.laptop", "lmi_handlers.tools", "lmi_handlers.ray")
    assert [name for name in loaded if name.startswith(guests)] == []


def test_a_server_on_loopback_imports_the_pages(tmp_path: Path) -> None:
    """Otherwise the test above finds nothing."""
    (tmp_path / "serving.properties").write_text("option.rolling_batch=echo\n")
    given = {"LMI_MODEL_DIR": str(tmp_path), "LMI_ENGINE_SOCKET": str(tmp_path / "engine.sock"), "LMI_HOST": LOOPBACK}
    loaded = modules({name: text for name, text in ENVIRON.items() if not name.startswith("LMI_")} | given)
    assert PAGES["console"].partition(":")[0] in loaded


def modules(environ: dict[str, str]) -> list[str]:
    command = [sys.executable, "-c", _LOADED]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
