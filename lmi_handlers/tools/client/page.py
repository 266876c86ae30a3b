"""Reports as one HTML page, which needs nothing from elsewhere."""

from __future__ import annotations

from html import escape

from lmi_handlers.core.terminal import visible

_STYLE = """body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem }
:root { color-scheme: light dark } table { border-collapse: collapse }
th, td { text-align: left; vertical-align: top; padding: .2rem .6rem; border-top: 1px solid #8885 }
"""


def html_page(title: str, style: str, body: str) -> str:
    """Return the page. `title` is any text; `style` and `body` are CSS and HTML."""
    head = f'<meta charset="utf-8"><title>{html_text(title)}</title><style>{_STYLE}{style}</style>'
    return f'<!doctype html><html lang="en">{head}{body}</html>\n'


def html_text(value: object) -> str:
    """Return a text as HTML. Characters that would change how the rest is shown are escaped as in a terminal."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return escape(visible(text))
