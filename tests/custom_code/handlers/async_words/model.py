"""An asynchronous handler, which streams if the request asks for it."""

import asyncio
import json

from djl_python import Input, Output


class Engine:
    async def generate(self, prompt):
        for word in prompt.split():
            await asyncio.sleep(0.02)
            yield word.upper()


class Service:
    def __init__(self):
        self.engine = None

    async def initialize(self, properties):
        self.engine = Engine()

    async def lines(self, prompt):
        async for word in self.engine.generate(prompt):
            yield json.dumps({"token": word}) + "\n"

    async def inference(self, inputs):
        data = inputs.get_as_json()
        if data.get("stream"):
            lines = self.lines(data["inputs"])
            return Output().add_stream_content(lines, None).add_property("Content-Type", "application/jsonlines")
        words = [word async for word in self.engine.generate(data["inputs"])]
        return Output().add_as_json({"generated_text": " ".join(words)}).add_property("Content-Type", "application/json")


service = Service()


async def handle(inputs: Input) -> Output:
    if service.engine is None:
        await service.initialize(inputs.get_properties())
    if inputs.is_empty():
        return None
    return await service.inference(inputs)
