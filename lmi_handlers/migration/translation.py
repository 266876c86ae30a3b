"""A serving.properties in the making: what a flag of another server becomes here, and the file with all of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from javaproperties import join_key_value, to_comment

from lmi_handlers.config.option import DeclaredOption
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.redaction import is_hidden, is_secret, redacted
from lmi_handlers.migration.command import Command
from lmi_handlers.workers.environment import child_environment


@dataclass(frozen=True)
class Sets:
    """The flag sets an option, by the name of its field. `convert` turns the flag's value into the option's.

    "" leaves the option as it is.
    """

    option: str
    convert: Callable[[str], str] = str


@dataclass(frozen=True)
class Exports:
    """The flag is an environment variable here. The value of a secret one is not written down.

    Several values are in a file, whose path is in the variable `file`, if that is not empty.
    """

    variable: str
    secret: bool = False
    file: str = ""


@dataclass(frozen=True)
class Passes:
    """The flag is an option of `lmi serve`."""

    option: str


@dataclass(frozen=True)
class Lacks:
    """Nothing corresponds to the flag, for this reason."""

    reason: str


_ESCAPED = re.compile(r"\\(.)")
_PLAIN = ":=#!"

Meaning = Sets | Exports | Passes | Lacks


@dataclass
class Translation:
    """The translation of one command's flags. `options` declares this server's options by the name of their field."""

    source: str
    options: dict[str, DeclaredOption]
    lines: dict[str, tuple[str, str]] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def add(self, meaning: Meaning, flag: str, values: Sequence[str], default: str = "true") -> None:
        """Add a flag, as it was written. Without values, its value is `default`. Raises `ConfigError`."""
        text = ",".join(values) if values else default
        match meaning:
            case Sets(option, convert):
                try:
                    value = convert(text)
                except ValueError as error:
                    raise ConfigError(f"{flag} has value {text!r}: {error}") from error
                if value:
                    self.set(option, value, " ".join([flag, *values]))
            case Exports(_, _, file) if file and len(values) > 1:
                self.environ[file] = f"'<a file with the values of {flag}>'"
                self.remarks.append(f"{flag}: the file has one line per value, with a label before it")
            case Exports(variable, secret):
                self.environ[variable] = f"'<the value of {flag}>'" if secret else shlex.quote(text)
            case Passes(option):
                self.arguments[option] = text
            case Lacks(reason):
                self.remarks.append(f"{flag}: {reason}")

    def add_variable(self, name: str, value: str, meanings: Mapping[str, Meaning]) -> None:
        """Add an environment variable of the command. One without a meaning is set for this server, too."""
        is_credential = not child_environment({name: value}) or redacted(value) != value
        secret = is_credential or is_secret(name, value) or is_hidden(name)
        self.add(meanings.get(name, Exports(name, secret)), name, [value])

    def add_surroundings(self, command: Command, default_port: int) -> None:
        """Add where the server listens, and remarks about what stands around the flags. They must have been added."""
        container, port = command.container, self.arguments.get("--port", str(default_port))
        if container is None or container.on_host_network:
            self.arguments["--port"] = port
        else:  # the ports and addresses outside count
            self.arguments.pop("--port", None)
            self.arguments.pop("--host", None)
            host, outside = container.ports.get(int(port), ("", 0)) if port.isdecimal() else ("", 0)
            if outside:
                self.arguments["--port"] = str(outside)
            if host:
                self.arguments["--host"] = host
        self.remarks += command.remarks
        if container is not None and container.passed:
            self.remarks.append(
                f"{', '.join(container.passed)}: set for the container from outside; lmi serve inherits it"
            )
        if container is not None and container.others:
            self.remarks.append(
                f"{redacted(' '.join(container.others))}: options of the container, without a counterpart here"
            )

    def set(self, option: str, value: str, comment: str) -> None:
        """Set an option, by the name of its field, or an option that the backend passes on to its engine."""
        declared = self.options.get(option)
        self.lines[f"option.{option}" if declared is None else declared.key] = value, comment

    def render(self) -> str:
        """Return the text of the file."""
        serve = ["lmi", "serve", "--model-dir", "."]
        for option, value in self.arguments.items():
            serve += [option, value]
        words = [*(f"{name}={value}" for name, value in self.environ.items()), shlex.join(serve)]
        out = [
            _comment(
                f"Made by lmi check --from {self.source}. Save it as serving.properties, and start the server with"
            ),
            _comment(f"  {' '.join(words)}"),
        ]
        for key, (value, comment) in self.lines.items():
            out += ["", _comment(comment), _line(key, value)]
        if self.remarks:
            out += ["", _comment("Not in this file:"), *(_comment(f"  {remark}") for remark in self.remarks)]
        return "\n".join(out) + "\n"


def _comment(text: str) -> str:
    return to_comment(f" {text}")


def _line(key: str, value: str) -> str:
    """Return a line of the file. Within a value, the characters that end a key need no backslash."""
    escaped = join_key_value("", value, separator="")
    return f"{key}={re.sub(_ESCAPED, lambda found: found[1] if found[1] in _PLAIN else found[0], escaped)}"
