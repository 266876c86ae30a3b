"""lm-eval: its evaluator on tasks with local data, with `local-completions` and `local-chat-completions`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from calls import Calls, Task, main
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

TASKS = Path(__file__).parent.parent / "data" / "lm_eval"


def evaluate(task_name: str, model: str, *, chat: bool = False, num_fewshot: int = 0, **model_args: Any) -> object:
    """Return the task's metrics, and the requests of each document with the model's answers."""
    evaluated = simple_evaluate(
        model,
        {"model": "tgi", "max_retries": 1, **model_args},
        tasks=[task_name],
        task_manager=TaskManager(include_path=TASKS, include_defaults=False),
        num_fewshot=num_fewshot,
        apply_chat_template=chat,
        bootstrap_iters=0,
    )
    samples = [
        {"arguments": sample["arguments"], "responses": sample["resps"]} for sample in evaluated["samples"][task_name]
    ]
    # The name of a metric ends with the name of the filter.
    metrics = {name.partition(",")[0]: value for name, value in evaluated["results"][task_name].items()}
    return {"metrics": metrics, "samples": samples}


def calls(task: Task) -> Calls:
    os.chdir(TASKS)  # the paths in the tasks are relative to it
    completions: dict[str, Any] = {"base_url": f"{task.model}/v1/completions", "tokenizer": task.tokenizer}
    token_ids = completions | {"batch_size": 4}
    texts = completions | {"tokenized_requests": False, "num_concurrent": 4}
    chat = {"base_url": f"{task.model}/v1/chat/completions"}
    return {
        "facts_choice.token_ids": lambda: evaluate("facts_choice", "local-completions", **token_ids),
        "facts_rolling.texts": lambda: evaluate("facts_rolling", "local-completions", **texts),
        "facts_answer.token_ids": lambda: evaluate("facts_answer", "local-completions", num_fewshot=2, **token_ids),
        "facts_answer.chat": lambda: evaluate(
            "facts_answer", "local-chat-completions", chat=True, num_fewshot=2, **chat
        ),
    }


if __name__ == "__main__":
    main(calls)
