"""Pools the vectors of a prompt's tokens into one vector, as the model's own files say.

These are the files of sentence-transformers: modules.json, and a folder with a configuration for each module that it
names. A model without them gets the mean.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import normalize

from lmi_handlers.core.errors import ConfigError

MODULES_FILE = "modules.json"

Pool = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""`(hidden, lengths)`: vectors of tokens `[prompts, tokens, size]`, padded on the right, -> `[prompts, size]`."""


class Pooler(nn.Module):
    """`[prompts, tokens, size]` and the lengths of the prompts -> `[prompts, embedding_size]`, in float32.

    The results of several modes are concatenated. `modules` are applied afterwards, in order.
    """

    def __init__(self, modes: tuple[str, ...] = ("mean",), modules: tuple[nn.Module, ...] = ()) -> None:
        super().__init__()
        self.modes = modes
        self.tail = nn.Sequential(*modules)

    @property
    def name(self) -> str:
        """The modes, in one word."""
        return "+".join(self.modes)

    def forward(self, hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        hidden = hidden.float()
        pooled: torch.Tensor = self.tail(torch.cat([_POOLS[mode](hidden, lengths) for mode in self.modes], dim=-1))
        return pooled


class Normalize(nn.Module):
    """Scales vectors to length 1."""

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return normalize(vectors, dim=-1)


class SpladePooler(nn.Module):
    """SPLADE: `[prompts, tokens, vocabulary]` and the lengths of the prompts -> `[prompts, vocabulary]`, in float32.

    It turns the logits of a masked language model into a weight for each token of the vocabulary.
    """

    def __init__(self, *, sums: bool = False, twice: bool = False) -> None:
        """`sums` adds the weights of all tokens instead of taking the largest, `twice` damps them twice."""
        super().__init__()
        self._sums = sums
        self._twice = twice

    def forward(self, logits: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        weights = logits.float().relu().log1p()
        weights = (weights.log1p() if self._twice else weights).masked_fill(~_mask(logits, lengths), 0)
        return weights.sum(dim=1) if self._sums else weights.amax(dim=1)


def read_pooler(path: Path) -> Pooler | SpladePooler:
    """Read the pooler of the model in `path`. Raises `ConfigError` that names what is not supported."""
    if not (path / MODULES_FILE).is_file():
        return Pooler()
    listed = _read(path / MODULES_FILE, list[_Module])
    if not listed:
        raise _unsupported(path / MODULES_FILE, "no module at all")
    first, *others = listed
    if [first.kind, *(module.kind for module in others)] == ["MLMTransformer", "SpladePooling"] and not first.path:
        return _splade(path / others[0].path / "config.json")
    if first.kind != "Transformer" or first.path:
        raise _unsupported(path / MODULES_FILE, f"{first.kind} in {first.path!r} as the first module")
    modes: tuple[str, ...] = ("mean",)
    modules: list[nn.Module] = []
    for module in others:
        folder = path / module.path
        if module.kind == "Pooling" and not modules:
            modes = _modes(folder / "config.json")
        elif module.kind == "Dense":
            modules.append(_dense(folder))
        elif module.kind == "Normalize":
            modules.append(Normalize())
        elif module.kind != "Dropout":  # used in training only
            raise _unsupported(path / MODULES_FILE, f"the module {module.kind}")
    return Pooler(modes, tuple(modules))


class _Module(msgspec.Struct):
    type: str
    path: str = ""

    @property
    def kind(self) -> str:
        return self.type.rpartition(".")[2]


def _mask(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return `[prompts, tokens, 1]`: true for a token, false for padding."""
    return (torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None])[..., None]


def _sum(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return (hidden * _mask(hidden, lengths)).sum(dim=1)


def _cls(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:  # noqa: ARG001  a `Pool`
    return hidden[:, 0]


def _max(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return hidden.masked_fill(~_mask(hidden, lengths), -torch.inf).amax(dim=1)


def _mean(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return _sum(hidden, lengths) / lengths[:, None]


def _mean_sqrt_len(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return _sum(hidden, lengths) / lengths[:, None].sqrt()


def _weighted_mean(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Weigh each token by its position, counted from 1."""
    weights = torch.arange(1, hidden.shape[1] + 1, device=hidden.device, dtype=hidden.dtype)
    total = (lengths * (lengths + 1) / 2)[:, None]
    return _sum(hidden * weights[None, :, None], lengths) / total


def _last_token(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), lengths - 1]


_POOLS: dict[str, Pool] = {
    "cls": _cls,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
    "lasttoken": _last_token,
}
"""By sentence-transformers' names, in the order in which it concatenates them."""

_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""The modes' names in files older than version 5.4 of the library."""

ACTIVATIONS: dict[str, type[nn.Module]] = {
    kind.__name__: kind for kind in (nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid)
}


def _modes(file: Path) -> tuple[str, ...]:
    config = _read(file, dict[str, Any])
    given = config.get("pooling_mode") or [mode for flag, mode in _FLAGS.items() if config.get(flag)] or "mean"
    modes = (given,) if isinstance(given, str) else tuple(given)
    if unknown := [mode for mode in modes if mode not in _POOLS]:
        raise _unsupported(file, f"the pooling mode {unknown[0]}")
    if config.get("include_prompt") is False:
        raise _unsupported(file, "include_prompt=false")
    return modes


def _splade(file: Path) -> SpladePooler:
    config = _read(file, dict[str, Any])
    strategy, activation = config.get("pooling_strategy", "max"), config.get("activation_function", "relu")
    if strategy not in ("max", "sum"):
        raise _unsupported(file, f"the pooling strategy {strategy}")
    if activation not in ("relu", "log1p_relu"):
        raise _unsupported(file, f"the activation function {activation}")
    return SpladePooler(sums=strategy == "sum", twice=activation == "log1p_relu")


def _dense(folder: Path) -> nn.Module:
    """Read a linear layer with an activation function."""
    file = folder / "config.json"
    config = _read(file, dict[str, Any])
    activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    if activation not in ACTIVATIONS:
        raise _unsupported(file, f"the activation function {activation}")
    if config.get("use_residual"):
        raise _unsupported(file, "use_residual=true")
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise ConfigError(f"option.model_id: {weights} is missing; other formats of the weights are not supported")
    linear = nn.Linear(config["in_features"], config["out_features"], bias=config.get("bias", True))
    linear.load_state_dict({name.removeprefix("linear."): value.float() for name, value in load_file(weights).items()})
    return nn.Sequential(linear, ACTIVATIONS[activation]())


def stated_lengths(path: Path) -> tuple[object, object]:
    """Return what the files in `path` say about the longest text: sentence-transformers' and the tokenizer's.

    Raises `ConfigError` if one of the files cannot be read.
    """
    trained = _read_object(path / "sentence_bert_config.json").get("max_seq_length")
    return trained, _read_object(path / "tokenizer_config.json").get("model_max_length")


def _read_object(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = _read(file, dict[str, Any]) if file.is_file() else {}
    return found


def _read(file: Path, kind: Any) -> Any:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"option.model_id: {file} cannot be read: {error}") from error


def _unsupported(file: Path, what: str) -> ConfigError:
    return ConfigError(f"option.model_id: {file} asks for {what}, which is not supported")
