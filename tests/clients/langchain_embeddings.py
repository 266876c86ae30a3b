"""LangChain's `OpenAIEmbeddings`. `HuggingFaceEndpointEmbeddings` takes no URLs of servers."""

from __future__ import annotations

from calls import Calls, Task, main
from langchain_openai import OpenAIEmbeddings


def calls(task: Task) -> Calls:
    # Otherwise it sends token ids of OpenAI's own models.
    openai = OpenAIEmbeddings(
        base_url=f"{task.model}/v1", api_key="none", model="m", dimensions=8, check_embedding_ctx_length=False
    )
    return {
        "documents": lambda: openai.embed_documents(["alpha", "b"]),
        "query": lambda: openai.embed_query("alpha"),
        "aquery": lambda: openai.aembed_query("alpha"),
    }


if __name__ == "__main__":
    main(calls)
