"""Handlers and scripts in the styles that users publish, as files of a model directory, and what they answer.

The larger ones, which are served and killed, are in tests/custom_code/handlers.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from PIL import Image


class Kind(NamedTuple):
    """A handler, a request, and the answer, or a part of the sentence that says why there is none.

    The answer is the whole content, or the value of JSON.
    """

    code: str
    answer: object = None
    body: bytes = b"{}"
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}
    query: Mapping[str, str] = {}
    properties: str = ""
    file: str = "model.py"
    status: int = 200
    refusal: str = ""


def npy(number: float) -> bytes:
    """An array of one number, as an .npy file."""
    file = io.BytesIO()
    np.save(file, np.array([number]))
    return file.getvalue()


def png() -> bytes:
    """A picture of one dot."""
    file = io.BytesIO()
    Image.new("RGB", (1, 1)).save(file, "PNG")
    return file.getvalue()


_LAZY_MODEL = """
from djl_python import Input, Output
import logging
import os

predictor = None


def get_model(properties):
    tensor_parallel = int(properties.get("tensor_parallel_degree", 1))
    model_location = properties["model_dir"]
    if "model_id" in properties:
        model_location = properties["model_id"]
    logging.info(f"Loading model in {model_location}")
    assert os.path.isdir(properties["model_dir"])
    return lambda text, **kwargs: [{"generated_text": f"{text} x{tensor_parallel}", **kwargs}]


def handle(inputs: Input) -> None:
    global predictor
    if not predictor:
        predictor = get_model(inputs.get_properties())

    if inputs.is_empty():
        # Model server makes an empty call to warmup the model on startup
        return None

    data = inputs.get_as_json()
    result = predictor(data["inputs"], **data.get("parameters", {}))
    return Output().add(result)
"""

_EMBEDDINGS = """
import numpy as np
from djl_python import Input, Output

model = None


