"""strands-agents: an agent on `SageMakerAIModel`, plain and streamed."""

from __future__ import annotations

from calls import Calls, Task, main
from strands import Agent
from strands.models.sagemaker import SageMakerAIModel


def calls(task: Task) -> Calls:
    def ask(*, stream: bool) -> object:
        model = SageMakerAIModel(
            endpoint_config={"endpoint_name": "mine", "region_name": "us-east-1"},
            payload_config={"max_tokens": 64, "stream": stream},
        )
        result = Agent(model=model, callback_handler=None)(task.prompt)
        return {"text": str(result), "reason": result.stop_reason}

    return {"plain": lambda: ask(stream=False), "streamed": lambda: ask(stream=True)}


if __name__ == "__main__":
    main(calls)
