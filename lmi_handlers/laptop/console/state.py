"""The state that the console shows: the models, their engines and adapters, the last requests and the metrics.

A page asks for it every few seconds, and many pages may be open. So a worker reads it at most once per second
(`Snapshot`), and sends a page only what it shows and has not seen.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import msgspec

from lmi_handlers import __version__
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.engine.settings import recent_dir
from lmi_handlers.metrics import catalogue
from lmi_handlers.metrics.series import Metric, Values, exposition
from lmi_handlers.model_files.locate import DEFAULT_MODEL_NAME, DEFAULT_MODEL_TEMPERATURE
from lmi_handlers.models.model_apps import ModelApps
from lmi_handlers.serving.served import Served
from lmi_handlers.serving.served_model import ServedModel
from lmi_handlers.telemetry.recent import RecentReader, RecentRequest

_SHOWN_ADAPTERS = 200
_LATE = 2.0
"""Seconds by which a request may be kept later than its time says, or what two workers have read may be apart."""

_OF_ALL = (
    catalogue.RUNNING,
    catalogue.WAITING,
    catalogue.KV_CACHE_USAGE,
    catalogue.DOWNLOADED_BYTES,
    catalogue.DOWNLOAD_SIZE,
    catalogue.LOAD_SECONDS,
)
"""Metrics that the page shows for all models."""

_OF_ONE = (
    catalogue.PROMPT_TOKENS,
    catalogue.CACHED_TOKENS,
    catalogue.GENERATION_TOKENS,
    catalogue.TIME_TO_FIRST_TOKEN,
    catalogue.INTER_TOKEN_LATENCY,
)
"""Metrics that the page plots for the model that is chosen."""


class EngineView(msgspec.Struct, frozen=True):
    """An engine: its state, what it is doing or why it cannot answer, and for how many seconds."""

    state: str
    phase: str
    seconds: float


class AdapterView(msgspec.Struct, frozen=True):
    """An adapter that is loaded. `pinned` ones always stay in memory."""

    name: str
    pinned: bool


class CapabilitiesView(msgspec.Struct, frozen=True):
    """The part of a model's `Capabilities` that the page shows."""

    backend: str
    device: str
    dtype: str
    max_model_len: int
    max_num_seqs: int
    takes_images: bool


class ModelView(msgspec.Struct, frozen=True, kw_only=True):
    """A model. `url` is where it was loaded from, if it is one of several. `capabilities` are None until it is loaded.

    `temperature` is what the page enters at first, unless the API's own default is fine.
    """

    name: str
    state: str
    phase: str
    seconds: float | None = None
    url: str | None = None
    memory: int | None = None
    engines: list[EngineView] = []
    adapters: list[AdapterView] = []
    manages_adapters: bool = False
    generates: bool = True
    temperature: float | None = None
    capabilities: CapabilitiesView | None = None


class ServerView(msgspec.Struct, frozen=True, kw_only=True):
    """The server. `run` is another after a restart. `worker` is the process that answers.

    `manages` tells whether the client may load and unload models.
    """

    version: str
    run: str
    worker: int
    workers: int
    dialect: str
    manages: bool
    has_several_models: bool
    keeps_prompts: bool


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The state for a page, at `time` in seconds since 1970. `metrics` is a part of the text of `/metrics`.

    `requests` are the last ones, the newest first, without those that the page has.
    """

    time: float
    server: ServerView
    models: list[ModelView]
    requests: list[RecentRequest]
    metrics: str


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a worker has read at `time`. `values` are the metrics of each model by its name."""

    time: float
    server: ServerView
    models: list[ModelView]
    requests: list[RecentRequest]
    values: Mapping[str, Values]

    def state(self, *, manages: bool, model: str, since: float) -> State:
        """Return what a page gets that shows this model, and has the requests until `since`.

        A page that knows no model yet gets the metrics of the only one. One whose `since` is in the future gets all
        requests, because the clock was set back.
        """
        after = since - _LATE if since <= self.time + _LATE else 0.0
        of_one = [values for name, values in self.values.items() if name == model or len(self.values) == 1]
        return State(
            time=self.time,
            server=msgspec.structs.replace(self.server, manages=manages),
            models=self.models,
            requests=[request for request in self.requests if request.time > after],
            metrics=_samples(_OF_ALL, [*self.values.values()]) + _samples(_OF_ONE, of_one),
        )


class Watched(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The sources of the console. `apps` has the models of a server with several, otherwise it is None.

    `runtime_dir` is the directory that the server's processes share.
    """

    models: Callable[[], Iterable[Served]]
    runtime_dir: Path
    workers: int
    dialect: str
    keeps_prompts: bool
    apps: ModelApps | None = None

    def snapshot(self) -> Snapshot:
        """Read everything as of now."""
        served = list(self.models())
        own = [] if self.apps is None else [recent_dir(self.runtime_dir)]
        return Snapshot(
            time=time.time(),
            server=ServerView(
                version=__version__,
                run=sha256(bytes(self.runtime_dir)).hexdigest()[:12],
                worker=os.getpid(),
                workers=self.workers,
                dialect=self.dialect,
                manages=False,
                has_several_models=self.apps is not None,
                keeps_prompts=self.keeps_prompts,
            ),
            models=[view_of(model) for model in served] if self.apps is None else _views_of(self.apps),
            requests=self._recent.read([*own, *(recent_dir(model.runtime_dir) for model in served)]),
            values={model.name: model.metrics.values() for model in served},
        )

    @cached_property
    def _recent(self) -> RecentReader:
        return RecentReader()


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
        temperature=DEFAULT_MODEL_TEMPERATURE if model.name == DEFAULT_MODEL_NAME else None,
        adapters=_adapters(model) if properties.enable_lora else [],
        manages_adapters=properties.enable_lora and properties.adapter_management,
        capabilities=None if facts is None else _capabilities(facts.capabilities),
    )


def _adapters(model: ServedModel) -> list[AdapterView]:
    return [AdapterView(name, known.pinned) for name, known in sorted(model.adapters.items())[:_SHOWN_ADAPTERS]]


def _capabilities(capabilities: Capabilities) -> CapabilitiesView:
    return msgspec.convert(capabilities, CapabilitiesView, from_attributes=True)


def _views_of(apps: ModelApps) -> list[ModelView]:
    """Return the views of all models, also of those that sleep or have failed."""
    held = {each.entry.name: each.app.model for each in apps.held}
    views = []
    for name, entry in (apps.models or {}).items():
        state, phase = apps.state_of(entry)
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


def _samples(metrics: Sequence[Metric], models: Sequence[Values]) -> str:
    """Return the text of these metrics without its comments. All series name their model."""
    lines = exposition(metrics, models, labels_all=True).splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("#"))
