"""Turns serving.properties and the environment into one frozen `ServingProperties`, with the source of every value."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from lmi_handlers.config.custom_code import FUNCTION, names_script
from lmi_handlers.config.declaration import BackendDeclaration
from lmi_handlers.config.environment import declared_variables
from lmi_handlers.config.no_effect import DEPRECATED_KEYS, NO_EFFECT, TGI_CHANGES_ANSWERS, TGI_NO_EFFECT
from lmi_handlers.config.not_provided import OPTIONS_NOT_PROVIDED, refused_option, refused_variables
from lmi_handlers.config.option import DeclaredOption, InvalidValue, text_of
from lmi_handlers.config.options import ServingProperties, as_name, list_names, read_template_kwargs
from lmi_handlers.config.registry import SERVER, SHARED, Registry
from lmi_handlers.config.scripts import PREDICTIVE_HANDLERS, find_script
from lmi_handlers.config.store_settings import StoreSettings
from lmi_handlers.config.variables import (
    NATIVE,
    OVERRIDES,
    SM_VLLM,
    SM_VLLM_DEFAULTS,
    TGI,
    VLLM_DEFAULTS,
    Given,
    OptionVariable,
)
from lmi_handlers.core.custom_attributes import list_keys
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.redaction import REDACTED, is_hidden, is_secret, redacted

__all__ = [
    "LoadedProperties",
    "ServingProperties",
    "Setting",
    "examine_properties",
    "load_properties",
    "read_properties",
]

FILE_NAME = "serving.properties"
DEFAULT = "default"
LOADING_REQUEST = "the request that loaded the model"

MAX_FILE = 1 << 20
"""Bytes of serving.properties."""

MAX_NAMES = 1000
"""Options in it. Each that is not known is compared with all that are, which takes more than a millisecond."""

_LINE_END = re.compile(r"\r\n?|\n")
_BLANKS = " \t\f"
_COMMENTS = ("#", "!")

NEAR = 0.85
"""Similarity from which a name counts as a misspelling of another: max_tokns does, my_threshold does not."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A name, its effective value and the source of the value: serving.properties, a variable, a request or "default".

    `variable` names the environment variable, or is "" if it is none. `read_by` is empty for unknown names and for names
    without effect. `note` then says why. `given` is the text as it was written, "" for defaults and for secrets. `hint`
    says what looks unintended about it. `refused` means that one of the mistakes is about this setting.
    """

    key: str
    value: Any
    source: str
    variable: str = ""
    given: str = ""
    read_by: tuple[str, ...] = ()
    note: str = ""
    hint: str = ""
    refused: bool = False

    @property
    def text(self) -> str:
        """The value as written in the file, with credentials redacted."""
        return REDACTED if is_hidden(self.key) else redacted(text_of(self.value))


class UnknownName(msgspec.Struct, frozen=True):
    """A name that is not declared, and a warning. `kept` means that `properties.extra` has it for the backend."""

    key: str
    source: str
    warning: str
    kept: bool


class LoadedProperties(msgspec.Struct, frozen=True, kw_only=True):
    """The properties, and what an operator wants to know about them.

    `explicit` has the options that are set, `defaults` all others. `deprecated` has one sentence per deprecated name. An
    option in one of the `mistakes`, which are sentences, has its default.
    """

    properties: ServingProperties
    explicit: tuple[Setting, ...]
    defaults: tuple[Setting, ...]
    deprecated: tuple[str, ...]
    unknown: tuple[UnknownName, ...]
    mistakes: tuple[str, ...] = ()

    def source(self, *keys: str) -> str:
        """Return where the first of these options that is set comes from, or "default"."""
        sources = {setting.key: setting.source for setting in self.explicit}
        return next((sources[key] for key in keys if key in sources), DEFAULT)

    def sets(self, *keys: str) -> bool:
        """Tell whether any of these options is set."""
        return any(setting.key in keys for setting in self.explicit)

    def redacted(self) -> dict[str, str]:
        """Return the options that are set, as text that may be logged."""
        return {setting.key: setting.text for setting in self.explicit}

    def warnings(self, backend: BackendDeclaration) -> tuple[str, ...]:
        """Return all warnings. What is refused has an error instead."""
        hints = (
            f"{setting.key} has value {setting.text!r}: {setting.hint} (from {setting.source})"
            for setting in self.explicit
            if setting.hint and not setting.refused
        )
        unknown = (*self.unknown_names(backend), *self.misspelt(backend))
        return (*self.deprecated, *hints, *unknown, *self.unread(backend))

    def with_mistake(self, key: str, cause: str) -> LoadedProperties:
        """Return these properties with one more mistake, about the option `key`."""
        about = next((setting for setting in self.explicit if setting.key == key), None)
        hint = f"; {about.hint}" if about is not None and about.hint else ""
        return msgspec.structs.replace(
            self,
            mistakes=(*self.mistakes, f"{cause}{hint} (from {self.source(key)})"),
            explicit=tuple(
                msgspec.structs.replace(setting, refused=True) if setting is about else setting
                for setting in self.explicit
            ),
        )

    def unknown_names(self, backend: BackendDeclaration) -> tuple[str, ...]:
        """Return a warning for each name that neither the server nor the engine can know."""
        return tuple(name.warning for name in self.unknown if not (backend.passes_options and name.kept))

    def misspelt(self, backend: BackendDeclaration) -> tuple[str, ...]:
        """Return a warning for each name that is passed on to the engine, but is near to one that is read here."""
        if not backend.passes_options:
            return ()
        settings = (*self.explicit, *self.defaults)
        read = [item.key for item in settings if {backend.name, SERVER} & {*item.read_by}]
        known = [key for key in read if key.startswith("option.")]
        near = {name: _nearest(name.key, known) for name in self.unknown if name.kept}
        return tuple(
            f"{name.key} is unknown here and passed on to {backend.name}; did you mean {key}? (from {name.source})"
            for name, key in near.items()
            if key
        )

    def unread(self, backend: BackendDeclaration) -> tuple[str, ...]:
        """Return a warning for each option that is set but neither read by the backend nor passed on to its engine.

        So is one that the server does not read because of others, for example how requests are batched.
        """
        ignored = self.properties.ignored
        others = (
            f"{setting.key} has no effect: {ignored[setting.key]} (from {setting.source})"
            for setting in self.explicit
            if setting.key in ignored and backend.name not in setting.read_by and not setting.refused
        )
        unread = (
            f"{setting.key} has no effect on backend {backend.name}; it is only read by {', '.join(setting.read_by)} "
            f"(from {setting.source})"
            for setting in self.explicit
            if setting.read_by and not backend.passes_options and not {backend.name, SERVER} & {*setting.read_by}
            if not setting.refused
        )
        return (*others, *unread)


def load_properties(
    model_dir: Path | None,
    environ: Mapping[str, str],
    registry: Registry,
    given: Iterable[Given] = (),
    overrides: Mapping[str, str] | None = None,
) -> LoadedProperties:
    """Read the variables in `environ`, and serving.properties in `model_dir` if it exists.

    `registry` has the options that may be set, and `given` what variables of other servers set. `overrides` take
    precedence over everything: they come with the request that loads one of several models. An unknown name is only a
    warning. Raises `ConfigError` that lists all mistakes at once, one per line.
    """
    loaded = examine_properties(model_dir, environ, registry, given, overrides)
    if loaded.mistakes:
        raise ConfigError("\n".join(loaded.mistakes))
    return loaded


def examine_properties(
    model_dir: Path | None,
    environ: Mapping[str, str],
    registry: Registry,
    given: Iterable[Given] = (),
    overrides: Mapping[str, str] | None = None,
) -> LoadedProperties:
    """Return what `load_properties` does, with the mistakes: more may be found in what is left without them.

    Raises `ConfigError` if serving.properties cannot be read at all.
    """
    if model_dir is not None and not model_dir.is_dir():
        raise ConfigError(f"model directory {model_dir} does not exist")
    return _Loading(model_dir, registry, tuple(given)).load(environ, overrides or {})


def read_properties(path: Path) -> dict[str, str]:
    """Return the names and values of a .properties file. The format is Java's, in UTF-8.

    If a name occurs twice, the last one takes precedence. Raises `ConfigError` that names the file.
    """
    import javaproperties  # only here: most processes never read the file, and this also imports XML and HTTP clients

    try:
        is_special = path.exists() and not (path.is_file() or path.is_dir())
        if is_special:  # reading a named pipe could wait forever, and a device has no end
            raise ConfigError(f"{path} cannot be read: it is not a file")
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise ConfigError(f"{path} has more than {MAX_FILE} bytes")
        properties: dict[str, str] = javaproperties.loads("\n".join(_whole_lines(data.decode("utf-8-sig"))))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8 text: byte {error.object[error.start]:#04x} at {error.start}"
        ) from error
    except javaproperties.InvalidUEscapeError as error:
        raise ConfigError(f"{path} is not a properties file: {error}") from error
    if len(properties) > MAX_NAMES:
        raise ConfigError(f"{path} has {len(properties)} options, and may have {MAX_NAMES}")
    return properties


def _whole_lines(text: str) -> Iterator[str]:
    """Yield the lines, each with those that continue it. javaproperties itself needs hours for a million bytes of these."""
    lines = iter(_LINE_END.split(text))
    for line in lines:
        part = line.lstrip(_BLANKS)
        if part[:1] in ("", *_COMMENTS):
            continue
        parts = []
        while (len(part) - len(part.rstrip("\\"))) % 2:
            parts.append(part[:-1])
            part = next(lines, "").lstrip(_BLANKS)
        whole = "".join([*parts, part])
        yield f"\\{whole}" if whole.startswith(_COMMENTS) else whole


class _Entry(msgspec.Struct, frozen=True):
    """A name and its text as found, not yet parsed."""

    key: str
    text: str
    source: str
    variable: str = ""

    @property
    def shown(self) -> str:
        """The text for messages."""
        return REDACTED if is_hidden(self.key) else redacted(self.text)


class _Loading:
    """One run of `load_properties`. Collects settings, warnings and mistakes until everything has been read."""

    def __init__(self, model_dir: Path | None, registry: Registry, given: tuple[Given, ...]) -> None:
        self.model_dir = model_dir
        self.given = given
        self.registry = registry
        self.keys = registry.keys
        self.values: dict[str, Any] = {}
        self.explicit: dict[str, Setting] = {}
        self.extra: dict[str, str] = {}
        self.deprecated: list[str] = []
        self.unknown: list[UnknownName] = []
        self.mistakes: list[str] = []
        self.refused: dict[str, str] = {}

    def load(self, environ: Mapping[str, str], overrides: Mapping[str, str]) -> LoadedProperties:
        self._take(_entries((key, text, LOADING_REQUEST) for key, text in overrides.items()))
        for entries in self._layers(environ):
            self._take(entries)
        for item in (*self.given, *_without_effect(environ), *_unknown_variables(environ)):
            if item.note:
                text = environ[item.variable].encode(errors="backslashreplace").decode()  # it may be any bytes
                value = REDACTED if is_secret(item.variable, text) else text
                self.explicit[item.variable] = Setting(
                    key=item.variable,
                    value=value,
                    source=_source(item.variable),
                    variable=item.variable,
                    note=item.note,
                    hint=item.hint
                    or (f"it has no effect, so answers may differ; {item.note}" if item.changes_answers else ""),
                )
        if not self._has_custom_code(environ):  # which may read options in its own way
            self.mistakes += self.refused.values()
            self._mark(*self.refused)
        self.mistakes += refused_variables(environ)
        self._follow_quantization()
        self._check_batching()
        self._follow_handler()
        self._check_backend()
        self._check_deadlines()
        self._check_custom_attributes()
        self._check_texts()
        self._name_model()
        return LoadedProperties(
            properties=self._properties(),
            explicit=tuple(self.explicit.values()),
            defaults=tuple(
                Setting(key=declared.key, value=declared.default, source=DEFAULT, read_by=declared.read_by)
                for declared in self.registry.options.values()
                if declared.key not in self.explicit
            ),
            deprecated=tuple(self.deprecated),
            unknown=tuple(self.unknown),
            mistakes=tuple(self.mistakes),
        )

    def _properties(self) -> ServingProperties:
        return ServingProperties(
            **{name: value for name, value in self.values.items() if name in SHARED},
            model_dir=None if self.model_dir is None else str(self.model_dir),
            has_asynchronous_handler=self.registry.is_asynchronous(self.values.get("entry_point")),
            is_named=not self.explicit.keys().isdisjoint(("option.model_name", "option.served_model_name")),
            has_vllm_variables=bool(self.given),
            engine_options={name: value for name, value in self.values.items() if name not in SHARED},
            extra=self.extra,
        )

    def _layers(self, environ: Mapping[str, str]) -> Iterable[list[_Entry]]:
        """Yield the entries of each source, highest precedence first."""
        yield self._variables(OVERRIDES, environ)
        yield self._file()
        yield _option_variables(environ)
        yield _of_variables((item.key, item.text, item.variable) for item in self.given)
        if self.given:
            yield _of_variables((key, text, SM_VLLM_DEFAULTS) for key, text in VLLM_DEFAULTS.items())
        yield self._variables(NATIVE, environ)
        yield self._variables(TGI, environ)
        yield _server_variables(environ)

    def _variables(self, table: Mapping[str, OptionVariable], environ: Mapping[str, str]) -> list[_Entry]:
        """Return the entries for the variables in `table` that are set. For each option, the first takes precedence."""
        entries: dict[str, _Entry] = {}
        for name, variable in table.items():
            text = variable.convert(environ.get(name, "").strip())
            if text and variable.option in self.registry.options:
                key = self.registry.options[variable.option].key
                entries.setdefault(key, _Entry(key, text, _source(name), name))
        return list(entries.values())

    def _file(self) -> list[_Entry]:
        path = None if self.model_dir is None else self.model_dir / FILE_NAME
        if path is None or not path.exists():
            return []
        return _entries((key, text, FILE_NAME) for key, text in read_properties(path).items())

    def _take(self, entries: list[_Entry]) -> None:
        """Take entries that no source of higher precedence has set. Two names for one option must agree."""
        found: dict[str, _Entry] = {}
        for entry in entries:
            # A lone \ud800 in the file, or invalid bytes in a variable: such text cannot be sent or stored.
            if _SURROGATE.search(entry.key + entry.text):
                self.mistakes.append(f"{entry.key!a} has text that is not valid Unicode (from {entry.source})")
                continue
            declared = self.keys.get(entry.key)
            if declared is None:
                self._take_other(entry)
                continue
            first = found.setdefault(declared.key, entry)
            if first.text != entry.text:
                self.mistakes.append(
                    f"{first.key}={first.shown} and {entry.key}={entry.shown} "
                    f"are the same option, but have different values (from {_sources(first.source, entry.source)})"
                )
        for entry in found.values():
            declared = self.keys[entry.key]
            if declared.key not in self.explicit:
                self._take_option(declared, entry)

    def _take_option(self, declared: DeclaredOption, entry: _Entry) -> None:
        deprecated = DEPRECATED_KEYS.get(entry.key, declared.option.deprecated)
        if deprecated:
            self.deprecated.append(f"{entry.key} is deprecated: {deprecated} (from {entry.source})")
        value: Any = entry.text
        hint, is_wrong = _hint(entry), False
        try:
            value = self.values[declared.name] = declared.parse(entry.text)
        except InvalidValue as error:
            is_wrong, cause = True, f"{error}; {hint}" if hint else str(error)
            self.mistakes.append(f"{entry.key} has value {entry.shown!r}: {cause} (from {entry.source})")
        self.explicit[declared.key] = Setting(
            key=declared.key,
            value=value,
            source=entry.source,
            variable=entry.variable,
            given=entry.text,
            read_by=declared.read_by,
            hint=hint,
            refused=is_wrong,
        )
        self._refuse(declared.key, entry)

    def _take_other(self, entry: _Entry) -> None:
        if entry.key in self.explicit:
            return
        given = entry.text
        if is_secret(entry.key, entry.text):
            entry, given = msgspec.structs.replace(entry, text=REDACTED), ""
        if entry.key in NO_EFFECT:
            note = NO_EFFECT[entry.key]
        elif entry.key in OPTIONS_NOT_PROVIDED:
            note = "the server always works in this way"
        else:
            note = self._unknown(entry)
        self.explicit[entry.key] = Setting(
            key=entry.key, value=entry.shown, source=entry.source, variable=entry.variable, given=given, note=note
        )
        self._refuse(entry.key, entry)

    def _refuse(self, key: str, entry: _Entry) -> None:
        reason = refused_option(key, entry.text)
        if reason is None:
            return
        sentence = f"{redacted(reason)} (from {entry.source})"
        if key.startswith("option."):
            self.refused[key] = sentence
        else:
            self.mistakes.append(sentence)
            self._mark(key)

    def _mark(self, *keys: str) -> None:
        """Note that these settings are in a mistake."""
        for key in keys:
            self.explicit[key] = msgspec.structs.replace(self.explicit[key], refused=True)

    def _has_custom_code(self, environ: Mapping[str, str]) -> bool:
        entry_point, handler = self.values.get("entry_point"), self.values.get("handler", FUNCTION)
        asynchronous = self.registry.is_asynchronous(entry_point)
        try:
            return find_script(self.model_dir, entry_point, environ, handler, asynchronous=asynchronous) is not None
        except ConfigError:  # code is asked for, and whoever looks for it next says what is wrong
            return True

    def _unknown(self, entry: _Entry) -> str:
        """Warn, and keep the text for a backend that may know the name. Returns the note for `lmi check`."""
        nearest = _nearest(entry.key, (*NO_EFFECT, *OPTIONS_NOT_PROVIDED, *reversed(list(self.keys))))
        hint = f"; did you mean {nearest}?" if nearest else ""
        name = entry.key.removeprefix("option.")
        secret = entry.text == REDACTED
        if secret:
            hint = "; it looks like a secret and is not passed on: use an environment variable for secrets"
        elif name != entry.key:
            self.extra[name] = entry.text
        warning = f"unknown option {entry.key}{hint} (from {entry.source})"
        kept = not secret and name != entry.key
        self.unknown.append(UnknownName(entry.key, entry.source, warning, kept))
        return f"unknown{hint}"

    def _follow_quantization(self) -> None:
        """Let LMI's older names set `option.quantize`."""
        for name, method in (("load_in_8bit", "bitsandbytes8"), ("load_in_4bit", "bitsandbytes4")):
            if not self.values.get(name):
                continue
            setting = self.explicit[f"option.{name}"]
            if self.values.get("quantize", method) != method:
                self._conflict(self.explicit["option.quantize"], setting, "they name different methods")
            else:
                self._imply("quantize", method, setting)

    def _check_batching(self) -> None:
        if self.values.get("batch_size", 1) == 1:
            return
        batch_size = self.explicit["batch_size"]
        if self.values.get("enable_streaming", "false") != "false":
            self._conflict(self.explicit["option.enable_streaming"], batch_size, "a dynamic batch cannot be streamed")
        if self.values.get("rolling_batch", "auto") == "auto":
            self._imply("rolling_batch", "disable", batch_size)
        elif self.values["rolling_batch"] != "disable":
            rolling_batch = self.explicit["option.rolling_batch"]
            self._conflict(rolling_batch, batch_size, "dynamic batching turns continuous batching off")

    def _follow_handler(self) -> None:
        """Let `option.entryPoint` choose the engine. An asynchronous handler also decides how requests are batched."""
        entry_point = self.explicit.get("option.entryPoint")
        if entry_point is None or names_script(entry_point.text) or entry_point.text in PREDICTIVE_HANDLERS:
            return
        if entry_point.text not in self.registry.handlers:
            self.mistakes.append(
                f"option.entryPoint={entry_point.text} is not supported: must be one of {', '.join(self.registry.handlers)}; "
                f"or a Python file in the model directory (from {entry_point.source})"
            )
            return
        backend, handler = self.registry.handlers[entry_point.text]
        rolling_batch = self.values.get("rolling_batch", "auto")
        if rolling_batch == "auto" or (rolling_batch == "disable" and handler.asynchronous):
            if handler.asynchronous and self.values.get("batch_size", 1) > 1:
                self._conflict(entry_point, self.explicit["batch_size"], "an asynchronous handler batches continuously")
                return
            self._imply("rolling_batch", handler.rolling_batch, entry_point)
        elif rolling_batch == "disable":
            if self.values.get("backend", "auto") not in ("auto", backend):
                self._conflict(self.explicit["option.backend"], entry_point, "they name different engines")
            self._imply("backend", backend, entry_point)
        elif handler.rolling_batch not in ("auto", rolling_batch):
            self._conflict(self.explicit["option.rolling_batch"], entry_point, "they name different engines")

    def _imply(self, name: str, value: str, cause: Setting) -> None:
        """Set an option to what `cause` implies. "auto" implies nothing, and an explicit backend is kept."""
        declared = self.registry.options[name]
        if value == "auto" or (name == "backend" and self.values.get("backend", "auto") != "auto"):
            return
        self.values[name] = value
        self.explicit[declared.key] = Setting(
            key=declared.key,
            value=value,
            source=f"{cause.key}={cause.text} in {cause.source}",
            read_by=declared.read_by,
        )

    def _check_backend(self) -> None:
        rolling_batch, backend = self.explicit.get("option.rolling_batch"), self.explicit.get("option.backend")
        if rolling_batch is None or backend is None or backend.value == "auto":
            return
        chosen = self.registry.requested(ServingProperties(rolling_batch=rolling_batch.value))
        if chosen not in ("auto", backend.value):
            self._conflict(rolling_batch, backend, "they name different backends")

    def _check_deadlines(self) -> None:
        timeout = self.values.get("predict_timeout", ServingProperties().predict_timeout)
        for name in ("response_deadline", "stream_deadline"):
            if (self.values.get(name) or 0) >= timeout:
                deadline = self.explicit[f"option.{name}"]
                self.mistakes.append(
                    f"{deadline.key}={deadline.text} must be less than option.predict_timeout={timeout}, which ends the "
                    f"request with an error (from {deadline.source})"
                )

    def _check_custom_attributes(self) -> None:
        for name in ("custom_attributes", "tenant_attribute"):
            text = self.values.get(name, "")
            try:
                if len(list_keys(text)) > 1 and name == "tenant_attribute":
                    raise ValueError(f"{text!r} is more than one key")
            except ValueError as error:
                setting = self.explicit[f"option.{name}"]
                self.mistakes.append(f"{setting.key}: {error} (from {setting.source})")

    def _check_texts(self) -> None:
        """Check the values of options that are texts with a structure of their own."""
        self._check_text("served_model_name", list_names)
        self._check_text("default_chat_template_kwargs", read_template_kwargs)

    def _check_text(self, name: str, read: Callable[[str], object]) -> None:
        try:
            if name in self.values:
                read(self.values[name])
        except InvalidValue as error:
            setting = self.explicit[f"option.{name}"]
            self.mistakes.append(f"{setting.key}: {error} (from {setting.source})")
            del self.values[name]

    def _conflict(self, one: Setting, other: Setting, why: str) -> None:
        for setting in (one, other):  # neither holds in what is checked next
            self.values.pop(self.keys[setting.key].name, None)
            self._mark(setting.key)
        self.mistakes.append(
            f"{one.key}={one.text} conflicts with {other.key}={other.text}: {why} "
            f"(from {_sources(one.source, other.source)})"
        )

    def _name_model(self) -> None:
        """Name the model after its directory, as LMI does, unless a variable such as HF_MODEL_ID names the model."""
        if self.model_dir is None or not self.values.keys().isdisjoint(("model_name", "served_model_name")):
            return
        model_id = self.explicit.get("option.model_id")
        if model_id is None or model_id.variable not in ("HF_MODEL_ID", f"{SM_VLLM}MODEL"):
            self.values["model_name"] = as_name(self.model_dir.resolve().name) or "model"


