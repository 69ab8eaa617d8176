"""Settings are checked when they are made, and a wrong name finds the right one."""

from __future__ import annotations

from typing import Any

import pytest

from sparkinfer.config import InferenceConfig
from sparkinfer.exceptions import ConfigError


def test_overrides_beat_the_config_and_the_config_beats_the_defaults() -> None:
    """Each layer only changes what it names."""
    built = InferenceConfig.build(InferenceConfig(batch_size=7, num_workers=2), {"num_workers": 1})
    assert (built.batch_size, built.num_workers, built.prefetch_batches) == (7, 1, 2)


def test_an_unknown_setting_names_the_nearest_right_one() -> None:
    """A slip of the pen is told, not ignored."""
    with pytest.raises(ConfigError, match=r"'bath_size' is neither an argument nor a setting\. Did you mean 'batch_size'\?"):
        InferenceConfig.build(None, {"bath_size": 3})


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("batch_size", 0, "batch_size is 0, expected at least 1 or 'auto'"),
        ("batch_size", "many", r"batch_size is 'many' \(str\), expected a whole number of at least 1 or 'auto'"),
        ("batch_size", 1.5, r"batch_size is 1.5 \(float\), expected a whole number"),
        ("batch_size", True, r"batch_size is True \(bool\)"),
        ("num_workers", -1, "num_workers is -1, expected at least 0"),
        ("prefetch_batches", -1, "prefetch_batches is -1"),
        ("max_records_per_batch", 0, "max_records_per_batch is 0, expected at least 1"),
        ("max_records_per_batch", -1, "max_records_per_batch is -1, expected at least 1"),
        ("threads", 0, "threads is 0"),
        ("models_per_worker", -1, "models_per_worker is -1"),
        ("device", "", "device is ''"),
        ("precision", "fp8", "precision is 'fp8', expected 'fp32'"),
        ("pin_memory", "yes", "pin_memory is 'yes'"),
        ("pad_tail", "always", "pad_tail is 'always', expected True or False or 'auto'"),
        ("preprocess_timeout_seconds", 0, "preprocess_timeout_seconds is 0, expected a number above 0"),
        ("preprocess_timeout_seconds", "1", "preprocess_timeout_seconds is '1'"),
        ("max_in_flight_bytes", 0, "max_in_flight_bytes is 0, expected at least 1"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_range(setting: str, value: Any, told: str) -> None:
    """The message has the setting, what came and what would be right."""
    with pytest.raises(ConfigError, match=told):
        InferenceConfig(**{setting: value})
