"""The fenced code blocks of the pages, and how those that cannot be run are checked.

The title of a block says what it is. A page looks well with it, on GitHub and on the site:

    title="Output"              what the command before prints; `...` stands for any text
    title="Output, exit status 1"
    title="my-model/model.py"   a file
    title="POST /invocations"   the body of a request that is answered with 200
    title="GET /ping"           the answer to a request

A block without a title is a script, or only an illustration. A comment before a block says why it is not run:

    <!-- not run: needs a GPU -->
"""

from __future__ import annotations

import configparser
import importlib.util
import itertools
import json
import re
import shlex
import subprocess
import tempfile
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import boto3
import click
import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from paths import ROOT

from backends import registry
from lmi_handlers.commands.cli import main
from lmi_handlers.commands.registry import subcommands
from lmi_handlers.config.properties import load_properties

_BLOCK = re.compile(
    r"(?:^ *<!-- not run: (?P<reason>[^>]+) -->\n+)?"
    r"^(?P<indent> *)```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_FENCE = re.compile(r"^ *(```|~~~)", re.MULTILINE)
_ASSIGNMENT = re.compile(r"\w+=")
_REQUEST = re.compile(r"(GET|POST|PUT|DELETE) (/\S*)$")

AWS = "needs an account on AWS"
CLUSTER = "needs a cluster"
DOCKER = "needs Docker"
INSTALLS = "installs packages"
OTHER_HOST = "needs another host"
REPOSITORY = "works on this repository, and takes long"
HUB = "needs a model of the Hugging Face hub"
REASONS = {AWS, CLUSTER, DOCKER, INSTALLS, OTHER_HOST, REPOSITORY, HUB}
"""All reasons for which a block is not run."""

_NOT_RUN = {
    "pip": INSTALLS,
    "make": REPOSITORY,
    "pytest": REPOSITORY,
    "docker": DOCKER,
    "aws": AWS,
    "kubectl": CLUSTER,
    "ray": CLUSTER,
    "serve": CLUSTER,
    "lmi ray": CLUSTER,
    "lmi deploy": AWS,
    "lmi undeploy": AWS,
    "lmi status": AWS,
    "lmi logs": AWS,
}
_RUN = {"cat", "cd", "cp", "curl", "echo", "export", "lmi", "ls", "mkdir", "printf", "python", "tail", "."}


@dataclass(frozen=True)
class Snippet:
    """A block. `where` is its page and line."""

    where: str
    language: str
    title: str
    text: str
    marked: str
    """Why it is not run, as the page says."""

    @property
    def request(self) -> tuple[str, str] | None:
        """Method and path, if it is a body or an answer."""
        found = _REQUEST.match(self.title)
        return (found[1], found[2]) if found else None

    @property
    def reason(self) -> str:
        """Why it is not run, or nothing."""
        if self.marked or self.language != "sh":
            return self.marked
        return next(filter(None, map(_reason, commands(self.text))), "")


def snippets(page: Path) -> list[Snippet]:
    """Return all blocks of a page. None is left out, however it is written."""
    text = page.read_text()
    found = [
        Snippet(
            f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, block.start('language')) + 1}",
            block["language"],
            block["title"] or "",
            textwrap.dedent(block["text"]),
            block["reason"] or "",
        )
        for block in _BLOCK.finditer(text)
    ]
    assert 2 * len(found) == len(_FENCE.findall(text)), f"{page}: a block is not written like the others"
    assert len(re.findall("<!-- not run", text)) == sum(bool(one.marked) for one in found), page
    return found


def commands(script: str) -> list[list[str]]:
    """Return the words of each command, without what is redirected."""
    found: list[list[str]] = []
    pending = ""
    for line in script.replace("\\\n", " ").splitlines():
        pending += line + "\n"
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:  # a quoted text goes on in the next line
            continue
        pending = ""
        part: list[str] = []
        for word in [*words, "|"]:
            if word not in ("|", "&&", "&", ">"):
                part.append(word)
            elif part:
                if word != "|" or part not in found[-1:]:
                    found.append(part)
                part = []
    assert not pending, script
    return found


def _reason(command: list[str]) -> str:
    if "--dry-run" in command:
        return ""
    if command[:2] == ["lmi", "invoke"] and "--endpoint-name" in command:
        return AWS
    return _NOT_RUN.get(command[0]) or _NOT_RUN.get(" ".join(command[:2]), "")


# What is not run is parsed


def parse(language: str, text: str) -> None:
    """Check a block as far as that is possible without running it. Raises an error if it cannot be right."""
    _PARSERS[language](text)


def _parse_sh(text: str) -> None:
    subprocess.run(["bash", "-n", "-c", text], check=True, timeout=120)
    for command in commands(text):
        program, *arguments = itertools.dropwhile(_ASSIGNMENT.match, command)
        assert program in _RUN | _CHECKS.keys(), f"nobody knows how to check {program}"
        if program in _CHECKS:
            _CHECKS[program](arguments)


def _parse_python(text: str) -> None:
    compile(text, "<page>", "exec")


def _parse_json(text: str) -> None:
    try:
        json.loads(text)
    except ValueError:
        for line in text.splitlines():
            json.loads(line)


def _parse_properties(text: str) -> None:
    """Read options as the server does. An unknown name, which is a warning there, is an error here."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "serving.properties").write_text(text)
        loaded = load_properties(Path(folder), {}, registry())
    assert loaded.explicit
    assert not loaded.unknown, loaded.unknown


def _parse_ini(text: str) -> None:
    configparser.ConfigParser().read_string(text)


def _parse_text(text: str) -> None:
    """An illustration. What could be run or set must say so."""
    first = {line.split()[0] for line in text.splitlines() if line.strip()}
    assert not first & (_RUN | {name.split()[0] for name in _NOT_RUN}), "commands have the language sh"
    assert not re.search(r"^option\.\w+\s*=", text, re.MULTILINE), "options have the language properties"


_PARSERS: dict[str, Callable[[str], object]] = {
    "": _parse_text,
    "text": _parse_text,
    "sh": _parse_sh,
    "python": _parse_python,
    "json": _parse_json,
    "yaml": yaml.safe_load,
    "properties": _parse_properties,
    "ini": _parse_ini,
}


def check_lmi(arguments: list[str]) -> None:
    """Parse the arguments of `lmi` as it does itself."""
    command: click.Command = main
    context: click.Context | None = None
    while isinstance(command, click.Group):
        name, *arguments = arguments
        command = subcommands(command)[name]
    command.make_context(name, arguments, parent=context)


def _check_pip(arguments: list[str]) -> None:
    assert arguments[0] == "install"
    project = (ROOT / "pyproject.toml").read_text()
    for option, value in zip(arguments, [*arguments[1:], ""], strict=True):
        if option in ("--requirement", "--constraint", "-r", "-c"):
            assert (ROOT / value).is_file(), value
        if found := re.match(r"(?:\.|lmi-handlers)\[([^]]+)\]$", option):
            missing = [name for name in found[1].split(",") if not re.search(rf"^{name} = \[", project, re.MULTILINE)]
            assert not missing, missing


def _check_make(arguments: list[str]) -> None:
    subprocess.run(["make", "-n", *arguments], cwd=ROOT, check=True, capture_output=True, timeout=240)


def _check_files(arguments: list[str]) -> None:
    """Check that the files that `-f` names exist."""
    for option, value in itertools.pairwise(arguments):
        if option == "-f":
            assert (ROOT / value).is_file(), value


def _check_aws(arguments: list[str]) -> None:
    service, operation, *rest = arguments
    assert service in boto3.Session().get_available_services()
    if (service, operation) not in {("s3", "sync"), ("s3", "cp"), ("cloudformation", "deploy")}:  # not of the API
        client = boto3.client(service, region_name="us-east-1")  # type: ignore[call-overload]  # any service
        assert operation.replace("-", "_") in client.meta.method_to_api_mapping
    for name, value in itertools.pairwise(rest):
        if name == "--template-file" or value.startswith("fileb://"):
            assert (ROOT / value.removeprefix("fileb://")).is_file(), value


def _check_serve(arguments: list[str]) -> None:
    """Check `serve run module:application`, Ray's command."""
    assert arguments[0] == "run"
    module, _, name = arguments[1].partition(":")
    assert importlib.util.find_spec(module) is not None
    assert name


_CHECKS: dict[str, Callable[[list[str]], object]] = {
    "lmi": check_lmi,
    "pip": _check_pip,
    "make": _check_make,
    "docker": _check_files,
    "kubectl": _check_files,
    "aws": _check_aws,
    "ray": lambda arguments: None,
    "serve": _check_serve,
    "pytest": lambda arguments: None,
}
