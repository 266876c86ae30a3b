"""What becomes of configurations of LMI: `python docs/site/configurations_page.py > docs/configurations.md`."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own

from backends import registry
from backends.selection import FALLBACK, check_installed
from lmi_handlers.config.report import effect_of
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.preflight.checks import mistakes, warnings
from lmi_handlers.preflight.configuration import AnsweredBy, Configuration, examine_configuration

FILE = "serving.properties"

_PAGE = """\
# Configurations of LMI

Each row is a `serving.properties` as users of LMI have them, and what `lmi check` says of it:
its errors, or else its warnings and the lines without effect. An empty cell means that every line
has its effect.
[migrating.md](migrating.md) lists everything else that moves.

Generated from `docs/site/configurations.yaml` by
`python docs/site/configurations_page.py > docs/configurations.md`.

* `auto` in the second column stands for the engine that suits the model and the machine. The third
  column then holds for transformers.
* `engine` is left out: it has no effect, because `option.rolling_batch` and `option.backend` choose
  the engine.
* Errors that depend on the machine are left out, such as an engine that is not installed there."""


def configurations() -> dict[str, dict[str, dict[str, str]]]:
    """Return the files of each configuration, by its name: kind -> name -> file -> text."""
    kinds = yaml.safe_load(Path(__file__).with_name("configurations.yaml").read_text(encoding="utf-8"))
    return {
        kind: {name: {FILE: given} if isinstance(given, str) else given for name, given in named.items()}
        for kind, named in kinds.items()
    }


def configurations_page() -> str:
    """Return the text of docs/configurations.md."""
    blocks = [_PAGE]
    for kind, named in configurations().items():
        rows = [_row(files) for files in named.values()]
        head = ["| configuration | answered by | what `lmi check` says |", "| --- | --- | --- |"]
        blocks += [f"## {kind}", "\n".join([*head, *rows])]
    return "\n\n".join(blocks) + "\n"


def verdict(files: dict[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return what answers requests, "" if the server does not start, and its errors, or else what `lmi check` remarks.

    The engine that `auto` would choose on this machine makes no difference.
    """
    with tempfile.TemporaryDirectory() as directory:
        for name, text in files.items():
            (Path(directory) / name).write_text(text, encoding="utf-8")
        environ = {"LMI_MODEL_DIR": directory, "HOME": directory, "HF_HOME": directory}
        try:
            configuration = examine_configuration(environ)
            answered_by = _answered_by(configuration)
            if answered_by == "auto" and not configuration.loaded.mistakes:
                configuration = examine_configuration(environ, {"option.backend": FALLBACK})
            errors = [*_errors(configuration, environ)]
        except ConfigError as error:
            answered_by, errors = "", str(error).splitlines()
        said = [f"error: {sentence}" for sentence in errors] or [*_remarks(configuration)]
    places = {directory: "/opt/ml/model", str(Path.cwd()): ".", f" (from {FILE})": ""}
    for place, shown in places.items():
        said = [sentence.replace(place, shown) for sentence in said]
    return "" if errors else answered_by, tuple(said)


def _answered_by(configuration: Configuration) -> str:
    if configuration.answered_by is AnsweredBy.OWN_CODE:
        return "the model's own code"
    properties = configuration.properties
    chooses = configuration.answered_by is AnsweredBy.ENGINE and not properties.pools
    return "auto" if chooses and registry().requested(properties) == "auto" else configuration.backend.name


def _errors(configuration: Configuration, environ: dict[str, str]) -> Iterator[str]:
    """Yield the errors, except that the engine is not installed on this machine."""
    missing = ""
    try:
        check_installed(configuration.backend, configuration.properties)
    except ConfigError as error:
        missing = str(error)
    yield from (mistake for mistake in mistakes(configuration, environ) if mistake != missing)


def _remarks(configuration: Configuration) -> Iterator[str]:
    """Yield the warnings, and what is said of lines without effect."""
    warned = [*warnings(configuration)]
    yield from (f"warning: {sentence}" for sentence in warned)
    for setting in configuration.loaded.explicit:
        effect = effect_of(setting, configuration.backend, configuration.properties)
        is_warned_of = any(setting.key in re.split(r"[ ;]", sentence) for sentence in warned)
        if setting.key != "engine" and not (effect.startswith("read by ") or is_warned_of):
            yield f"{setting.key}: {effect}"


def _row(files: dict[str, str]) -> str:
    answered_by, said = verdict(files)
    lines = [f"`{_cell(line)}`" for line in files[FILE].splitlines()]
    beside = [f"with a file `{name}`" for name in files if name != FILE]
    return f"| {'<br>'.join([*lines, *beside])} | {answered_by or 'nothing'} | {'<br>'.join(map(_cell, said))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(configurations_page(), end="")
