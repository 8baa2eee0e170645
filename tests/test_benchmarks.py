"""`make bench` takes long and is run by hand; that what its benchmarks are made of is still there is looked at here."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import benchmarks
from benchmarks.__main__ import NOT_BENCHMARKS

NAMES = sorted({module.name for module in pkgutil.iter_modules(benchmarks.__path__)} - NOT_BENCHMARKS)


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_finds_what_it_measures(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{name}").main)
