"""The routes that load and unload adapters.

Sources: DJL's AdapterManagementRequestHandler, AWS's model-hosting-container-standards (the same paths below
`/adapters`, with JSON bodies), and vLLM's "Dynamically serving LoRA Adapters".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol

import msgspec

from formatters.openai.errors import error_document
from formatters.openai.schemas import OpenAIError
from lmi_handlers.apis.api import Api, Context
from lmi_handlers.apis.base import Reply
from lmi_handlers.apis.documentation import Documentation
from lmi_handlers.apis.management import (
    PAGE,
    Act,
    Fields,
    ManagementDialect,
    Paging,
    Path,
    action,
    document,
    paging,
    read_fields,
    status_of,
)
from lmi_handlers.apis.routes import JSON, TEXT, Action, Contents, Kinds, Parameter, Route
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import (
    AdapterExists,
    AdapterNotFound,
    DeadlineExceeded,
    LMIError,
    ModelNotFound,
    RequestFailed,
)
from lmi_handlers.engine.adapter_registry import RegisteredAdapter

TAG = "Adapters"

NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]


class Managed(Protocol):
    """A model with adapters. All fields of a request are `options`, which a model's own code gets."""

    name: str

    @property
    def adapters(self) -> Mapping[str, RegisteredAdapter]:
        """The adapters that are loaded, by name."""

    def load_adapter(
        self, name: str, source: str, *, pinned: bool = False, replace: bool = False, options: Fields = ...
    ) -> None:
        """Load an adapter. Raises an `LMIError` that says why it cannot be loaded."""

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter."""


class AdapterBody(msgspec.Struct):
    """`src` is the adapter's folder. A pinned adapter always stays in memory. All are loaded at once (`preload`)."""

    name: NonEmpty
    src: NonEmpty
    pin: bool = False
    preload: bool = True


class AdapterUpdate(msgspec.Struct):
    """A replacement for an adapter. By default, it is read again from where it came."""

    src: NonEmpty | None = None
    pin: bool | None = None


class LoadLoraBody(msgspec.Struct):
    """vLLM's body. With `load_inplace`, the adapter replaces one of that name."""

    lora_name: NonEmpty
    lora_path: NonEmpty
    load_inplace: bool = False


class UnloadLoraBody(msgspec.Struct):
    """vLLM's body."""

    lora_name: NonEmpty


class AdapterPage(msgspec.Struct, rename="camel"):
    """A page of the adapters, in order of arrival."""

    adapters: list[AdapterBody]
    next_page_token: str | None = None


class _Paging(Paging):
    limit: Annotated[int, msgspec.Meta(ge=1)] = PAGE


_EXAMPLE = AdapterBody("my-adapter", "/opt/ml/model/adapters/my-adapter")


class AdaptersApi(Api):
    """Has routes with `option.enable_lora`, unless `option.adapter_management` is off."""

    documentation = Documentation(
        examples={
            AdapterBody: _EXAMPLE,
            AdapterUpdate: AdapterUpdate(pin=True),
            AdapterPage: AdapterPage([_EXAMPLE]),
            LoadLoraBody: LoadLoraBody("my-adapter", "/opt/ml/model/adapters/my-adapter"),
            UnloadLoraBody: UnloadLoraBody("my-adapter"),
        }
    )

    def __init__(self, context: Context) -> None:
        self._properties = context.properties

    def routes(self) -> Sequence[Route]:
        properties = self._properties
        if not (properties.enable_lora and properties.adapter_management):
            return ()
        routes = management_routes(properties)
        return [*routes, *_vllm_routes()] if properties.allow_runtime_lora_updating else routes


def management_routes(properties: ServingProperties, *errors: type[LMIError]) -> Sequence[Route]:
    """Return DJL's and SageMaker's routes. `errors` may be raised by changes, beside those of all engines."""
    below_model = Parameter(
        name="model", place="path", description="The name of the served model.", values=(properties.name,)
    )
    return [
        *_managing("/models/{model}/adapters", "model_", (below_model,), errors),
        *_managing("/adapters", "", (), errors),
    ]


