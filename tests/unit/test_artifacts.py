"""What a path holds is told by its content, its hash follows its content, and a wrong path is told with what is there."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.artifacts import check_pin, fingerprint_of, is_address, model_file, sha256_of, sniff, without_userinfo
from sparkinfer.exceptions import ModelLoadError

SAFETENSORS = (2).to_bytes(8, "little") + b"{}"


def zip_of(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return path


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("keras", ["config.json", "metadata.json", "model.weights.h5"]),
        ("torch_export", ["net/archive_format", "net/models/model.json"]),
        ("torch_export", ["serialized_exported_program.json", "version"]),
        ("torch_script", ["net/data.pkl", "net/code/__torch__.py", "net/constants.pkl"]),
        ("torch_save", ["net/data.pkl", "net/data/0"]),
        ("unknown", ["readme.txt"]),
    ],
)
def test_a_zip_is_told_by_its_directory(tmp_path: Path, kind: str, names: list[str]) -> None:
    """The ending of the name counts for nothing."""
    assert sniff(zip_of(tmp_path / "model.bin", *names)) == kind


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("hdf5", b"\x89HDF\r\n\x1a\n" + bytes(20)),
        ("safetensors", SAFETENSORS),
        ("pickle", pickle.dumps({"a": 1})),
        ("torch_legacy", pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2) + b"..."),
        ("unknown", b"just text"),
        ("unknown", b""),
        ("unknown", (10**9).to_bytes(8, "little") + b"{} a header longer than the file"),
    ],
)
def test_a_file_is_told_by_its_first_bytes(tmp_path: Path, kind: str, content: bytes) -> None:
    """Each format's own mark, and nothing for a file without one."""
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    assert sniff(path) == kind


def test_a_directory_is_a_saved_model_only_with_its_graph(tmp_path: Path) -> None:
    """A folder without saved_model.pb is just a folder."""
    assert sniff(tmp_path) == "directory"
    (tmp_path / "saved_model.pb").write_bytes(b"")
    assert sniff(tmp_path) == "saved_model"


def test_a_zip_that_was_cut_short_is_an_error(tmp_path: Path) -> None:
    """Half a download begins like a zip and has no directory."""
    whole = zip_of(tmp_path / "whole.pt", "net/data.pkl").read_bytes()
    half = tmp_path / "half.pt"
    half.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelLoadError, match="cut short"):
        sniff(half)


def test_a_missing_file_is_told_with_its_neighbour(tmp_path: Path) -> None:
    """The nearest name in the same folder is offered."""
    (tmp_path / "model.pt2").write_bytes(b"")
    with pytest.raises(ModelLoadError, match=r"there is no .*model\.pt'.*Did you mean 'model\.pt2'"):
        sniff(tmp_path / "model.pt")


def test_a_missing_folder_is_told_down_to_what_exists(tmp_path: Path) -> None:
    """The deepest folder that is there is named."""
    with pytest.raises(ModelLoadError, match=f"only down to '{tmp_path}'"):
        sniff(tmp_path / "a" / "b" / "model.pt")


@pytest.mark.parametrize("address", ["s3://bucket/model.pt", "hdfs:///model", "dbfs:/models/a.pt2"])
def test_an_address_is_no_path(address: str) -> None:
    """The message says to copy or to mount it."""
    with pytest.raises(ModelLoadError, match="is an address"):
        sniff(address)


def test_a_file_address_is_a_path(tmp_path: Path) -> None:
    """``file:`` in front of a path is taken off."""
    (tmp_path / "m").write_bytes(SAFETENSORS)
    assert sniff(f"file://{tmp_path}/m") == sniff(f"file:{tmp_path}/m") == "safetensors"


def test_the_hash_follows_the_content(tmp_path: Path) -> None:
    """Overwritten with as many other bytes, the file has another hash; with the first ones, the first hash."""
    path = tmp_path / "weights"
    hashes = []
    for moment, content in enumerate([b"one", b"two", b"one"], start=1):
        path.write_bytes(content)
        os.utime(path, ns=(moment, moment))
        hashes.append(sha256_of(path))
    assert hashes[0] == hashes[2] != hashes[1]


