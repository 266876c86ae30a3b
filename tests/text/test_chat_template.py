"""Chat templates render messages as transformers does."""

from __future__ import annotations

import copy
import datetime
from typing import Any

import msgspec
import pytest
import tokenizers

from lmi_handlers.core.errors import InvalidRequest, UnsupportedFeature
from lmi_handlers.core.gguf import read_gguf_header
from lmi_handlers.core.request import ChatPrompt
from lmi_handlers.model_files.locate import find_gguf
from lmi_handlers.text.bundle import TextBundle
from lmi_handlers.text.chat_template import render_chat

MESSAGES = [{"role": "user", "content": "Hi"}]


def render(model: TextBundle, messages: list[dict[str, Any]], **options: Any) -> str:
    return render_chat(model, ChatPrompt(messages=messages, **options))


def bundle(template: str | None = None, **named: str) -> TextBundle:
    templates = named if template is None else {"default": template, **named}
    return TextBundle(
        vocab_size=1,
        eos_token_ids=(),
        special_token_ids=(),
        special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
        chat_templates=templates,
    )


@pytest.fixture(scope="module")
def auto_tokenizer() -> Any:
    """transformers' tokenizer with the default model's template. It needs no vocabulary to render messages."""
    import transformers

    file = find_gguf(None, None)
    assert file is not None
    return transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # the library's own
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()),
        chat_template=read_gguf_header(file).metadata["tokenizer.chat_template"],
    )


@pytest.mark.model
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_smollm2s_template_renders_as_in_transformers(auto_tokenizer: Any, add_generation_prompt: bool) -> None:
    messages = [
        {"role": "system", "content": "Be brief. <b> & 'é'"},
        {"role": "user", "content": " Hello\n"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "{{ 1 + 1 }}"},
    ]
    rendered = render(bundle(auto_tokenizer.chat_template), messages, add_generation_prompt=add_generation_prompt)
    assert rendered == auto_tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=add_generation_prompt
    )
    assert "{{ 1 + 1 }}" in rendered


@pytest.mark.parametrize(
    ("template", "rendered"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>Hi</s>"),
        ("{% if add_generation_prompt %}yes{% endif %}", "yes"),
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% generation %}x{% endgeneration %}", "x"),
        ("  {% if true %}\na\n  {% endif %}\n", "a\n"),
        ("{{ missing is defined }}", "False"),
    ],
)
def test_features_of_templates(template: str, rendered: str) -> None:
    assert render(bundle(template), MESSAGES) == rendered


def test_a_template_can_read_the_date() -> None:
    before = datetime.datetime.now(tz=None).strftime("%Y")
    rendered = render(bundle("{{ strftime_now('%Y') }}"), MESSAGES)
    assert before <= rendered <= datetime.datetime.now(tz=None).strftime("%Y")


def test_a_template_can_read_the_requests_fields() -> None:
    template = "{{ enable_thinking }} {{ tools | length }} {{ documents[0].title }}"
    rendered = render(
        bundle(template),
        MESSAGES,
        tools=[{"type": "function"}],
        documents=[{"title": "T", "text": ""}],
        template_kwargs={"enable_thinking": False},
    )
    assert rendered == "False 1 T"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('Roles must alternate') }}", "Roles must alternate"),
        ("{{ messages[0].tool_calls[0] }}", "tool_calls"),
        ("{{ 'a' + none }}", "concatenate"),
        ("{{ messages[7]['role'] }}", "undefined|no element"),
        ("{{ messages.append(1) }}", "unsafe|not safely callable"),
        ("{{ 1 / 0 }}", "division by zero"),
    ],
)
def test_an_error_in_the_template_is_the_clients_error(template: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as raised:
        render(bundle(template), MESSAGES)
    assert raised.value.field == "messages"
    assert not isinstance(raised.value, UnsupportedFeature)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (bundle(), "no chat template"),
        (bundle(rag="R"), "named rag"),
        (bundle("{% if %}"), "does not compile"),
    ],
)
def test_chats_are_not_supported_without_a_working_template(model: TextBundle, message: str) -> None:
    with pytest.raises(UnsupportedFeature, match=message):
        render(model, MESSAGES)


def test_requests_with_tools_use_the_tool_template() -> None:
    model = bundle("D", tool_use="T")
    assert render(model, MESSAGES) == "D"
    assert render(model, MESSAGES, tools=[]) == "T"
    assert render(bundle("D"), MESSAGES, tools=[]) == "D"


def test_the_last_message_can_be_continued() -> None:
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>{% endfor %}"
    messages: list[dict[str, Any]] = [*MESSAGES, {"role": "assistant", "content": "Well, "}]
    rendered = render(bundle(template), messages, add_generation_prompt=False, continue_final_message=True)
    assert rendered == "[user]Hi</s>[assistant]Well, "
    with pytest.raises(InvalidRequest, match="add_generation_prompt"):
        render(bundle(template), messages, continue_final_message=True)


TURNS = "{% for m in messages %}[{{ m.role }}]{{ TEXT }}</s>{% endfor %}"
STRIPPED = TURNS.replace("TEXT", "m.content | trim")
FULL = TURNS.replace("TEXT", "m.content")
OF_PARTS = TURNS.replace("TEXT", "m.content[-1].text")
TAGGED = "{% for m in messages %}{% generation %}{% set x = m.content %}{{ x }}{% endgeneration %}{{ x }}{% endfor %}"


