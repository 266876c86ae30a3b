"""The routes that load and unload models: those of DJL, and SageMaker's for multi-model endpoints.

SageMaker's are DJL's with a JSON body, and differ in what `GET /models/{model}` answers. Sources: DJL's
ManagementRequestHandler and the answers of a running one; "Custom containers contract for multi-model endpoints" in
SageMaker's developer guide.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from lmi_handlers.apis.base import Reply
from lmi_handlers.apis.documentation import Documentation
from lmi_handlers.apis.management import PAGE, Fields, Paging, action, document, paging, read_fields
from lmi_handlers.apis.management import Path as PathParameters
from lmi_handlers.apis.routes import JSON, Failure, Parameter, Route
from lmi_handlers.core.errors import (
    EngineNotReady,
    InsufficientMemory,
    InvalidRequest,
    LoadFailed,
    ModelExists,
    ModelNotFound,
)
from lmi_handlers.models.held_model import HeldModel
from lmi_handlers.models.messages import Load, Scale, Unload
from lmi_handlers.models.model_apps import ModelApps
from lmi_handlers.models.registry import ModelState, RegisteredModel, check_model_name
from lmi_handlers.models.source import name_of

TAG = "Models"

Workers = Annotated[int, msgspec.Meta(ge=-1, le=256)]

_STATUSES = {
    ModelState.PENDING: "PENDING",
    ModelState.LOADING: "PENDING",
    ModelState.WAKING: "PENDING",
    ModelState.READY: "READY",
    ModelState.SLEEPING: "SLEEPING",
    ModelState.UNLOADING: "UNLOADING",
    ModelState.FAILED: "FAILED",
}
"""DJL's names, and two that it does not have."""

_OPTIONS = {
    "min_worker": "minWorkers",
    "max_worker": "maxWorkers",
    "batch_size": "batch_size",
    "job_queue_size": "job_queue_size",
    "max_batch_delay": "max_batch_delay",
    "max_idle_time": "max_idle_time",
}
"""Names in serving.properties by parameter."""


class LoadBody(msgspec.Struct):
    """A model to load. `url` is a directory or a tar.gz file in the model store, or an S3 URL.

    Numbers take precedence over those in serving.properties; -1 leaves them as they are. `model_version`, `engine` and
    `device` are accepted and have no effect.
    """

    url: str | None = None
    model_name: str | None = None
    synchronous: bool = True
    min_worker: Workers = -1
    max_worker: Workers = -1
    batch_size: Annotated[int, msgspec.Meta(ge=-1)] = -1
    job_queue_size: Annotated[int, msgspec.Meta(ge=-1)] = -1
    max_batch_delay: Annotated[int, msgspec.Meta(ge=-1)] = -1
    max_idle_time: Annotated[int, msgspec.Meta(ge=-1)] = -1
    model_version: str | None = None
    engine: str | None = None
    device: str | None = None


class ModelStatus(msgspec.Struct):
    """The outcome."""

    status: str


class ModelItem(msgspec.Struct, rename="camel"):
    """A model in a list."""

    model_name: str
    model_url: str
    status: str


class ModelPage(msgspec.Struct, rename="camel", omit_defaults=True):
    """A page of the models, in alphabetical order."""

    models: list[ModelItem]
    next_page_token: str | None = None


_ITEM = ModelItem("my-model", "my-model", "READY")
DOCUMENTATION = Documentation(
    examples={
        LoadBody: {"url": "my-model", "synchronous": True},
        ModelStatus: ModelStatus('Model "my-model" registered.'),
        ModelPage: ModelPage([_ITEM]),
    }
)


class _Scaling(msgspec.Struct):
    min_worker: Workers = -1
    max_worker: Workers = -1


def management_routes(*, multi_model: bool) -> Sequence[Route]:
    """Return the routes. With `multi_model`, they answer as SageMaker asks where that differs."""
    model = Parameter(name="model", place="path", description="The model's name.")
    version = Parameter(name="version", place="path", description="Ignored: there is only one version.")
    engines = (
        Parameter(name="min_worker", place="query", type="integer", description="Engines. 0 puts the model to sleep."),
        Parameter(name="max_worker", place="query", type="integer", description="Must equal `min_worker` if given."),
    )
    scheduled = Failure(
        status=202,
        reason="The model is going to be loaded, as `synchronous` is false.",
        content=(ModelStatus,),
        examples=(ModelStatus('Model "my-model" registration scheduled.'),),
    )
    done = {JSON: (ModelStatus,)}
    load = action(_load, done, LoadBody, ModelExists, InsufficientMemory, LoadFailed)
    listed = action(_list, {JSON: (ModelPage,)})
    if multi_model:
        one = action(
            _describe_short, {JSON: (object,)}, examples={JSON: {"modelName": "my-model", "modelUrl": "my-model"}}
        )
    else:
        model_of = msgspec.to_builtins(_ITEM) | {"status": "Healthy", "loadedAtStartup": True, "workerGroups": []}
        one = action(
            _describe, {JSON: (object,)}, examples={JSON: [{"workflowName": "my-model", "models": [model_of]}]}
        )
    scale = action(_scale, done, None, EngineNotReady, InsufficientMemory, LoadFailed)
    unload = action(_unload, done)
    routes = [
        Route("POST", "/models", "register_model", TAG, "Load a model.", load, failures=(scheduled,)),
        Route("GET", "/models", "list_models", TAG, "List the models.", listed, paging("models")),
    ]
    for path, suffix, parameters in (
        ("/models/{model}", "", (model,)),
        ("/models/{model}/{version}", "_version", (model, version)),
    ):
        routes += (
            Route("GET", path, f"describe_model{suffix}", TAG, "Describe a model.", one, parameters),
            Route(
                "PUT",
                path,
                f"scale_model{suffix}",
                TAG,
                "Change the number of engines.",
                scale,
                (*parameters, *engines),
            ),
            Route("DELETE", path, f"unregister_model{suffix}", TAG, "Unload a model.", unload, parameters),
        )
    return routes


