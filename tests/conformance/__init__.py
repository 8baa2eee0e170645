"""Suites that every implementation of an interface passes."""

import pytest

# Before the suites are imported, whoever does so first: their assertions then say what they compared.
pytest.register_assert_rewrite(
    *(f"{__name__}.{suite}_suite" for suite in ("publisher", "sampler", "sandbox", "store", "trainer"))
)
