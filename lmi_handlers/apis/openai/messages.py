"""Messages in OpenAI's format, and their conversion for chat templates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from lmi_handlers.core.errors import InvalidRequest, UnsupportedFeature
from lmi_handlers.core.request import ImageSource, SoundSource


class TextPart(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A piece of text in a message."""

    text: str


class RefusalPart(msgspec.Struct, frozen=True, tag_field="type", tag="refusal"):
    """An assistant's refusal earlier in the conversation."""

    refusal: str


class ImageUrl(msgspec.Struct, frozen=True):
    """The URL of an image."""

    url: str


class ImagePart(msgspec.Struct, frozen=True, tag_field="type", tag="image_url"):
    """An image in a message."""

    image_url: ImageUrl


class InputAudio(msgspec.Struct, frozen=True):
    """A sound's file in base64. Its `format` is read from the file."""

    data: str
    format: str | None = None


class InputAudioPart(msgspec.Struct, frozen=True, tag_field="type", tag="input_audio"):
    """A sound in a message, in OpenAI's form."""

    input_audio: InputAudio

    @property
    def url(self) -> str:
        return f"data:;base64,{self.input_audio.data}"


class AudioUrl(msgspec.Struct, frozen=True):
    """The URL of a sound."""

    url: str


class AudioUrlPart(msgspec.Struct, frozen=True, tag_field="type", tag="audio_url"):
    """A sound in a message, in vLLM's form."""

    audio_url: AudioUrl

    @property
    def url(self) -> str:
        return self.audio_url.url


SoundPart = InputAudioPart | AudioUrlPart
Part = TextPart | RefusalPart | ImagePart | InputAudioPart | AudioUrlPart


CALL_ID = "functions"
"""The id of a call in `function_call`, for templates. One serves all: the result follows its call immediately.

Mistral's templates require nine letters and digits.
"""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One turn of a conversation.

    `function_call` and the role `function` are the older forms of a call and its result. Templates see the newer ones.
    """

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    function_call: dict[str, Any] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None

    def with_links(self, field: str) -> dict[str, Any]:
        """Return the message for a chat template, with images as Markdown links. TGI tokenises them this way.

        `field` is the message's place in the body. Raises `InvalidRequest` if the message is empty, and
        `UnsupportedFeature` if it has a sound.
        """
        self._check_sounds(field)
        return self._plain(field, _joined)

    def with_media(self, field: str, *, takes_images: bool, takes_sounds: bool) -> dict[str, Any]:
        """Return the message for a chat template.

        If it has images or sounds, its content is a list of parts, as in `ChatPrompt`. Raises `UnsupportedFeature` if it
        has some that the model does not take.
        """
        images, sounds = self.images(field), self.sounds(field)
        if images and not takes_images:
            raise UnsupportedFeature("contains an image, which this model does not accept", field=f"{field}.content")
        if not takes_sounds:
            self._check_sounds(field)
        return self._plain(field, _in_parts if images or sounds else _joined)

    def images(self, field: str) -> tuple[ImageSource, ...]:
        return tuple(
            ImageSource(part.image_url.url, f"{field}.content[{place}].image_url")
            for place, part in self._parts()
            if isinstance(part, ImagePart)
        )

    def sounds(self, field: str) -> tuple[SoundSource, ...]:
        return tuple(
            SoundSource(part.url, f"{field}.content[{place}].{_kind(part)}")
            for place, part in self._parts()
            if isinstance(part, SoundPart)
        )

    def _parts(self) -> Iterator[tuple[int, Part]]:
        return enumerate(self.content if isinstance(self.content, list) else ())

    def _check_sounds(self, field: str) -> None:
        """Raise `UnsupportedFeature` if the message has a sound."""
        for place, part in self._parts():
            if isinstance(part, SoundPart):
                raise UnsupportedFeature(
                    f"{_kind(part)} is not supported by this model", field=f"{field}.content[{place}]"
                )

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls that the message makes, as `tool_calls`."""
        calls = list(self.tool_calls or ())
        if self.function_call is not None:
            calls.append({"id": CALL_ID, "type": "function", "function": self.function_call})
        return calls

    def _plain(self, field: str, render: Callable[[list[Part]], str | list[dict[str, str]]]) -> dict[str, Any]:
        """Convert to what templates expect: tool call arguments as objects, and `system` instead of `developer`.

        An empty list of calls is left out, as in vLLM: templates take any `tool_calls` for a message that makes calls.
        """
        message: dict[str, Any] = msgspec.to_builtins(self)
        if self.reasoning is not None:  # vLLM's newer name, unknown to templates
            message.setdefault("reasoning_content", self.reasoning)
        refusal = message.pop("refusal", None)
        if self.content is None and refusal is not None:
            message["content"] = refusal
        elif self.content is None and not self.calls and not message.get("reasoning_content"):
            raise InvalidRequest("has neither content nor tool_calls", field=field)
        elif not isinstance(self.content, str):
            parts = self.content or []
            message["content"] = render(_on_lines(parts) if self.role in ("tool", "function") else parts)
        if self.role == "developer":
            message["role"] = "system"
        elif self.role == "function":
            message |= {"role": "tool", "tool_call_id": CALL_ID}
        message.pop("function_call", None)
        message.pop("tool_calls", None)
        if calls := self.calls:
            message["tool_calls"] = [_with_arguments(call) for call in calls]
        return message


def _on_lines(parts: list[Part]) -> list[Part]:
    """Return the texts of a tool's result, with a line break behind each but the last, as vLLM joins them.

    Unlike the texts of a user's message, these are results by themselves. Beside other parts, they stay as they are.
    """
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    return [TextPart("\n".join(texts))] if texts and len(texts) == len(parts) else parts


def _joined(parts: list[Part]) -> str:
    return "".join(map(_text, parts))


def _in_parts(parts: list[Part]) -> list[dict[str, str]]:
    return [_in_part(part) for part in parts]


def _in_part(part: Part) -> dict[str, str]:
    if isinstance(part, SoundPart):
        return {"type": "audio"}
    return {"type": "image"} if isinstance(part, ImagePart) else {"type": "text", "text": _text(part)}


def _kind(part: SoundPart) -> str:
    """Return the part's `type` in the body."""
    return str(part.__struct_config__.tag)


def _text(part: Part) -> str:
    """Return the text of a part that is no sound."""
    match part:
        case TextPart():
            return part.text
        case RefusalPart():
            return part.refusal
        case ImagePart():
            return f"![]({part.image_url.url})"
    raise AssertionError(part)


def _with_arguments(call: dict[str, Any]) -> dict[str, Any]:
    """Return the call with its arguments decoded: OpenAI's format has JSON text, but models were trained on objects.

    Arguments that are no object become an empty one, as in vLLM. Templates read their members, and an error would
    refuse every later turn of a conversation in which the model's call was cut off.
    """
    function = call.get("function")
    if not isinstance(function, dict):
        return call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, RecursionError):
            arguments = None  # models do not always write valid JSON
    return call | {"function": function | {"arguments": arguments if isinstance(arguments, dict) else {}}}
