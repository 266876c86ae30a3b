"""`docker run`: what its options mean for a server that runs without a container."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from lmi_handlers.core.errors import ConfigError

CONTAINERS = ("docker", "podman", "nerdctl")
_LETTERS = "ditPq"
_SWITCHES = (
    *("--rm", "--rmi", "--detach", "--interactive", "--tty", "--privileged", "--init", "--read-only", "--quiet"),
    *("--publish-all", "--sig-proxy", "--no-healthcheck", "--oom-kill-disable", "--disable-content-trust", "--replace"),
)
"""Options of `docker run` without a value. `_LETTERS` are the short ones."""

_SHORT = {"-e": "--env", "-p": "--publish", "-v": "--volume", "--net": "--network"}
_PUBLISHED = re.compile(
    r"(?:(?P<host>\[.*\]|[\d.]+\.[\d.]+|localhost):)?(?:(?P<port>\d*):)?(?P<inside>\d{1,5})(?:/tcp)?"
)
_MAX_GPUS = 64


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of `docker run`: variables, published ports (port inside -> address and port outside) and folders.

    `mounts` is folder inside -> folder outside, and the option as it was written. `passed` are variables whose values come
    from outside, `others` the options that mean nothing without a container, as they were written. `entry_point` is empty
    if the image's own runs.
    """

    image: str = ""
    entry_point: str = ""
    environ: Mapping[str, str] = {}
    ports: Mapping[int, tuple[str, int]] = {}
    mounts: Mapping[str, tuple[str, str]] = {}
    passed: Sequence[str] = ()
    others: Sequence[str] = ()
    on_host_network: bool = False

    def outside(self, word: str) -> str:
        """Return a word of the command with the path that it has, as a value or after "=", outside the container."""
        flag, equals, path = word.rpartition("=") if word.startswith("-") else ("", "", word)
        for inside, (folder, _) in self.mounts.items():
            if path == inside or path.startswith(f"{inside}/"):
                return f"{flag}{equals}{folder.rstrip('/')}{path[len(inside) :]}"
        return word


def read_container(
    words: Sequence[str], images: Sequence[str], exported: Mapping[str, str]
) -> tuple[Container, list[str]]:
    """Read the words after `docker run`, and return what they say, and the words that the container runs.

    One of `images` is part of the image's name. `exported` are variables from outside. Raises `ConfigError` if there is
    no such image.
    """
    places = [
        i
        for i, (last, word) in enumerate(itertools.pairwise(("", *words)))
        if not word.startswith("-") and not _wants_value(last)
    ]
    end = next((i for i in places if any(image in words[i] for image in images)), None)
    if end is None:
        shown = " or ".join(map(repr, images))
        raise ConfigError(f"the command starts a container, but names no image with {shown} in its name")
    environ: dict[str, str] = {}
    ports: dict[int, tuple[str, int]] = {}
    mounts: dict[str, tuple[str, str]] = {}
    passed, others, entry_point, network = [], [], [], ""
    for name, value, written in _options(words[:end]):
        match name, value.partition("="):
            case "--env", (variable, "=", text):
                environ[variable] = text
            case "--env", (variable, _, _) if variable in exported:
                environ[variable] = exported[variable]
            case "--env", (variable, _, _):
                passed.append(variable)
            case "--entrypoint", _:
                entry_point = value.split()
            case "--publish", _ if (found := _PUBLISHED.fullmatch(value)) is not None:
                ports[int(found["inside"])] = found["host"] or "", int(found["port"] or 0)
            case "--gpus", _ if (devices := _devices(value)) is not None:
                environ.setdefault("CUDA_VISIBLE_DEVICES", devices)
            case (("--volume" | "--mount"), _) if (mount := _mount(name, value)) is not None:
                mounts[mount[0]] = mount[1], written
            case _:
                network = value if name == "--network" else network
                others.append(written)
    if (visible := environ.pop("NVIDIA_VISIBLE_DEVICES", "all")) not in ("all", "void", "none"):
        environ.setdefault("CUDA_VISIBLE_DEVICES", visible)
    container = Container(
        image=words[end],
        entry_point=" ".join(entry_point),
        environ=environ,
        ports=ports,
        mounts=mounts,
        passed=passed,
        others=others,
        on_host_network=network == "host",
    )
    return container, [*entry_point, *words[end + 1 :]]


def _wants_value(option: str) -> bool:
    """Tell whether the word after a word of `docker run` is its value."""
    if option.startswith("--"):
        return "=" not in option and option not in _SWITCHES
    return option.startswith("-") and len(option[1:].lstrip(_LETTERS)) == 1


def _options(words: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield each option with its value, and both as they were written."""
    rest = iter(words)
    for word in rest:
        written = word
        if word.startswith("--"):
            name, _, value = word.partition("=")
        else:  # the last of several letters may have a value, in the same word
            letters = word[1:].lstrip(_LETTERS)
            name, value = f"-{letters[:1]}", letters[1:].removeprefix("=")
        if _wants_value(word):
            value = next(rest, "")
            written = f"{word} {shlex.quote(value)}"
        yield _SHORT.get(name, name), value, written


def _devices(text: str) -> str | None:
    """Return the GPUs that `--gpus` names, for CUDA_VISIBLE_DEVICES, or None if it means all."""
    text = text.strip("\"'")
    if (found := re.search(r"device=([^\"']+)", text)) is not None:
        return found[1]
    return ",".join(map(str, range(int(text)))) if text.isdecimal() and int(text) <= _MAX_GPUS else None


def _mount(name: str, text: str) -> tuple[str, str] | None:
    """Return the folder inside and the folder outside, or None for a volume with a name."""
    if name == "--mount":
        parts = dict(part.partition("=")[::2] for part in text.split(","))
        source = parts.get("source") or parts.get("src") or ""
        target = parts.get("target") or parts.get("destination") or parts.get("dst") or ""
    else:
        source, _, target = text.partition(":")
        target = target.partition(":")[0]
    is_folder = source.startswith(("/", "~", ".", "$"))
    return (target.rstrip("/"), source) if is_folder and target.startswith("/") else None
