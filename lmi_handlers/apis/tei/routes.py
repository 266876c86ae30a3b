"""TEI's routes: `/embed`, and its `/` with `option.task=text-embedding`.

Source: the OpenAPI document of text-embeddings-inference 1.7.
"""

from __future__ import annotations

from collections.abc import Sequence

from formatters.tei.responses import EmbeddingErrorResponse
from lmi_handlers.apis.api import Api, Context
from lmi_handlers.apis.documentation import QUESTION, Documentation
from lmi_handlers.apis.routes import JSON, Route, generation
from lmi_handlers.apis.tei.embed import EmbedBody, EmbedDialect

TAG = "Text Embeddings Inference"


class TeiApi(Api):
    """The part of text-embeddings-inference's API that embeds texts."""

    prefixes = ("/embed",)
    documentation = Documentation(
        names={"EmbedRequest": EmbedBody}, examples={EmbedBody: {"inputs": QUESTION}}, bounds={"EmbedRequest": {}}
    )

    def __init__(self, context: Context) -> None:
        properties = context.properties
        dialect = EmbedDialect(context.facts, budget=context.budget, normalize=properties.normalize)
        self._embed = generation(dialect, EmbedBody, {JSON: (list[list[float]],)})
        if properties.embeds:
            self.native = self.root = self._embed

    def routes(self) -> Sequence[Route]:
        return (Route("POST", "/embed", "embed", TAG, "Embed texts.", self._embed),)

    def router_error(self, status: int, kind: str, message: str) -> object:  # noqa: ARG002
        return EmbeddingErrorResponse(message, "Backend" if status >= 500 else "Validation")
