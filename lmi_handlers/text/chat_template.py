"""Renders chat messages into a prompt with the model's own Jinja template.

Templates get the same variables as in transformers. Its `render_jinja_template` is the reference, and the tests compare
with it. Web workers do not import transformers for this, because that would take seconds at start-up and 30 MB.
"""

from __future__ import annotations

import copy
import datetime
import functools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser

from lmi_handlers.core.errors import InvalidRequest, UnsupportedFeature
from lmi_handlers.core.request import TEMPLATE_NAMES, ChatPrompt
from lmi_handlers.text.bundle import TextBundle
from lmi_handlers.text.template_budget import BudgetedEnvironment, check_width, spend, within_budget


@within_budget
def render_chat(bundle: TextBundle, chat: ChatPrompt, sound_marks: Sequence[str] = ()) -> str:
    """Return the prompt for `chat`. `sound_marks` is as in `Capabilities`.

    Encode it without adding special tokens, because the template has already added them. `add_generation_prompt` starts
    an assistant message. `continue_final_message` leaves the last message open instead. `template_kwargs` are extra
    template variables, such as `enable_thinking`; the bundle has their defaults. Raises `InvalidRequest` if the template
    rejects the messages, and `UnsupportedFeature` if the model has no working template.
    """
    template = _select_template(bundle, chat.tools)
    if chat.continue_final_message and chat.add_generation_prompt:
        raise InvalidRequest("cannot be combined with add_generation_prompt", field="continue_final_message")
    variables = chat.template_kwargs
    if taken := sorted(variables.keys() & TEMPLATE_NAMES):
        raise InvalidRequest(f"cannot set {', '.join(taken)}", field="chat_template_kwargs")
    try:
        messages = _fit_content(bundle, template, chat.messages, sound_marks)
        messages = _fit_arguments(bundle, template, messages)
        if chat.tools and "tools" not in _variables(template):
            messages = _with_tools(chat, chat.tools, messages)
        render = _render_open if chat.continue_final_message else _render
        return render(
            template,
            messages,
            tools=chat.tools,
            documents=chat.documents,
            add_generation_prompt=chat.add_generation_prompt,
            **{**bundle.special_tokens, **bundle.template_kwargs, **variables},
        )
    except (jinja2.TemplateSyntaxError, SyntaxError) as error:  # the latter for too many blocks in each other
        raise UnsupportedFeature(f"this model's chat template does not compile: {error}", field="messages") from error
    except _TEMPLATE_ERRORS as error:
        raise InvalidRequest(str(error) or type(error).__name__, field="messages") from error


@functools.lru_cache(maxsize=8)
@within_budget
def takes_late_system(template: str) -> bool:
    """Tell whether the template takes a system message that follows others. Some raise an error for it."""
    roles = ("system", "user", "system", "user")
    special_tokens = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "")
    return bool(_try(template, [{"role": role, "content": _PROBE} for role in roles], special_tokens))


# What a template can raise if messages do not have the shape that it expects, for example on `'text' + None`.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
_PROBE = "a text to look for"
_CONTINUE_HERE = "CONTINUE_FINAL_MESSAGE_TAG "  # ends in a space, to detect templates that strip messages
_TRIED_AFTER: dict[str, tuple[tuple[str, ...], ...]] = {
    "system": ((),),
    "user": ((), ("system",)),
    "assistant": (("user",), ("system", "user")),
}


class _Generation(jinja2.ext.Extension):
    """The tag `{% generation %}`, which transformers puts around the assistant's text. Here it only makes a scope."""

    tags = {"generation"}  # noqa: RUF012  declared like this in jinja2

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Scope:
        next(parser.stream)
        return jinja2.nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(template: str) -> str:
    return datetime.datetime.now().strftime(template)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Render JSON without HTML escapes, unlike jinja2's own filter."""
    if indent is not None or separators is not None:
        for width in (indent, *(separators or ())):
            check_width(len(width) if isinstance(width, str) else width)
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    spend(len(text))
    return text


_ENVIRONMENT = BudgetedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
)
_ENVIRONMENT.filters["tojson"] = _to_json
_ENVIRONMENT.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}


def syntax_error(template: str) -> str:
    """Return what is wrong with the template's syntax, in one line, or ""."""
    try:
        _ENVIRONMENT.parse(template)
    except jinja2.TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    except (RecursionError, ValueError) as error:  # too many parentheses, or characters
        return str(error)
    return ""


@functools.lru_cache(maxsize=8)
def _variables(template: str) -> set[str]:
    """Return the variables that the template reads. Raises jinja2's `TemplateSyntaxError`."""
    return jinja2.meta.find_undeclared_variables(_ENVIRONMENT.parse(template))


@functools.lru_cache(maxsize=8)
def _compiled(template: str) -> jinja2.Template:
    return _ENVIRONMENT.from_string(template)


def _render(template: str, messages: list[dict[str, Any]], **variables: Any) -> str:
    return _compiled(template).render(messages=messages, **variables)


def _render_open(template: str, messages: list[dict[str, Any]], **variables: Any) -> str:
    """Render up to the end of the last message's text, and drop what the template writes after it.

    Raises `ValueError` if the last message has no text or the template leaves it out.
    """
    final = copy.deepcopy(messages[-1])
    content = final.get("content")
    if isinstance(content, str):
        text = content
        final["content"] = text + _CONTINUE_HERE
    else:
        part = next((part for part in reversed(content or ()) if "text" in part), None)
        if part is None:
            raise ValueError("continue_final_message: the last message has no text to continue")
        text = part["text"]
        part["text"] = text + _CONTINUE_HERE
    rendered = _render(template, [*messages[:-1], final], **variables)
    end = rendered.rfind(_CONTINUE_HERE.strip())
    if end == -1 or text.strip() not in rendered:
        raise ValueError("continue_final_message: this model's chat template leaves out the last message's text")
    # If the template strips messages, strip the text too, as the template would have done without the tag.
    keeps = rendered.startswith(_CONTINUE_HERE, end)
    return rendered[:end] if keeps else rendered[:end].rstrip()


