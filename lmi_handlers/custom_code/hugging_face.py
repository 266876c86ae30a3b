"""`djl_python.huggingface`: a handler that loads a model with transformers, for files that adapt LMI's own.

It answers as LMI's does without a rolling batch: a list with one prediction per input. Such files replace `parse_input`
of a service, or call `initialize` and `inference` before and after code of their own.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, StoppingCriteria, StoppingCriteriaList, pipeline

from lmi_handlers.custom_code.encode_decode import decode, encode
from lmi_handlers.custom_code.inputs import Input
from lmi_handlers.custom_code.outputs import Output
from lmi_handlers.custom_code.script import accepts
from lmi_handlers.custom_code.streaming import StreamingUtils

_TASKS = {
    "ForQuestionAnswering": "question-answering",
    "ForTokenClassification": "token-classification",
    "ForSequenceClassification": "text-classification",
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
}
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_STREAMS = ("true", "huggingface")

logger = logging.getLogger(__name__)

Parsed = tuple[list[Any], list[int], list[dict[str, Any]], dict[int, str], list[Input]]


class StopWord(StoppingCriteria):
    """Ends generation once the last tokens of the first sequence match a regular expression."""

    def __init__(self, tokenizer: Any, stop_seq: str) -> None:
        self.tokenizer = tokenizer
        self.stop_seq = stop_seq

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> bool:  # noqa: ARG002  LMI's
        return re.search(self.stop_seq, self.tokenizer.decode(input_ids[0][-len(self.stop_seq) :])) is not None


class HuggingFaceService:
    """A model in this process. `initialize` loads it, `inference` answers a request or a dynamic batch."""

    def __init__(self) -> None:
        self.initialized = False
        self.model: Any = None
        self.tokenizer: Any = None
        self.hf_pipeline: Callable[..., list[Any]] | None = None
        self.hf_pipeline_unwrapped: Any = None
        self.model_config: Any = None
        self.stopping_criteria_list: StoppingCriteriaList | None = None
        self.properties: Mapping[str, str] = {}
        self.device = "cpu"

    def initialize(self, properties: Mapping[str, str]) -> None:
        """Load the model that the options name, by default the one in the model directory. Raises what transformers does."""
        if properties.get("rolling_batch", "disable") not in ("disable", "false"):
            logger.warning("this model.py loads the model with transformers: option.rolling_batch has no effect")
        self.properties = properties
        model = properties.get("model_id") or properties["model_dir"]
        trusted: dict[str, Any] = {
            "trust_remote_code": properties.get("trust_remote_code", "false").lower() == "true",
            "revision": properties.get("revision"),
        }
        self.device = f"cuda:{properties['device_id']}" if int(properties.get("device_id", -1)) >= 0 else "cpu"
        self.model_config = AutoConfig.from_pretrained(model, **trusted)
        self.tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left", **trusted)
        if not self.tokenizer.pad_token:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        dtype = properties.get("dtype", "auto")
        task: Any = properties.get("task") or self.infer_task_from_model_architecture()
        self.hf_pipeline_unwrapped = pipeline(
            task=task,
            model=model,
            tokenizer=self.tokenizer,
            device=self.device,
            dtype=_DTYPES.get(dtype, dtype),
            **trusted,
        )
        self.model = self.hf_pipeline_unwrapped.model
        generates = self.hf_pipeline_unwrapped.task == "text-generation"
        self.hf_pipeline = self._generate if generates else self.hf_pipeline_unwrapped
        if "stop_sequence" in properties:
            words = self.parse_stop_sequence_input(properties["stop_sequence"])
            self.stopping_criteria_list = StoppingCriteriaList([StopWord(self.tokenizer, word) for word in words])
        self.initialized = True

    def infer_task_from_model_architecture(self) -> str:
        """Return the task for the model's class. Raises `ValueError` if `option.task` is needed."""
        architecture = (self.model_config.architectures or ["?"])[0]
        task = next((task for suffix, task in _TASKS.items() if architecture.endswith(suffix)), None)
        if task is None:
            raise ValueError(f"no task is known for the architecture {architecture}: set option.task")
        return task

    @staticmethod
    def parse_stop_sequence_input(stop_sequence: str) -> list[str]:
        """Return the texts of a list such as `["a", "b"]`. Raises `ValueError` if it is not one."""
        if stop_sequence[:1] != "[" or stop_sequence[-1:] != "]":
            raise ValueError(f"option.stop_sequence must be a list such as ['a', 'b'], got {stop_sequence!r}")
        return [item.strip()[1:-1] for item in stop_sequence[1:-1].split(",")]

    def parse_input(self, inputs: Input, tokenizer: Any = None, output_formatter: Any = None) -> Parsed:  # noqa: ARG002  LMI's
        """Return all texts, how many each request has, its parameters, errors by request, and the requests."""
        data: list[Any] = []
        sizes: list[int] = []
        parameters: list[dict[str, Any]] = []
        errors: dict[int, str] = {}
        batch = inputs.get_batches()
        for index, item in enumerate(batch):
            try:
                body = decode(item, item.get_property("Content-Type") or "")
                given = body.pop("inputs", body) if isinstance(body, dict) else body
                parameters.append(body.pop("parameters", {}) if isinstance(body, dict) else {})
            except Exception as error:  # noqa: BLE001  the others of the batch are answered
                errors[index] = f"the request cannot be read: {error}"
                sizes.append(0)
                continue
            texts = given if isinstance(given, list) else [given]
            data += texts
            sizes.append(len(texts))
        return data, sizes, parameters, errors, batch

    def inference(self, inputs: Input) -> Output:
        """Answer the requests. Raises `ValueError` if those of a batch have different parameters."""
        arguments = (inputs, self.tokenizer, self.properties.get("output_formatter"))
        parse = self.parse_input if accepts(self.parse_input, *arguments) else lambda *_: self.parse_input(inputs)
        data, sizes, parameters, errors, batch = parse(*arguments)
        if len(batch) == 1 and 0 in errors:
            return Output().error(errors[0])
        if self.properties.get("enable_streaming", "false").lower() in _STREAMS:
            return self._stream(data, parameters)
        if any(each != parameters[0] for each in parameters):
            raise ValueError("the requests of a dynamic batch must have the same parameters")
        assert self.hf_pipeline is not None  # noqa: S101  initialized
        predictions = self.hf_pipeline(data, **parameters[0]) if data else []
        outputs, offset = Output(), 0
        for index, item in enumerate(batch):
            answer: Any = errors.get(index)
            if answer is None:
                answer = predictions[offset : offset + sizes[index]]
                offset += sizes[index]
            _write(outputs, answer, item, index if inputs.is_batch() else None)
        return outputs

    def _stream(self, data: list[Any], parameters: list[dict[str, Any]]) -> Output:
        if len(parameters) > 1:
            raise ValueError("a stream answers one request, without batch_size")
        stream: Callable[..., Any] = StreamingUtils.get_stream_generator("Accelerate")
        if self.properties["enable_streaming"].lower() == "huggingface":
            stream = StreamingUtils.use_hf_default_streamer
        items = stream(self.model, self.tokenizer, data, self.device, **parameters[0])
        return Output().add_property("content-type", "application/jsonlines").add_stream_content(items)

    def _generate(self, data: list[str], **parameters: Any) -> list[dict[str, str]]:
        tokens = self.tokenizer(data, padding=True, return_tensors="pt").to(self.model.device)
        with torch.inference_mode():
            found = self.model.generate(
                input_ids=tokens.input_ids,
                attention_mask=tokens.attention_mask,
                stopping_criteria=self.stopping_criteria_list,
                **parameters,
            )
        return [{"generated_text": text} for text in self.tokenizer.batch_decode(found, skip_special_tokens=True)]


def _write(outputs: Output, answer: Any, request: Input, batch_index: int | None) -> None:
    """Add an answer in the type that the request accepts, by default JSON."""
    accept = request.get_property("Accept") or ""
    kind = request.get_property("Content-Type") or ""
    if not accept or "*/*" in accept:
        accept = kind if kind.startswith("tensor/") and not accept else "application/json"
    encoded = Output()
    encode(encoded, answer, accept)
    outputs.add(encoded.data(), batch_index=batch_index).add_property("Content-Type", accept)


_service = HuggingFaceService()


def handle(inputs: Input) -> Output | None:
    """Load the model in the first call, and answer the others."""
    if not _service.initialized:
        _service.initialize(inputs.get_properties())
    return None if inputs.is_empty() else _service.inference(inputs)
