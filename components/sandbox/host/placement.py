"""On which node the next box starts: pure, fed with what happened.

Invariants (tested as a state machine): no node holds more boxes than its cap, but those that it had when it joined; the
next box goes to the node with the fewest; a node that was lost gets none, and what is told of its boxes afterwards
changes nothing.
"""

from __future__ import annotations


class Placement:
    """Counts the boxes of nodes.

    Args:
        per_node: the most boxes of a node; None: as many as are asked for.
    """

    def __init__(self, per_node: int | None) -> None:
        self._per_node = per_node
        self._boxes: dict[str, int] = {}

    @property
    def boxes(self) -> dict[str, int]:
        """How many boxes each node has."""
        return dict(self._boxes)

    def join(self, node: str, boxes: int) -> None:
        """A node, with the boxes that it has already."""
        assert node not in self._boxes, f"{node} joins twice"
        self._boxes[node] = boxes

    def lose(self, node: str) -> int:
        """A node is gone; the boxes that are gone with it. Idempotent."""
        return self._boxes.pop(node, 0)

    def take(self) -> str | None:
        """The node of the next box, which counts from now on; None where every node is full."""
        node = min(sorted(self._boxes), key=self._boxes.__getitem__, default=None)
        if node is None or (self._per_node is not None and self._boxes[node] >= self._per_node):
            return None
        self._boxes[node] += 1
        return node

    def give(self, node: str) -> None:
        """A box of a node has ended, or was not to be had."""
        if node in self._boxes:
            assert self._boxes[node] > 0, f"{node} has no box"
            self._boxes[node] -= 1
