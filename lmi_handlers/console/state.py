"""What the console watches: the models, their engines and adapters, the last requests and the metrics."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from lmi_handlers import __version__
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.engine.settings import recent_dir
from lmi_handlers.metrics.requests import RequestMetrics, page_of
from lmi_handlers.models.shelf import Shelf
from lmi_handlers.serving.served import Served
from lmi_handlers.serving.served_model import ServedModel
from lmi_handlers.telemetry.recent import RecentRequest, recent_requests

_SHOWN_ADAPTERS = 200


class EngineView(msgspec.Struct, frozen=True):
    """An engine: its state, what it is doing or why it cannot answer, and for how many seconds."""

    state: str
    phase: str
    seconds: float


class ModelView(msgspec.Struct, frozen=True, kw_only=True):
    """A model. `url` is where it was loaded from, if it is one of several. `chats` and the like are None until it is loaded."""

    name: str
    state: str
    phase: str
    seconds: float | None = None
    url: str | None = None
    memory: int | None = None
    engines: list[EngineView] = []
    adapters: list[str] = []
    manages_adapters: bool = False
    generates: bool = True
    chats: bool | None = None
    capabilities: Capabilities | None = None


class ServerView(msgspec.Struct, frozen=True, kw_only=True):
    """The server. `worker` is the process that answers. `manages` tells whether the client may load and unload models."""

    version: str
    worker: int
    workers: int
    dialect: str
    manages: bool
    has_several_models: bool
    keeps_prompts: bool


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the console watches, at `time` in seconds since 1970. `metrics` is the text of `/metrics`."""

    time: float
    server: ServerView
    models: list[ModelView]
    requests: list[RecentRequest]
    metrics: str


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """Where the console finds what it watches. `shelf` has the models of a server with several, otherwise it is None."""

    models: Callable[[], Iterable[Served]]
    workers: int
    dialect: str
    keeps_prompts: bool
    shelf: Shelf | None = None

    def state(self, manages: bool) -> State:
        """Return the state as of now, for a client that may load and unload models or not."""
        served = list(self.models())
        own = [] if self.shelf is None else [recent_dir(self.shelf.runtime_dir)]
        return State(
            time=time.time(),
            server=ServerView(
                version=__version__,
                worker=os.getpid(),
                workers=self.workers,
                dialect=self.dialect,
                manages=manages,
                has_several_models=self.shelf is not None,
                keeps_prompts=self.keeps_prompts,
            ),
            models=[view_of(model) for model in served] if self.shelf is None else _views_of(self.shelf),
            requests=recent_requests([*own, *(_recent(model) for model in served)]),
            metrics=_samples(model.metrics for model in served),
        )


def view_of(model: Served) -> ModelView:
    """Return the view of a model with an application in this worker."""
    view = ModelView(
        name=model.name,
        state=model.state.value,
        phase=model.phase,
        seconds=round(model.phase_seconds, 1),
        engines=[EngineView(each.state.value, each.phase, round(each.phase_seconds, 1)) for each in model.engines],
        generates=False,
    )
    if not isinstance(model, ServedModel):
        return view
    properties, facts = model.properties, model.known_facts
    return msgspec.structs.replace(
        view,
        generates=not properties.pools,
        adapters=sorted(model.adapters)[:_SHOWN_ADAPTERS] if properties.enable_lora else [],
        manages_adapters=properties.enable_lora and properties.adapter_management,
        chats=None if facts is None else bool(facts.chat_template),
        capabilities=None if facts is None else msgspec.structs.replace(facts.capabilities, adapters=()),
    )


def _views_of(shelf: Shelf) -> list[ModelView]:
    """Return the views of all models, also of those that sleep or have failed."""
    held = {each.entry.name: each.app.model for each in shelf.held}
    views = []
    for name, entry in (shelf.models or {}).items():
        state, phase = shelf.state_of(entry)
        view = view_of(held[name]) if name in held else ModelView(name=name, state="", phase="")
        views.append(
            msgspec.structs.replace(
                view,
                state=state.value,
                phase=phase,
                seconds=view.seconds if name in held else round(max(0.0, time.time() - entry.since), 1),
                url=entry.url,
                memory=entry.memory or None,
            )
        )
    return views


def _recent(model: Served) -> Path:
    return recent_dir(model.runtime_dir)


def _samples(models: Iterable[RequestMetrics]) -> str:
    """Return the text of `/metrics` without its comments, which are more than half of it. All series name their model."""
    return "\n".join(line for line in page_of(models).splitlines() if not line.startswith("#"))
