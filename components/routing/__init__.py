"""Routing records: which experts drew each token (paper Eq 2, 12-14).

Invariants: a record is [rows, layers, experts a token], compact and little-endian; every expert is in range and no
expert stands twice in a choice; a checksum of the content travels with it, because permuted rows have the right shape.
"""

from components.routing.flips import Flips, flips
from components.routing.record import bytes_per_token, checksum, decode, encode, validate

__all__ = [
    "Flips",
    "bytes_per_token",
    "checksum",
    "decode",
    "encode",
    "flips",
    "validate",
]
