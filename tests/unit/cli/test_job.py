"""A job file that is right becomes the library's own values; one that is wrong says where, what was expected and what is nearest."""

from __future__ import annotations

import inspect
import re
from copy import deepcopy
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import sparkinfer as si
from sparkinfer.cli.job import Job, parse_job
from sparkinfer.cli.keys import keys_of
from sparkinfer.cli.problems import known_keys
from sparkinfer.cli.read import Document, read_job
from sparkinfer.exceptions import ConfigError

ROOT = Path(__file__).resolve().parents[3]

JOB: dict[str, Any] = {
    "version": 1,
    "source": {"format": "csv", "path": ["a", "b"], "options": {"header": True, "maxColumns": 3}, "schema": "x int", "where": "x > 1"},
    "model": {"python": {"load": "scoring:load", "files": "w.npz"}},
    "predict": {"inputs": "x", "outputs": "y long", "keep": "x"},
    "config": {"batch_size": 7, "pin_memory": "auto"},
    "spark": {"conf": {"spark.sql.shuffle.partitions": 4}},
    "sink": {"path": "out", "mode": "append", "partition_by": ["y"]},
    "run": {"name": "n", "metrics": True},
}


def job_with(**changes: Any) -> dict[str, Any]:
    """The job with other values: ``sink__mode="x"``; a value of ``...`` takes the key away."""
    job = deepcopy(JOB)
    for way, value in changes.items():
        *above, last = way.split("__")
        inner = job
        for key in above:
            inner = inner.setdefault(key, {})
        if value is ...:
            del inner[last]
        else:
            inner[last] = value
    return job


def parse(values: dict[str, Any], **hidden: str) -> Job:
    """Check values as if a file held them."""
    return parse_job(Document(Path("job.yaml"), values, values, hidden))


def test_a_right_job_is_read() -> None:
    """One text where a list may stand; options as Spark takes them; what is not set stays unset."""
    job = parse(JOB)
    assert job.source.path == ("a", "b")
    assert job.source.options == {"header": "true", "maxColumns": "3"}
    assert job.source.ddl == "x int"
    assert job.model.given()["python"].given() == {"load": "scoring:load", "files": ("w.npz",)}
    assert job.predict.keep == ("x",)
    assert job.config.given() == {"batch_size": 7, "pin_memory": "auto"}
    assert parse(job_with(config__batch_size="auto")).config.given()["batch_size"] == "auto"
    assert job.spark.conf == {"spark.sql.shuffle.partitions": "4"}
    assert job.run.mlflow is True
    with pytest.raises(ValidationError, match="frozen"):
        job.version = 2  # type: ignore[misc,assignment]


