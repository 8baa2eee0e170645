"""What a deployment runs when its form is left as it is: the miniature, from the file that `make campaign` uses."""

from __future__ import annotations

from components.cluster import REPOSITORY
from components.config import load

MINIATURE = load(REPOSITORY / "configs" / "miniature.yaml")
