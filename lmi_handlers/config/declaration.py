"""The declaration of a backend. Data only, so every process may import it: the engine stays out."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from lmi_handlers.config.option import declared_options, text_of
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.gguf import GgufHeader

NOTHING: Mapping[str, Any] = MappingProxyType({})


class NoOptions(msgspec.Struct, frozen=True):
    """For a backend without options of its own."""


class LmiHandler(msgspec.Struct, frozen=True, kw_only=True):
    """One of LMI's handlers, by its name in `option.entryPoint`: the value of `rolling_batch` if that is not set.

    An asynchronous handler batches continuously even with `option.rolling_batch=disable`, which LMI requires with it.
    """

    rolling_batch: str = "auto"
    asynchronous: bool = False


class GgufFormats(msgspec.Struct, frozen=True):
    """GGUF files: llama.cpp's names of `architectures`, and of `types` of weights such as "Q4_0"."""

    architectures: tuple[str, ...]
    types: tuple[str, ...]

    def why_not(self, header: GgufHeader | None) -> str | None:
        """Return why a model with this `header` is not one of these, or None if it is. Other models have no header."""
        if header is None:
            return "only reads GGUF files"
        if header.architecture not in self.architectures:
            return f"only reads GGUF files of {_listed(self.architectures)}, not {header.architecture}"
        if others := sorted(header.weight_types.difference(self.types)):
            return f"only reads GGUF files with weights in {_listed(self.types)}, not {others[0]}"
        return None


