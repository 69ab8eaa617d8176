"""Job files are plain YAML, environment variables stand where they are marked, and what came out of them is never shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.cli.read import Document, at, read_job
from sparkinfer.exceptions import ConfigError


def read(tmp_path: Path, text: str, *changes: str, **environment: str) -> dict[str, Any]:
    """The values of a file with this text."""
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return dict(read_job(path, changes, environment).values)


BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param(BOMB, r"line 1: anchors .* are not taken", id="aliases"),
        pytest.param("a: !!python/object/apply:os.system [ls]", r"line 1: the tag '.*os.system' is not taken", id="tag"),
        pytest.param("a: !env HOME", r"the tag '!env' is not taken", id="own tag"),
        pytest.param("a: 1\nb:\n  c: 1\n  c: 2", r"line 4: the key 'c' is there twice", id="key twice"),
        pytest.param("on: 1", r"the key 'on' reads as True in YAML, expected a text: put it in quotes", id="key no text"),
        pytest.param("a: 2024-13-45", r"a number or a date that there is not", id="no date"),
        pytest.param("a: {b", r"is no YAML .*\(line 1, column 6\)", id="unfinished"),
        pytest.param("a: " + "[" * 200, r"nested more than 40 levels deep", id="deep"),
        pytest.param("a: 1\n---\nb: 1", r"line 2: a second document begins", id="documents"),
        pytest.param("- a", r"holds a list, expected a mapping", id="list"),
        pytest.param("", r"holds nothing, expected a mapping that begins with 'version: 1'", id="empty"),
        pytest.param("a: " + "x" * 1_000_001, r"expected at most 1,000,000", id="large"),
    ],
)
def test_what_is_no_plain_yaml_is_refused_in_a_sentence(tmp_path: Path, text: str, told: str) -> None:
    """Nothing is made of a tag, nothing is multiplied, and the message has the line."""
    with pytest.raises(ConfigError, match=told):
        read(tmp_path, text)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """One that is not there, and one that is no text."""
    with pytest.raises(ConfigError, match=r"nowhere.yaml cannot be read \(No such file"):
        read_job(tmp_path / "nowhere.yaml")
    (tmp_path / "job.yaml").write_bytes(b"a: \xff")
    with pytest.raises(ConfigError, match="no UTF-8 text"):
        read_job(tmp_path / "job.yaml")


def test_marked_variables_are_filled_in(tmp_path: Path) -> None:
    """Within a text and in lists; an escaped mark, Spark's own marks and unmarked dollars stay; a value is not looked through again."""
    text = "a: x/${env:ONE}/${env:TWO}\nb: ['${env:ONE}']\nc: $${env:ONE} ${spark:x} $ONE $\nd: ${env:TWICE}\ne: ${job:folder}/m\n"
    found = read(tmp_path, text, ONE="1", TWO="2", TWICE="${env:ONE}")
    assert found == {"a": "x/1/2", "b": ["1"], "c": "${env:ONE} ${spark:x} $ONE $", "d": "${env:ONE}", "e": f"{tmp_path}/m"}


@pytest.mark.parametrize("mark", ["${HOME}", "${env:}", "${env:A-B}", "${job:file}"])
def test_a_mark_that_is_not_known_is_refused(tmp_path: Path, mark: str) -> None:
    """Passing it on as it stands would be a silent fallback."""
    with pytest.raises(ConfigError, match=r"sink\.path: .* is no mark that is known.*\$\{env:"):
        read(tmp_path, f"sink: {{path: '{mark}'}}")


def test_a_variable_that_is_not_set_names_key_and_variable(tmp_path: Path) -> None:
    """An empty one is set."""
    with pytest.raises(ConfigError, match=r"sink\.options\.password: the environment variable SECRET is not set"):
        read(tmp_path, "sink:\n  options:\n    password: ${env:SECRET}")
    assert read(tmp_path, "a: ${env:EMPTY}", EMPTY="") == {"a": ""}


def test_changes_are_laid_over_the_file_in_their_order(tmp_path: Path) -> None:
    """In YAML; new sections are made; below options and conf the rest is one key, dots and all; marks are filled in there too."""
    changes = ["b.c=[1, x]", "n.m=true", "n.m=false", "spark.conf.spark.sql.x=4", "a=${env:ONE}"]
    found = read(tmp_path, "a: 1\nb: {c: 2, d: 3}", *changes, ONE="1")
    assert found == {"a": "1", "b": {"c": [1, "x"], "d": 3}, "n": {"m": False}, "spark": {"conf": {"spark.sql.x": 4}}}


@pytest.mark.parametrize(
    ("change", "told"), [("a", "expected key.path=value"), ("a..b=1", "expected key.path"), ("a.b=1", "a is 1, which has no keys")]
)
def test_a_change_that_cannot_be_laid_over_is_refused(tmp_path: Path, change: str, told: str) -> None:
    """With the form that would be right."""
    with pytest.raises(ConfigError, match=told):
        read(tmp_path, "a: 1", change)


@settings(max_examples=150)
@given(text=st.text(alphabet=st.sampled_from("ab:-[]{}&*!#'\"\n ,|>?%@0${}é\t"), max_size=60))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Whatever stands there: a mapping with text keys comes out, or a ConfigError."""
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        found = read_job(path, (), {})
    except ConfigError:
        return
    assert all(isinstance(key, str) for key in found.values)


def test_a_way_is_spelt_as_people_do() -> None:
    """Keys by dots, positions in brackets."""
    assert at(("predict", "keep", 0, "x")) == "predict.keep[0].x"
    assert at(()) == ""


def test_a_value_is_hidden_in_every_form_that_a_message_may_have() -> None:
    """As it is, as ``repr`` writes it, and each of its lines; a mark that was put in is not looked at again."""
    hidden = {"it's\ta\\secret": "${env:A}", "first line\n  second line\n": "${env:B}", "env": "${env:C}"}
    document = Document(Path("job.yaml"), {}, {}, hidden)
    for value, mark in hidden.items():
        assert document.hide(f"<{value}>") == f"<{mark}>"
        assert mark in document.hide(repr(value))
        assert "secret" not in document.hide(repr(value))
    assert document.hide("at second line: no") == "at ${env:B}: no"


def test_numbers_are_not_hidden(tmp_path: Path) -> None:
    """Hiding them would garble the figures of every message."""
    (tmp_path / "job.yaml").write_text("a: '${env:BATCH} ${env:SHORT}'", encoding="utf-8")
    assert read_job(tmp_path / "job.yaml", (), {"BATCH": "100", "SHORT": "ab"}).hide("21,100 rows, table") == "21,100 rows, table"
