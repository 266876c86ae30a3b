"""Scripts in the style of those that SageMaker's users publish."""

from __future__ import annotations

STEPS = """
import json
import os

import numpy as np

import labels  # a sibling


class Doubler:
    def predict(self, data):
        return np.asarray(data) * 2


def model_fn(model_dir):
    with open(os.path.join(model_dir, "weights.json")) as file:
        assert json.load(file) == {"factor": 2}
    return Doubler()


def input_fn(request_body, request_content_type):
    if request_content_type == "application/json":
        assert isinstance(request_body, str)
        return np.array(json.loads(request_body)["instances"])
    if request_content_type == "application/x-rows":
        assert isinstance(request_body, bytes)
        return np.array([[float(part) for part in row.split(b" ")] for row in request_body.split(b"\\n")])
    raise ValueError(f"Unsupported content type: {request_content_type}")


def predict_fn(input_data, model):
    return model.predict(input_data)


def output_fn(prediction, accept):
    if accept == "application/json":
        return json.dumps({"predictions": prediction.tolist(), "label": labels.NAME}), accept
    if accept == "text/plain":
        return "\\n".join(map(str, prediction.tolist()))
    raise ValueError(f"Unsupported accept type: {accept}")
"""

DEFAULTS = """
class Doubler:
    def predict(self, data):
        return data["rows"] if isinstance(data, dict) else data * 2


def model_fn(model_dir, context):
    assert context.system_properties["gpu_id"] is None
    return Doubler()
"""

CONTEXT = """
import json
import time

from sagemaker_inference.errors import BaseInferenceToolkitError


def model_fn(model_dir, context):
    return {"device": context.system_properties["gpu_id"], "model_dir": context.system_properties["model_dir"]}


def input_fn(data, content_type, context=None):
    return {"case": context.get_request_header(0, "X-Case"), "id": context.get_request_id(), "data": data}


def words(text, path):
    try:
        for word in text.split():
            if word == "raise":
                raise ValueError("in the middle")
            while word == "forever":
                yield "tick\\n"
                time.sleep(0.02)
            yield word + "\\n"
    finally:
        if path:
            open(path, "w").write("closed")


def predict_fn(data, model):
    if data["case"] == "refuse":
        raise BaseInferenceToolkitError(422, "not this one", "Refused")
    if data["case"] == "raise":
        raise RuntimeError("a bug")
    if data["case"] == "none":
        return None
    return {**model, **data}


def output_fn(prediction, accept, context):
    if prediction is None:
        return None
    if prediction["case"] == "stream":
        text, _, path = prediction["data"].decode().partition("|")
        return words(text, path), "text/plain"
    if prediction["case"] == "created":
        context.set_response_status(code=201, phrase="Created")
        context.set_response_header(0, "X-From", "output_fn")
        context.set_response_content_type(0, "application/x-created")
        return json.dumps(prediction["id"])
    prediction["data"] = len(prediction["data"])
    return prediction
"""

TRANSFORM = """
calls = []


def pre_model_fn(model_dir):
    calls.append("before")


def model_fn(model_dir):
    calls.append("load")
    return "model"


def model_warmup_fn(model_dir, model):
    calls.append(f"warm up {model}")


def transform_fn(model, request_body, content_type, accept_type):
    return f"{calls} {model} {request_body!r} {content_type} {accept_type}", "text/plain"
"""

CODECS = """
from sagemaker_inference import content_types, decoder, encoder


def model_fn(model_dir):
    return None


def input_fn(data, content_type):
    if content_type == content_types.OCTET_STREAM:
        content_type = content_types.NPY
    return decoder.decode(data, content_type)


def predict_fn(data, model):
    return data.sum(axis=0)


def output_fn(prediction, accept):
    return encoder.encode(prediction, accept), accept
"""

STREAMED_PREDICTIONS = """
def model_fn(model_dir):
    return 3


def predict_fn(data, model):
    for number in range(model):
        yield {"number": number}
"""

DECORATED = """
import os

import numpy as np

from djl_python import Input
from djl_python.input_parser import init_handler, input_formatter, prediction_handler
from djl_python.output_formatter import output_formatter


@init_handler
def custom_init(model_dir, **kwargs):
    with open(os.path.join(model_dir, "factor.txt")) as file:
        return float(file.read())


@input_formatter
def custom_input(inputs: Input, **kwargs):
    assert kwargs == {"content_type": "application/json"}
    return np.array(inputs.get_as_json()["features"])


@prediction_handler
def custom_predict(X, model, **kwargs):
    return {"predictions": X * model, "shape": X.shape}


@output_formatter
def custom_output(predictions):
    return {name: list(map(str, np.ravel(value))) for name, value in predictions.items()}
"""

INITIALISED = """
import numpy as np

from djl_python.input_parser import init_handler


class Sums:
    def predict(self, data):
        return np.asarray(data).sum(axis=1)


@init_handler
def load(model_dir):
    return Sums()
"""

LMI_FUNCTIONS = """
import json


class Negative:
    def predict(self, data):
        return -data


def model_fn(model_dir):
    return Negative()


def output_fn(prediction, accept):
    if accept == "text/csv":
        return "\\n".join(map(str, prediction.ravel())).encode("utf-8")
    return json.dumps({"negative": prediction.tolist()}).encode("utf-8")
"""

LMI_INPUT = """
import json


def model_fn(model_dir):
    return 1


def input_fn(request_body, content_type):
    return json.loads(request_body.decode("utf-8"))


def predict_fn(input_data, model):
    return input_data["values"]
"""