def _option_variables(environ: Mapping[str, str]) -> list[_Entry]:
    """Map `OPTION_FOO_BAR` to `option.foo_bar`. A name with lower-case letters keeps its case."""
    pairs = []
    for name, text in sorted(environ.items()):
        if not name.startswith("OPTION_"):
            continue
        suffix = name.removeprefix("OPTION_")
        suffix = suffix.lower() if re.fullmatch(r"[A-Z\d_]+", suffix) else suffix
        key = {"entrypoint": "option.entryPoint", "engine": "engine"}.get(suffix, f"option.{suffix}")
        pairs.append((key, text, name))
    return _of_variables(pairs)


def _without_effect(environ: Mapping[str, str]) -> Iterable[Given]:
    """Yield the variables of TGI's container that are set, but have no effect."""
    for name, reason in TGI_NO_EFFECT.items():
        if environ.get(name, "").strip():
            yield Given(name, note=reason, changes_answers=name in TGI_CHANGES_ANSWERS)


def _unknown_variables(environ: Mapping[str, str]) -> Iterable[Given]:
    """Yield the variables of LMI's server that are set, but not known."""
    store = (name for declared in declared_variables(StoreSettings).values() for name in declared.variable.names)
    names = (*OVERRIDES, *NATIVE, *store, *_SERVER_NAMES.values(), _OF_LMIS_IMAGES)
    known = [name.removeprefix(_SERVING) for name in names]
    for name, text in sorted(environ.items()):
        rest = name.removeprefix(_SERVING)
        if rest not in (name, *known) and text.strip() and name.isascii():
            nearest = _nearest(rest, known)
            hint = f"; did you mean {_SERVING}{nearest}?" if nearest else ""
            yield Given(name, note=f"unknown{hint}", hint=f"it is not known, and has no effect{hint}")


