"""Is a DataFrame nothing but files? Then the workers can read them themselves.

Runs on: driver.

Invariant: a DataFrame whose rows are not exactly those of its files is refused, with the reason; so is one of which that cannot be known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from posixpath import normpath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from sparkinfer.engine.reading import shown
from sparkinfer.exceptions import ConfigError
from sparkinfer.spark.files import FileSource
from sparkinfer.spark.partition_folders import below_host, folders_below, unbraced
from sparkinfer.spark.session import is_connect
from sparkinfer.spark.sources import table_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkinfer.engine.reading import FileFormat
    from sparkinfer.spark.scan import FileTable

__all__ = ["files_of"]

_CLASSIC_FORMATS: dict[str, FileFormat] = {"ParquetFileFormat": "parquet", "BinaryFileFormat": "binary"}
_CONNECT_FORMATS: dict[str, FileFormat] = {"parquet": "parquet", "binaryfile": "binary"}
_PASSED = ("SubqueryAlias", "View")  # names for the same rows
_SAME_ROWS = {"basepath", "mergeschema", "path", "paths", "pathglobfilter", "modifiedbefore", "modifiedafter", "recursivefilelookup"}
_OF_CATALOG = {"serialization.format"}  # which the catalog adds to a table's options, and no reader of files asks for


class _NotPlain(Exception):  # noqa: N818 - becomes a ConfigError, with the way out
    """Why the rows are not those of files."""


@dataclass(frozen=True)
class _Plain:
    """What a plan was found to be.

    Attributes:
        kind: what is in the files.
        paths: that were given.
        roots: below which folders are partitions.
        columns: those that are selected; ``None``: all.
        flat: folders are no partitions.
        partitions: the columns that are known to be the names of folders.
    """

    kind: FileFormat
    paths: Sequence[str]
    roots: Sequence[str]
    columns: tuple[str, ...] | None
    flat: bool
    partitions: tuple[str, ...] = ()


def files_of(frame: DataFrame) -> FileTable:
    """Take the files of a DataFrame that is a plain scan of them.

    Raises:
        ConfigError: it is more than that, or that cannot be known; the reason is told.
    """
    session = frame.sparkSession
    try:
        if frame.isStreaming:
            _refuse("it is a stream")
        plain = _of_connect(frame) if is_connect(session) else _of_classic(frame)
        _check_defaults(frame)
        urls = list(frame.inputFiles())
        _check_apart(plain.paths, urls)
    except _NotPlain as why:
        msg = (
            f"scan='direct' needs a DataFrame that is nothing but Parquet or binary files, but {why}: leave scan out, or name the files and their "
            "filter with si.read_files"
        )
        raise ConfigError(msg) from None
    source = FileSource(paths=tuple(plain.roots), format=plain.kind, columns=plain.columns)
    return table_of(source, session, plain.kind, frame.schema, urls, () if plain.flat else plain.roots, plain.partitions)


def _refuse(why: str) -> None:
    raise _NotPlain(why)


def _check_defaults(frame: DataFrame) -> None:
    """Refuse columns that came into a table later, with a value for the rows that were there: the files do not have it."""
    for one in frame.schema.fields:
        if "EXISTS_DEFAULT" in one.metadata:
            _refuse(f"its column {one.name!r} has the default {one.metadata['EXISTS_DEFAULT']} where the files lack it")


def _check_options(given: Iterable[str]) -> None:
    """Refuse options that may change the rows: those that do not are known by name."""
    other = sorted({one.lower() for one in given} - _SAME_ROWS - _OF_CATALOG)
    if other:
        _refuse(f"it is read with the option {other[0]!r}, which may change its rows")


def _check_apart(paths: Sequence[str], urls: Sequence[str]) -> None:
    """Refuse paths that lead to a file twice: Spark then has its rows twice, and names the file once."""
    if len(paths) > 1 and not all(below_host(path).startswith("/") for path in paths):
        _refuse("it has several paths, one of them relative to the server's folder, so that nobody knows whether they overlap")
    spelt = sorted(f"{_spelt(path)}/" for path in paths)
    twice = [one for one, following in pairwise(spelt) if following.startswith(one)]
    globs = [unbraced(below_host(path)) for path in paths if any(sign in path for sign in "*?[{\\")]
    for url in urls if globs and len(paths) > 1 else ():
        path = unquote(below_host(url))
        times = sum(folders_below(path, patterns) is not None for patterns in globs)
        times += sum(f"{_spelt(unquote(url))}/".startswith(one) for one in spelt)
        twice += [url] if times > 1 else []
    if twice:
        _refuse(f"it has the path {shown(twice[0].rstrip('/'))} twice, or one below another, and rows that Spark reads twice")


def _spelt(path: str) -> str:
    """Give host and path in one spelling."""
    host = path.partition("://")[2].partition("/")[0] if "://" in path else ""
    return host + normpath(below_host(path)).rstrip("/")


# --- classic: Catalyst's analyzed plan ---------------------------------------------------------------------------------


def _of_classic(frame: Any) -> _Plain:
    try:
        plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - there is no other way to ask what a DataFrame is
    except Exception as error:  # shared clusters hide their JVM
        why = f"this session does not tell what a DataFrame is made of ({type(error).__name__})"
        raise _NotPlain(why) from error
    columns: tuple[str, ...] | None = None
    while (name := _simple(plan)) != "LogicalRelation":
        if name == "Project":
            picked = _attributes(plan.projectList())
            columns = picked if columns is None else columns
        elif name not in _PASSED:
            _refuse(f"its plan has a {name} above the files" if plan.children().size() else f"its rows come from a {name}")
        plan = plan.child()
    relation = plan.relation()
    if _simple(relation) != "HadoopFsRelation":
        _refuse(f"it reads a {_simple(relation)}")
    kind = _CLASSIC_FORMATS.get(_simple(relation.fileFormat()))
    index = _simple(relation.location())
    if kind is None:
        _refuse(f"its files are of the format {_simple(relation.fileFormat())}")
    if index != "InMemoryFileIndex":
        _refuse(f"a table format or a catalog keeps the list of its files ({index})")
    if relation.bucketSpec().isDefined():
        _refuse("its files are buckets")
    options = {
        pair.partition(" -> ")[0].lower(): pair.partition(" -> ")[2] for pair in relation.options().mkString("\n").split("\n") if pair
    }
    _check_options(options)
    columns = _in_relation(columns, list(relation.schema().fieldNames()), [str(one) for one in frame.columns])
    paths = relation.location().rootPaths().mkString("\n").split("\n")
    roots = [options["basepath"]] if "basepath" in options else paths
    partitions = tuple(str(one) for one in relation.partitionSchema().fieldNames())
    return _Plain(kind or "parquet", paths, roots, columns, flat=not partitions, partitions=partitions)


def _simple(thing: Any) -> str:
    return str(thing.getClass().getSimpleName()).rstrip("$")


def _attributes(listed: Any) -> tuple[str, ...]:
    names = []
    for position in range(listed.size()):
        one = listed.apply(position)
        if _simple(one) != "AttributeReference":
            _refuse(f"it computes or renames the column {one.name()!r}")
        names.append(str(one.name()))
    return tuple(names)


def _in_relation(columns: tuple[str, ...] | None, there: Sequence[str], shown: Sequence[str]) -> tuple[str, ...] | None:
    if columns is None:
        return None
    for name in columns:
        if name not in there:
            _refuse(f"its column {name!r} is none of the files' own")
    return tuple(shown)


# --- Connect: what the client sends ------------------------------------------------------------------------------------


def _of_connect(frame: Any) -> _Plain:
    try:
        relation = frame._plan.to_proto(frame.sparkSession.client).root  # noqa: SLF001 - as above; the protocol itself is stable
    except Exception as error:  # a private name that may go
        why = f"this version of pyspark does not tell what a DataFrame is made of ({type(error).__name__})"
        raise _NotPlain(why) from error
    columns: tuple[str, ...] | None = None
    while (name := relation.WhichOneof("rel_type")) != "read":
        if name == "project":
            picked = tuple(_unresolved(one) for one in relation.project.expressions)
            columns = picked if columns is None else columns
        elif name != "subquery_alias":
            _refuse(f"its plan has a {name} above the files")
        relation = getattr(relation, name).input
    read = relation.read
    if read.WhichOneof("read_type") != "data_source":
        _refuse("it reads a table of the catalog, and over Connect nobody tells what that is")
    told = read.data_source
    kind = _CONNECT_FORMATS.get(told.format.lower())
    if kind is None:
        _refuse(f"its files are of the format {told.format or 'that the session sets'!r}")
    options = {key.lower(): value for key, value in told.options.items()}
    _check_options(options)
    paths = list(told.paths) or [options.get("path", "")]
    roots = [options["basepath"]] if "basepath" in options else paths
    shown = None if columns is None else tuple(frame.columns)
    return _Plain(kind or "parquet", paths, roots, shown, flat=options.get("recursivefilelookup", "").lower() == "true")


_PLAIN_NAME = re.compile(r"\w+|`[^`]+`")


def _unresolved(expression: Any) -> str:
    """Give the name of a plain column."""
    if expression.WhichOneof("expr_type") != "unresolved_attribute":
        _refuse("it computes or renames a column")
    name = str(expression.unresolved_attribute.unparsed_identifier)
    if not _PLAIN_NAME.fullmatch(name):
        _refuse(f"its column {name} may be a part of another")
    if name.strip("`").lower() == "_metadata":
        _refuse("its column '_metadata' is none of the files' own")
    return name
