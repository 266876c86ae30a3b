"""Prepares the images and sounds of prompts outside the engine loop. Needs Pillow, like every model's processor."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from PIL import Image

from backends.image_decoder import MODULE, decode_image
from backends.limited_pool import LimitedPool, Shared
from backends.limited_process import LimitedProcess
from backends.sounds import Samples, SoundReader
from lmi_handlers.core.request import MediaPrompt, TokenRequest

_REMEMBERED = 4
"""Number of prompts whose media are cached for further samples. Each may take hundreds of megabytes."""

Prepared = TypeVar("Prepared")


@dataclass(frozen=True, slots=True)
class DecodedMedia:
    """The images and sounds of a prompt, in order. The sounds have the rate of their `SoundReader`."""

    images: list[Image.Image]
    sounds: list[Samples]


class MediaPreparer(Generic[Prepared]):
    """Decodes images and sounds and runs the model's processor outside the engine loop, for one prompt at a time."""

    def __init__(
        self, process: Callable[[TokenRequest, DecodedMedia], Prepared], sounds: SoundReader | None = None
    ) -> None:
        """`process` raises `InvalidRequest` for media that do not match the text. `sounds` reads sounds, if there are any.

        It is closed with the preparer.
        """
        self._process = process
        self._sounds = sounds
        self._reading, self._processing = threading.Lock(), threading.Lock()
        self._pool = LimitedPool("images", MODULE)
        self._known: dict[int, tuple[MediaPrompt, Shared[Prepared]]] = {}  # by `id` of the prompt, latest used last

    def submit(self, request: TokenRequest) -> Future[Prepared] | None:
        """Return a future for the request's media, or None if it has none. Samples of one prompt share the result."""
        prompt = request.prompt.media_prompt
        if prompt is None:
            return None
        known = self._known.pop(id(prompt), None)
        waiter = None if known is None else known[1].wait(_pass_on)
        if known is None or waiter is None:
            prepared = self._pool.submit(lambda process, seconds: self._prepare(request, prompt, process, seconds))
            known = prompt, Shared(prepared)
            waiter = known[1].wait(_pass_on)
        self._known[id(prompt)] = known
        for key in [key for key, (_, shared) in self._known.items() if shared.done][:-_REMEMBERED]:
            del self._known[key]
        return waiter

    def close(self) -> None:
        if self._sounds is not None:
            self._sounds.stop()
        self._pool.close()
        if self._sounds is not None:
            self._sounds.close()

    def _prepare(self, request: TokenRequest, prompt: MediaPrompt, process: LimitedProcess, seconds: float) -> Prepared:
        """Raises `Expired` if the turn was too short for the images. Sounds have their own limits, and a process."""
        images = [decode_image(image, process, seconds / len(prompt.images)) for image in prompt.images]
        sounds: list[Samples] = []
        if self._sounds is not None and prompt.sounds:
            with self._reading:
                sounds = self._sounds.read_prompt(prompt.sounds)
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
