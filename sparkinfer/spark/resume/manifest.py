"""What a table was scored with, written beside its rows: two calls that would mix their predictions are told apart, part by part.

Runs on: driver.

Invariant: everything that decides an answer is a part; nothing that decides only its speed is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import cloudpickle

from sparkinfer import __version__
from sparkinfer.artifacts import sha256_of
from sparkinfer.exceptions import ConfigError
from sparkinfer.spark.resume.code import code_digest

if TYPE_CHECKING:
    from sparkinfer.engine.partition import PartitionPlan

__all__ = ["Manifest", "Part", "manifest_of", "refuse_mixture"]

FORMAT = "sparkinfer scored table"
VERSION = 1


def _versions() -> dict[str, str]:
    return {"sparkinfer": __version__, "python": f"{sys.version_info[0]}.{sys.version_info[1]}", "cloudpickle": cloudpickle.__version__}


@dataclass(frozen=True)
class Part:
    """One thing that decides the answers.

    Attributes:
        digest: the same for the same thing, in any process.
        said: how a message calls it.
    """

    digest: str
    said: str


@dataclass(frozen=True)
class Manifest:
    """What a table is scored with.

    Attributes:
        parts: by name, such as ``"model"``.
        made_with: the versions by which code is compiled and taken apart.
    """

    parts: Mapping[str, Part]
    made_with: Mapping[str, str] = field(default_factory=_versions)

    def text(self) -> str:
        """Write it as JSON."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1)

    @classmethod
    def read(cls, text: str, where: str) -> Manifest:
        """Read what ``text`` wrote.

        Raises:
            ConfigError: it is something else, or of a later version.
        """
        try:
            told = json.loads(text)
            version, parts = told["version"], {name: Part(**part) for name, part in told["parts"].items()}
            made_with = dict(told["made_with"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            msg = f"{where} is no manifest of sparkinfer's ({type(error).__name__}: {error}): score to another path, or delete this one"
            raise ConfigError(msg) from error
        if version != VERSION:
            msg = f"{where} has the version {version!r}, expected {VERSION}: it was written by another sparkinfer ({made_with.get('sparkinfer')})"
            raise ConfigError(msg)
        return cls(parts, made_with)


_APART = ("on_device", "computes")  # the one is a part of its own, the other follows from the files


def manifest_of(plan: PartitionPlan, model: Any, columns: Mapping[str, str]) -> Manifest:
    """Take a call apart.

    Args:
        plan: what ``predict`` would do.
        model: as the user gave it.
        columns: of the table: what is kept, the outputs and the error column, with their types.
    """
    prepare = plan.prepare
    function = "preprocess" if prepare.per_row else "preprocess_batch"
    inputs = [(one.name, one.column, repr(one.spec)) for one in prepare.bindings]
    said = {
        "model": (_model_digest(plan, model), plan.model.label),
        "preprocess": (code_digest(prepare.function), function if prepare.function else "no preprocess"),
        "postprocess": (code_digest(plan.postprocess), "postprocess" if plan.postprocess else "no postprocess"),
        "inputs": (None, f"inputs {prepare.style} {inputs}"),
        "columns": (None, ", ".join(f"{name} {kind}" for name, kind in columns.items())),
        "key": (None, f"key {list(plan.key)}"),
        "bad rows": (
            None,
            f"on_null={plan.on_null!r}, " + (f"on_error='null' in {plan.error_column!r}" if plan.error_column else "on_error='raise'"),
        ),
        "precision": (None, f"precision={plan.config.precision!r}, optimize={getattr(model, 'optimize', None)!r}"),
    }
    on_device = plan.model.options.get("on_device")
    if on_device is not None:  # only then: tables that were begun before there was such a function have no such part
        said["preprocess on device"] = (code_digest(on_device.function), "preprocess_on_device")
    return Manifest({name: Part(_hex(text) if digest is None else digest, text) for name, (digest, text) in said.items()})


def _model_digest(plan: PartitionPlan, model: Any) -> str:
    """Hash a model; its own fingerprint will not do, since bytes of pickled code are others in another process."""
    described = plan.model
    files = [(file.role, file.sha256) for file in described.files]
    read = [sha256_of(path) for path in getattr(model, "files", ())]
    options = json.dumps({name: value for name, value in described.options.items() if name not in _APART}, sort_keys=True, default=repr)
    version = repr(getattr(model, "version", None))
    return _hex(
        repr((described.backend, described.kind, code_digest(described.payload), files, read, version, options, described.float_dtype))
    )


def _hex(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def refuse_mixture(there: Manifest, asked: Manifest, path: str) -> None:
    """Compare a call with what a table was scored with.

    Raises:
        ConfigError: they differ; names the parts that do.
    """
    nothing = Part("", "nothing")
    names = dict.fromkeys((*there.parts, *asked.parts))
    pairs = {name: (there.parts.get(name, nothing), asked.parts.get(name, nothing)) for name in names}
    differ = {name: pair for name, pair in pairs.items() if pair[0].digest != pair[1].digest}
    if not differ:
        return
    told = "; ".join(_told(name, *pair) for name, pair in differ.items())
    versions = [
        f"{name} {was} then, {asked.made_with[name]} now" for name, was in there.made_with.items() if asked.made_with.get(name, was) != was
    ]
    by_version = f" Code is compared as compiled, so versions count: {', '.join(versions)}." if versions else ""
    msg = (
        f"{path} holds rows that were scored otherwise, and a table of both would be mixed. What differs: {told}.{by_version} Score as before to go "
        "on, or to another path, or delete this one to begin anew"
    )
    raise ConfigError(msg)


def _told(name: str, was: Part, now: Part) -> str:
    if was.said == now.said:
        return f"{name} ({was.said}: its content is another)"
    return f"{name} (there: {was.said}; asked for: {now.said})"
