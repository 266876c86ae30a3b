"""MindIE's TGI interface: it answers on `/`, and with `option.tgi_compat` on the invoke routes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from formatters.mindie import schemas
from formatters.mindie.examples import ANSWERS
from lmi_handlers.apis.api import Api, Context
from lmi_handlers.apis.documentation import PROMPT_EXAMPLE, Documentation
from lmi_handlers.apis.mindie.body import DOCUMENTED, MAX_INPUT_CHARACTERS, MindieBody
from lmi_handlers.apis.mindie.body import MindieParameters as DecodedParameters
from lmi_handlers.apis.mindie.dialect import MindieDialect
from lmi_handlers.apis.routes import EVENTS, JSON, TEXT_GENERATION, Route, generation
from lmi_handlers.apis.tgi.bounds import MAX_SEED, tgi_bounds

# For the document only: nulls and parameters that MindIE does not document are dropped before bodies are converted.
MindieParameters = msgspec.defstruct(
    "MindieParameters",
    [
        (field.name, field.type | None, None)
        for field in msgspec.structs.fields(DecodedParameters)
        if field.name in DOCUMENTED
    ],
    namespace={"__doc__": "The `parameters` object. null means absent."},
)
MindieRequest = msgspec.defstruct(
    "MindieRequest",
    [("inputs", str), ("parameters", MindieParameters | None, None), ("stream", bool | None, None)],
    namespace={"__doc__": MindieBody.__doc__},
)


class MindieApi(Api):
    """Replaces TGI's dialect where the options choose one. TGI's other routes remain TGI's."""

    def __init__(self, context: Context) -> None:
        properties = context.properties
        answers = {JSON: (schemas.MindieResponse,), EVENTS: (schemas.MindieStreamResponse,)}
        self.root = generation(MindieDialect(properties), MindieRequest, answers, TEXT_GENERATION)
        self.native = self.root if properties.tgi_compat else None
        self.documentation = Documentation(
            examples={**ANSWERS, MindieRequest: PROMPT_EXAMPLE},
            bounds={
                "MindieRequest": {"inputs": {"minLength": 1, "maxLength": MAX_INPUT_CHARACTERS}},
                # TGI's, except that the seed must not be 0
                "MindieParameters": tgi_bounds(properties) | {"seed": {"minimum": 1, "maximum": MAX_SEED}},
            },
        )

    def routes(self) -> Sequence[Route]:
        return ()