WRONG = [
    ({"sink__resume": {"key": "x"}}, r"sink: resume writes plain Parquet to a path, .*; got mode and partition_by$"),
    ({"sink": {"path": "out", "format": "orc", "resume": {"key": "x"}}}, r"sink: resume writes plain Parquet .*; got the format 'orc'$"),
    ({"sink": {"path": "out", "resume": {}}}, r"sink\.resume\.key: is missing, and the job cannot do without it"),
    (
        {"sink": {"path": "out", "resume": {"key": "x"}}, "predict__key": "z"},
        r"the job: predict\.key and sink\.resume\.key name different columns: leave predict\.key out",
    ),
    ({"sink__mode": "overwrit"}, r"sink\.mode: expected 'errorifexists'.* or 'ignore', got 'overwrit'\. Did you mean 'overwrite'\?"),
    ({"sink__pth": "x"}, r"sink\.pth: there is no such key\. Did you mean 'path'\?"),
    ({"sinks": {}}, r"sinks: there is no such key\. Did you mean 'sink'\?"),
    ({"source__shema": "x int"}, r"source\.shema: there is no such key\. Did you mean 'schema'\?"),
    ({"config__bath_size": 3}, r"config\.bath_size: .* Did you mean 'batch_size'\?"),
    ({"config__batch_size": 0}, r"config\.batch_size: batch_size is 0, expected at least 1"),
    ({"config__batch_size": True}, r"config\.batch_size: expected a whole number, got true"),
    ({"config__batch_size": "many"}, r"config\.batch_size: expected a whole number or 'auto', got 'many'"),
    ({"config__pin_memory": "maybe"}, r"config\.pin_memory: expected true or false or 'auto', got 'maybe'"),
    ({"config__device": 3}, r"config\.device: expected a text, got 3"),
    ({"predict": ...}, r"predict: is missing"),
    ({"predict__outputs": "y lon"}, r"predict\.outputs: cannot read the DDL 'y lon' at position 2.*Did you mean 'long'\?"),
    ({"predict__inputs": {"a": {"column": "x", "dtyp": "int8"}}}, r"predict\.inputs\.a\.dtyp: .*Did you mean 'dtype'\?"),
    ({"predict__inputs": ["x", {"column": "y", "dtype": "flot32"}]}, r"predict\.inputs\[1\]: dtype is 'flot32'.*Did you mean 'float32'\?"),
    ({"predict__inputs": 3}, r"predict\.inputs: expected a column's name, or a mapping with the key column"),
    ({"predict__inputs": []}, r"predict\.inputs: inputs is empty"),
    (
        {"predict__preprocess": "scoring.f"},
        r"predict\.preprocess: expected a function as module:function, such as scoring:load, got 'scoring\.f'",
    ),
    ({"predict__road": "mp"}, r"predict\.road: .*Did you mean 'map'\?"),
    ({"model__python__load": ...}, r"model\.python\.load: is missing"),
    ({"model__torch": {"source": "net.pt2"}}, r"model: expected exactly one of torch, tensorflow, mlflow, python, got torch and python"),
    ({"model": {"torch": {"weights": "w"}}}, r"model\.torch: expected exactly one of source, factory, got none"),
    (
        {"model": {"tensorflow": {"source": "a", "ship": "fils"}}},
        r"model\.tensorflow\.ship: expected .*, got 'fils'\. Did you mean 'files'\?",
    ),
    ({"source__table": "t"}, r"source: expected exactly one of path, table and query, .* got path and table"),
    ({"source": {"query": "SELECT 1", "format": "csv"}}, r"source: format, options and schema do not go with query"),
    ({"source__repartition": 0}, r"source\.repartition: expected at least 1, got 0"),
    ({"sink__path": ...}, r"sink: expected exactly one of path and table, or a format that needs neither, got none"),
    ({"sink__coalesce": 1, "sink__repartition": "y"}, r"sink: expected at most one of repartition and coalesce"),
    ({"source__options__sep": None}, r"source\.options\.sep: expected a text, a number or true or false, got a value of the type NoneType"),
    ({"run__metrics": False, "run__report": "r.html"}, r"run: report and label need metrics: true"),
    ({"config__metrics": False, "run__report": "r.html"}, r"the job: run\.report needs measurements, which config\.metrics: false"),
    ({"config__metrics": False, "run__label": "y"}, r"the job: run\.label needs measurements, which config\.metrics: false"),
    ({"predict__on_error": "nul"}, r"predict\.on_error: expected 'raise' or 'null', got 'nul'\. Did you mean 'null'\?"),
    ({"predict__scan": "fast"}, r"predict\.scan: expected 'spark', got 'fast'"),
    ({"sink": "out"}, r"sink: expected a mapping of keys, got 'out'"),
    ({"version": 2}, r"version: expected 1, the only version .*, got 2"),
    ({"version": ...}, r"version: expected 1, .*, it is missing"),
]


@pytest.mark.parametrize(("changes", "told"), WRONG, ids=["-".join(changes) + str(i) for i, (changes, _) in enumerate(WRONG)])
def test_a_wrong_job_is_told_by_path_expectation_and_nearest(changes: dict[str, Any], told: str) -> None:
    """One sentence for one mistake, beginning with the file and the key."""
    with pytest.raises(ConfigError, match=rf"^job\.yaml: {told}") as refused:
        parse(job_with(**changes))
    assert "\n" not in str(refused.value)


def test_all_that_is_wrong_is_told_at_once() -> None:
    """In the order of the sections, a line each."""
    with pytest.raises(ConfigError) as refused:
        parse(job_with(sink__mode="x", source__wher="y", run__metrics="often"))
    first, *rest = str(refused.value).splitlines()
    assert first == "job.yaml: 3 things are wrong"
    assert [line.strip().partition(":")[0] for line in rest] == ["source.wher", "sink.mode", "run.metrics"]


def test_no_value_of_the_environment_is_shown(tmp_path: Path) -> None:
    """The mark stands in its place, in values that are wrong, in what a check says about them, and in options."""
    job = job_with(
        sink__mode="${env:TOKEN}",
        predict__outputs="y ${env:TOKEN}",
        predict__preprocess="${env:TOKEN}",
        sink__options={"a": ["${env:TOKEN}"]},
    )
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        parse_job(read_job(tmp_path / "job.yaml", (), {"TOKEN": "hunter2"}))
    assert "hunter2" not in str(refused.value)
    assert "'${env:TOKEN}'" in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__  # the chain would show it


