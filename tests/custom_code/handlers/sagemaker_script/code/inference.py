"""SageMaker's functions, as for its framework images."""

import json
import logging
import os

import features

logger = logging.getLogger(__name__)


def model_fn(model_dir):
    logger.info("loading from %s", model_dir)
    with open(os.path.join(model_dir, "model.json")) as f:
        return json.load(f)


def input_fn(request_body, request_content_type):
    if request_content_type == "application/json":
        return features.column(json.loads(request_body))
    raise ValueError(f"Unsupported content type: {request_content_type}")


def predict_fn(input_data, model):
    return [model["slope"] * value + model["intercept"] for value in input_data]


def output_fn(prediction, accept):
    return json.dumps({"predictions": prediction}), "application/json"