def test_a_directory_is_hashed_with_the_names_of_its_files(tmp_path: Path) -> None:
    """The same contents under another name are another model."""
    for folder, name in [("a", "x"), ("b", "x"), ("c", "y")]:
        (tmp_path / folder / "deep").mkdir(parents=True)
        (tmp_path / folder / "deep" / name).write_text("1")
    assert sha256_of(tmp_path / "a") == sha256_of(tmp_path / "b") != sha256_of(tmp_path / "c")
    assert model_file("model", tmp_path / "a").directory
    assert model_file("model", tmp_path / "a").size_bytes == 1


def test_a_pinned_file_must_have_the_pinned_content(tmp_path: Path) -> None:
    """Both hashes are told."""
    path = tmp_path / "weights"
    path.write_text(json.dumps(1))
    file = model_file("weights", path)
    check_pin(file, file.sha256.upper())
    with pytest.raises(ModelLoadError, match=f"{file.sha256}.*{'0' * 64}"):
        check_pin(file, "0" * 64)


@given(st.lists(st.text(max_size=3), max_size=4), st.lists(st.text(max_size=3), max_size=4))
def test_different_parts_have_different_fingerprints(one: list[str], other: list[str]) -> None:
    """Moving a letter over a border makes another fingerprint."""
    assert (fingerprint_of(*one) == fingerprint_of(*other)) == (one == other)


def test_addresses_lose_user_and_password() -> None:
    """Wherever they stand in a text; an @ elsewhere stays."""
    told = "no model at 'https://bob:p@ss@host:5000/api', nor at ftp://eve@host/a@b; ask me@here, http://host/?to=me@here"
    assert without_userinfo(told) == "no model at 'https://host:5000/api', nor at ftp://host/a@b; ask me@here, http://host/?to=me@here"


def test_a_linked_folder_belongs_to_the_model(tmp_path: Path) -> None:
    """Frameworks follow links, so that the hash and what is sent do too; one that leads back is no second copy."""
    (tmp_path / "m" / "sub").mkdir(parents=True)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "w").write_bytes(b"1")
    (tmp_path / "m" / "variables").symlink_to(tmp_path / "weights")
    (tmp_path / "m" / "sub" / "back").symlink_to(tmp_path / "m")
    before = model_file("model", tmp_path / "m")
    assert before.size_bytes == 1
    (tmp_path / "weights" / "w").write_bytes(b"2")
    assert model_file("model", tmp_path / "m").sha256 != before.sha256


def test_links_that_multiply_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty folders with two links each are a million."""
    monkeypatch.setattr("sparkinfer.artifacts._MOST_FILES", 1000)
    for number in range(20):
        (tmp_path / str(number)).mkdir()
        for side in "ab":
            (tmp_path / str(number) / side).symlink_to(tmp_path / str(number + 1))
    with pytest.raises(ModelLoadError, match="more than 1,000 files and folders"):
        sha256_of(tmp_path / "0")


def test_addresses_lose_the_values_of_keys_in_their_queries() -> None:
    """By the words that such keys have; other values stay."""
    told = "at https://h/x?sv=1&sig=abc%2F&Token=t#y and s3://b?access_key=a;secret_key=b, but not key=c"
    assert without_userinfo(told) == "at https://h/x?sv=1&sig=...&Token=...#y and s3://b?access_key=...;secret_key=... but not key=c"


def test_an_address_is_told_from_a_path() -> None:
    """By its scheme; a file's own is a path, and so is a name with a colon."""
    assert all(map(is_address, ("s3://b/m", "models:/m@champion", "runs:/1/m")))
    assert not any(map(is_address, ("m", "/m", "./models:/m", "file:///m", "file:/m")))