def test_numbers_out_of_the_environment_are_numbers(tmp_path: Path) -> None:
    """A variable is a text; where a key wants a whole number, its digits count as one."""
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job_with(config__batch_size="${env:ROWS}")), encoding="utf-8")
    assert parse_job(read_job(tmp_path / "job.yaml", (), {"ROWS": "32"})).config.given()["batch_size"] == 32


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("x", "x"),
        (["x", "y"], ["x", "y"]),
        ({"ids": "x"}, {"ids": "x"}),
        ({"column": "x"}, "x"),
        ({"column": "x", "dtype": "float32", "shape": [3, None]}, ("x", si.TensorSpec("float32", (3, None)))),
        ({"column": {"column": "x"}}, {"column": "x"}),
        (
            {"ids": {"column": "t", "dtype": "int64", "pad": 0, "mask": "m"}, "n": "x"},
            {"ids": ("t", si.TensorSpec("int64", pad=0, mask="m")), "n": "x"},
        ),
    ],
)
def test_inputs_are_what_predict_takes(written: Any, read: Any) -> None:
    """A column, several, named ones, each with its TensorSpec; also a model input that is itself called column."""
    assert parse(job_with(predict__inputs=written)).predict.inputs == read


def test_a_model_with_a_signature_needs_neither_inputs_nor_outputs() -> None:
    """They stay unset, and ``predict`` asks the model."""
    job = parse(job_with(predict={"keep": "x"}, model={"mlflow": {"uri": "models:/m/1"}}))
    assert job.predict.given() == {"keep": ("x",)}


def test_no_keyword_of_predict_is_forgotten() -> None:
    """Each is a key, but for what other sections hold or a file cannot."""
    from sparkinfer.cli.job import Predict

    elsewhere = {"data", "model", "config", "overrides", "resource_profile"}
    assert set(known_keys(Predict)) == set(inspect.signature(si.predict).parameters) - elsewhere


def test_the_keys_of_models_and_settings_are_those_of_the_library() -> None:
    """A new field of a dataclass is a key; the source of a model may be a factory."""
    from sparkinfer.cli.job import Config, Python, TensorFlow, Torch

    assert set(known_keys(Config)) == {one.name for one in fields(si.InferenceConfig)}
    assert set(known_keys(Python)) == {one.name for one in fields(si.PythonModel)}
    assert set(known_keys(Torch)) == {one.name for one in fields(si.TorchModel)} | {"factory"}
    assert set(known_keys(TensorFlow)) == {one.name for one in fields(si.TensorFlowModel)} | {"factory"}


@dataclass(frozen=True)
class FromARegistry:
    """As a model of a registry is described."""

    uri: str
    params: dict[str, Any] | None = field(default=None, kw_only=True)
    ship: Literal["auto", "path"] = field(default="auto", kw_only=True)


def test_keys_are_made_of_any_models_dataclass() -> None:
    """What has no default must be there; a mapping is taken as it is."""
    section = keys_of(FromARegistry)
    assert section.model_validate({"uri": "models:/a@b", "params": {"k": 3}}).given() == {"uri": "models:/a@b", "params": {"k": 3}}
    with pytest.raises(ValidationError, match="uri"):
        section.model_validate({"params": {}})


def test_mlflows_keys_are_those_of_its_dataclass() -> None:
    """A URI, and nothing that ``MlflowModel`` does not take."""
    assert parse(job_with(model={"mlflow": {"uri": "models:/a@b"}})).model.given()["mlflow"].given() == {"uri": "models:/a@b"}
    with pytest.raises(ConfigError, match=r"model\.mlflow\.parms: there is no such key\. Did you mean 'params'\?"):
        parse(job_with(model={"mlflow": {"uri": "a", "parms": 1}}))


def test_the_job_that_the_documentation_shows_is_right(tmp_path: Path) -> None:
    """Its keys and values; and every key of every section is told in its table."""
    page = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```yaml\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "job.yaml").write_text(shown, encoding="utf-8")
    assert parse_job(read_job(tmp_path / "job.yaml", (), {"MODELS": "/m"})).sink.partition_by == ("label",)
    table = "\n".join(line for line in page.splitlines() if line.startswith("| `"))
    for name, field_ in Job.model_fields.items():
        section = field_.annotation
        if name not in ("model", "config", "version"):
            assert [key for key in known_keys(section) if f".{key}`" not in table] == [], name


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
sections = st.sampled_from([key for key in JOB if key != "version"])


@settings(max_examples=100)
@given(
    section=sections,
    key=st.sampled_from(["path", "inputs", "options", "torch", "mode", "batch_size", "conf", "x"]),
    value=json,
    whole=st.booleans(),
)
def test_any_value_anywhere_is_taken_or_refused_in_words(section: str, key: str, value: Any, whole: bool) -> None:
    """Never another exception than ConfigError, and each line of it names a key of the file or its section."""
    job = deepcopy(JOB)
    job[section] = value if whole else {**job[section], key: value}
    try:
        assert parse(job).version == 1
    except ConfigError as refused:
        assert f"{section}" in str(refused)  # noqa: PT017 - taken or refused: either is right
