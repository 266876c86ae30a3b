"""A third party's backend: answers any prompt with the same eight tokens, as the engine behind the LMI vectors did.

It is found through its entry point only; `write_model` makes the model directory that goes with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from backends.base import Backend, ModelFiles
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import TokenRequest

SCRIPT = [
    (21784, "Deep", -0.052432529628276825),
    (29257, " Learning", -1.2865009307861328),
    (338, " is", -0.007458459585905075),
    (263, " a", -0.5),
    (12528, ' "cool"', -2.25),
    (4500, " été", -3.125),
    (1746, " field", -0.6950479745864868),
    (29889, ".", -0.001),
]
PROMPT_WORDS = ["What", "is", "Deep", "Learning?"]
OTHER = (7, "zz", -9.5)
MARK = "\u2060"  # distinguishes the prompt's words from the script's


def write_model(directory: Path) -> None:
    """Write a model directory with a real tokenizer. This backend does not use the weights."""
    vocabulary = {"[UNK]": 0, OTHER[1]: OTHER[0]}
    vocabulary |= {MARK + word: 1000 + position for position, word in enumerate(PROMPT_WORDS)}
    vocabulary |= {text: token_id for token_id, text, _ in SCRIPT}
    vocabulary |= {f"{text}~1": token_id + 1 for token_id, text, _ in SCRIPT}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", f" {MARK}")])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Replace(MARK, "")
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": 32000, "n_positions": 2048}))
    (directory / "model.safetensors").write_text("\x02\0\0\0\0\0\0\0{}")  # no tensors


class ScriptedBackend(Backend):
    """Generates one token of the script per step. Each further sequence of a request has other ids and lower probabilities."""

    def __init__(self, vocab_size: int, max_model_len: int, max_words: int | None) -> None:
        self._script = SCRIPT[:max_words]
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._running: dict[str, tuple[TokenRequest, int]] = {}

    @classmethod
    def load(cls, model: ModelFiles, properties: ServingProperties, report: Callable[[str], None]) -> ScriptedBackend:
        from scripted_declaration import ScriptedOptions

        options = properties.options_of(ScriptedOptions)
        return cls(model.vocab_size, properties.max_model_len or 2048, options.scripted_words)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(backend="scripted", max_model_len=self._max_model_len, vocab_size=self._vocab_size)

    def add_request(self, request: TokenRequest) -> None:
        self._running[request.request_id] = (request, 0)

    def abort(self, request_id: str) -> None:
        self._running.pop(request_id, None)

    def step(self) -> list[TokenOutput]:
        return [self._advance(request, position) for request, position in list(self._running.values())]

    def _advance(self, request: TokenRequest, position: int) -> TokenOutput:
        sample = int(request.request_id.rpartition("-")[2])
        token_id, _, logprob = SCRIPT[position]
        params = request.sampling_params
        finish_reason = None
        if position + 1 == params.max_tokens:
            finish_reason = FinishReason.LENGTH
        elif position + 1 == len(self._script):
            finish_reason = FinishReason.EOS_TOKEN
        self._running[request.request_id] = (request, position + 1)
        if finish_reason is not None:
            del self._running[request.request_id]
        with_prompt = position == 0 and params.prompt_logprobs is not None
        return TokenOutput(
            request_id=request.request_id,
            token_ids=[token_id + sample],
            logprobs=[logprob - sample],
            top_logprobs=[[(token_id + sample, logprob - sample), (OTHER[0], OTHER[2])]],
            prompt_logprobs=[None, *[-float(n) for n in range(1, len(request.prompt.token_ids))]]
            if with_prompt
            else None,
            finish_reason=finish_reason,
        )
