"""Tokens in, tokens out: what was sampled is what is trained on (paper Eq 5-14).

Invariants of the package: a position has loss exactly where its id was sampled; no sampled id is ever replaced by a
re-encoding of its text; a stream of N tokens has N-1 routing rows; every sampled node is trained once.
"""

from components.tito.audit import DriftReport, audit
from components.tito.boundary import Boundary, Case, Tokenizer, decide
from components.tito.bpe import BpeTokenizer
from components.tito.history import Drawn, TokenHistory
from components.tito.stitch import Stitcher, boundaries, stitch

__all__ = [
    "Boundary",
    "BpeTokenizer",
    "Case",
    "Drawn",
    "DriftReport",
    "Stitcher",
    "TokenHistory",
    "Tokenizer",
    "audit",
    "boundaries",
    "decide",
    "stitch",
]
