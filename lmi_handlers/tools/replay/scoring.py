"""Tells a text that parts by rounding from another text: the server scores both, token by token.

Greedy decoding takes the most probable token. Where two tokens are almost as probable, another processor, batch or engine
may take the other one, and everything after it is different. So the prompt is sent again, once with each text after it,
and the log probabilities of the first two tokens that differ are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from lmi_handlers.tools.client.answer import parsed
from lmi_handlers.tools.client.comparison import CompleteAnswer
from lmi_handlers.tools.replay.recordings import Recorded
from lmi_handlers.tools.replay.targets import NoAnswer

Ask = Callable[[Recorded], CompleteAnswer]
Scored = list[tuple[Any, float | None]]
"""Tokens, by their ids or texts, with their log probabilities."""


class NotScored(Exception):
    """The server cannot score the texts. The text says why."""


def log_probability_gap(recorded: Recorded, texts: tuple[str, str], ask: Ask) -> float:
    """Return how much less probable the token of the recorded text is, where the texts part, in nats.

    `texts` are the recorded one and that of the server. Raises `NotScored`.
    """
    body = parsed(recorded.body)
    if not isinstance(body, dict):
        raise NotScored("the request is no JSON object")
    prompt = next((body[name] for name in ("prompt", "inputs") if isinstance(body.get(name), str)), "")
    if all(text.startswith(prompt) for text in texts):  # as `return_full_text` and `echo` ask for
        texts = texts[0][len(prompt) :], texts[1][len(prompt) :]
    old, new = (_scored(recorded, body, text, ask) for text in texts)
    for (mine, expected), (other, received) in zip(old, new, strict=False):
        if mine != other:
            if expected is None or received is None:
                break
            return received - expected
    raise NotScored("one of the texts ends where they part")


def _scored(recorded: Recorded, body: dict[str, Any], text: str, ask: Ask) -> Scored:
    def answer(asked: Mapping[str, Any], route: str = recorded.route) -> Any:
        try:
            encoded = msgspec.json.encode(asked)
            changed = {"body": encoded, "route": route, "content_type": "application/json"}
            reply = ask(msgspec.structs.replace(recorded, **changed))
        except (NoAnswer, RecursionError) as error:
            raise NotScored(str(error)) from error
        if reply.status != 200:
            raise NotScored(f"the server does not score prompts ({route} is answered with {reply.status})")
        return parsed(reply.body)

    kept = _of_prompt(body)
    try:
        if isinstance(prompt := body.get("prompt"), str):
            return _completion(answer({**kept, "prompt": prompt + text, **_ECHO}))
        if isinstance(prompt := body.get("inputs"), str):
            given = body.get("parameters")
            parameters = {**_of_prompt(given if isinstance(given, Mapping) else {}), **_PREFILL}
            return _prefill(answer({**kept, "inputs": prompt + text, "parameters": parameters}))
        if isinstance(messages := body.get("messages"), list):
            named = {"model": body["model"]} if "model" in body else {}
            chat = {"messages": [*messages, {"role": "assistant", "content": text}], **named, **_CONTINUED}
            tokens = answer(chat, "/tokenize")["tokens"]
            scored = _completion(answer({"prompt": tokens, **named, **_ECHO}, "/v1/completions"))
            return [(token, number) for token, (_, number) in zip(tokens, scored, strict=False)]
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise NotScored("the server's answer has no log probabilities of the prompt") from error
    raise NotScored("requests of this API cannot be scored")


def _of_prompt(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in _OF_ANSWERS}


_OF_ANSWERS = frozenset(
    [
        *("stream", "stream_options", "output_formatter", "return_full_text"),
        *("max_tokens", "request_output_len", "min_tokens", "min_new_tokens", "min_length"),
        *("n", "best_of", "num_beams", "use_beam_search", "early_stopping", "length_penalty", "len_penalty"),
        *("truncate", "truncate_prompt_tokens"),  # both texts must begin with the same tokens
    ]
)
"""Fields that contradict an answer of one token, or change its form."""

_ECHO = {"max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1, "n": 1}
_PREFILL = {"max_new_tokens": 1, "details": True, "decoder_input_details": True}
_CONTINUED = {"add_generation_prompt": False, "continue_final_message": True}


def _completion(answer: Any) -> Scored:
    found = answer["choices"][0]["logprobs"]
    return list(zip(found["tokens"], map(_number, found["token_logprobs"]), strict=True))


def _prefill(answer: Any) -> Scored:
    document = answer[0] if isinstance(answer, list) else answer
    tokens = document["details"]["prefill"]
    return [(token["id"], _number(token.get("log_prob", token.get("logprob")))) for token in tokens]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
