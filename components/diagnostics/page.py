"""The report as one self-contained HTML page: nothing is fetched, no script runs, no text becomes markup."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from html import escape

from markdown_it import MarkdownIt

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #d8dee4; padding: .25rem .75rem; text-align: left; vertical-align: top; }
.figures { display: flex; flex-wrap: wrap; gap: 1rem; }
.figures img { max-width: 100%; width: 30rem; }
"""


POLICY = (
    "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
    f"style-src 'sha256-{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'"
)


def page(title: str, report: str, drawn: Mapping[str, bytes]) -> str:
    """The Markdown `report` with the figures in it, PNG by name."""
    body = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image").render(report)
    images = "\n".join(
        f'<img alt="{escape(name)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        for name, png in drawn.items()
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f'<body>\n{body}\n<div class="figures">\n{images}\n</div>\n</body></html>\n'
    )
