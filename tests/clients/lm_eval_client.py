"""lm-eval: its `local-chat-completions` model."""

from __future__ import annotations

import json

from calls import Calls, Task, main
from lm_eval.api.instance import Instance
from lm_eval.models.api_models import JsonChatStr
from lm_eval.models.openai_completions import LocalChatCompletion


def calls(task: Task) -> Calls:
    model = LocalChatCompletion(
        model="tgi", base_url=f"{task.model}/v1/chat/completions", num_concurrent=2, max_retries=1
    )
    messages = JsonChatStr(json.dumps([{"role": "user", "content": task.prompt}]))

    def generate(until: list[str]) -> object:
        ask = {"until": until, "max_gen_toks": task.max_tokens}
        requests = [Instance("generate_until", {}, (messages, ask), index) for index in range(3)]
        return model.generate_until(requests, disable_tqdm=True)

    return {
        "generate_until": lambda: generate([]),
        "until": lambda: generate([task.stop]),
    }


if __name__ == "__main__":
    main(calls)
