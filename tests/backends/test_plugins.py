"""Backends and formatters by name: our own and third-party ones."""

from __future__ import annotations

import gc
import importlib.util
import os
import re
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from facts import raises, says
from paths import SUPPORT
from serving import StartServer, free_port

from backends import BACKENDS, available_backends, declaration, load_backend_class, registry
from backends.base import Backend
from formatters import FORMATTERS, available_formatters, load_formatter_class
from formatters.base import Formatter
from lmi_handlers.commands.cli import main
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.plugins import installed, load_instance

PLUGIN = SUPPORT / "plugin"

Check = Callable[[str], Result]


@pytest.mark.filterwarnings("ignore")  # engines cause warnings in the libraries that they use
@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_backend_can_be_imported(name: str) -> None:
    library = (*declaration(name).requires, "lmi_handlers")[0]
    if importlib.util.find_spec(library) is None:
        with raises(ConfigError, f"{name} cannot imported ModuleNotFoundError"):
            load_backend_class(name)
        return
    backend = load_backend_class(name)
    assert issubclass(backend, Backend)
    assert not getattr(backend, "__abstractmethods__", None)


@pytest.mark.parametrize("name", sorted(FORMATTERS))
def test_formatter_can_be_imported(name: str) -> None:
    formatter = load_formatter_class(name)
    assert issubclass(formatter, Formatter)
    assert not getattr(formatter, "__abstractmethods__", None)
    assert "/" in formatter.content_type


def test_error_for_an_unknown_formatter_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown output formatter 'morse'; known: .*jsonlines.*sse"):
        load_formatter_class("morse")


def test_all_entry_points_are_found_once() -> None:
    found = entry_points()
    expected = {(point.group, point.name, point.value) for group in found.groups for point in found.select(group=group)}
    groups = {group for group, _, _ in expected}
    points = [(point.group, point.name, point.value) for group in groups for point in installed(group)]
    assert len(points) == len(expected)
    assert {*points} == expected


def test_plugins_are_found_without_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "scripted" not in available_backends()
    modules = ("scripted_formatter", "scripted_backend")
    for module in modules:
        monkeypatch.delitem(sys.modules, module, raising=False)  # another test may have imported them
    monkeypatch.syspath_prepend(PLUGIN)
    assert available_backends() == BACKENDS | {"scripted": "scripted_declaration:DECLARATION"}
    assert available_formatters() == FORMATTERS | {"csv": "scripted_formatter:CsvFormatter"}
    assert registry().backends["scripted"].unsupported == {"bad_words": "the script is fixed"}
    assert not {*modules} & {*sys.modules}


def test_garbage_is_collected_again_after_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "collects.py").write_text("import gc\nENABLED = gc.isenabled()\n")
    (tmp_path / "collects_broken.py").write_text("raise RuntimeError\n")
    assert load_instance("switch", {"a": "collects:ENABLED"}, "a", bool) is False
    assert gc.isenabled()
    with raises(ConfigError, "switch a cannot imported RuntimeError"):
        load_instance("switch", {"a": "collects_broken:ENABLED"}, "a", bool)
    assert gc.isenabled()


def test_server_with_a_third_party_backend_and_formatter(start_server: StartServer) -> None:
    server = start_server(
        "option.rolling_batch=script\noption.scripted_words=2\noption.output_formatter=csv\noption.model_id=model\n",
        environ={"PYTHONPATH": plugin_path(PLUGIN)},
        ready=False,
    )
    write_model(server.directory / "model")
    server.wait_ready()
    answer = server.invoke({"inputs": "What is Deep Learning?", "parameters": {"max_new_tokens": 3}})
    assert answer.headers["Content-Type"] == "text/csv"
    assert answer.text == '"Deep",21784\n" Learning",29257\n"",4\n'


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """`check(properties)` runs `lmi check` on a directory with the scripted backend's model."""
    monkeypatch.setenv("LMI_PORT", str(free_port()))
    monkeypatch.setenv("LMI_HOST", "127.0.0.1")
    monkeypatch.setenv("LOG_FORMAT", "text")  # which lmi check would set, and leave
    write_model(tmp_path / "m")

    def run(properties: str) -> Result:
        (tmp_path / "m" / "serving.properties").write_text(properties)
        return CliRunner().invoke(main, ["check", "--all", "--model-dir", str(tmp_path / "m")])

    return run


def test_check_knows_third_party_options(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PLUGIN)
    result = check("option.rolling_batch=scripted\noption.scripted_words=2\noption.max_model_len=64\n")
    assert (result.exit_code, result.stderr) == (0, "")
    assert says(result.stdout, "backend scripted serving.properties")
    assert re.search(r"^  option.scripted_words +2 +serving.properties +read by scripted$", result.stdout, re.MULTILINE)
    assert "Warnings" not in result.stdout
    assert "scripted_backend" not in sys.modules