def _server_variables(environ: Mapping[str, str]) -> list[_Entry]:
    """Return the entries of LMI's names that are not options here."""
    return _of_variables((key, environ.get(name, ""), name) for key, name in _SERVER_NAMES.items())


def _entries(found: Iterable[tuple[str, str, str]]) -> list[_Entry]:
    """Trim names and values, and drop the empty ones, as LMI does."""
    trimmed = (_Entry(key.strip(), text.strip(), source) for key, text, source in found)
    return [entry for entry in trimmed if entry.key and entry.text]


def _of_variables(found: Iterable[tuple[str, str, str]]) -> list[_Entry]:
    """Do the same for keys, texts and names of variables."""
    trimmed = (_Entry(key.strip(), text.strip(), _source(name), name) for key, text, name in found)
    return [entry for entry in trimmed if entry.key and entry.text]


def _source(variable: str) -> str:
    return f"environment variable {variable}"


def _sources(one: str, other: str) -> str:
    return one if one == other else f"{one} and {other}"


def _nearest(key: str, names: Iterable[str]) -> str:
    """Return the name closest to `key`, with or without the prefix `option.`. Returns "" if none is close."""
    known = {name.removeprefix("option.").lower(): name for name in names}
    close = difflib.get_close_matches(key.removeprefix("option.").lower(), known, n=1, cutoff=NEAR)
    return known[close[0]] if close else ""


def _hint(entry: _Entry) -> str:
    """Say what of a text is probably not meant to be part of it: a comment in a file, or quotes. "" for any other text."""
    if entry.source == FILE_NAME and _COMMENT.search(entry.text):
        return "a comment has a line of its own, and this is part of the value"
    return "the quotes are part of the value: leave them out" if _QUOTED.fullmatch(entry.text) else ""


_SERVING = "SERVING_"
_OF_LMIS_IMAGES = "SERVING_FEATURES"
"""They set it themselves, so whoever starts from one has it."""
_SERVER_NAMES = {key: _SERVING + re.sub("([A-Z])", r"_\1", key).upper() for key in (*NO_EFFECT, *OPTIONS_NOT_PROVIDED)}
"""LMI's names that are not options here -> the variable."""

_COMMENT = re.compile(r"\s#")
_QUOTED = re.compile(r"""(["']).*\1""")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
