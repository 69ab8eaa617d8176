"""A moment of each property in CI; ``SPARKINFER_FUZZ_EXAMPLES`` and ``python benchmarks/fuzz.py`` give them longer."""

from __future__ import annotations

import os
import warnings

import pytest
from hypothesis import HealthCheck, settings

from tests.fuzz.properties import PROPERTIES, examples

EXAMPLES = int(os.environ.get("SPARKINFER_FUZZ_EXAMPLES", "60"))


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_property_holds_for_any_input(name: str) -> None:
    """Each says what in its own docstring; an example that breaks it is printed, as small as it can be made."""
    before = examples.get(name, 0)
    bounded = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow, about damaged pictures
        bounded(PROPERTIES[name])()
    assert examples[name] - before >= min(EXAMPLES, 30)
