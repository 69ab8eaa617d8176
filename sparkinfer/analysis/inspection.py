"""What ``si.inspect_model`` found, as a value: layers, outputs, plain findings, drift against a baseline.

Runs on: driver (pandas for the tables alone).

Invariant: a finding names its layer and its share, and what is downstream of a fault is not blamed for it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkinfer.analysis.drift import Drift, drifts
from sparkinfer.exceptions import ConfigError, nearest
from sparkinfer.insides import Insides, Labels, LayerSeen, Values, bucket_bounds

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ModelInspection"]

_FORMAT = "sparkinfer inspection"
_VERSION = 1
_MANY_DEAD = 0.1  # of a layer's units: single ones are in the table
_NAMED = 3


@dataclass(frozen=True)
class ModelInspection:
    """What was seen inside a model.

    Attributes:
        seen: all figures, as they merge.
        model: how messages call the model.
        fingerprint: of it.
        baseline: the figures of then, where a baseline was given.
        baseline_fingerprint: of the model of then.
    """

    seen: Insides
    model: str
    fingerprint: str
    baseline: Insides | None = None
    baseline_fingerprint: str = ""

    @property
    def layers(self) -> pd.DataFrame:
        """One row a layer, in the order of their first calls.

        ``layer`` numbers those that hold no others; ``mean``, ``spread``, ``low`` and ``high`` are of the finite values; ``zeros``, ``nan`` and
        ``infinite`` are shares of all values; ``dead`` of ``units`` were 0 in every sampled row; ``time`` is the share of the whole model's time, without
        the layers inside.
        """
        import pandas as pd  # noqa: PLC0415 - findings and pages need none

        whole = self.seconds or 1.0
        rows = [
            {
                "layer": layer.number or None,
                "name": layer.name,
                "kind": layer.kind,
                "shape": layer.shape,
                "calls": layer.calls,
                **_figures(layer.values),
                "dead": layer.dead if layer.units is not None else None,
                "units": layer.units,
                "time": layer.seconds / whole,
            }
            for layer in self.seen.layers
            if layer.timed or layer.calls
        ]
        table = pd.DataFrame(rows)
        for name in ("layer", "dead", "units"):
            if name in table:
                table[name] = table[name].astype("Int64")
        return table

    @property
    def inputs(self) -> pd.DataFrame:
        """One row an input of the model, numbers alone."""
        return _table(self.seen.inputs)

    @property
    def outputs(self) -> pd.DataFrame:
        """One row an output column, and one for the greatest of each row of a vector; of labels, ``labels`` counts the different ones."""
        return _table(self.seen.outputs)

    @property
    def weights(self) -> pd.DataFrame:
        """One row a parameter of a layer."""
        return _table(self._parameters)

    def histogram(self, name: str) -> pd.DataFrame:
        """Give the buckets of a layer, a parameter (``layer.weight``), an output or an input, by its name: ``low``, ``high`` and ``count`` of each that is not empty.

        Raises:
            ConfigError: nothing of that name has numbers.
        """
        import pandas as pd  # noqa: PLC0415 - as above

        known: dict[str, Values | Labels] = {
            **self.seen.inputs,
            **self.seen.outputs,
            **self._parameters,
            **{layer.name: layer.values for layer in self.seen.layers},
        }
        counted = known.get(name)
        if not isinstance(counted, Values):
            msg = f"name is {name!r}, of which there is no histogram. {nearest(name, known)}"
            raise ConfigError(msg)
        rows = [(*bucket_bounds(bucket), count) for bucket, count in sorted(counted.buckets.items())]
        return pd.DataFrame(rows, columns=["low", "high", "count"])

    @property
    def _parameters(self) -> dict[str, Values]:
        return {f"{layer.name}.{name}": values for layer in self.seen.layers for name, values in layer.weights.items()}

    @property
    def seconds(self) -> float:
        """What the timed calls took, all layers together."""
        return sum(layer.seconds for layer in self.seen.layers)

    @cached_property
    def drift(self) -> tuple[Drift, ...]:
        """Each figure that the baseline has too, those that drifted first; empty without a baseline."""
        return () if self.baseline is None else drifts(self.baseline, self.seen)

    @cached_property
    def findings(self) -> tuple[str, ...]:
        """What is wrong, in plain sentences: where NaN and infinite values arise, dead layers, outputs that do not change, drift."""
        return tuple(self._findings())

    @property
    def remarks(self) -> tuple[str, ...]:
        """What could not be looked at, and why."""
        return (*self.seen.remarks, *self._about_the_baseline())

    def _findings(self) -> Iterator[str]:
        for name, values in self.seen.inputs.items():
            yield from _broken_values(f"the input {name!r} holds", values)
        for layer in self.seen.layers:
            yield from _of_weights(layer)
        for layer in self.seen.layers:
            yield from _broken(layer)
        yield from _dead(self.seen.layers)
        for name, seen in self.seen.outputs.items():
            yield from _of_output(name, seen)
        yield from _of_drift([one for one in self.drift if one.drifted])

    def _about_the_baseline(self) -> Iterator[str]:
        if self.baseline is None:
            return
        if self.baseline_fingerprint != self.fingerprint:
            yield "the baseline is of another model, or of this one with other weights: drift of layers may be the models' and not the data's"
        gone = {layer.name for layer in self.baseline.layers} ^ {layer.name for layer in self.seen.layers}
        if gone:
            yield f"{len(gone)} layers are in one of the two only, and are not compared: {_some(sorted(gone))}"
        if min(self.baseline.rows, self.seen.rows) < 300:
            yield (
                f"{self.baseline.rows} rows then and {self.seen.rows} now: chance alone moves so few, so that only strong drift is told; look at more "
                "batches"
            )

    def save_baseline(self, path: str | Path) -> Path:
        """Write the figures as a plain JSON file, for ``inspect_model(..., baseline=path)``; folders that are missing are made.

        Returns:
            Where it is.

        Raises:
            OSError: it cannot be written.
        """
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        told = {"format": _FORMAT, "version": _VERSION, "model": self.model, "fingerprint": self.fingerprint, **self.seen.told()}
        target.write_text(json.dumps(told, indent=1, allow_nan=False), encoding="utf-8")
        return target

    def save_report(self, path: str | Path) -> Path:
        """Write it as one self-contained HTML page: the findings, the model's picture, tables, histograms; folders that are missing are made.

        Returns:
            Where it is.

        Raises:
            MissingDependencyError: matplotlib, which the page's styles come with, is not installed.
            OSError: it cannot be written.
        """
        target = Path(path)
        page: str = import_module("sparkinfer.reporting.inspection").render(self)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page, encoding="utf-8")
        return target

    def __str__(self) -> str:
        """Say it as lines of text."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        leaves = sum(layer.number > 0 for layer in self.seen.layers)
        yield f"{self.model}: {leaves} layers on {self.seen.rows:,} rows in {self.seen.batches} batches of {self.seen.partitions} partitions"
        yield from (f"  {finding}" for finding in self.findings or ("nothing is wrong with what was looked at",))
        yield from (f"remark: {remark}" for remark in self.remarks)

    def _repr_html_(self) -> str:
        """Show the findings and the tables at the end of a notebook's cell."""
        shown: str = import_module("sparkinfer.reporting.inspection").cell(self)
        return shown