def _load(apps: ModelApps, _: PathParameters, fields: Fields) -> Reply:
    body = read_fields(fields, LoadBody)
    if not body.url:
        raise InvalidRequest("Parameter url is required.")
    name = body.model_name or name_of(body.url)
    check_model_name(name)
    apps.ask(Load(name, body.url, _options(body), body.synchronous))
    if not body.synchronous:
        return _status(f'Model "{name}" registration scheduled.', 202)
    apps.wait_serving(name)
    return _status(f'Model "{name}" registered.')


def _unload(apps: ModelApps, path: PathParameters, _: Fields) -> Reply:
    apps.ask(Unload(path["model"]))
    return _status(f'Model or workflow "{path["model"]}" unregistered')


def _scale(apps: ModelApps, path: PathParameters, fields: Fields) -> Reply:
    """Change the number of engines. None at all puts the model to sleep."""
    name, body = path["model"], read_fields(fields, _Scaling)
    options = None if body.min_worker == 0 else _options(body)
    apps.ask(Scale(name, options))
    if options:
        apps.wait_serving(name)
    return _status(
        f'Workflow "{name}" worker scaled. New Worker configuration min workers:{body.min_worker} '
        f"max workers:{body.max_worker}"
    )


def _list(apps: ModelApps, _: PathParameters, fields: Fields) -> Reply:
    asked = read_fields(fields, Paging)
    if not 0 < asked.limit <= PAGE:
        asked.limit = PAGE
    models, next_page = asked.of(sorted((apps.models or {}).items()))
    page: dict[str, object] = {} if next_page is None else {"nextPageToken": next_page}
    return document(page | {"models": [_item(entry) for _, entry in models]})


def _describe(apps: ModelApps, path: PathParameters, _: Fields) -> Reply:
    """Return what DJL tells of a model. A group of workers is our engines."""
    entry = _known(apps, path)
    held = next((held for held in apps.held if held.entry.name == entry.name), None)
    properties = None if held is None else held.app.model.properties
    model: dict[str, object] = _item(entry) | {
        "status": "Healthy" if entry.state is ModelState.READY else _STATUSES[entry.state],
        "loadedAtStartup": entry.at_start,
        "workerGroups": [],
    }
    if held is not None and properties is not None:
        model |= {
            "batchSize": properties.max_rolling_batch_size or properties.batch_size,
            "maxBatchDelayMillis": properties.max_batch_delay,
            "maxIdleSeconds": properties.max_idle_time,
            "queueSize": properties.job_queue_size,
            "requestInQueue": held.in_flight,
            "workerGroups": [_group(held, entry)],
        }
    if entry.cause:
        model["cause"] = entry.cause
    return document([{"workflowName": entry.name, "models": [model]}])


def _group(held: HeldModel, entry: RegisteredModel) -> dict[str, object]:
    properties, since = held.app.model.properties, int(entry.since * 1000)
    workers = [
        {"id": number, "startTime": since, "status": entry.state.value.upper()}
        for number in range(1, properties.min_workers + 1)
    ]
    least, most = properties.min_workers, properties.max_workers or properties.min_workers
    return {"minWorkers": least, "maxWorkers": most, "workers": workers}


def _describe_short(apps: ModelApps, path: PathParameters, _: Fields) -> Reply:
    """Return what SageMaker asks for."""
    item = _item(_known(apps, path))
    return document({"modelName": item["modelName"], "modelUrl": item["modelUrl"]})


def _known(apps: ModelApps, path: PathParameters) -> RegisteredModel:
    entry = (apps.models or {}).get(path["model"])
    if entry is None:
        raise ModelNotFound(f"Workflow not found: {path['model'][:128]}")
    return entry


def _item(entry: RegisteredModel) -> dict[str, object]:
    url = Path(entry.url).as_uri() if entry.at_start and entry.url.startswith("/") else entry.url
    return {"modelName": entry.name, "modelUrl": url, "status": _STATUSES[entry.state]}


def _options(body: LoadBody | _Scaling) -> dict[str, str]:
    given = msgspec.to_builtins(body)
    return {key: str(given[name]) for name, key in _OPTIONS.items() if given.get(name, -1) > 0}


def _status(message: str, status: int = 200) -> Reply:
    return document({"status": message}, status)
