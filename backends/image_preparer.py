"""Images of prompts, made ready beside the engine's loop. Needs Pillow, as every model's processor does."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from PIL import Image

from backends.image_decoder import ImageDecoder
from backends.preparing import give_way
from lmi_handlers.request import ImagePrompt, TokenRequest

Images = TypeVar("Images")


class ImagePreparer(Generic[Images]):
    """Decodes images and runs a model's processor beside the loop, one prompt after the other."""

    def __init__(self, process: Callable[[TokenRequest, list[Image.Image]], Images]) -> None:
        """`process` raises `InvalidRequest` for images that do not fit their text."""
        self._process = process
        self._decoder = ImageDecoder()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="images", initializer=give_way)
        self._last: tuple[ImagePrompt, Future[Images]] | None = None

    def submit(self, request: TokenRequest) -> Future[Images] | None:
        """Return what becomes of the request's images, None where it has none; the samples of one prompt share it."""
        prompt = request.image_prompt
        if prompt is None:
            return None
        if self._last is None or self._last[0] is not prompt:
            self._last = prompt, self._pool.submit(self._prepare, request, prompt)
        return self._last[1]

    def close(self) -> None:
        """End the thread and the decoder's process."""
        self._decoder.kill()
        self._pool.shutdown(cancel_futures=True)
        self._decoder.close()

    def _prepare(self, request: TokenRequest, prompt: ImagePrompt) -> Images:
        return self._process(request, [self._decoder.decode(image) for image in prompt.images])
