"""The interface of an API to the server: routes, dialects, and their documentation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from lmi_handlers.apis.documentation import Documentation
from lmi_handlers.apis.routes import Generation, Route
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import EngineNotReady
from lmi_handlers.serving.parsed import ModelFacts


def _no_model() -> ModelFacts:
    raise EngineNotReady("no model has been loaded")


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that APIs are made from. `facts` may raise `EngineNotReady`; `workers` is the number of web workers.

    `sampled_defaults` are LMI's sampling defaults for the backend in use. They apply to requests with `do_sample` true.
    """

    properties: ServingProperties
    facts: Callable[[], ModelFacts] = _no_model
    sampled_defaults: Mapping[str, float] = {}
    workers: int = 1

    @property
    def budget(self) -> Budget:
        """Limits on what one request may ask for."""
        return Budget.of(self.properties)


class Api(ABC):
    """One API. Each process makes a single object at start-up; requests only read it."""

    native: Generation | None = None
    """Answers bodies on the invoke routes if `option.dialect` names this API. If it is None, LMI's does."""

    root: Generation | None = None
    """Answers `POST /` if `option.dialect` names this API. If it is None, TGI's does."""

    formatters: Collection[str] = ()
    """Values that `option.output_formatter` may have if `native` answers because of `option.tgi_compat`."""

    claims: Mapping[str, Generation] = {}
    """Answers bodies with these fields on the invoke routes, whatever `option.dialect` says."""

    documentation: Documentation = Documentation()

    prefixes: tuple[str, ...] = ()
    """Paths at and below which `router_error` applies. The longest matching prefix of all APIs wins."""

    @abstractmethod
    def __init__(self, context: Context) -> None:
        """Raises `ConfigError` if one of this API's options is wrong."""

    @abstractmethod
    def routes(self) -> Sequence[Route]:
        """Return the API's own routes."""

    def router_error(self, status: int, kind: str, message: str) -> object:
        """Return the JSON body of an error such as 404, which no route answered. `kind` is e.g. "NotFound"."""
        return {"code": status, "type": kind, "message": message}