@pytest.mark.parametrize(
    "final", ["Well,  ", "Well", "  \n", "CONTINUE_FINAL_MESSAGE_TAG twice: CONTINUE_FINAL_MESSAGE_TAG "]
)
@pytest.mark.parametrize("template", [FULL, STRIPPED, OF_PARTS, TAGGED])
def test_prompts_are_rendered_as_in_transformers(template: str, final: str) -> None:
    """With and without a generation prompt, and continuing the last message."""
    from transformers.utils.chat_template_utils import render_jinja_template

    in_parts = template == OF_PARTS
    messages: list[dict[str, Any]] = [
        {"role": role, "content": [{"type": "text", "text": text}] if in_parts else text}
        for role, text in (("user", " Hé \n"), ("assistant", final))
    ]
    before = copy.deepcopy(messages)
    for add_generation_prompt, continue_final_message in ((False, False), (True, False), (False, True)):
        flags: dict[str, Any] = {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
        }
        expected: Any = render_jinja_template([messages], chat_template=template, **flags)
        assert render(bundle(template), messages, **flags) == expected[0][0]
    assert messages == before


def test_a_last_message_that_the_template_leaves_out_cannot_be_continued() -> None:
    messages: list[dict[str, Any]] = [*MESSAGES, {"role": "assistant", "content": "Well, "}]
    for template, content in (("{{ messages[0].content }}", "Well, "), (FULL, None)):
        messages[-1]["content"] = content
        with pytest.raises(InvalidRequest, match="continue_final_message"):
            render(bundle(template), messages, add_generation_prompt=False, continue_final_message=True)


@pytest.mark.parametrize("name", ["messages", "chat_template", "add_generation_prompt"])
def test_template_variables_cannot_replace_fields_of_the_request(name: str) -> None:
    with pytest.raises(InvalidRequest, match=name):
        render(bundle("x"), MESSAGES, template_kwargs={name: "y"})


def test_a_request_takes_precedence_over_the_defaults_of_template_variables() -> None:
    model = msgspec.structs.replace(bundle("{{ thinks }}|{{ tone }}"), template_kwargs={"thinks": False, "tone": "dry"})
    assert render(model, MESSAGES) == "False|dry"
    assert render(model, MESSAGES, template_kwargs={"thinks": True}) == "True|dry"


PARTS = "{% for part in m.content %}{{ '<image>' if part.type == 'image' else part.text }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "rendered"),
    [
        ("{% for m in messages %}[{{ m.content }}]{% endfor %}", "[Be kind.][<image>\nWhat?][A cat.]"),
        (f"{{% for m in messages %}}[{PARTS}]{{% endfor %}}", "[Be kind.][<image>What?][A cat.]"),
        (  # a template that requires a system message
            "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}"
            f"{{% for m in messages %}}[{PARTS}]{{% endfor %}}",
            "[Be kind.][<image>What?][A cat.]",
        ),
        (  # a list of parts for the user, text for other roles
            f"{{% for m in messages %}}[{{% if m.role == 'user' %}}{PARTS}{{% else %}}{{{{ m.content }}}}{{% endif %}}]"
            "{% endfor %}",
            "[Be kind.][<image>What?][A cat.]",
        ),
    ],
)
def test_content_has_the_form_that_the_template_reads(template: str, rendered: str) -> None:
    model = msgspec.structs.replace(bundle(template), image_token="<image>")
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]},
        {"role": "assistant", "content": "A cat."},
    ]
    assert render(model, messages) == rendered


CALL = (
    "{% for m in messages %}{% for call in m.tool_calls or () %}{% set f = call.function %}REST{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "rendered"),
    [
        ("{{ f | tojson }}", '{"name": "f", "arguments": {"a": ["é"]}}'),
        ("{{ f.arguments | tojson }}", '{"a": ["é"]}'),
        ("{% for key, value in f.arguments | items %}{{ key }}={{ value[0] }}{% endfor %}", "a=é"),
        # DeepSeek R1-0528 and V3-0324
        ("{{ f.name + '\\n```json\\n' + f.arguments + '\\n```' }}", 'f\n```json\n{"a": ["é"]}\n```'),
    ],
)
def test_arguments_of_calls_have_the_form_that_the_template_reads(template: str, rendered: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": ["é"]}}}
    messages: list[dict[str, Any]] = [*MESSAGES, {"role": "assistant", "content": "", "tool_calls": [call]}]
    assert render(bundle(CALL.replace("REST", template)), messages) == rendered
    assert call["function"] == {"name": "f", "arguments": {"a": ["é"]}}


def test_the_operator_can_set_the_form_of_content() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    model = msgspec.structs.replace(bundle(template), content_format="openai")
    assert render(model, MESSAGES) == "[{'type': 'text', 'text': 'Hi'}]"


def test_tools_are_added_to_the_user_message_if_the_template_does_not_read_them() -> None:
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    messages: list[dict[str, Any]] = [*MESSAGES, {"role": "assistant", "content": "Well, "}]
    tools = [{"name": "f"}]
    rendered = render(bundle(template), messages, tools=tools, add_generation_prompt=False)
    assert rendered == '[user]Hi\n---\n[{"name": "f"}]\n[assistant]Well, '


def test_sounds_in_a_template_for_text_are_marked_in_order() -> None:
    model = bundle("{% for message in messages %}{{ message['content'] }};{% endfor %}")
    sound, word = {"type": "audio"}, {"type": "text", "text": "a"}
    chat = ChatPrompt(messages=[{"role": "user", "content": [sound, word]}, {"role": "user", "content": [word, sound]}])
    assert render_chat(model, chat, ("<1>", "<2>")) == "<1>\na;a<2>\n;"
    with pytest.raises(UnsupportedFeature) as caught:
        render_chat(model, chat, ("<1>",))
    assert caught.value.field == "messages"
