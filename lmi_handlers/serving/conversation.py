"""The conversation that a session keeps: a client sends its new messages only, and the model gets all of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from lmi_handlers.core.errors import InvalidRequest, TurnConflict
from lmi_handlers.core.request import ChatPrompt, ImageSource, SoundSource
from lmi_handlers.serving.parsed import Parsed
from lmi_handlers.sessions.store import StoredSession

MAX_CONVERSATION_BYTES = 1 << 20
"""Size of a conversation as JSON, images and sounds in `data:` URLs included."""

_FILE = "conversation.json"


class StoredConversation(msgspec.Struct, frozen=True, kw_only=True):
    """Messages with their images and sounds, as in `ChatPrompt`. The answers are as the model wrote them."""

    messages: list[dict[str, Any]] = []
    images: tuple[ImageSource, ...] = ()
    sounds: tuple[SoundSource, ...] = ()


def continue_conversation(parsed: Parsed, session: StoredSession, max_messages: int) -> Parsed:
    """Put the session's conversation in front of the request's messages. Its answer continues the conversation.

    If the answer does not become complete, the conversation stays as it was, and the client may send the turn again.
    Raises `InvalidRequest` if the request is not a chat with one answer, or if the conversation is too long.
    """
    request = parsed.request
    chat = request.prompts[0].content
    if len(request.prompts) != 1 or not isinstance(chat, ChatPrompt):
        raise InvalidRequest(
            "option.session_history keeps conversations only: send messages", code="session_keeps_chats"
        )
    if request.sampling_params.n != 1 or request.beam_search is not None:
        raise InvalidRequest(
            "must be 1, without beam search, if the session keeps the conversation (option.session_history)",
            field=parsed.alias("n"),
            code="session_keeps_one_answer",
        )
    if chat.continue_final_message:
        raise InvalidRequest(
            "must be false if the session keeps the conversation (option.session_history)",
            field="continue_final_message",
            code="session_keeps_whole_messages",
        )
    kept = session.read(_FILE)
    before = StoredConversation() if kept is None else msgspec.json.decode(kept, type=StoredConversation)
    turn = StoredConversation(
        messages=[*before.messages, *chat.messages],
        images=(*before.images, *chat.images),
        sounds=(*before.sounds, *chat.sounds),
    )
    if len(turn.messages) > max_messages:
        raise InvalidRequest(
            f"the session's conversation would have {len(turn.messages)} messages, of at most {max_messages} "
            "(option.max_messages): begin another",
            code="conversation_too_long",
        )
    _encode(turn)
    prompt = msgspec.structs.replace(
        request.prompts[0], content=msgspec.structs.replace(chat, **msgspec.structs.asdict(turn))
    )
    return msgspec.structs.replace(
        parsed,
        request=msgspec.structs.replace(request, prompts=(prompt,)),
        on_complete=partial(_keep, session, kept, turn),
    )


def _keep(session: StoredSession, kept: bytes | None, turn: StoredConversation, text: str) -> None:
    """Keep the turn. Raises `TurnConflict` if another turn of this session has ended in the meantime."""
    messages = [*turn.messages, {"role": "assistant", "content": text}]
    if not session.replace(_FILE, kept, _encode(msgspec.structs.replace(turn, messages=messages))):
        raise TurnConflict("another turn of this session ended while this one was answered: send it again")


def _encode(conversation: StoredConversation) -> bytes:
    data = msgspec.json.encode(conversation)
    if len(data) > MAX_CONVERSATION_BYTES:
        raise InvalidRequest(
            f"the session's conversation would have {len(data)} bytes, of at most {MAX_CONVERSATION_BYTES}: begin another",
            code="conversation_too_long",
        )
    return data