def read_baseline(path: str | Path) -> tuple[Insides, str]:
    """Read what ``save_baseline`` wrote; give the figures and the model's fingerprint.

    Raises:
        ConfigError: it is no such file.
    """
    try:
        told = json.loads(Path(path).read_text(encoding="utf-8"))
        found = (told["format"], told["version"])
        seen, fingerprint = Insides.read(told), str(told["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _no_baseline(path, f"{type(error).__name__}: {error}") from error
    if found != (_FORMAT, _VERSION):
        raise _no_baseline(path, f"it says {found[0]} {found[1]}")
    return seen, fingerprint


def _no_baseline(path: str | Path, why: str) -> ConfigError:
    return ConfigError(f"baseline is {str(path)!r}, expected a file that save_baseline wrote ({_FORMAT} {_VERSION}): {why}")


def _figures(values: Values) -> dict[str, Any]:
    there = values.measured > 0
    return {
        "mean": values.mean if there else math.nan,
        "spread": values.spread if there else math.nan,
        "low": values.low if there else math.nan,
        "high": values.high if there else math.nan,
        "zeros": values.zero_fraction,
        "nan": values.nan_fraction,
        "infinite": values.infinite_fraction,
    }


def _table(seen: Any) -> pd.DataFrame:
    import pandas as pd  # noqa: PLC0415 - as above

    rows: list[dict[str, Any]] = []
    for name, one in seen.items():
        if isinstance(one, Labels):
            most = max(one.counts, key=lambda label: one.counts[label], default=None)
            rows.append({"name": name, "values": one.count, "nulls": one.nulls, "labels": len(one.counts), "most frequent": most})
        else:
            rows.append({"name": name, "values": one.count, "nulls": one.nulls, **_figures(one)})
    table = pd.DataFrame(rows)
    if "labels" in table:
        table["labels"] = table["labels"].astype("Int64")
    return table


def _called(layer: LayerSeen) -> str:
    if layer.number:
        return f"layer {layer.number} {layer.name!r} ({layer.kind})"
    return (
        "the model's own code between its layers" if layer.name == "(model)" else f"block {layer.name!r} ({layer.kind}), by its own code,"
    )


def _share(count: int, of: int) -> str:
    share = count / of
    if share < 0.0001:
        return f"{count:,} of {of:,}"
    return f"{share:.0%}" if share >= 0.1 else f"{share:.2%}"


def _broken_values(what: str, values: Values) -> Iterator[str]:
    for word, count in (("NaN", values.nans), ("infinite values", values.infinities)):
        if count:
            yield f"{what} {word} in {_share(count, values.count)} of its values"


def _of_weights(layer: LayerSeen) -> Iterator[str]:
    for name, values in layer.weights.items():
        yield from _broken_values(f"the {name} of {_called(layer)} holds", values)


def _broken(layer: LayerSeen) -> Iterator[str]:
    for arising, word, count in (
        (layer.nan_arising, "NaN", layer.values.nans),
        (layer.infinite_arising, "infinite values", layer.values.infinities),
    ):
        if arising:
            calls = "from the first sampled batch on" if arising == layer.calls else f"in {arising} of {layer.calls} sampled batches"
            yield f"{_called(layer)} gives {word} in {_share(count, layer.values.count)} of its values, {calls}; what comes into it has none"


def _dead(layers: tuple[LayerSeen, ...]) -> Iterator[str]:
    """Name dead layers; of several in a row the first, since what follows on zeros is often zero."""
    blamed = False
    for layer in layers:
        if not layer.number or not layer.units or layer.rows < 2:
            continue
        if layer.dead < layer.units:
            blamed = False
            if layer.dead >= _MANY_DEAD * layer.units:
                yield f"{_called(layer)} has {layer.dead} dead units of {layer.units}: they were 0 in all {layer.rows:,} sampled rows"
        elif not blamed:
            blamed = True
            yield f"{_called(layer)} is dead: each of its {layer.units} units was 0 in all {layer.rows:,} sampled rows"


def _of_output(name: str, seen: Values | Labels) -> Iterator[str]:
    if isinstance(seen, Labels):
        if len(seen.counts) == 1 and seen.count > 1 and not seen.nulls:
            yield f"the output {name!r} is {next(iter(seen.counts))!r} in each of the {seen.count:,} sampled rows"
        return
    yield from _broken_values(f"the output {name!r} holds", seen)
    if seen.measured > 1 and seen.low == seen.high and not seen.nans:
        yield f"the output {name!r} is {seen.low:g} in all {seen.measured:,} values that were sampled"


def _of_drift(drifted: list[Drift]) -> Iterator[str]:
    """Name what drifted; of layers the first few, since what comes after a layer that drifted mostly does, too."""
    layers = 0
    for one in drifted:
        layers += one.where == "layer"
        if one.where != "layer" or layers <= _NAMED:
            yield f"drift: {one}"
    if layers > _NAMED:
        yield f"drift: {layers - _NAMED} more figures of layers are not as in the baseline"


def _some(names: list[str]) -> str:
    return ", ".join(map(repr, names[:_NAMED])) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
