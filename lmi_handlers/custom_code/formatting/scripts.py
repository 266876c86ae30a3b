"""Imports the files with formatters, and calls these."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.config.decorators import INPUT_FORMATTER, OUTPUT_FORMATTER
from lmi_handlers.config.formatter_code import FormatterCode, FormatterScript
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.custom_code.formatting.input_calls import InputFormatter
from lmi_handlers.custom_code.formatting.messages import Begin, FormatInput, Records, ScriptFormatters
from lmi_handlers.custom_code.formatting.records import ResponseCall
from lmi_handlers.custom_code.formatting.signatures import OutputKind, output_kind
from lmi_handlers.custom_code.formatting.token_answers import FormatToken, TokenAnswer, call_legacy, call_output
from lmi_handlers.custom_code.formatting.tokenizer import LazyTokenizer
from lmi_handlers.custom_code.inputs import Input
from lmi_handlers.custom_code.lmi_modules import provide
from lmi_handlers.custom_code.requirements import with_packages
from lmi_handlers.custom_code.script import import_script
from lmi_handlers.model_files.cache_dir import default_cache_dir


class Formatters:
    """The formatters of all files, by adapter. An adapter's request falls back on the model's own.

    Those of an adapter that is gone or replaced stay for the requests that are on their way, for `kept_for` seconds.
    """

    def __init__(self, code: FormatterCode, tokenizer: LazyTokenizer, kept_for: float = 0.0) -> None:
        """Import the files. Raises `ScriptFailed`."""
        self._code = code
        self._kept_for = kept_for
        self._retired: list[tuple[float, str]] = []
        self._tokenizer = tokenizer
        self._directory = code.directory
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._inputs: dict[str, Callable[[Input], tuple[bytes, bytes]]] = {}
        self._tokens: dict[str, FormatToken] = {}
        self._responses: dict[str, ResponseCall] = {}
        self.scripts: dict[str, ScriptFormatters] = {}
        provide()
        for script in code.scripts:
            self.scripts[script.adapter] = self._import(script, script.adapter)

    def knows(self, adapter: str, version: int) -> bool:
        """Tell whether this version of an adapter that came later is loaded."""
        return adapter in self.scripts and self.scripts[adapter].place == _place(adapter, version)

    def load(self, script: FormatterScript, version: int) -> None:
        """Import the file of an adapter that comes later, in place of any that it has. Raises `ScriptFailed`."""
        place = _place(script.adapter, version)
        try:
            loaded = self._import(script, place)
        except ScriptFailed:
            self._drop(place)
            raise
        self._replace(script.adapter, loaded)

    def refuse(self, adapter: str, version: int, cause: str) -> None:
        """Let the requests of an adapter fail, because its formatters cannot be loaded any more."""

        def fail(_: Input) -> tuple[bytes, bytes]:
            raise ConfigError(cause)

        place = _place(adapter, version)
        self._inputs[place] = fail
        self._replace(adapter, ScriptFormatters(input=True, output=None, place=place))

    def unload(self, adapter: str, version: int | None = None) -> bool:
        """Forget an adapter's formatters, or only those of a version. Tell whether there were any."""
        if adapter not in self.scripts or (version is not None and not self.knows(adapter, version)):
            return False
        self._replace(adapter, None)
        return True

    def format_input(self, message: FormatInput) -> tuple[bytes, bytes]:
        """Return the body, and the context for `begin`. Raises whatever the formatter raises."""
        os.chdir(self._directory)  # an earlier call may have changed it
        item = Input(message.properties, message.parts)
        return self._inputs[message.place](item)

    def begin(self, message: Begin) -> TokenAnswer:
        """Return the answer that begins."""
        return TokenAnswer(message, self._tokens[message.place], self._tokenizer)

    def format_records(self, message: Records) -> bytes:
        """Return the bytes to send. Raises whatever the formatter raises."""
        return self._responses[message.place](message.data, streams=message.streams)

    def _import(self, script: FormatterScript, place: str) -> ScriptFormatters:
        code = self._code
        of_script = CustomCode(
            path=script.path,
            directory=str(Path(script.path).parent),
            properties=code.properties,
            requirements=code.requirements,
        )
        try:
            of_script = with_packages(of_script, default_cache_dir(os.environ), lambda _: None)
            loaded = self._load(script, of_script, place)
        except BaseException as error:
            raise ScriptFailed(of_script, error) from error
        finally:
            os.chdir(code.directory)
        if of_script.packages is not None and of_script.packages not in sys.path:  # an adapter's paths are gone
            sys.path.append(of_script.packages)
        return loaded

    def _replace(self, adapter: str, loaded: ScriptFormatters | None) -> None:
        """Let new requests use what is loaded, and drop what no request can need any more."""
        now = time.monotonic()
        if (known := self.scripts.pop(adapter, None)) is not None and known != loaded:
            self._retired.append((now + self._kept_for, known.place))
        if loaded is not None:
            self.scripts[adapter] = loaded
        used = {script.place for script in self.scripts.values()}
        for until, place in self._retired:
            if until <= now and place not in used:
                self._drop(place)
        self._retired = [(until, place) for until, place in self._retired if until > now]

    def _drop(self, place: str) -> None:
        for calls in (self._inputs, self._tokens, self._responses):
            calls.pop(place, None)

    def _load(self, script: FormatterScript, code: CustomCode, place: str) -> ScriptFormatters:
        module = _import_adapter(code, script.adapter, self._directory) if script.adapter else import_script(code)
        has_input, output = script.input_formatter is not None, None
        if script.input_formatter is not None:
            function = _function(module, script.path, script.input_formatter, INPUT_FORMATTER)
            self._inputs[place] = InputFormatter(function, code.properties, self._tokenizer, self._awaited)
        if script.output_formatter is not None:
            function = _function(module, script.path, script.output_formatter, OUTPUT_FORMATTER)
            output = output_kind(function)
            if output is OutputKind.LEGACY:
                self._tokens[place] = call_legacy(function, self._awaited)
            elif output is OutputKind.OUTPUT:
                self._tokens[place] = call_output(function, self._awaited)
            else:
                takes_dicts = output is OutputKind.DICT
                self._responses[place] = ResponseCall(function, self._awaited, takes_dicts=takes_dicts)
        return ScriptFormatters(has_input, None if output is None else _NAMES[output], place)

    def _awaited(self, value: Any) -> Any:
        return self._loop.run_until_complete(value) if inspect.iscoroutine(value) else value


