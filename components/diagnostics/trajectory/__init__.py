"""One trial that a person can read: found in a store, put together, written as a page."""

from components.diagnostics.trajectory.choice import Chosen, beside, chosen, section, unread
from components.diagnostics.trajectory.html import html
from components.diagnostics.trajectory.stored import Stored, decoder, find, rows, stored
from components.diagnostics.trajectory.view import Piece, View, ViewedTurn, view

__all__ = [
    "Chosen",
    "Piece",
    "Stored",
    "View",
    "ViewedTurn",
    "beside",
    "chosen",
    "decoder",
    "find",
    "html",
    "rows",
    "section",
    "stored",
    "unread",
    "view",
]