def _listed(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else "".join(names)


class BackendDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """A backend: where its class is, what it needs, which options it reads and what it does not support.

    Ours are in `backends/<engine>/__init__.py`. Other distributions name theirs by an entry point in the group
    `lmi_handlers.backends`, under the same name. Every process imports it, so its module must not import the engine.

    Name and place
        `name`             in `option.backend` and `option.rolling_batch`
        `location`         of the `Backend` class, "module:Class"; only the engine process imports it
        `pooling`          location of the class that serves embeddings and scores (`option.task`); empty if there is none
        `requires`         libraries that it imports. `auto` looks at the first
        `requires_with`    "option=value" -> a library that is imported only then
        `install`          what pip installs them with, such as "my-engine[gpu]"

    Options
        `options`          struct of the backend's own options; no secrets, because `lmi check` and the log show them
        `reads`            names of the shared options (fields of `ServingProperties`) that it reads
        `choices`          shared option -> the values that it takes, where the option has more. `auto` chooses another
                           backend for the others
        `defaults`         its defaults for shared options that have none, for the documentation
        `without_effect`   names of options that it accepts for LMI's sake -> why they have no effect
        `remote`           option -> the value with which the engine computes on the machines of a cluster
        `precision`        location of a function that chooses the number type of the computation for `lmi check`,
                           `(ServingProperties, GgufHeader or None) -> (type, reason)`; its module must not import the engine
        `passes_options`   options that it does not read are passed to the engine, which checks them
                           (`passed_on`, `Backend.check_options`)
        `checks_options`   `lmi check` calls `Backend.check_options` for other reasons
        `needs_model`      false if it generates without weights; it then gets a byte-level tokenizer
        `needs_weights`    false if it only needs the model's configuration and tokenizer. Weights are then not downloaded,
                           and the header of any GGUF file is enough
        `reads_gguf`       the GGUF files that it reads itself. Other backends get GGUF files converted to safetensors.
                           It serves nothing else unless `architectures` names some

    Choice
        `priority`         `auto` tries backends in this order, highest first; it never chooses one with 0
        `gpus`             "NVIDIA", "AMD": GPUs that `auto` must find before it chooses this backend
        `architectures`    if not empty, `auto` only chooses this backend for a folder whose config.json names one of
                           these. If loading raises `UnsupportedModel` nevertheless, `auto` takes transformers
        `replicates`       by default, each GPU that holds the model gets an engine of its own: GPUs that share a model
                           work one after the other
        `cpu_only`         computes on the CPU, so `auto` prefers transformers if that can use a GPU
        `rolling_batch`    LMI's words for it in `option.rolling_batch`, the usual one first
        `aliases`          more names for it in `option.backend`
        `handlers`         LMI's handlers that choose it

    Requests
        `unsupported`      field of `SamplingParams` (or "adapters", "priority", "continuation") -> why it is not supported
        `conditional`      field -> when it is rejected although it is supported
        `sampled_defaults` LMI's defaults for sampling parameters that a request with `do_sample` leaves out
        `untested`         what its tests do not cover
    """

    name: str
    location: str
    pooling: str = ""
    requires: tuple[str, ...] = ()
    requires_with: Mapping[str, str] = NOTHING
    install: str = ""
    options: type[msgspec.Struct] = NoOptions
    reads: tuple[str, ...] = ()
    choices: Mapping[str, tuple[str, ...]] = NOTHING
    defaults: Mapping[str, Any] = NOTHING
    without_effect: Mapping[str, str] = NOTHING
    remote: Mapping[str, str] = NOTHING
    precision: str = ""
    passes_options: bool = False
    checks_options: bool = False
    needs_model: bool = True
    needs_weights: bool = True
    reads_gguf: GgufFormats | None = None
    priority: int = 0
    gpus: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    replicates: bool = False
    cpu_only: bool = False
    rolling_batch: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    handlers: Mapping[str, LmiHandler] = NOTHING
    unsupported: Mapping[str, str] = NOTHING
    conditional: Mapping[str, str] = NOTHING
    sampled_defaults: Mapping[str, float] = NOTHING
    untested: tuple[str, ...] = ()

    @property
    def takes_gguf(self) -> bool:
        """True if it gets GGUF files as they are."""
        return self.reads_gguf is not None or not self.needs_weights

    def why_not(self, gguf: GgufHeader | None, architectures: tuple[str, ...]) -> str | None:
        """Return why `auto` does not choose this backend for such a model, or None if it may.

        `gguf` is None for a model of another format. `architectures` come from its config.json; empty if not known.
        """
        if self.reads_gguf is not None and (gguf is not None or not self.architectures):
            return self.reads_gguf.why_not(gguf)
        if not self.architectures or set(self.architectures).intersection(architectures):
            return None
        return f"is not chosen for {', '.join(architectures) or 'a model before its files are here'}"

    def wrong_choice(self, properties: ServingProperties) -> str | None:
        """Return the name of a shared option with a value that this backend does not take, or None."""
        values = {name: text_of(getattr(properties, name)) for name in self.choices}
        return next((name for name, value in values.items() if value and value not in self.choices[name]), None)

    def check_choices(self, properties: ServingProperties) -> None:
        """Raise `ConfigError` if a shared option has a value that this backend does not take."""
        if (name := self.wrong_choice(properties)) is not None:
            value, choices = getattr(properties, name), ", ".join(self.choices[name])
            raise ConfigError(f"option.{name} has value {value!r}: backend {self.name} supports {choices}")

    def is_remote(self, properties: ServingProperties) -> bool:
        """Tell whether the engine computes on other machines too, so that the GPUs of this one say nothing."""
        values = self.values(properties)
        return any(values.get(name) == value for name, value in self.remote.items())

    def values(self, properties: ServingProperties) -> dict[str, Any]:
        """Return the options that this backend reads and that are not None, shared and own, by field name."""
        own = msgspec.structs.asdict(properties.options_of(self.options))
        values = {name: getattr(properties, name) for name in self.reads} | own
        return {name: value for name, value in values.items() if value is not None}

    def passed_on(self, properties: ServingProperties) -> dict[str, str]:
        """Return the text of the options that are set and that neither the server nor this backend reads, by name.

        Those that only other backends declare are among them: the engine may have an argument of the same name.
        """
        known = {*self.reads, *self.options.__struct_fields__}
        shared = {
            name: value
            for name, declared in declared_options(ServingProperties).items()
            if not declared.option.server and (value := getattr(properties, name)) != declared.default
        }
        others = {name: text_of(value) for name, value in (shared | properties.engine_options).items()}
        return {name: text for name, text in others.items() if name not in known} | properties.extra