def test_check_rejects_an_invalid_value_of_a_third_party_option(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PLUGIN)
    result = check("option.rolling_batch=scripted\noption.scripted_words=many\n")
    assert result.exit_code == 1
    message = "option.scripted_words has value 'many': must be an integer of at least 1 (from serving.properties)"
    assert result.stderr == f"lmi: error: {message}\n"


def test_check_suggests_the_nearest_third_party_option(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PLUGIN)
    result = check("option.rolling_batch=scripted\noption.scripted_word=2\n")
    assert result.exit_code == 1
    assert says(result.stdout, "unknown option.scripted_word option.scripted_words")


def test_third_party_option_has_no_effect_on_another_backend(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PLUGIN)
    result = check("option.rolling_batch=echo\noption.scripted_words=2\n")
    assert result.exit_code == 0
    assert says(result.stdout, "option.scripted_words no effect echo only")


@pytest.mark.usefixtures("broken_plugins")
def test_unused_broken_plugin_is_a_warning(check: Check) -> None:
    result = check("option.rolling_batch=echo\n")
    assert (result.exit_code, result.stderr) == (0, "")
    for name, (_, cause) in BROKEN.items():
        assert re.search(f"^  backend '{name}' .*{re.escape(cause)}", result.stdout, re.MULTILINE)


def test_declaration_of_the_wrong_types_does_not_affect_other_backends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    declared = "from lmi_handlers.config.declaration import BackendDeclaration\n"
    declared += "DECLARATION = BackendDeclaration(name='typeless', location='a:B', options=None)\n"
    (tmp_path / "typeless.py").write_text(declared)
    distribution = tmp_path / "typeless-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: typeless\nVersion: 1.0\n")
    (distribution / "entry_points.txt").write_text("[lmi_handlers.backends]\ntypeless = typeless:DECLARATION\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(registry().backends) == list(BACKENDS)
    with raises(ConfigError, "typeless declaration TypeError"):
        declaration("typeless")


def plugin_path(directory: Path) -> str:
    return os.pathsep.join(filter(None, [str(directory), os.environ.get("PYTHONPATH")]))


def write_model(directory: Path) -> None:
    spec = importlib.util.spec_from_file_location("scripted_backend", PLUGIN / "scripted_backend.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.write_model(directory)


BROKEN = {
    "missing_module": ("no_such_module_here:Thing", "No module named 'no_such_module_here'"),
    "missing_name": ("broken_plugin:Nothing", "has no attribute 'Nothing'"),
    "no_name": ("broken_plugin", "broken_plugin"),
    "other_class": ("broken_plugin:Other", "broken_plugin:Other"),
    "missing_library": ("broken_import:Thing", "No module named 'no_such_library'"),
    "raises": ("broken_raise:Thing", "the plug-in is broken"),
}


@pytest.fixture
def broken_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "broken_plugin.py").write_text("class Other:\n    pass\n")
    (tmp_path / "broken_import.py").write_text("import no_such_library\n")
    (tmp_path / "broken_raise.py").write_text("raise RuntimeError('the plug-in is broken')\n")
    distribution = tmp_path / "broken-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    points = "\n".join(f"{name} = {value}" for name, (value, _) in BROKEN.items())
    groups = (f"[lmi_handlers.{kind}]\n{points}\n" for kind in ("backends", "formatters"))
    (distribution / "entry_points.txt").write_text("\n".join(groups))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("broken_plugins")
@pytest.mark.parametrize("name", BROKEN)
def test_broken_plugin_is_a_one_line_configuration_error(name: str) -> None:
    cause = BROKEN[name][1]
    for load, kind in ((load_backend_class, "backend"), (load_formatter_class, "output formatter")):
        with pytest.raises(ConfigError) as caught:
            load(name)
        message = str(caught.value)
        assert message.startswith(f"{kind} '{name}' ")
        assert cause in message
        assert "\n" not in message


@pytest.mark.parametrize("option", ["rolling_batch", pytest.param("output_formatter", marks=pytest.mark.long)])
def test_server_with_a_broken_plugin_ends_with_a_one_line_error(
    start_server: StartServer, broken_plugins: Path, option: str
) -> None:
    properties = "option.rolling_batch=echo\n" if option == "output_formatter" else ""
    server = start_server(
        f"{properties}option.{option}=raises\n", environ={"PYTHONPATH": plugin_path(broken_plugins)}, ready=False
    )
    assert server.process.wait(240) == 1
    [line] = [line for line in server.log.splitlines() if line.startswith("lmi: error: ")]
    assert "'raises'" in line
    assert "the plug-in is broken" in line
    assert "Traceback" not in server.log
