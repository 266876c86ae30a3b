"""Prepares the images and sounds of prompts outside the engine loop. Needs Pillow, like every model's processor."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from PIL import Image

from backends.image_decoder import MODULE, decode_image
from backends.limited_pool import LimitedPool, Onward, Shared
from backends.limited_process import LimitedProcess
from backends.sounds import DECODER, PromptSounds, Samples
from lmi_handlers.core.request import MediaPrompt, TokenRequest

_REMEMBERED = 4
"""Number of prompts whose media are cached for further samples. Each may take hundreds of megabytes."""

Prepared = TypeVar("Prepared")


@dataclass(frozen=True, slots=True)
class DecodedMedia:
    """The images and sounds of a prompt, in order. The sounds have the rate of the `PromptSounds`."""

    images: list[Image.Image]
    sounds: list[Samples]


class MediaPreparer(Generic[Prepared]):
    """Decodes images and sounds outside the engine loop, and runs the model's processor there, for one prompt at a time.

    Images and sounds have pools of their own: a prompt with images never waits for the sounds of another one.
    """

    def __init__(
        self, process: Callable[[TokenRequest, DecodedMedia], Prepared], sounds: PromptSounds | None = None
    ) -> None:
        """`process` raises `InvalidRequest` for media that do not match the text. `sounds` reads sounds, if there are any."""
        self._process = process
        self._processing = threading.Lock()
        self._images = LimitedPool("images", MODULE)
        self._sounds = None if sounds is None else (sounds, LimitedPool("sounds", DECODER))
        self._known: dict[int, tuple[MediaPrompt, Shared[Prepared]]] = {}  # by `id` of the prompt, latest used last

    def submit(self, request: TokenRequest) -> Future[Prepared] | None:
        """Return a future for the request's media, or None if it has none. Samples of one prompt share the result."""
        prompt = request.prompt.media_prompt
        if prompt is None:
            return None
        known = self._known.pop(id(prompt), None)
        waiter = None if known is None else known[1].wait(_pass_on)
        if known is None or waiter is None:
            prepared = self._images.submit(lambda process, seconds: self._prepare(request, prompt, process, seconds))
            known = prompt, Shared(prepared)
            waiter = known[1].wait(_pass_on)
        self._known[id(prompt)] = known
        for key in [key for key, (_, shared) in self._known.items() if shared.done][:-_REMEMBERED]:
            del self._known[key]
        return waiter

    def close(self) -> None:
        self._images.close()  # first, as it passes prompts on
        if self._sounds is not None:
            self._sounds[1].close()

    def _prepare(
        self, request: TokenRequest, prompt: MediaPrompt, process: LimitedProcess, seconds: float
    ) -> Prepared | Onward[Prepared]:
        """Raises `Expired` if the turn was too short for the images."""
        images = [decode_image(image, process, seconds / len(prompt.images)) for image in prompt.images]
        if self._sounds is None or not prompt.sounds:
            return self._processed(request, images, [])
        sounds, pool = self._sounds
        return Onward(
            pool,
            lambda decoder, turn: self._processed(request, images, sounds.read(prompt.sounds, decoder, turn)),
        )

    def _processed(self, request: TokenRequest, images: list[Image.Image], sounds: list[Samples]) -> Prepared:
        with self._processing:
            return self._process(request, DecodedMedia(images, sounds))


def _pass_on(prepared: Future[Prepared], waiter: Future[Prepared]) -> None:
    if not waiter.set_running_or_notify_cancel():
        return
    error = prepared.exception()
    if error is None:
        waiter.set_result(prepared.result())
    else:
        waiter.set_exception(error)