class ScriptFailed(Exception):
    """A file cannot be used, because of an `error` that it has raised or that describes it."""

    def __init__(self, code: CustomCode, error: BaseException) -> None:
        super().__init__(code.path)
        self.code = code
        self.error = error


_NAMES: dict[OutputKind, Any] = {
    OutputKind.LEGACY: "tokens",
    OutputKind.OUTPUT: "tokens",
    OutputKind.RESPONSE: "response",
    OutputKind.DICT: "dict",
}


def _place(adapter: str, version: int) -> str:
    return f"{adapter}@{version}"  # no adapter has such a name


def _function(module: ModuleType, path: str, name: str, decorator: str) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"{path} defines no function {name}, which is to be its @{decorator}")
    return function  # type: ignore[no-any-return]  # the author's


def _import_adapter(code: CustomCode, adapter: str, model_dir: str) -> ModuleType:
    """Import an adapter's file. A module beside it takes precedence over one of the same name beside the model's file.

    Such modules are the adapter's alone: another adapter may have some of the same names.
    """
    directory, paths, before = Path(code.directory), [*sys.path], dict(sys.modules)
    own = {path.stem for path in directory.iterdir()}
    sys.path[:] = [*(path for path in paths if path != model_dir), code.directory, model_dir]
    for name in [name for name in before if name.partition(".")[0] in own and _is_in(Path(model_dir), before[name])]:
        del sys.modules[name]
    try:
        module = import_script(code, f"adapter {adapter}")
    finally:
        sys.path[:] = paths
    for name in [name for name in sys.modules if name != module.__name__ and _is_in(directory, sys.modules[name])]:
        del sys.modules[name]
    sys.modules.update({name: known for name, known in before.items() if name not in sys.modules})
    return module


def _is_in(directory: Path, module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).is_relative_to(directory)
