"""The SageMaker SDK, version 2: predictors, also for streams and asynchronous endpoints."""

from __future__ import annotations

import boto3
from calls import Calls, Task, main
from sagemaker.async_inference.waiter_config import WaiterConfig
from sagemaker.base_deserializers import JSONDeserializer, StreamDeserializer, StringDeserializer
from sagemaker.exceptions import AsyncInferenceModelError
from sagemaker.predictor import Predictor
from sagemaker.predictor_async import AsyncPredictor
from sagemaker.serializers import JSONSerializer
from sagemaker.session import Session


def calls(task: Task) -> Calls:
    session = Session(
        boto_session=boto3.Session(region_name="us-east-1"),
        sagemaker_runtime_client=boto3.client("sagemaker-runtime", endpoint_url=task.model, region_name="us-east-1"),
        default_bucket="clients",
    )
    settings = {"sagemaker_session": session, "serializer": JSONSerializer(), "deserializer": JSONDeserializer()}
    predictor = Predictor("mine", **settings)
    streaming = Predictor("mine", **settings | {"deserializer": StreamDeserializer()})
    queued = AsyncPredictor(predictor)
    body = {"inputs": task.prompt, "parameters": {"max_new_tokens": 64}}
    waiting = WaiterConfig(max_attempts=300, delay=0.1)

    def streamed() -> str:
        parts = predictor.predict_stream(body)
        return b"".join(parts).decode()

    def failed() -> object:
        """A failure is a text: the deserializer must not expect JSON."""
        predictor = Predictor("mine", **settings | {"deserializer": StringDeserializer()})
        try:
            return AsyncPredictor(predictor).predict(body | {"parameters": {"top_p": 7}}, waiter_config=waiting)
        except AsyncInferenceModelError as error:
            return {"error": str(error)}

    return {
        "predict": lambda: predictor.predict(body),
        "predict_bytes": lambda: streaming.predict(body)[0].read().decode(),
        "predict_stream": streamed,
        "predict_async": lambda: queued.predict(body, waiter_config=waiting),
        "predict_async_result": lambda: queued.predict_async(body).get_result(waiting),
        "failed_async": failed,
    }


if __name__ == "__main__":
    main(calls)