def _managing(path: str, prefix: str, parameters: tuple[Parameter, ...], errors: Kinds) -> Sequence[Route]:
    """Return DJL's routes below `path`. `prefix` distinguishes their operation ids."""
    named = (*parameters, Parameter(name="adapter", place="path", description="The adapter's name."))
    text = {TEXT: (str,)}
    register = _action(_register, text, AdapterBody, AdapterExists, *errors)
    update = _action(_update, text, AdapterUpdate, AdapterNotFound, *errors)
    unregister = _action(_unregister, text, None, AdapterNotFound, *errors)
    describe = _action(_describe, {JSON: (AdapterBody,)}, None, AdapterNotFound)
    listed = _action(_list, {JSON: (AdapterPage,)})
    one = f"{path}/{{adapter}}"
    return (
        Route(
            "GET", path, f"list_{prefix}adapters", TAG, "List the adapters.", listed, (*parameters, *paging("adapters"))
        ),
        Route("POST", path, f"register_{prefix}adapter", TAG, "Load an adapter.", register, parameters),
        Route("GET", one, f"describe_{prefix}adapter", TAG, "Tell where an adapter came from.", describe, named),
        Route("PUT", one, f"replace_{prefix}adapter", TAG, "Replace an adapter.", update, named),
        Route("POST", f"{one}/update", f"update_{prefix}adapter", TAG, "Replace an adapter.", update, named),
        Route("DELETE", one, f"unregister_{prefix}adapter", TAG, "Unload an adapter.", unregister, named),
    )


def _vllm_routes() -> Sequence[Route]:
    dialect, text = VllmAdapterDialect(), {TEXT: (str,)}
    load = _action(_load_lora, text, LoadLoraBody, AdapterExists, AdapterNotFound, dialect=dialect)
    unload = _action(_unload_lora, text, UnloadLoraBody, AdapterNotFound, dialect=dialect)
    return (
        Route("POST", "/v1/load_lora_adapter", "load_lora_adapter", TAG, "Load an adapter.", load),
        Route("POST", "/v1/unload_lora_adapter", "unload_lora_adapter", TAG, "Unload an adapter.", unload),
    )


def _action(act: Act, answers: Contents, body: type | None = None, *errors: type[LMIError], **options: Any) -> Action:
    examples = {TEXT: "Adapter my-adapter registered"} if TEXT in answers else {}
    errors = (DeadlineExceeded, RequestFailed, *errors)
    return action(act, answers, body, *errors, examples=examples, **options)


def _register(model: Managed, path: Path, fields: Fields) -> Reply:
    _check_model(model, path)
    body = read_fields(fields, AdapterBody)
    model.load_adapter(body.name, body.src, pinned=body.pin, options=fields)
    return _text(f"Adapter {body.name} registered")


def _update(model: Managed, path: Path, fields: Fields) -> Reply:
    known, body = _known(model, path), read_fields(fields, AdapterUpdate)
    pinned = known.pinned if body.pin is None else body.pin
    options = {**known.options, **fields}
    model.load_adapter(path["adapter"], body.src or known.source, pinned=pinned, replace=True, options=options)
    return _text(f"Adapter {path['adapter']} updated")


def _unregister(model: Managed, path: Path, _: Fields) -> Reply:
    _known(model, path)
    model.unload_adapter(path["adapter"])
    return _text(f"Adapter {path['adapter']} unregistered")


def _describe(model: Managed, path: Path, _: Fields) -> Reply:
    known = _known(model, path)
    return document(AdapterBody(path["adapter"], known.source, known.pinned))


def _list(model: Managed, path: Path, fields: Fields) -> Reply:
    _check_model(model, path)
    adapters = [AdapterBody(name, known.source, known.pinned) for name, known in model.adapters.items()]
    return document(AdapterPage(*read_fields(fields, _Paging).of(adapters)))


def _load_lora(model: Managed, _: Path, fields: Fields) -> Reply:
    body = read_fields(fields, LoadLoraBody)
    known = body.lora_name in model.adapters
    if known and not body.load_inplace:  # even if it is the same one
        raise AdapterExists(
            f"The lora adapter {body.lora_name[:128]!r} has already been loaded. If you want to load the adapter in place, "
            "set 'load_inplace' to True."
        )
    model.load_adapter(body.lora_name, body.lora_path, replace=known)
    return _text(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


def _unload_lora(model: Managed, _: Path, fields: Fields) -> Reply:
    body = read_fields(fields, UnloadLoraBody)
    if body.lora_name not in model.adapters:
        raise AdapterNotFound(f"The lora adapter {body.lora_name[:128]!r} cannot be found.")
    model.unload_adapter(body.lora_name)
    return _text(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _check_model(model: Managed, path: Path) -> None:
    if path.get("model", model.name) != model.name:
        raise ModelNotFound(f"The model {path['model'][:128]!r} was not found")


def _known(model: Managed, path: Path) -> RegisteredAdapter:
    _check_model(model, path)
    known = model.adapters.get(path["adapter"])
    if known is None:
        raise AdapterNotFound(f"The adapter {path['adapter'][:128]!r} was not found")
    return known


def _text(message: str) -> Reply:
    return Reply(200, message.encode(), TEXT)


class VllmAdapterDialect(ManagementDialect):
    """Renders errors like vLLM, whose status for an adapter that exists is 400."""

    error_type = OpenAIError

    def error(self, error: LMIError) -> Reply:
        """Render OpenAI's error object."""
        return Reply(400 if isinstance(error, AdapterExists) else status_of(error), error_document(error))
