"""Prepares the images of prompts outside the engine loop. Needs Pillow, like every model's processor."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from PIL import Image

from backends.image_decoder import MODULE, decode_image
from backends.limited_pool import LimitedPool, Shared
from backends.limited_process import LimitedProcess
from lmi_handlers.core.request import ImagePrompt, TokenRequest

_REMEMBERED = 4
"""Number of prompts whose images are cached for further samples. Each may take hundreds of megabytes."""

Images = TypeVar("Images")


class ImagePreparer(Generic[Images]):
    """Decodes images and runs the model's processor outside the engine loop, for one prompt at a time."""

    def __init__(self, process: Callable[[TokenRequest, list[Image.Image]], Images]) -> None:
        """`process` raises `InvalidRequest` for images that do not match the text."""
        self._process = process
        self._processing = threading.Lock()
        self._pool = LimitedPool("images", MODULE)
        self._known: dict[int, tuple[ImagePrompt, Shared[Images]]] = {}  # by `id` of the prompt, latest used last

    def submit(self, request: TokenRequest) -> Future[Images] | None:
        """Return a future for the request's images, or None if it has none. Samples of one prompt share the result."""
        prompt = request.prompt.image_prompt
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
        self._pool.close()

    def _prepare(self, request: TokenRequest, prompt: ImagePrompt, process: LimitedProcess, seconds: float) -> Images:
        """Raises `Expired` if the turn was too short for the images."""
        images = [decode_image(image, process, seconds / len(prompt.images)) for image in prompt.images]
        with self._processing:
            return self._process(request, images)


def _pass_on(prepared: Future[Images], waiter: Future[Images]) -> None:
    if not waiter.set_running_or_notify_cancel():
        return
    error = prepared.exception()
    if error is None:
        waiter.set_result(prepared.result())
    else:
        waiter.set_exception(error)