class Embedder:
    def encode(self, sentences, normalize_embeddings=False):
        vectors = np.array([[len(text), 1.0] for text in sentences], dtype=np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if normalize_embeddings else vectors


def handle(inputs: Input):
    global model
    if not model:
        model = Embedder()
    if inputs.is_empty():
        return None
    data = inputs.get_as_json()
    sentences = data["inputs"] if isinstance(data["inputs"], list) else [data["inputs"]]
    embeddings = model.encode(sentences)
    return Output().add_as_json({"embeddings": embeddings, "dim": np.int64(embeddings.shape[1])})
"""

_SOUND = """
import io
import wave
from djl_python import Input, Output


def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        return None
    with wave.open(io.BytesIO(inputs.get_as_bytes())) as sound:
        seconds = sound.getnframes() / sound.getframerate()
    outputs = Output(code=200, message="OK")
    outputs.add_property("content-type", "application/json")
    return outputs.add_as_json({"text": f"{seconds} s of {inputs.get_property('Content-Type')}"})
"""

_BASE64_IMAGES = """
import base64
from io import BytesIO

from djl_python import Input, Output
from PIL import Image


def encode_image(image):
    buffer = BytesIO()
    image.save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode("utf8")


def handle(inputs: Input):
    if inputs.is_empty():
        return None
    data = inputs.get_as_json()
    image = Image.open(BytesIO(base64.b64decode(data["image"]))).convert("L")
    decoded = Image.open(BytesIO(base64.b64decode(encode_image(image))))
    return Output().add_as_json({"size": decoded.size, "mode": decoded.mode})
"""

_FORM = """
from djl_python import Input, Output


def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        return None
    content = inputs.get_content()
    prompt = inputs.get_as_string("prompt")
    pairs = [[key, len(content.get(key))] for key in content.get_keys()]
    return Output().add_as_json({"prompt": prompt, "file": inputs.contains_key("file"), "pairs": pairs})
"""

_PAIRS = """
from djl_python import Input, Output, PairList


def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        return None
    pairs: PairList = inputs.get_content()
    options = PairList(["temperature"], [0.5])
    options.add("top_k", 5)
    named = {pairs.key_at(i): pairs.value_at(i).decode() for i in range(pairs.size())}
    return Output().add_as_json({"content": named, "options": dict(zip(options.get_keys(), options.get_values()))})
"""

_FORMATTED_STREAM = """
import json
from djl_python import Input, Output


def to_event(item):
    return f"data: {json.dumps({'token': item})}\\n\\n"


def tokens(text):
    for word in text.split():
        yield word


def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        return None
    outputs = Output()
    outputs.add_property("content-type", "text/event-stream")
    outputs.add_stream_content(tokens(inputs.get_as_json()["inputs"]), output_formatter=to_event)
    return outputs
"""

_PLAIN_STREAM = """
from djl_python import Input, Output


def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        return None
    if inputs.get_as_json().get("default"):
        return Output().add_stream_content(iter([["a"], ["b"]]))
    return Output().add_stream_content(iter(["a", "b"]), output_formatter=None)
"""

_THREAD_STREAM = """
import json
from queue import Queue
from threading import Thread

from djl_python import Input, Output


def produce(queue, words):
    for word in words:
        queue.put(word)
    queue.put(None)


class Handler:
    def __init__(self):
        self.initialized = False

    def initialize(self, properties):
        self.suffix = properties.get("suffix")
        self.initialized = True

    def inference(self, inputs):
        queue = Queue()
        Thread(target=produce, args=(queue, inputs.get_as_json()["inputs"].split())).start()
        lines = (json.dumps({"word": word + self.suffix}) + "\\n" for word in iter(queue.get, None))
        return Output().add_property("content-type", "application/jsonlines").add_stream_content(lines, None)


_service = Handler()


def handle(inputs):
    if not _service.initialized:
        _service.initialize(inputs.get_properties())
    return None if inputs.is_empty() else _service.inference(inputs)
"""

_BATCHES = """
from djl_python import Input, Output
from djl_python.encode_decode import decode, encode


def handle(inputs: Input) -> Output:
    outputs = Output()
    if inputs.is_empty():
        return None
    batch = inputs.get_batches()
    for i, item in enumerate(batch):
        content_type = item.get_property("Content-Type")
        data = decode(item, content_type)
        one = Output()
        encode(one, {"n": data["n"] * 2, "of": inputs.get_batch_size()}, item.get_property("Accept") or content_type)
        outputs.add(one.data(), key="data", batch_index=i)
        outputs.add_property(f"batch_{i:03d}_Content-Type", "application/json")
    return outputs
"""

_CLASSIFIER = """
import functools
from djl_python import Input, Output


class Classifier:
    def __init__(self, threshold):
        self.threshold = threshold

    def __call__(self, inputs: Input) -> Output:
        if inputs.is_empty():
            return None
        return Output().add_as_json({"label": inputs.get_as_json()["score"] > self.threshold})


def logged(function):
    @functools.wraps(function)
    def wrapper(*args):
        print("called")
        return function(*args)

    return wrapper


"""

_ASYNC_GENERATOR = """
import asyncio
from djl_python import Input, Output


async def handle(inputs: Input):
    if inputs.is_empty():
        return
    for word in inputs.get_as_json()["inputs"].split():
        await asyncio.sleep(0)
        yield Output().add(word + "\\n").add_property("Content-Type", "application/jsonlines")
"""

_BESIDE_AN_ENGINE = """
from djl_python import Input, Output
from djl_python.encode_decode import decode
from djl_python.async_utils import create_non_stream_output
from an_engine import LLM, SamplingParams

llm = None


async def handle(inputs: Input) -> Output:
    \"\"\"As on LMI's page about vLLM: the first call, without content, generates, too.\"\"\"
    global llm
    if llm is None:
        properties = inputs.get_properties()
        llm = LLM(model=properties.get("model_id", "gpt2"), tensor_parallel_size=1)

    raw_request = inputs.get_batches()[0]
    payload = decode(raw_request, raw_request.get_property("Content-Type"))
    outputs = llm.generate([payload.get("inputs", "Hello")], SamplingParams(max_tokens=50))
    return create_non_stream_output({"generated_text": outputs[0] if outputs else "No output"})
"""

_ENGINE = """
class SamplingParams:
    def __init__(self, max_tokens):
        self.max_tokens = max_tokens


class LLM:
    def __init__(self, model, tensor_parallel_size):
        self.model = model

    def generate(self, prompts, sampling_params):
        return [f"{self.model}: {prompt[:sampling_params.max_tokens]}" for prompt in prompts]
"""

_FINALIZED = """
import os
import tempfile
from djl_python import Input, Output


def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        return None
    path = tempfile.mkstemp()[1]
    outputs = Output().add(open(path, "rb").read() + b"video")
    outputs.add_property("content-type", "video/mp4").finalize(os.remove, path)
    return outputs
"""

_ERRORS = """
import logging
from djl_python import Input, Output


def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        return None
    try:
        return Output().add_as_json({"value": 1 / inputs.get_as_json()["by"]})
    except Exception as e:
        logging.exception("Predict failed")
        return Output().error(str(e))
"""

_TABLE = """
from djl_python import Input, Output


def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        return None
    rows = inputs.get_as_csv()
    return Output().add_as_json([float(row["x"]) * 2 for row in rows])
"""

_ANY_CONTENT = """
from djl_python import Input, Output


def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        return None
    data = inputs.get_data()
    return Output().add_as_string(f"{type(data).__name__} {data}")
"""

_HUB_SCRIPT = """
import torch_free_pipeline as pipelines
from sagemaker_huggingface_inference_toolkit import content_types, decoder_encoder


def model_fn(model_dir):
    return pipelines.Pipeline(model_dir)


def input_fn(input_data, content_type):
    return decoder_encoder.decode(input_data, content_type)


def predict_fn(data, model):
    inputs = data.pop("inputs", data)
    return model(inputs, **data.pop("parameters", {}))


def output_fn(prediction, accept):
    return decoder_encoder.encode(prediction, accept or content_types.JSON)
"""

_PIPELINE = """
import numpy as np


class Pipeline:
    def __init__(self, model_dir):
        self.model_dir = model_dir

    def __call__(self, inputs, top_k=1):
        texts = inputs if isinstance(inputs, list) else [inputs]
        return [{"label": text.upper(), "score": np.float32(0.5), "k": top_k} for text in texts]
"""

_TREE = """
import json
import os
import pickle as pkl

import numpy as np


class Booster:
    def predict(self, matrix):
        return matrix.sum(axis=1)


def model_fn(model_dir):
    return Booster()


def input_fn(request_body, request_content_type):
    if request_content_type == "text/libsvm":
        rows = [row.split()[1:] for row in request_body.decode().splitlines()]
        return np.array([[float(item.split(":")[1]) for item in row] for row in rows])
    raise ValueError(f"Content type {request_content_type} is not supported.")


def output_fn(predictions, content_type):
    return ",".join(str(x) for x in predictions.tolist())
"""

_TENSORS = """
import json
from io import BytesIO

import numpy as np


def model_fn(model_dir, context):
    return {"dir": model_dir, "gpu": context.system_properties.get("gpu_id")}


def transform_fn(model, request_body, content_type, accept_type):
    array = np.load(BytesIO(request_body))
    file = BytesIO()
    np.save(file, array * 2)
    return file.getvalue(), accept_type
"""

_JSON_LINES = """
import json


def model_fn(model_dir):
    return 2


def input_fn(body, content_type):
    return [json.loads(line) for line in body.splitlines()]


def predict_fn(records, factor):
    return [record["x"] * factor for record in records]


def output_fn(prediction, accept):
    return "\\n".join(json.dumps({"y": y}) for y in prediction), "application/jsonlines"
"""

_HANDLE = "\n\ndef handle(inputs):\n    return None\n"

KINDS: dict[str, Kind] = {
    "a model loaded by the first call": Kind(
        _LAZY_MODEL,
        [{"generated_text": "hi x2", "k": 1}],
        b'{"inputs": "hi", "parameters": {"k": 1}}',
        properties="engine=Python\noption.tensor_parallel_degree=2\n",
    ),
    "embeddings in numpy's types": Kind(
        _EMBEDDINGS,
        {"embeddings": [[2.0, 1.0]], "dim": 2},
        b'{"inputs": "ab"}',
    ),
    "images in JSON": Kind(
        _BASE64_IMAGES,
        {"size": [1, 1], "mode": "L"},
        json.dumps({"image": base64.b64encode(png()).decode()}).encode(),
    ),
    "a form with a file": Kind(
        _FORM,
        {"prompt": "hi", "file": True, "pairs": [["prompt", 2], ["file", 3]]},
        b'--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\nhi\r\n--b\r\nContent-Disposition: form-data; '
        b'name="file"; filename="a"\r\n\r\nabc\r\n--b--\r\n',
        "multipart/form-data; boundary=b",
    ),
    "query parameters in pairs": Kind(
        _PAIRS,
        {"content": {"adapter": "a1", "data": "text"}, "options": {"temperature": 0.5, "top_k": 5}},
        b"text",
        "text/plain",
        query={"adapter": "a1"},
    ),
    "a stream with a formatter": Kind(
        _FORMATTED_STREAM, b'data: {"token": "a"}\n\ndata: {"token": "b"}\n\n', b'{"inputs": "a b"}'
    ),
    "a stream without one": Kind(_PLAIN_STREAM, b"ab"),
    "a stream in LMI's default format": Kind(
        _PLAIN_STREAM, b'{"outputs": ["a"]}\n{"outputs": ["b"]}\n', b'{"default": true}'
    ),
    "a stream from a thread": Kind(
        _THREAD_STREAM,
        b'{"word": "a!"}\n{"word": "b!"}\n',
        b'{"inputs": "a b"}',
        properties="option.suffix=!\n",
    ),
    "a dynamic batch with encode and decode": Kind(
        _BATCHES,
        {"n": 42, "of": 1},
        b'{"n": 21}',
        properties="batch_size=4\nmax_batch_delay=10\n",
    ),
    "a decorated method": Kind(
        _CLASSIFIER + "handle = logged(Classifier(0.5).__call__)\n", {"label": True}, b'{"score": 0.9}'
    ),
    "an object that is called": Kind(_CLASSIFIER + "handle = Classifier(0.5)\n", {"label": False}, b'{"score": 0.1}'),
    "an asynchronous generator": Kind(
        _ASYNC_GENERATOR, b"a\nb\n", b'{"inputs": "a b"}', properties="option.async_mode=true\n"
    ),
    "LMI's documented handler beside vLLM": Kind(
        _BESIDE_AN_ENGINE,
        {"generated_text": "gpt2: hi"},
        b'{"inputs": "hi"}',
        properties="option.async_mode=true\noption.rolling_batch=disable\n"
        "option.entryPoint=djl_python.lmi_vllm.vllm_async_service\n",
    ),
    "a file that is deleted after the answer": Kind(_FINALIZED, b"video"),
    "an error of its own": Kind(
        _ERRORS,
        {"code": 424, "message": "invoke handler failure", "error": "division by zero"},
        b'{"by": 0}',
        status=424,
    ),
    "rows of CSV": Kind(_TABLE, [2.0, 4.0], b"x\n1\n2\n", "text/csv"),
    "content as its type says": Kind(_ANY_CONTENT, b"str text", b"text", "text/plain"),
    "bytes": Kind(_ANY_CONTENT, b"bytes b'\\x01'", b"\x01", "application/octet-stream"),
    "another function in another file": Kind(
        _TABLE.replace("def handle", "def predict"),
        [6.0],
        b"x\n3\n",
        "text/csv",
        properties="option.entryPoint=serve.py\noption.handler=predict\n",
        file="serve.py",
    ),
    "a script with the hub's toolkit": Kind(
        _HUB_SCRIPT,
        [{"label": "GOOD", "score": 0.5, "k": 2}],
        b'{"inputs": "good", "parameters": {"top_k": 2}}',
        file="code/inference.py",
    ),
    "CSV by the hub's toolkit": Kind(
        _HUB_SCRIPT,
        b"label,score,k\r\nA,0.5,1\r\nB,0.5,1\r\n",
        b"inputs\na\nb\n",
        "text/csv",
        headers={"Accept": "text/csv"},
        file="code/inference.py",
    ),
    "a script for a table in libsvm's format": Kind(
        _TREE, b"3.0,7.0", b"0 1:1 2:2\n0 1:3 2:4\n", "text/libsvm", file="code/inference.py"
    ),
    "a script that transforms arrays": Kind(
        _TENSORS,
        npy(3.0),
        npy(1.5),
        "application/x-npy",
        headers={"Accept": "application/x-npy"},
        file="code/inference.py",
    ),
    "a script for lines of JSON": Kind(
        _JSON_LINES, b'{"y": 2}\n{"y": 6}', b'{"x": 1}\n{"x": 3}', "application/jsonlines", file="code/inference.py"
    ),
    "SageMaker's functions in a model.py": Kind(_JSON_LINES, {"y": 8}, b'{"x": 4}', "application/jsonlines"),
    # What cannot run says so in one sentence, when it is loaded.
    "Multi Model Server's handler": Kind(
        "def handle(data, context):\n    return [len(data)]\n",
        refusal="model.py, line 1: handle must take one argument, as in handle(inputs), got handle(data, context)",
    ),
    "Multi Model Server's errors": Kind(
        "from mms.service import PredictionException\n" + _HANDLE,
        refusal="mms.service.PredictionException is not provided: Multi Model Server's handlers are not supported: define",
    ),
    "TorchServe's handler": Kind(
        "from ts.torch_handler.base_handler import BaseHandler\n" + _HANDLE,
        refusal="TorchServe's handlers are not supported: define handle(inputs) in model.py, or model_fn and predict_fn",
    ),
    "the toolkit's default handler": Kind(
        "from sagemaker_inference.default_inference_handler import DefaultInferenceHandler\n\n\n"
        "class Handler(DefaultInferenceHandler):\n    pass\n\n\ndef model_fn(model_dir):\n    return None\n",
        file="code/inference.py",
        refusal="scripts need content_types, decoder, encoder and errors only",
    ),
    "the older container library": Kind(
        "from sagemaker_containers.beta.framework import encoders, worker\n\n\ndef model_fn(model_dir):\n    return None\n",
        file="code/inference.py",
        refusal="sagemaker_containers.beta.framework.encoders is not provided: output_fn returns (content, content_type)",
    ),
    "a rolling batch of its own": Kind(
        "from djl_python.rolling_batch.rolling_batch import RollingBatch, stop_on_any_exception\n" + _HANDLE,
        refusal="RollingBatch is not provided: the server runs the engine itself: remove model.py and set",
    ),
    "vLLM's handler, adapted": Kind(
        "from djl_python.lmi_vllm.vllm_async_service import VLLMHandler\n\n\nasync def handle(inputs):\n    return None\n",
        refusal="VLLMHandler is not provided: the server runs the engine itself",
    ),
    "Neuron's handler, adapted": Kind(
        "from djl_python.transformers_neuronx import TransformersNeuronXService\n" + _HANDLE,
        refusal="AWS Neuron is not supported",
    ),
    "DeepSpeed's handler, adapted": Kind(
        "from djl_python.deepspeed import DeepSpeedService\n" + _HANDLE,
        refusal="DeepSpeed is not supported: set option.rolling_batch=vllm",
    ),
    "the parser of LMI's own handlers": Kind(
        "from djl_python.utils import parse_input_with_formatter\n" + _HANDLE,
        refusal="parse_input_with_formatter is not provided: read requests with inputs.get_batches()",
    ),
    "a package that is not installed": Kind(
        "import not_installed_anywhere\n" + _HANDLE,
        refusal="model.py, line 1: ModuleNotFoundError: No module named 'not_installed_anywhere'",
    ),
}
"""What each handler is, and what comes of it."""

SIBLINGS = {"code/torch_free_pipeline.py": _PIPELINE, "an_engine.py": _ENGINE}
"""Modules beside the scripts."""

SOUND = _SOUND
