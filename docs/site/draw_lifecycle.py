"""Draws a request's way through the layers: `python docs/site/draw_lifecycle.py > docs/request-lifecycle.svg`.

The layers and their order are those of the import contract in pyproject.toml. What happens in them is listed in `STEPS`.
"""

from __future__ import annotations

import ast
import html
import re
from typing import NamedTuple

from build_site import ROOT


class Step(NamedTuple):
    """What a module does for a request. `module` may be a pattern for several modules with the same task."""

    layer: str
    module: str
    does: str
    in_engine: bool = False


STEPS = (
    Step("lmi_handlers.web", "lmi_handlers/web/exchange.py", "reads the body, gives it an id"),
    Step("lmi_handlers.apis", "lmi_handlers/apis/*/dialect.py", "parses it, chooses the formatter"),
    Step("lmi_handlers.serving", "lmi_handlers/serving/served_model.py", "checks it against the limits"),
    Step("lmi_handlers.text", "lmi_handlers/text/chat_template.py", "renders chats"),
    Step("lmi_handlers.text", "lmi_handlers/text/tokenizer.py", "turns text into token ids"),
    Step("lmi_handlers.media", "lmi_handlers/media/images.py", "loads images, if any"),
    Step("lmi_handlers.engine", "lmi_handlers/engine/client.py", "sends it to the engine"),
    Step("lmi_handlers.engine", "lmi_handlers/engine/loop.py", "queues it, starts sequences", in_engine=True),
    Step("backends", "backends/*/backend.py", "computes the next tokens", in_engine=True),
    Step("lmi_handlers.engine", "lmi_handlers/engine/worker_server.py", "sends the new tokens", in_engine=True),
    Step("lmi_handlers.text", "lmi_handlers/text/sequence.py", "detokenises, finds stop strings"),
    Step("formatters", "formatters/*/*.py", "turns text into records"),
    Step("lmi_handlers.web", "lmi_handlers/web/exchange.py", "sends head and records"),
)

WIDTH, TOP, STEP, PADDING, GAP = 944, 90, 42, 10, 14
LANES = {False: (112, 348), True: (584, 344)}
"""Left edge and width of the lanes: the web worker's and the engine process's."""

# More than the mean width of a character in any common font, in pixels.
WIDE, WIDE_SMALL = 8, 7.4

STYLE = """\
text { font: 14px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600 }
.layer, .small { font: 12px ui-monospace, monospace }
.layer { font-weight: 600; font-size: 13px }
.small { fill: #57606a }
.middle { text-anchor: middle }
.end { text-anchor: end }
.page { fill: #ffffff }
.lane { fill: #f6f8fa; stroke: #d0d7de }
.box { fill: #ffffff; stroke: #6e7781 }
.number, .head { fill: #0550ae }
.digit { fill: #ffffff; font-size: 11px; font-weight: 600; text-anchor: middle }
.arrow { stroke: #0550ae; stroke-width: 1.6; fill: none; marker-end: url(#head) }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9da7b1 } .page { fill: #0d1117 } .lane { fill: #161b22; stroke: #30363d }
  .box { fill: #0d1117; stroke: #8b949e } .number, .head { fill: #4493f8 } .arrow { stroke: #4493f8 }
  .digit { fill: #0d1117 }
}"""


def layers() -> list[str]:
    """Return the packages of the import contract, from top to bottom. Each may import those below it only."""
    contract = (ROOT / "pyproject.toml").read_text().partition('name = "Layers, top to bottom"')[2]
    listed = re.search(r"layers = (\[.*?\])", contract, re.DOTALL)
    if listed is None:
        raise ValueError("pyproject.toml has no such contract")
    return [name for line in ast.literal_eval(listed[1]) for name in re.split(r" [|:] ", line)]


def drawing() -> str:
    """Return the picture as SVG. Raises `ValueError` if a text is wider than its box."""
    parts: list[str] = []
    rows: dict[str, int] = {}
    y = TOP
    for layer in layers():
        lanes = {
            in_engine: [
                (number, step)
                for number, step in enumerate(STEPS, start=1)
                if step.layer == layer and step.in_engine is in_engine
            ]
            for in_engine in LANES
        }
        most = max(map(len, lanes.values()))
        if most == 0:
            continue
        rows[layer] = y
        height = 2 * PADDING + STEP * most
        name = layer.removeprefix("lmi_handlers.")
        parts.append(f'<text class="layer end" x="{LANES[False][0] - 12}" y="{y + height // 2 + 4}">{name}/</text>')
        for in_engine, steps in lanes.items():
            if steps:
                parts += _box(steps, in_engine, y, height)
        y += height + GAP
    background = [_lane("web worker (no torch)", False, y), _lane("engine process", True, y)]
    return "\n".join([_head(y + 16), *background, *parts, *_arrows(rows), "</svg>", ""])


def _head(height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img">\n'
        "<title>The steps of a request, by process and layer</title>\n"
        f"<style>\n{STYLE}\n</style>\n"
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path class="head" d="M0 0L8 4L0 8z"/></marker></defs>\n'
        f'<rect class="page" width="{WIDTH}" height="{height}"/>'
    )


def _lane(name: str, in_engine: bool, bottom: int) -> str:
    left, width = LANES[in_engine]
    return (
        f'<rect class="lane" x="{left}" y="44" width="{width}" height="{bottom - 44}" rx="8"/>\n'
        f'<text class="title" x="{left + 16}" y="72">{name}</text>'
    )


def _box(steps: list[tuple[int, Step]], in_engine: bool, y: int, height: int) -> list[str]:
    left, width = LANES[in_engine]
    parts = [f'<rect class="box" x="{left + 12}" y="{y}" width="{width - 24}" height="{height}" rx="6"/>']
    room = width - 24 - 40 - PADDING
    top = y + (height - STEP * len(steps)) // 2
    for row, (number, step) in enumerate(steps):
        if max(WIDE * len(step.does), WIDE_SMALL * len(step.module)) > room:
            raise ValueError(f"too wide for its box: {step}")
        line = top + STEP * row
        parts += [
            f'<circle class="number" cx="{left + 32}" cy="{line + 14}" r="10"/>',
            f'<text class="digit" x="{left + 32}" y="{line + 18}">{number}</text>',
            f'<text x="{left + 52}" y="{line + 19}">{html.escape(step.does)}</text>',
            f'<text class="small" x="{left + 52}" y="{line + 35}">{html.escape(step.module)}</text>',
        ]
    return parts


def _arrows(rows: dict[str, int]) -> list[str]:
    """The client's request and answer, and the messages between the processes."""
    first, engine = rows[STEPS[0].layer], rows["lmi_handlers.engine"]
    left, width = LANES[False]
    comes, goes = left + width - 110, left + width - 70
    right, across = left + width - 12, LANES[True][0] + 12
    middle = (left + width + LANES[True][0]) // 2
    return [
        f'<text class="end" x="{comes - 10}" y="28">request</text>',
        f'<path class="arrow" d="M{comes} 14V{first}"/>',
        f'<text x="{goes + 10}" y="28">answer</text>',
        f'<path class="arrow" d="M{goes} {first}V14"/>',
        f'<text class="small middle" x="{middle}" y="{engine + 20}">Submit, Abort</text>',
        f'<path class="arrow" d="M{right} {engine + 30}H{across}"/>',
        f'<text class="small middle" x="{middle}" y="{engine + 62}">Outputs, Failed</text>',
        f'<path class="arrow" d="M{across} {engine + 72}H{right}"/>',
    ]


if __name__ == "__main__":
    print(drawing(), end="")
