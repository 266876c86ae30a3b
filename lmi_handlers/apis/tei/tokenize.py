"""TEI's `/tokenize` and `/decode`.

Source: the router of text-embeddings-inference 1.7. null means absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.decoding import decode_typed, unknown_names
from lmi_handlers.apis.pooling_prompts import model_prompt
from lmi_handlers.config.budget import Budget
from lmi_handlers.core.errors import InvalidBody, InvalidRequest
from lmi_handlers.core.event_loop import at_once
from lmi_handlers.serving.prompts import LONG, LoadedText
from lmi_handlers.serving.served_model import ServedModel
from lmi_handlers.text.spans import MarkedSpan, marked_spans

TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class TokenizeTextsBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `/tokenize`. `prompt_name` is one of the model's own prompts, which is put in front of each text."""

    inputs: str | list[str]
    add_special_tokens: bool | None = None
    prompt_name: str | None = None


class DecodeBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `/decode`: token ids, or lists of them."""

    ids: Annotated[
        list[TokenId | Annotated[list[TokenId], Meta(min_length=1)]],
        Meta(
            extra_json_schema={
                "anyOf": [
                    {"type": "array", "items": {"type": "integer"}},
                    {"type": "array", "items": {"type": "array"}},
                ]
            }
        ),
    ]
    skip_special_tokens: bool | None = None


def read_texts(payload: Payload, budget: Budget) -> tuple[TokenizeTextsBody, tuple[str, ...]]:
    """Return the body of `/tokenize` and the names of its ignored fields. Raises an error if it is wrong."""
    body = decode_typed(payload.data, TokenizeTextsBody)
    _check_number("inputs", [body.inputs] if isinstance(body.inputs, str) else body.inputs, budget)
    return body, unknown_names(payload.fields, TokenizeTextsBody, nulls=False)


def read_ids(payload: Payload, budget: Budget) -> tuple[DecodeBody, tuple[str, ...]]:
    """Return the body of `/decode` and the names of its ignored fields. Raises an error if it is wrong."""
    body = decode_typed(payload.data, DecodeBody)
    lists = [ids for ids in body.ids if isinstance(ids, list)]
    if lists and len(lists) < len(body.ids):
        raise InvalidBody("must be token ids, or lists of token ids", field="ids")
    _check_number("ids", lists or body.ids[:1], budget)
    return body, unknown_names(payload.fields, DecodeBody, nulls=False)


def tokenize_texts(model: ServedModel, body: TokenizeTextsBody) -> list[list[MarkedSpan]]:
    """Return the tokens of each text. Raises `InvalidRequest` if there are too many, and `EngineNotReady`."""
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    prefix = model_prompt(model.facts.prompts, body.prompt_name)
    run = model.run_beside if sum(map(len, texts)) > LONG else at_once
    return run(_spans, model.loaded, [prefix + text for text in texts], special=body.add_special_tokens is not False)


def decode_ids(model: ServedModel, body: DecodeBody) -> list[str]:
    """Return the text of each list of ids. Raises `InvalidRequest` if there are too many, and `EngineNotReady`."""
    lists = [ids for ids in body.ids if isinstance(ids, list)]
    lists = lists or [[token_id for token_id in body.ids if isinstance(token_id, int)]]
    loaded, number = model.loaded, sum(map(len, lists))
    if number > (limit := loaded.max_listed_tokens):
        raise InvalidRequest(f"must have at most {limit} token ids, got {number}", field="ids")
    run = model.run_beside if number > LONG else at_once
    return run(_texts, loaded, lists, skip=body.skip_special_tokens is not False)


def _check_number(field: str, values: Sequence[object], budget: Budget) -> None:
    if not values:
        raise InvalidRequest("must not be empty", field=field)
    budget.check_sequences(field, len(values), 1)


def _spans(loaded: LoadedText, texts: list[str], *, special: bool) -> list[list[MarkedSpan]]:
    limit, found, number = loaded.max_listed_tokens, list[list[MarkedSpan]](), 0
    for text in texts:
        tokens = loaded.tokenizer.estimate_beyond(text, limit - number)
        if tokens is None:
            found.append(marked_spans(loaded.tokenizer, text, add_special_tokens=special))
            number += len(found[-1])
        if tokens is not None or number > limit:
            raise InvalidRequest(f"must have at most {limit} tokens", field="inputs")
    return found


def _texts(loaded: LoadedText, lists: list[list[int]], *, skip: bool) -> list[str]:
    texts: list[str] = loaded.tokenizer.backend.decode_batch(lists, skip_special_tokens=skip)  # releases the GIL
    return texts
