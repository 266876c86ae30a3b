# ruff: noqa: N802, N815  the methods of a visitor are named after its nodes
"""A Jinja environment in which a template can neither run for long nor make huge values, for chat templates.

A template comes with the model, or with a request, and is rendered in a web worker. Jinja's sandbox keeps it from other
objects, but not from nested loops, recursive macros and `"x" * 10**9`. Here each rendering has a budget. Loops and macros
take steps from it: their bodies begin with a filter of ours. So do methods, filters and tests that read long texts or
many items. Operators, methods and filters that make values take the size of the result, before they make it if that may
be huge. The names of our filters begin with a digit, so templates cannot use them.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from types import BuiltinMethodType, MethodType
from typing import Any, ParamSpec, TypeVar, cast

import jinja2
import jinja2.nodes as nodes
from jinja2.filters import make_attrgetter
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.visitor import NodeTransformer

MAX_STEPS = 1_000_000
"""Passes through loops. A call of a macro takes as long as several."""

_LITTLE = MAX_STEPS - 500
"""Until so few are left, nobody looks at the clock, because that takes longer than a short loop."""

_CALL = 8
_SHORT = 64
"""Items of a loop that are counted at once."""

_OFTEN = 8
"""Passes through a longer loop between two looks at the clock."""

_TEXT_PER_STEP = 100
"""Characters that a method reads in the time of a pass through a loop."""

_OF_JINJA = frozenset(["_block_vars", "_loop_vars"])
"""Arguments that Jinja adds to each call."""

_SIZED = frozenset([list, tuple, dict, range])

_FEW = 8
"""Texts that are joined without being counted if the result is only written."""


MAX_SIZE = 64 * 2**20
"""Characters, and items of lists, of all values that are made."""

MAX_SECONDS = 3.0
"""CPU time, for steps that are slow because they compare or search long values. Loops and calls look at the clock."""

MAX_TEMPLATE = 131_072
"""Characters of a template, which takes a second to compile."""

_MAX_VALUES = 100_000
"""Values in a list or dict, with those in the lists and dicts in it. One that is in two places counts twice."""

_VALUES_PER_STEP = 2
"""Values that are counted in the time of a pass through a loop."""

_MAX_BITS = 4096
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_MAX_WIDTH = 1000
_WIDTH = re.compile(r"\d{4}|\*")
"""In a format: a width or precision from 1,000 on, or one that is an argument."""


_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class OverBudget(ValueError):
    """The template has used up its budget."""


class _Budget:
    __slots__ = ("ends", "size", "steps")

    def __init__(self) -> None:
        self.steps = MAX_STEPS
        self.size = MAX_SIZE
        self.ends: float | None = None


_current: ContextVar[_Budget] = ContextVar("budget")


def within_budget(render: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Give all that the function compiles and renders one budget."""

    @functools.wraps(render)
    def limited(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        token = _current.set(_Budget())
        try:
            return render(*args, **kwargs)
        finally:
            _current.reset(token)

    return limited


def spend(size: int) -> None:
    """Take the size of a value that is about to be made. Raises `OverBudget`."""
    budget = _current.get()
    budget.size -= size
    if budget.size < 0:
        raise OverBudget(f"the chat template makes more than {MAX_SIZE} characters or list items")


def _step(steps: int) -> None:
    """Take steps, and look at the clock."""
    budget = _current.get()
    budget.steps -= steps
    if budget.steps > _LITTLE:
        return
    if budget.steps < 0:
        raise OverBudget(f"the chat template takes more than {MAX_STEPS} steps in loops and macros")
    now = time.thread_time()
    if budget.ends is None:
        budget.ends = now + MAX_SECONDS
    elif now > budget.ends:
        raise OverBudget(f"the chat template takes more than {MAX_SECONDS:g} s")


@jinja2.pass_context  # so that it is not called once, when the template is compiled
def _call(_: Context, __: object) -> None:
    _step(_CALL)


@jinja2.pass_context
def _loop(_: Context, items: Any) -> Any:
    return _passing(items)


def _passing(items: Any) -> Any:
    """Return what is iterated over: short lists as they are, and others with a look at the clock now and then."""
    if type(items) in _SIZED and len(items) <= _SHORT:
        budget = _current.get()
        budget.steps -= 1 + len(items)
        if budget.steps < _LITTLE:
            _step(0)
        return items
    return _Watched(items) if hasattr(items, "__len__") else _watched(items)


def _read(*values: Any) -> None:
    """Take the steps for texts that are read from end to end, as by most of what is done with a text."""
    length = 0
    for value in values:
        if isinstance(value, str | bytes):
            length += len(value)
    if length > _TEXT_PER_STEP:
        _step(length // _TEXT_PER_STEP)


def _searched(value: Any) -> Any:
    """Return an operand of a comparison."""
    _read(value)
    return value


def _cut(value: Any) -> Any:
    """Return a slice."""
    spend(_size(value))
    return value


def _listed(items: Any) -> Any:
    """Return the arguments of a call that stand behind an asterisk."""
    return _made([*_passing(items)])


def _watched(items: Iterable[Any]) -> Iterator[Any]:
    for place, item in enumerate(items):
        if not place % _OFTEN:
            _step(_OFTEN)
        yield item


class _Watched:
    """Items that know their number, which is the length of the loop."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return _watched(self._items)


class BudgetedEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and renders templates within `template_budget()`."""

    intercepted_binops = frozenset(["*", "**", "%"])

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        del self.globals["lipsum"]
        for name, size in _SIZES.items():
            self.filters[name] = _limited(self.filters[name], size)
        for name in ("batch", "slice"):
            self.filters[name] = _rows(self.filters[name])
        self.filters["join"] = _join
        for name in self.filters.keys() - _QUICK:
            self.filters[name] = _counted(self.filters[name], iterates=name in _ITERATING)
        for name in _READING_TESTS:
            self.tests[name] = _counted(self.tests[name])
        self.filters |= {
            "0call": _call,
            "0loop": _loop,
            "0searched": _searched,
            "0cut": _cut,
            "0listed": _listed,
            "0sum": _sum,
            "0concat": _concat,
            "0made": _made,
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MAX_TEMPLATE:
            raise OverBudget(f"the chat template has {len(source)} characters, and may have {MAX_TEMPLATE}")
        template: nodes.Template = _Instrument().visit(super()._parse(source, name, filename))
        return template

    @staticmethod
    def concat(parts: Iterable[str]) -> str:  # what the template writes, and each macro and block in it
        """Join texts."""
        listed = list(parts)
        budget = _current.get()
        budget.size -= sum(map(len, listed))
        if budget.size < 0:
            spend(0)
        return "".join(listed)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a value, a function or a macro."""
        kind, is_of_text = type(function), False
        if kind is BuiltinMethodType or kind is MethodType:
            owner, name = function.__self__, function.__name__
            if is_of_text := isinstance(owner, str | bytes):
                _read(owner, *args)
            if name in _METHODS and isinstance(owner, str | bytes | int | list | dict):
                named = {key: kwargs.pop(key) for key in kwargs.keys() - _OF_JINJA}
                args = _METHODS[name](owner, *args, **named)
        elif kind is LoopContext:
            args = (_passing(*args),)
        result = super().call(context, function, *args, **kwargs)
        if is_of_text:
            return _new(result)
        return _made(result) if type(result) is dict else result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply one of the operators with which a short template can make a huge value."""
        if operator == "%" and isinstance(left, str | bytes):
            _spend_on_format(left, right)
        elif isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _MAX_BITS:
                raise OverBudget(f"the chat template computes a number of more than {_MAX_BITS} bits")
        elif operator == "*":
            spend(max(0, _size(left) * right if isinstance(right, int) else _size(right) * left))
            result = super().call_binop(context, operator, left, right)
            return _made(result) if isinstance(result, list | tuple) else result
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return what is called in place of `str.format` and `str.format_map`."""
        if super().wrap_str_format(value) is None:
            return None
        text, is_map = value.__self__, value.__name__ == "format_map"

        def limited(*args: Any, **kwargs: Any) -> str:
            _step(text.count("{") + text.count("}"))
            values: tuple[Any, Mapping[str, Any]] = ((), args[0]) if is_map else (args, kwargs)
            return str(_LimitedFormatter(self).vformat(text, *values))

        return limited


class _LimitedFormatter(SandboxedFormatter):
    def format_field(self, value: Any, format_spec: str) -> Any:
        check_width(format_spec)
        text = super().format_field(value, format_spec)
        spend(len(text))
        return text


class _Instrument(NodeTransformer):
    """Adds our filters to a template."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _filter("0loop", node.iter)
        return node

    def visit_Macro(self, node: nodes.Macro | nodes.CallBlock) -> nodes.Macro | nodes.CallBlock:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_filter("0call", nodes.Const(None, lineno=node.lineno))))
        return node

    visit_CallBlock = visit_Macro

    def visit_Output(self, node: nodes.Output) -> nodes.Output:
        """Leave `{{ a + b }}` as it is, because what is written is counted anyway, and cannot be added to again."""
        for place, part in enumerate(node.nodes):
            is_short = isinstance(part, nodes.Add | nodes.Concat) and _count_terms(part) <= _FEW
            node.nodes[place] = self._visit_terms(part) if is_short else self.visit(part)
        return node

    def _visit_terms(self, node: Any) -> Any:
        if isinstance(node, nodes.Add):
            node.left, node.right = self._visit_terms(node.left), self.visit(node.right)
            return node
        return self.generic_visit(node) if isinstance(node, nodes.Concat) else self.visit(node)

    def visit_Add(self, node: nodes.Add) -> nodes.Expr:
        """Make one call of `a + b + c`. Adding a number is left as it is: the result is one, or an error."""
        self.generic_visit(node)
        if any(
            isinstance(part, nodes.Const) and isinstance(part.value, int | float) for part in (node.left, node.right)
        ):
            return node
        left: Any = node.left
        before = left.node.items if getattr(left, "name", "") == "0sum" else [left]
        return _filter("0sum", nodes.Tuple([*before, node.right], "load"))

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return _filter("0concat", nodes.Tuple(node.nodes, "load"))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        """Count the texts that are searched, or compared with each other. A constant is compared at once."""
        self.generic_visit(node)
        operands: list[Any] = [node, *node.ops]
        searches = any(operand.op in ("in", "notin") for operand in node.ops)
        if searches or not any(isinstance(operand.expr, nodes.Const) for operand in operands):
            for operand in operands:
                if not isinstance(operand.expr, nodes.Const):
                    operand.expr = _filter("0searched", operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return _filter("0cut", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Call(self, node: nodes.Call | nodes.Filter | nodes.Test) -> nodes.Expr:
        self.generic_visit(node)
        if node.dyn_args is not None:
            node.dyn_args = _filter("0listed", node.dyn_args)
        return node

    visit_Filter = visit_Test = visit_Call

    def visit_List(self, node: nodes.List | nodes.Tuple | nodes.Dict) -> nodes.Expr:
        self.generic_visit(node)
        is_constant = all(isinstance(item, nodes.Const) for item in node.items)
        return node if is_constant or getattr(node, "ctx", "load") != "load" else _filter("0made", node)

    visit_Tuple = visit_List

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:
        self.generic_visit(node)
        return _filter("0made", node) if node.items else node


def _count_terms(node: nodes.Expr) -> int:
    """Return how many values a chain of `+`, or one of `~`, puts together."""
    if isinstance(node, nodes.Add):
        return _count_terms(node.left) + 1
    return len(node.nodes) if isinstance(node, nodes.Concat) else 1


def _filter(name: str, node: nodes.Node) -> nodes.Filter:
    return nodes.Filter(cast("nodes.Expr", node), name, [], [], None, None, lineno=node.lineno)


def _sum(parts: tuple[Any, ...]) -> Any:
    try:
        spend(sum(map(len, parts)))
        return "".join(parts)
    except TypeError:  # numbers, or lists
        pass
    result = parts[0]
    for part in parts[1:]:
        if isinstance(result, list | tuple | str):
            spend(len(result) + _size(part))
        result = result + part
    return result


def _concat(parts: tuple[Any, ...]) -> str:
    texts = [*map(str, parts)]
    spend(sum(map(len, texts)))
    return "".join(texts)


def _made(value: Any) -> Any:
    """Return a value that was made of others. Raises `OverBudget` if it has too many in it."""
    left, characters, inner = _MAX_VALUES, 0, [value]
    while inner:
        container = inner.pop()
        items = container.values() if isinstance(container, dict) else container
        left -= len(container)
        characters += sum(len(item) for item in items if isinstance(item, str))
        if left < 0 or characters > MAX_SIZE:
            raise OverBudget(
                f"the chat template makes a list or dict of more than {_MAX_VALUES} values or {MAX_SIZE} characters"
            )
        inner += [item for item in items if isinstance(item, dict | list | tuple)]
    count = _MAX_VALUES - left
    spend(count)
    if count >= _VALUES_PER_STEP:
        _step(count // _VALUES_PER_STEP)
    return value


def _new(value: Any) -> Any:
    """Return what a method or a filter has made, after taking its size."""
    if isinstance(value, str | bytes):
        spend(len(value))
    elif isinstance(value, list | tuple):
        _made(value)
        spend(sum(map(_size, value)))
    return value


def _size(value: Any) -> int:
    """Return the length of a text or list, and 0 for what has none."""
    return len(value) if isinstance(value, str | bytes | list | tuple) else 0


def check_width(width: int | str | None) -> None:
    """Refuse a width or a precision, or a format that has one."""
    if abs(width) > _MAX_WIDTH if isinstance(width, int) else width is not None and _WIDTH.search(width):
        raise OverBudget(f"the chat template uses a width of more than {_MAX_WIDTH}")


def _spend_on_format(text: str | bytes, values: Any) -> None:
    text = text if isinstance(text, str) else text.decode("latin-1")
    check_width(text)
    given = values.values() if isinstance(values, dict) else values if isinstance(values, tuple) else (values,)
    longest = max((len(value) if isinstance(value, str | bytes) else len(str(value)) for value in given), default=0)
    spend(text.count("%") * longest)


def _spend_on_replace(text: Any, old: Any = "", new: Any = "", *_: Any) -> None:
    if _size(new) > _size(old):
        spend(_size(text) + (str(text).count(str(old)) + 1) * _size(new))


def _of_join(text: Any, items: Any, *more: Any) -> tuple[Any, ...]:
    listed = [*_passing(items)]
    spend(sum(map(_size, listed)) + len(text) * len(listed))
    return (listed, *more)


def _of_replace(text: Any, old: Any, new: Any, count: int = -1) -> tuple[Any, ...]:
    _spend_on_replace(text, old, new)
    return old, new, count


def _of_copy(items: Any) -> tuple[Any, ...]:
    spend(len(items))
    return ()


def _of_split(_: Any, sep: Any = None, maxsplit: int = -1) -> tuple[Any, ...]:
    return sep, maxsplit if 0 <= maxsplit <= _MAX_VALUES else _MAX_VALUES


def _of_splitlines(text: Any, keepends: bool = False) -> tuple[Any, ...]:
    kept = str(text) if isinstance(text, str) else text.decode("latin-1")
    if sum(map(kept.count, _LINE_ENDS)) > _MAX_VALUES:
        raise OverBudget(f"the chat template makes a list of more than {_MAX_VALUES} lines")
    return (keepends,)


def _of_strip(_: Any, characters: Any = None) -> tuple[Any, ...]:
    check_width(_size(characters))  # each character of the text may be compared with all of them
    return (characters,)


def _of_translate(text: Any, table: Any, *more: Any) -> tuple[Any, ...]:
    spend(len(text) * max(map(_size, table.values()), default=1) if isinstance(table, dict) else len(text))
    return (table, *more)


def _of_width(_: Any, width: Any = 0, *more: Any) -> tuple[Any, ...]:
    check_width(width)
    return (width, *more)


_METHODS: Mapping[str, Callable[..., tuple[Any, ...]]] = {
    "copy": _of_copy,
    "join": _of_join,
    "replace": _of_replace,
    "splitlines": _of_splitlines,
    "translate": _of_translate,
    **dict.fromkeys(("split", "rsplit"), _of_split),
    **dict.fromkeys(("strip", "lstrip", "rstrip"), _of_strip),
    **dict.fromkeys(("center", "expandtabs", "ljust", "rjust", "to_bytes", "zfill"), _of_width),
}
"""Method that may make much of a text, or take long -> function that gets what it gets, and returns its arguments."""


@jinja2.pass_eval_context
def _join(context: nodes.EvalContext, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        value = map(make_attrgetter(context.environment, attribute), value)
    texts = [*map(str, value)]
    spend(sum(map(len, texts)) + len(str(d)) * len(texts))
    return str(d).join(texts)


def _own_arguments(function: Any) -> int:
    """Return the place of a filter's value: Jinja may pass something else first."""
    return 0 if getattr(function, "jinja_pass_arg", None) is None else 1


def _rows(function: Any) -> Any:
    """Return a filter that yields lists, with a check of each."""
    place = _own_arguments(function) + 1

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Iterator[Any]:
        for number in (*args[place : place + 1], *kwargs.values()):
            if isinstance(number, int):
                spend(abs(number))
        yield from map(_made, function(*args, **kwargs))

    return checked


def _limited(function: Any, size: Callable[..., None]) -> Any:
    """Return a filter that takes the size of its result first."""
    begin = _own_arguments(function)

    @functools.wraps(function)
    def limited(*args: Any, **kwargs: Any) -> Any:
        size(*args[begin:], **kwargs)
        return function(*args, **kwargs)

    return limited


def _counted(function: Any, *, iterates: bool = False) -> Any:
    """Return a filter or a test that takes steps for what it reads, or `iterates` over, and the size of what it makes."""
    place = _own_arguments(function)

    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        if iterates:
            args = (*args[:place], _passing(args[place]), *args[place + 1 :])
        else:
            _read(*args[place:])
        return _new(function(*args, **kwargs))

    return counted


_QUICK = frozenset(["attr", "count", "d", "default", "first", "last", "length", "random"])
"""Filters that take no time, however long a value is, and return what was there."""

_ITERATING = frozenset(
    [
        *("batch", "groupby", "join", "list", "map", "max", "min", "reject", "rejectattr", "select", "selectattr"),
        *("slice", "sort", "sum", "unique"),
    ]
)
"""Filters that look at each item of a value, which may be a long text."""

_READING_TESTS = (
    *("!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan", "lower"),
    *("lt", "ne", "upper"),
)

_SLOW = 30
"""The weight of a character for filters that are written in Python."""

_URL_ENCODED = 12
"""Characters in place of one of four bytes."""

_SIZES: Mapping[str, Callable[..., None]] = {
    "center": lambda _, width=80: spend(width),
    "format": lambda text, *args, **names: _spend_on_format(str(text), names or args),
    "indent": lambda text, width=4, *_, **__: spend(
        (str(text).count("\n") + 1) * (width if isinstance(width, int) else len(width))
    ),
    "replace": _spend_on_replace,
    "trim": lambda _, characters=None: check_width(_size(characters)),
    "urlencode": lambda value: spend(_URL_ENCODED * _size(value)),
    "round": lambda _, precision=0, *__, **___: check_width(precision),
    "wordwrap": lambda text, _=79, __=True, wrapstring=None, *___, **____: spend(
        len(str(text)) * (_SLOW + len(wrapstring or ""))
    ),
    **dict.fromkeys(
        ("pprint", "striptags", "title", "urlize", "wordcount"), lambda value, *_, **__: spend(_SLOW * _size(value))
    ),
}
"""Filter -> function that takes the size of what it may return. It has the filter's own arguments."""
