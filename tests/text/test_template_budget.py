"""A chat template can neither run for long nor take all memory: it is given up with one sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from facts import raises
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lmi_handlers.core.errors import InvalidRequest, UnsupportedFeature
from lmi_handlers.core.request import ChatPrompt
from lmi_handlers.text import template_budget
from lmi_handlers.text.bundle import TextBundle
from lmi_handlers.text.chat_template import render_chat

MESSAGES = [{"role": "user", "content": "Hi"}]
TIMES = "{% for i in range(60) %}"
STATE = "{% set ns = namespace(x=['a', 'b']) %}" + TIMES
FOREVER = "{% for i in range(99999) %}{% for j in range(99999) %}"
TEXT = "{% set s = 'a' * 2 * 10**5 %}"
LONG = "{% set s = 'a' * 10**7 %}"

STEPS = (
    FOREVER + "{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999)|map('string') %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) recursive %}{% if loop.depth < 9 %}{{ loop(range(99999)) }}{% endif %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f(n) %}{% if n %}{% set a = f(n - 1) %}{% set a = f(n - 1) %}{% endif %}{% endmacro %}{{ f(60) }}",
    TEXT + "{{ s|map('upper')|list }}",
    TEXT + "{{ s|unique|list }}",
    TEXT + "{{ s|groupby(0) }}",
    TEXT + "{{ s|max }}",
    TEXT + "{{ s|batch(9)|list }}",
    TEXT + "{{ cycler(*s) }}",
    TEXT + "{{ ''.join(s) }}",
    "{{ ('{0}' * 10**5).format('') }}",
    "{{ ('{{' * 10**5).format() }}",
    TEXT + "{{ 'b' in s }}" * 90,
    TEXT + "{{ s is in s }}" * 90,
    TEXT + "{{ s == s }}" * 90,
    TEXT + "{{ s.find('b') }}" * 90,
    TEXT + "{{ s is lower }}" * 90,
    "{% set x = 'a' %}" + "{% set x = [x, x] %}" * 15 + "{% set y = [x] %}" * 20,
    "".join(f"{{% set x{i} = range(9999)|map('string')|list %}}" for i in range(20)),
)
"""With a tenth of the steps that there are."""

SIZES = (
    "{{ 'a' * 10**9 }}",
    "{{ 10**9 * messages[0].content }}",
    "{{ [0] * 10**9 }}",
    "{% set ns = namespace(x='ab') %}" + TIMES + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}" + TIMES + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}" + TIMES + "{% set ns.x = '%s%s' % (ns.x, ns.x) %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}" + TIMES + "{% set ns.x = '{0}{0}'.format(ns.x) %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}" + TIMES + "{% set ns.x = (ns.x, ns.x)|join %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}"
    + TIMES
    + "{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}{% endfor %}",
    "{{ [('a' * 10**6)] * 10**5 }}",
    "{{ 'a'|center(10**9) }}",
    "{{ 'a\nb'|indent(10**9) }}",
    "{{ ('a\n' * 10**6)|indent('x' * 10**6) }}",
    "{{ ('a ' * 10**6)|wordwrap(1, wrapstring='b' * 10**4) }}",
    "{{ [1]|batch(10**9, 0)|list }}",
    "{{ [1]|slice(10**9)|list }}",
    "{{ ('{0}' * 10**5).format('a' * 10**5) }}",
    "{{ ('%(a)s' * 10**6) % {'a': 'a' * 10**6} }}",
    "{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}",
    "{{ ('a' * 10**6)|replace('', 'b' * 10**6) }}",
    "{{ ('a' * 10**6).translate({97: 'b' * 10**6}) }}",
    "{{ range(99999)|join('a' * 10**6) }}",
    "{{ ('a' * 10**5).join('b' * 10**5) }}",
    "{{ ([{'c': 'a' * 10**6}] * 10**4)|join(attribute='c') }}",
    LONG + "".join(f"{{% set x{i} = s.upper() %}}" for i in range(9)),
    LONG + "".join(f"{{% set x{i} = s|upper %}}" for i in range(9)),
    LONG + "".join(f"{{% set x{i} = s[1:] %}}" for i in range(9)),
    LONG + "".join(f"{{% set x{i} = s.partition('b') %}}" for i in range(9)),
    "{% set x = range(99999)|list %}{% for i in range(900) %}{% set y = x.copy() %}{% endfor %}",
    "{{ ('a,' * 10**6).split(',') }}",
    "{{ ('a,' * 10**6).rsplit(sep=',') }}",
    "{{ ('a ' * 10**6).split() }}",
    "{{ ('a\n' * 10**6).splitlines() }}",
    "{{ (('a' * 10**4)|safe).replace('a', 'b' * 10**5) }}",
    "{{ ('a' * 10**7)|urlencode }}",
    LONG + "{% for i in range(99999) %}{{ s }}{% endfor %}",
    LONG + "{% set t %}{% for i in range(99999) %}{{ s }}{% endfor %}{% endset %}",
    LONG + "{% filter trim %}{% for i in range(99999) %}{{ s }}{% endfor %}{% endfilter %}",
)
NESTED = (
    STATE + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    STATE + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    STATE + "{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}{{ ns.x|tojson }}",
    STATE + "{% set ns.x = dict(a=ns.x, b=ns.x) %}{% endfor %}{{ ns.x|tojson }}",
    STATE + "{% set ns.x = [0, 0]|map('default', ns.x, true)|list %}{% endfor %}{{ ns.x }}",
)
"""With a tenth of the values that a list may have."""
WIDTHS = (
    "{{ 'a'.center(10**9) }}",
    "{{ 'a'.ljust(10**9) }}",
    "{{ 'a'.zfill(10**9) }}",
    "{{ ('\t' * 10**4).expandtabs(10**6) }}",
    "{{ (1).to_bytes(10**9, 'big') }}",
    "{{ messages|tojson(indent=10**9) }}",
    "{{ messages|tojson(separators=('a' * 10**5, ':')) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 10**9) }}",
    "{{ '{a:999999999}'.format_map({'a': 1}) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (10**9, 1) }}",
    "{{ '%1000000000d'|format(1) }}",
    "{{ 1.5|round(10**9, 'ceil') }}",
    "{{ ('a' * 10**6).strip('b' * 10**6 + 'a') }}",
    "{{ ('a' * 10**6)|trim('b' * 10**6 + 'a') }}",
    "{{ (('a' * 10**6)|safe).center(10**9) }}",
)
NUMBERS = (
    "{{ 9**(9**9) }}",
    "{% set ns = namespace(x=9) %}" + TIMES + "{% set ns.x = ns.x * ns.x %}{% endfor %}",
)


def render(template: str, **options: Any) -> str:
    bundle = TextBundle(
        vocab_size=1,
        eos_token_ids=(),
        special_token_ids=(),
        special_tokens={"bos_token": "<s>"},
        chat_templates={"default": template},
    )
    return render_chat(bundle, ChatPrompt(**{"messages": MESSAGES, **options}))


def assert_given_up(template: str, message: str) -> None:
    with raises(InvalidRequest, message) as raised:
        render(template)
    assert str(raised.value).startswith("messages: the chat template ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("template", STEPS)
def test_a_template_that_takes_too_many_steps_is_given_up(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_budget, "MAX_STEPS", template_budget.MAX_STEPS // 10)
    assert_given_up(template, "takes more")  # on a slow machine, the time may be over before


@pytest.mark.parametrize("template", NESTED)
def test_a_template_that_nests_values_is_given_up(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_budget, "_MAX_VALUES", template_budget._MAX_VALUES // 10)
    assert_given_up(template, "makes")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        *((template, "makes") for template in SIZES),
        *((template, "width 1000") for template in WIDTHS),
        *((template, "number 4096 bits") for template in NUMBERS),
        ("{{ a }}" * 30_000, "210000 characters 131072"),
    ],
)
def test_a_template_over_its_budget_is_given_up(template: str, message: str) -> None:
    assert_given_up(template, message)


def test_each_rendering_has_the_same_budget() -> None:
    for _ in range(2):  # the first time, the template is compiled and tried
        with raises(InvalidRequest, "takes more 1000000 steps"):
            render(STEPS[0])


def test_steps_that_take_long_use_up_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_budget, "MAX_SECONDS", 0.5)
    with pytest.raises(InvalidRequest, match=r"takes more than 0\.5 s"):
        render("{% set x = range(99999)|map('string')|list %}{% for i in range(99999) %}{{ 'x' in x }}{% endfor %}")


def test_a_long_conversation_is_within_the_budget() -> None:
    text = ("<think>" + "some words, " * 100 + "</think>\n\n" + "an answer. " * 100) * 4
    template = (
        "{% for m in messages %}{% set content = m.content %}{% if '</think>' in content %}"
        "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
        "{% if content.startswith('<tool_response>') %}{{ content|trim }}{% endif %}"
        "{{ '<|im_start|>' + m.role + '\n' + content|trim + m.content[9:]|replace('a', 'b') }}{% endfor %}"
    )
    messages = [{"role": "user", "content": text} for _ in range(200)]  # 2 MB
    assert len(render(template, messages=messages)) > 1_000_000


def test_too_many_blocks_in_each_other_do_not_compile() -> None:
    with pytest.raises(UnsupportedFeature, match="does not compile"):
        render("{% for a in [1] %}" * 30 + "{% endfor %}" * 30)


REFERENCE = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
REFERENCE.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)

VALUES = st.recursive(
    st.sampled_from(
        ["x", "y", "n", "'a'", "'é\\n'", "1", "2", "z", "['a', x]", "{'k': y}", "missing", "x[1:]", "y[::-1]"]
    ),
    lambda values: st.one_of(
        st.tuples(values, st.sampled_from(["+", "~", "*", "%", "-", "==", "in", "and"]), values).map(
            lambda parts: f"({' '.join(parts)})"
        ),
        st.tuples(
            values,
            st.sampled_from(
                [
                    "trim",
                    "join('-')",
                    "list",
                    "length",
                    "upper",
                    "replace('a', 'bb')",
                    "indent(2)",
                    "center(9)",
                    "tojson(indent=1)",
                    "sort",
                    "string",
                    "batch(2)|list",
                    "slice(2)|list",
                    "first",
                    "title",
                    "round",
                    "wordwrap(3)",
                    "map('upper')|list",
                    "select('in', 'ab')|list",
                    "unique|list",
                    "trim('a')",
                    "urlencode",
                ]
            ),
        ).map(lambda parts: f"{parts[0]}|{parts[1]}"),
        st.tuples(
            values,
            st.sampled_from(
                [
                    "replace('a', y)",
                    "join(x)",
                    "format(1)",
                    "center(5)",
                    "split('b')",
                    "split(maxsplit=1)",
                    "items()",
                    "ljust(4)",
                    "splitlines()",
                    "strip('a')",
                    "copy()",
                    "get('k')",
                ]
            ),
        ).map(lambda parts: f"({parts[0]}).{parts[1]}"),
        st.lists(values, max_size=3).map(lambda parts: f"[{', '.join(parts)}]"),
        values.map(lambda value: f"dict(a=1).get(*{value})"),
    ),
    max_leaves=6,
)
STATEMENTS = st.recursive(
    st.one_of(VALUES.map("{{{{ {} }}}}".format), VALUES.map("{{% set z = {} %}}".format)),
    lambda inner: st.one_of(
        st.tuples(VALUES, inner).map(
            lambda parts: f"{{% for y in {parts[0]} %}}{{{{ loop.index ~ '/' ~ loop.length }}}}{parts[1]}{{% endfor %}}"
        ),
        st.tuples(VALUES, inner).map(lambda parts: f"{{% for y in x if {parts[0]} %}}{parts[1]}{{% endfor %}}"),
        st.tuples(inner, VALUES).map(
            lambda parts: f"{{% macro f(x) %}}{parts[0]}{{% endmacro %}}{{{{ f({parts[1]}) }}}}"
        ),
        st.tuples(inner, inner).map("".join),
    ),
    max_leaves=4,
)


@given(STATEMENTS)
def test_what_is_within_the_budget_is_rendered_as_without_one(template: str) -> None:
    variables = {"x": "ab c", "y": ["a", "b"], "n": 3, "z": {"k": 1}}
    try:
        expected = REFERENCE.from_string(template).render(messages=MESSAGES, **variables)
    except Exception:  # noqa: BLE001  whatever it is, it is an error here, too
        with pytest.raises((InvalidRequest, UnsupportedFeature)):
            render(template, template_kwargs=variables)
    else:
        assert render(template, template_kwargs=variables) == expected
