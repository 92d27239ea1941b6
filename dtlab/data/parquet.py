"""Your own Parquet: one file or a folder of shards, with its columns named in the configuration.

- Names and types are checked against the footers first, before any row is read; an error lists what the
  file holds and the nearest name. All shards must agree on the columns used.
- The label is 0/1 or boolean, without nulls. The id, if named, is a column of unique whole numbers;
  otherwise ids are row numbers over the shards in name order.
- Rows are split by a column that says train, validation or test, or by a hash of their id in stated
  fractions: a row keeps its part when rows are added, if the id is a column.
- ``version`` is a hash of the bytes of the files and of how they are split.

Taught in lesson 11. ``stream_dataset`` reads the same without holding the rows.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from dtlab.data import columns
from dtlab.data.config import DataConfig
from dtlab.data.features import FeatureSpec
from dtlab.data.prepare import file_digest
from dtlab.data.shards import UNREADABLE
from dtlab.data.source import SPLITS, Source
from dtlab.errors import UserError

ROW = "__row__"  # the id column of files that name none


def files(path: str | Path, field: str = "data.path") -> list[Path]:
    """The Parquet files at ``path`` in name order: the file itself, or those of a folder and its sub-folders.

    Names that begin with ``.`` or ``_`` are skipped. Raises UserError when there is nothing to read.
    """
    path = Path(path)
    try:
        path.stat()
        if not path.is_dir():
            return [path]
        found = [
            file for file in sorted(path.rglob("*.parquet"))
            if not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
        ]  # fmt: skip
        os.listdir(path)  # rglob is silent about a folder without rights
    except FileNotFoundError:
        there = sorted(other.name for other in path.parent.iterdir()) if path.parent.is_dir() else []
        near = columns.near(path.name, there)
        raise UserError(f"{field} = {str(path)!r}: there is no such file or folder{near}") from None
    except OSError as error:
        raise UserError(f"{field} = {str(path)!r}: {error.strerror}; check its rights") from None
    if not found:
        raise UserError(f"{field} = {str(path)!r}: the folder holds no .parquet file")
    return found


def schema(paths: Sequence[Path], used: Sequence[str] | None = None, field: str = "data.path") -> pa.Schema:
    """The common schema of some shards, from their footers.

    ``used`` are the columns on which the shards must agree (None: all of them). Types agree when they are
    equal, dictionary encoding aside; a shard in which a column is all null fits any type.
    """
    common: dict[str, tuple[pa.DataType, Path]] = {}
    first: pa.Schema | None = None
    for path in paths:
        found = footer(path, field)
        if first is None:
            first = found
        names = list(first.names) if used is None else list(used)
        columns.require(found, names, str(path))
        for name in names:
            kind = _value_type(found.field(name).type)
            known, where = common.setdefault(name, (kind, path))
            if pt.is_null(known):
                common[name] = (kind, path)
            elif kind != known and not pt.is_null(kind):
                raise UserError(
                    f"column {name!r} is {known} in {where} and {kind} in {path}: give all shards one schema"
                )
    return pa.schema([(name, kind) for name, (kind, _) in common.items()])


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pt.is_dictionary(kind) else kind


def footer(path: Path, field: str) -> pa.Schema:
    """The columns of one file. Raises UserError when it cannot be read or is no Parquet file."""
    try:
        if path.stat().st_size == 0:
            raise UserError(f"{field}: {path} is empty (0 bytes), not a Parquet file")
        return pq.read_schema(path)
    except UserError:
        raise
    except UNREADABLE as error:
        if not isinstance(error, OSError) or error.errno is None:
            raise UserError(f"{field}: {path} is not a Parquet file, or is damaged; write it again") from None
        raise UserError(f"{field}: cannot read {path}: {error.strerror or error}; check its rights") from None


def read_table(path: str | Path, used: Sequence[str] | None = None, field: str = "parquet") -> pa.Table:
    """All rows of a file or of a folder of shards, in name order; ``used`` limits the columns.

    Raises UserError for a path, a file or a schema that does not fit, and when there are no rows.
    """
    paths = files(path, field)
    return _read(paths, schema(paths, used, field), field)


def _read(paths: Sequence[Path], wanted: pa.Schema, field: str) -> pa.Table:
    parts = []
    for path in paths:
        try:
            part = pq.read_table(path, columns=wanted.names, partitioning=None)
            parts.append(part.select(wanted.names).cast(wanted))
        except UNREADABLE as error:
            reason = columns.first_line(error)
            raise UserError(f"{field}: cannot read {path}, which seems damaged: {reason}") from None
    table = pa.concat_tables(parts)
    require_rows(table.num_rows, paths, field)
    return table


def require_rows(rows: int, paths: Sequence[Path], field: str) -> None:
    """Raise UserError when the files hold no rows."""
    if rows == 0:
        raise UserError(f"{field}: {paths[0] if len(paths) == 1 else paths[0].parent} holds no rows")


@dataclasses.dataclass(frozen=True)
class Named:
    """The files and columns that a configuration names, checked against the footers."""

    paths: list[Path]
    spec: FeatureSpec
    """Its id is ``ROW`` where the configuration names none: row numbers, unique over the three parts."""
    schema: pa.Schema
    """Of the columns that are used, label, id and split included."""
    config: DataConfig

    def version(self, digest: str) -> str:
        """Stands for the content (``digest`` of the files) and for how it is split."""
        config = self.config
        settings = (config.split, config.id, config.validation_fraction, config.test_fraction)
        return hashlib.blake2b(f"{digest} {settings}".encode(), digest_size=8).hexdigest()


def named(config: DataConfig) -> Named:
    """Look up what ``config`` names. Raises UserError: a path, a name or a choice that does not fit."""
    if config.path is None:
        raise UserError("data.path is not set: name a Parquet file or a folder of .parquet shards")
    paths = files(config.path)
    if config.label is None:
        held = columns.listed(footer(paths[0], "data.path"))
        raise UserError(f"data.label is not set: name the column of 0/1 labels; {paths[0]} holds: {held}")
    if not (config.categorical or config.numeric or config.hashed):
        held = columns.listed(footer(paths[0], "data.path"))
        raise UserError(
            "no feature column is named: set data.categorical, data.numeric or data.hashed; "
            f"{paths[0]} holds: {held}"
        )
    spec = FeatureSpec(
        categorical=config.categorical,
        numeric=config.numeric,
        hashed=config.hashed,
        hash_buckets=config.hash_buckets,
        label=config.label,
        id=config.id,
    )
    if config.split is not None and config.split in spec.columns():
        raise UserError(f"data.split = {config.split!r}: the column is also named as feature, label or id")
    used = list(dict.fromkeys([*spec.columns(), *([config.split] if config.split is not None else [])]))
    _require_id(paths[0], config.id)
    wanted = schema(paths, used)
    if config.id is None:
        spec = dataclasses.replace(spec, id=ROW)
    return Named(paths, spec, wanted, config)


def _require_id(path: Path, name: str | None) -> None:
    """Raise UserError when the id column is not there; unlike others it can be left out."""
    found = footer(path, "data.path")
    if name is not None and name not in found.names:
        try:
            columns.require(found, [name], str(path))
        except UserError as error:
            raise UserError(f"data.id: {error}; or leave out data.id: row numbers are then the ids") from None


def source(config: DataConfig, root: Path) -> Source:
    """What ``load_dataset`` reads for ``name = "parquet"``; see the module for what is checked."""
    found = named(config)

    @functools.cache
    def parts() -> dict[str, pa.Table]:
        table = _read(found.paths, found.schema, "data.path")
        columns.labels(table, config.label or "")
        ids = columns.ids(table, config.id)
        require_unique(ids, config.id)
        if config.id is None:
            table = table.append_column(ROW, pa.array(ids))
        codes = split_codes(table, ids, config)
        require_parts(np.bincount(codes, minlength=len(SPLITS)), config)
        return {split: table.filter(pa.array(codes == code)) for code, split in enumerate(SPLITS)}

    version = found.version(file_digest(found.paths))
    return Source("parquet", version, found.spec, lambda split: parts()[split])


def require_unique(ids: np.ndarray, name: str | None) -> None:
    """Raise UserError when the id column ``name`` holds a value twice."""
    if name is None:
        return
    ordered = np.sort(ids)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise UserError(
            f"the id column {name!r} holds {twice[0]} more than once: make ids unique, or leave data.id out"
        )


def split_codes(table: pa.Table, ids: np.ndarray, config: DataConfig) -> np.ndarray:
    """[B] uint8, the place in ``SPLITS`` of each row: by ``config.split``, or by a hash of the id [B]."""
    codes = np.zeros(table.num_rows, dtype=np.uint8)
    if config.split is None:
        share = (columns.mix(ids.astype(np.uint64) + np.uint64(1)) >> np.uint64(11)) / float(1 << 53)
        validation = share < config.validation_fraction
        test = ~validation & (share < config.validation_fraction + config.test_fraction)
        codes[validation], codes[test] = SPLITS.index("validation"), SPLITS.index("test")
        return codes
    column = columns.plain(table, config.split)
    try:
        values = pc.cast(column, pa.string())
    except pa.ArrowException:
        raise UserError(
            f"the split column {config.split!r} is {column.type}: its values must be {', '.join(SPLITS)}"
        ) from None
    known = np.zeros(table.num_rows, dtype=bool)
    for code, split in enumerate(SPLITS):
        mask = pc.fill_null(pc.equal(values, split), False).to_numpy(zero_copy_only=False)
        codes[mask] = code
        known |= mask
    if not known.all():
        odd = values[int(np.flatnonzero(~known)[0])].as_py()
        raise UserError(
            f"the split column {config.split!r} holds {odd!r}: its values must be {', '.join(SPLITS)}"
        )
    return codes


def require_parts(counts: np.ndarray, config: DataConfig) -> None:
    """Raise UserError when one of ``SPLITS`` has no row; ``counts`` are theirs."""
    reason = "give more rows, larger fractions, or a split column"
    if config.split is not None:
        reason = f"give some rows the value of that part in the column {config.split!r}"
    for split, rows in zip(SPLITS, counts.tolist(), strict=True):
        if rows == 0:
            raise UserError(f"of {int(counts.sum())} rows none is in the {split} part: {reason}")
