"""How figures and names read: units, colours, and text that came from data.

Runs on: driver (standard library only).

Invariant: what ``plain`` and ``printable`` give back holds no control character, no lone surrogate and no change of direction.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["STAGE_COLOURS", "STAGE_WORDS", "count", "duration", "percent", "plain", "printable", "rate", "readable", "short_names", "size"]

STAGE_WORDS = {
    "model_load": "model load",
    "input_wait": "waiting for input",
    "compute": "model",
    "postprocess": "postprocess",
    "encode": "encode",
    "output_wait": "waiting for Spark",
    "other": "other",
    "read": "read",
    "decode": "decode",
    "preprocess": "preprocess",
    "collate": "collate",
    "transfer": "transfer",
}
"""Stages, as people say them."""

STAGE_COLOURS: Mapping[str, str] = {
    "model_load": "#8f7fd6",
    "input_wait": "#e3a33b",
    "compute": "#3d8bd4",
    "postprocess": "#2fa58e",
    "encode": "#8dbb57",
    "output_wait": "#d86c5d",
    "other": "#9aa1ab",
}
"""Of the consumer's stages; told apart on white and on near-black, and (by lightness) by the colour-blind."""


def duration(seconds: float) -> str:
    """Say a duration to two or three figures.

    Example:
        >>> [duration(seconds) for seconds in (0, 0.0000042, 0.0123, 2.345, 47, 200, 7500)]
        ['0 s', '4.2 µs', '12 ms', '2.3 s', '47 s', '3 min 20 s', '2 h 5 min']
    """
    size_of_it = abs(seconds)
    if size_of_it == 0:
        return "0 s"
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if size_of_it * factor < 999.5:
            return f"{_figures(seconds * factor)} {unit}"
    if size_of_it < 119.5:
        return f"{_figures(seconds)} s"
    if size_of_it < 7170:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes} min"


def count(value: float) -> str:
    """Say a whole number in full.

    Example:
        >>> count(1234567)
        '1,234,567'
    """
    return f"{value:,.0f}"


def rate(value: float) -> str:
    """Say a rate or another plain figure to three figures, without powers of ten.

    Example:
        >>> [rate(value) for value in (0, 0.01234, 8.1, 43.21, 5214.3)]
        ['0', '0.0123', '8.1', '43.2', '5,214']
    """
    if value == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(share: float) -> str:
    """Say a share of 1 in whole percent; a small one is not called nothing.

    Example:
        >>> [percent(share) for share in (0, 0.002, 0.714, 1)]
        ['0 %', '<1 %', '71 %', '100 %']
    """
    return "<1 %" if 0 < share < 0.005 else f"{share * 100:.0f} %"


def size(number_of_bytes: float) -> str:
    """Say a size; a megabyte is a million bytes.

    Example:
        >>> [size(n) for n in (12, 81_300_000, 2_340_000_000)]
        ['12 B', '81 MB', '2.3 GB']
    """
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(number_of_bytes) >= factor:
            return f"{_figures(number_of_bytes / factor)} {unit}"
    return f"{number_of_bytes:.0f} B"


def readable(name: str, value: float) -> str:
    """Say a metric's value in the unit that its name ends in.

    Example:
        >>> readable("inference/rows_per_second", 5214.3), readable("stage/compute_fraction", 0.25), readable("memory/rss_peak_megabytes", 812.4)
        ('5,214', '25 %', '812 MB')
        >>> readable("inference/batch_latency_seconds_p95", 0.0123), readable("inference/bytes_in_total", 3e6)
        ('12 ms', '3.0 MB')
    """
    if "_per_" in name:
        return rate(value)
    if name.endswith("_fraction"):
        return percent(value)
    if name.endswith("_megabytes"):
        return size(value * 1e6)
    if "bytes_" in name:
        return size(value)
    if "seconds" in name:
        return duration(value)
    return count(value) if float(value).is_integer() else rate(value)


def plain(text: Any, limit: int = 200) -> str:
    r"""Make one printable line of anything, and cut its middle out where it is too long.

    Example:
        >>> plain("a\x00b\nc"), plain("0123456789", limit=5)
        ('a�b c', '01…89')
    """
    line = printable(" ".join(str(text).split()))
    if len(line) <= limit:
        return line
    head = limit // 2
    return f"{line[:head]}…{line[len(line) - (limit - head - 1) :]}"


def printable(text: Any) -> str:
    r"""Put a mark in the place of what cannot be shown, could not be written as UTF-8, or turns the reading direction.

    Example:
        >>> printable(" a\x00b ")
        ' a�b '
    """
    return "".join("�" if unicodedata.category(letter)[0] == "C" else letter for letter in str(text))


def short_names(hosts: Iterable[str], limit: int = 32) -> dict[str, str]:
    """Leave out the domain that hosts have in common, and keep them apart however short they are.

    Example:
        >>> short_names(["ip-10-1.eu.compute.internal", "ip-10-2.eu.compute.internal"])
        {'ip-10-1.eu.compute.internal': 'ip-10-1', 'ip-10-2.eu.compute.internal': 'ip-10-2'}
        >>> short_names(["10.0.0.1"])
        {'10.0.0.1': '10.0.0.1'}
    """
    names = sorted(set(hosts))
    labels = [name.split(".") for name in names]
    common = 0
    while all(len(one) > common + 1 and one[-1 - common] == labels[0][-1 - common] for one in labels) and labels:
        common += 1
    if any(one[-1].isdigit() for one in labels):  # an address, not a name
        common = 0
    short: dict[str, str] = {}
    taken: Counter[str] = Counter()
    for name, one in zip(names, labels, strict=True):
        said = plain(".".join(one[: len(one) - common]), limit)
        taken[said] += 1
        short[name] = said if taken[said] == 1 else f"{said} ({taken[said]})"
    return short


def _figures(value: float) -> str:
    return f"{value:.1f}" if abs(value) < 9.95 else f"{value:.0f}"
