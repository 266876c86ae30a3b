"""The routes of a server with several models that are about all of them: `/ping`, `/metrics` and `/v1/models`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from formatters.openai.schemas import ModelInfo, ModelList
from lmi_handlers.apis.base import Reply, front_end_json
from lmi_handlers.apis.management import ManagementDialect
from lmi_handlers.apis.openai.routes import OWNER, model_infos
from lmi_handlers.apis.openai.routes import TAG as OPENAI
from lmi_handlers.apis.routes import JSON, TEXT, Action, Parameter, Probe, Route
from lmi_handlers.apis.server import HEALTHY, METRICS, SAGEMAKER, TGI, Health
from lmi_handlers.core.errors import ModelNotFound
from lmi_handlers.engine.status import EngineState
from lmi_handlers.metrics.requests import CONTENT_TYPE, page_of
from lmi_handlers.models.model_apps import ModelApps
from lmi_handlers.models.registry import ModelState
from lmi_handlers.serving.served_model import ServedModel

_LOADS = (ModelState.PENDING, ModelState.LOADING)
_FAILS = (ModelState.FAILED, EngineState.STALLED, EngineState.STARTING)


def store_routes() -> Sequence[Route]:
    """Return the routes."""
    health = Probe(reply=ping, answers={JSON: (dict[str, Health],)}, examples={JSON: HEALTHY})
    dialect = ManagementDialect()
    listed = Action(act=_list, dialects=(dialect,), answers={JSON: (ModelList,)})
    named = Parameter(name="model", place="path", description="The model's name.", has_slashes=True)
    one = Action(act=_one, dialects=(dialect,), answers={JSON: (ModelInfo,)}, errors=(ModelNotFound,))
    summary = "Check whether requests are accepted. Names the state of each model."
    return (
        Route("GET", "/ping", "ping", SAGEMAKER, summary, health),
        Route("POST", "/ping", "post_ping", SAGEMAKER, summary, health),
        Route("GET", "/health", "health", TGI, summary, health),
        Route(
            "GET",
            "/metrics",
            "metrics",
            TGI,
            "Get Prometheus metrics.",
            Probe(reply=_metrics, answers={TEXT: (str,)}, examples=METRICS),
        ),
        Route("GET", "/v1/models", "list_served_models", OPENAI, "List the models.", listed),
        Route("GET", "/v1/models/{model}", "retrieve_served_model", OPENAI, "Get a model.", one, (named,)),
    )


def ping(apps: ModelApps) -> Reply:
    """200 once the models of the start are loaded, as long as one serves. A server without models is healthy.

    503 while they are loaded, and if none serves any more. As in DJL, the body has the state of each model.
    """
    models = apps.models
    if models is None:
        return Reply(503, front_end_json({}))
    document: dict[str, object] = {}
    starts, serves = False, not models
    for name, entry in models.items():
        state, phase = apps.state_of(entry)
        starts |= entry.at_start and entry.state in _LOADS
        waits = entry.state is ModelState.WAKING or (entry.state in _LOADS and not entry.at_start)
        serves |= state not in _FAILS or (waits and state is EngineState.STARTING)
        document[name] = {"status": "Healthy"} if state is EngineState.READY else _health(state, phase)
    return Reply(200 if serves and not starts and not apps.draining else 503, front_end_json(document))


def _health(state: EngineState | ModelState, phase: str) -> dict[str, str]:
    status = state.value.capitalize()
    return {"status": status} if phase == state.value else {"status": status, "phase": phase}


def _metrics(apps: ModelApps) -> Reply:
    return Reply(200, page_of(held.app.model.metrics for held in apps.held).encode(), CONTENT_TYPE)


def _list(apps: ModelApps, _path: Mapping[str, str], _fields: Mapping[str, Any]) -> Reply:
    return Reply(200, msgspec.json.encode(ModelList("list", list(_infos(apps)))))


def _one(apps: ModelApps, path: Mapping[str, str], _: Mapping[str, Any]) -> Reply:
    for info in _infos(apps):
        if info.id == path["model"]:
            return Reply(200, msgspec.json.encode(info))
    raise ModelNotFound(f"The model {path['model'][:200]!r} does not exist")


def _infos(apps: ModelApps) -> Iterator[ModelInfo]:
    """Yield all models, each followed by its adapters."""
    held = {held.entry.name: held.app.model for held in apps.held}
    for name, entry in (apps.models or {}).items():
        model = held.get(name)
        if isinstance(model, ServedModel) and model.state is EngineState.READY:
            yield from model_infos(model, (name, *entry.names), int(entry.since))
        else:
            for called in dict.fromkeys((name, *entry.names)):
                yield ModelInfo(called, "model", int(entry.since), OWNER, None)
