"""A stream from another thread, as transformers' TextIteratorStreamer makes it."""

import queue
import time
from threading import Thread

from djl_python import Input, Output


class TextIterator:
    def __init__(self, timeout=None):
        self.texts = queue.Queue()
        self.timeout = timeout

    def put(self, text):
        self.texts.put(text)

    def end(self):
        self.texts.put(None)

    def __iter__(self):
        return self

    def __next__(self):
        text = self.texts.get(timeout=self.timeout)
        if text is None:
            raise StopIteration()
        return text


class Model:
    def generate(self, prompt, max_new_tokens, streamer):
        words = prompt.split()
        for index in range(max_new_tokens):
            time.sleep(0.02)
            streamer.put([words[index % len(words)] + " "])
        streamer.end()


model = None


def load_model(properties):
    return Model()


def handle(inputs: Input) -> Output:
    global model
    if not model:
        model = load_model(inputs.get_properties())

    if inputs.is_empty():
        # Model server makes an empty call to warmup the model on startup
        return None

    data = inputs.get_as_json()
    streamer = TextIterator(timeout=10)
    parameters = {"max_new_tokens": 10, **data.get("parameters", {})}
    thread = Thread(target=model.generate, args=(data["inputs"],), kwargs={**parameters, "streamer": streamer})
    thread.start()

    outputs = Output()
    outputs.add_property("content-type", "application/jsonlines")
    outputs.add_stream_content(streamer)
    return outputs
