"""Names that tasks and policies chose, in a report that a person opens in a browser, in Prefect or in a terminal."""

from __future__ import annotations

MOST = 200
"""Characters of one name."""


def quoted(name: str, most: int = MOST) -> str:
    """A name as Markdown, whatever is in it: nothing ends the quotation or the cell, or acts where it is shown."""
    return "`" + "".join(each if each.isprintable() and each not in "`|" else "_" for each in name[:most]) + "`"