def _with_tools(chat: ChatPrompt, tools: list[dict[str, Any]], messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with the tools appended to the last user message.

    TGI does the same for models whose template does not read tools.
    """
    places = [place for place, message in enumerate(messages) if message.get("role") == "user"]
    place = places[-1] if places else len(messages) - 1
    message = messages[place]
    text = f"\n---\n{json.dumps(tools, ensure_ascii=False)}\n{chat.tool_prompt}"
    content = message.get("content") or ""
    shown = message | {"content": content + text if isinstance(content, str) else [*content, _text_part(text)]}
    return [*messages[:place], shown, *messages[place + 1 :]]


def _fit_content(
    bundle: TextBundle, template: str, messages: list[dict[str, Any]], sound_marks: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the messages with each content in the form that the template reads: a text or a list of parts.

    Raises `UnsupportedFeature` if a message has an image or a sound that the template cannot show.
    """
    fitted = []
    marks = iter(sound_marks)
    for message in messages:
        content = message.get("content")
        takes_text, takes_parts = _content_forms(bundle, template, str(message.get("role")))
        if isinstance(content, list) and not takes_parts:
            content = "".join(map(functools.partial(_part_text, bundle, marks), content))
        elif isinstance(content, str) and not takes_text:
            content = [_text_part(content)]
        fitted.append(message if content is message.get("content") else message | {"content": content})
    return fitted


def _content_forms(bundle: TextBundle, template: str, role: str) -> tuple[bool, bool]:
    """Return two flags: whether the template reads text content for this role, and whether it reads a list of parts."""
    if bundle.content_format != "auto":
        return bundle.content_format == "string", bundle.content_format == "openai"
    return _tried_forms(template, tuple(bundle.special_tokens.items()), role if role in _TRIED_AFTER else "user")


@functools.lru_cache(maxsize=32)
def _tried_forms(template: str, special_tokens: tuple[tuple[str, str], ...], role: str) -> tuple[bool, bool]:
    """Render both forms to find out which of them the template reads.

    Some templates reject a message unless certain other messages are around it, so several combinations are tried.
    A template that reads neither form is treated as reading text, as most templates do.
    """

    def reads(content: str | list[dict[str, str]]) -> bool:
        message = {"role": role, "content": content}
        for other in ("-", [_text_part("-")]):
            for roles in _TRIED_AFTER[role]:
                before = [{"role": name, "content": other} for name in roles]
                after = [{"role": "user", "content": other}] if role == "system" else []
                rendered = _try(template, [*before, message, *after], dict(special_tokens))
                if _PROBE in rendered and "'type'" not in rendered and '"type"' not in rendered:
                    return True
        return False

    takes_parts = reads([_text_part(_PROBE)])
    return reads(_PROBE) or not takes_parts, takes_parts


def _fit_arguments(bundle: TextBundle, template: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with the arguments of calls in the form that the template reads: an object or JSON text."""
    special_tokens = tuple(bundle.special_tokens.items())
    if not any(message.get("tool_calls") for message in messages) or _takes_objects(template, special_tokens):
        return messages
    return [
        message | {"tool_calls": [_with_text(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


@functools.lru_cache(maxsize=8)
def _takes_objects(template: str, special_tokens: tuple[tuple[str, str], ...]) -> bool:
    """Render a call with both forms of arguments. Some of DeepSeek's templates join them to other text.

    A template that renders neither is treated as reading objects, as most templates do.
    """

    def reads(arguments: object) -> bool:
        call = {"id": "000000000", "type": "function", "function": {"name": "f", "arguments": arguments}}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "-"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "f", "tool_call_id": call["id"], "content": "-"},
        ]
        return _PROBE in _try(template, messages, dict(special_tokens))

    return reads({"a": _PROBE}) or not reads(json.dumps({"a": _PROBE}))


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or isinstance(function.get("arguments"), str):
        return call
    text = json.dumps(function.get("arguments"), ensure_ascii=False)
    return call | {"function": function | {"arguments": text}}


def _try(template: str, messages: list[dict[str, Any]], special_tokens: dict[str, str]) -> str:
    """Return the rendered messages, or "" if the template rejects them."""
    try:
        return _render(template, messages, tools=None, documents=None, add_generation_prompt=False, **special_tokens)
    except _TEMPLATE_ERRORS:
        return ""


def _text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _part_text(bundle: TextBundle, marks: Iterator[str], part: dict[str, str]) -> str:
    if part["type"] == "text":
        return part["text"]
    mark, kind = (next(marks, None), "a sound") if part["type"] == "audio" else (bundle.image_token, "an image")
    if mark is None:
        raise UnsupportedFeature(f"has {kind}, which this model's chat template does not support", field="messages")
    return f"{mark}\n"


def _select_template(bundle: TextBundle, tools: list[dict[str, Any]] | None) -> str:
    """Return the template that transformers would use: "tool_use" if there are tools and it exists, else "default"."""
    templates = bundle.chat_templates
    template = templates.get("tool_use") if tools is not None else None
    if template is None:
        template = bundle.chat_template
    if template is None:
        named = f", only templates named {', '.join(sorted(templates))}" if templates else ""
        raise UnsupportedFeature(
            f"this model has no {'default ' if templates else ''}chat template{named}", field="messages"
        )
    return template
