"""A Harbor in an environment of its own: the one that LONGSHELL_HARBOR names, or one that is made, once, under var/."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from components.config import HarborConfig
from components.errors import ConfigError, ServiceError
from components.evaluation.harbor import harbor_environment

PLACE = Path(__file__).parents[2] / "var"


def installed() -> Path:
    """The virtual environment of a Harbor. Skips the test, with the reason, where there can be none."""
    try:
        return harbor_environment(HarborConfig(venv=os.environ.get("LONGSHELL_HARBOR") or None), PLACE, print)
    except (ConfigError, ServiceError) as error:
        pytest.skip(str(error))
