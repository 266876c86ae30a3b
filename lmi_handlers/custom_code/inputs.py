"""The argument of `handle`: `djl_python.Input`, with the methods that LMI documents."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lmi_handlers.custom_code import ndlist
from lmi_handlers.custom_code.numpy_files import read_npz
from lmi_handlers.custom_code.pair_list import PairList


class Properties(dict[str, str]):
    """Text by name. `get`, `[]` and `in` find a name in any case, because clients may send headers in any."""

    def __missing__(self, key: str) -> str:
        found = next((name for name in self if name.lower() == str(key).lower()), None)
        if found is None:
            raise KeyError(key)
        return self[found]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or any(name.lower() == str(key).lower() for name in self)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a property, or `default`."""
        try:
            return self[key]
        except KeyError:
            return default


class Input:
    """A request: its properties (the headers), and its content, which is the body under the name "data".

    Query parameters and the fields of a form are content, too, under their own names. The first call of a process has
    no content; its properties are the options. With dynamic batching, each call has a batch of requests.
    """

    def __init__(
        self, properties: Mapping[str, str] | None = None, parts: Iterable[tuple[str, bytes]] = (), function: str = ""
    ) -> None:
        self.function_name = function or None
        self.properties = Properties(properties or {})
        self.content = PairList()
        for key, value in parts:
            self.content.add(key, value)
        self.is_aborted: Callable[[], bool] = lambda: False
        """Tells functions of ours whether nobody waits for the answers any more."""
        self._batch: list[Input] | None = None

    @classmethod
    def of_batch(cls, batch: list[Input]) -> Input:
        """Return the input of a dynamic batch, which names properties and content as DJL does: `batch_000_data`."""
        joined = cls({"batch_size": str(len(batch))})
        joined._batch = batch
        for index, item in enumerate(batch):
            for name, text in item.properties.items():
                joined.properties[f"batch_{index:03d}_{name}"] = text
            for name, value in zip(item.content.keys, item.content.values, strict=True):
                joined.content.add(f"batch_{index:03d}_{name}", value)
        return joined

    def __str__(self) -> str:
        return f"properties: {dict(self.properties)}\ncontent: {self.content.keys}"

    def is_batch(self) -> bool:
        """Tell whether this is a dynamic batch, which may consist of one request."""
        return self._batch is not None

    def get_batch_size(self) -> int:
        """Return the number of requests."""
        return len(self.get_batches())

    def get_batches(self) -> list[Input]:
        """Return one `Input` per request. If this is not a batch, that is itself."""
        return [self] if self._batch is None else self._batch

    def get_function_name(self) -> str | None:
        """Return the name of the function that is called."""
        return self.function_name

    def get_properties(self) -> Properties:
        """Return all properties."""
        return self.properties

    def get_property(self, key: str) -> str | None:
        """Return the value of a property, whatever the case of its name, or None."""
        value: str | None = self.properties.get(key)
        return value

    def get_content(self) -> PairList:
        """Return the content."""
        return self.content

    def contains_key(self, key: str) -> bool:
        """Tell whether there is content of this name."""
        return self.content.get(key) is not None

    def is_empty(self) -> bool:
        """Tell whether there is no content, as in the first call."""
        return self.content.is_empty()

    def get_as_bytes(self, key: str | None = None) -> Any:
        """Return the content `key`, by default "data" or else the first. None if there is no content at all.

        Raises `KeyError` if there is content, but none of that name.
        """
        if self.content.is_empty():
            return None
        value = self.content.get(key or "data")
        if value is None and key:
            raise KeyError(f"the request has no content {key!r}")
        return self.content.value_at(0) if value is None else value

    def get_as_string(self, key: str | None = None) -> str:
        """Return the content as text in UTF-8."""
        text: str = self._content(key).decode("utf-8")
        return text

    def get_as_json(self, key: str | None = None) -> Any:
        """Return the value of JSON content."""
        return json.loads(self.get_as_string(key))

    def get_as_image(self, key: str | None = None) -> Any:
        """Return the content as a `PIL.Image.Image`."""
        from PIL import Image

        return Image.open(io.BytesIO(self._content(key)))

    def get_as_numpy(self, key: str | None = None) -> list[Any]:
        """Return the arrays of an NDList or an .npz archive."""
        return ndlist.decode(bytes(self._content(key)))

    def get_as_npz(self, key: str | None = None) -> list[Any]:
        """Return the arrays of an .npz archive."""
        return read_npz(bytes(self._content(key)))

    def get_as_csv(self, key: str | None = None) -> list[dict[str, str]]:
        """Return one dict per line of CSV content, whose first line has the names."""
        return list(csv.DictReader(io.StringIO(self.get_as_string(key))))

    def get_data(self, key: str | None = None) -> Any:
        """Return the content as its type suggests: arrays, a JSON value, text, an image, or else bytes."""
        kind = self.get_property("content-type") or ""
        if kind == "tensor/ndlist":
            return self.get_as_numpy(key)
        if kind == "tensor/npz":
            return self.get_as_npz(key)
        if kind.startswith("application/json"):
            return self.get_as_json(key)
        if kind.startswith("text/"):
            return self.get_as_string(key)
        if kind.startswith("image/"):
            return self.get_as_image(key)
        return self.get_as_bytes(key)

    def _content(self, key: str | None) -> Any:
        content = self.get_as_bytes(key)
        if content is None:
            raise ValueError("the request has no content")
        return content
