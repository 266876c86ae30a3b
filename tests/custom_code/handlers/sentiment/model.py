"""Text classification, as a service class that is initialized by the first call."""

import json
import logging

import labels
from djl_python import Input, Output


class SentimentService(object):
    def __init__(self):
        self.initialized = False
        self.device = None
        self.words = None

    def initialize(self, properties):
        device_id = properties.get("device_id", "-1")
        self.device = "cpu" if device_id == "-1" else f"cuda:{device_id}"
        self.threshold = float(properties.get("threshold", "0.5"))
        with open("settings.json") as file:
            self.words = set(json.load(file)["positive"])
        logging.info(f"model is in {properties.get('model_dir')}")
        self.initialized = True

    def inference(self, inputs):
        try:
            texts = inputs.get_as_json()["inputs"]
            scores = [sum(word in self.words for word in text.split()) / len(text.split()) for text in texts]
            result = [{"label": labels.NAMES[score > self.threshold], "score": score} for score in scores]
            outputs = Output()
            outputs.add_as_json(result)
        except Exception as e:
            logging.exception("Classification failed")
            # error handling
            outputs = Output().error(str(e))
        return outputs


_service = SentimentService()


def handle(inputs: Input) -> Output:
    if not _service.initialized:
        # stateful model
        _service.initialize(inputs.get_properties())

    if inputs.is_empty():
        # initialization request
        return None

    return _service.inference(inputs)
