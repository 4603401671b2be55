"""The columns of a table by pyarrow (the extra `table`), a few megabytes of the file at a time.

Where its answer might differ from that of Python's own reader, it gives none: then that reader reads the file, and
reports what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.learn.table.cells import MISSING, NUMBER
from p2pfl.learn.table.layout import Layout
from p2pfl.learn.table.mistakes import Cell

BLOCK_BYTES = 1 << 22
BOM = b"\xef\xbb\xbf"
Parse = Callable[[str], "float | Cell"]


class _Unsure(Exception):  # noqa: N818 - no error
    """Raised where the other reader has to decide."""


def read_columns(
    path: Path, layout: Layout, header: list[str], parsers: Mapping[str, Parse], numbers: Mapping[str, frozenset[str]]
) -> dict[str, NDArray[np.float64]] | None:
    """Read the columns (n,) by their names in the file; None without pyarrow, or where something is odd.

    `parsers` are those of `reading`, by column; `numbers` the missing codes of the columns that are read as numbers.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra, and it takes a tenth of a second
        from pyarrow import compute  # noqa: PLC0415 - as above
    except ImportError:
        return None
    parts: dict[str, list[NDArray[np.float64]]] = {name: [np.zeros(0)] for name in parsers}
    try:
        if not quotes_stand_around_cells(path, layout):
            return None
        with _open(path, layout, header, list(parsers)) as reader:
            for batch in reader:
                for name, texts in zip(batch.schema.names, batch.columns, strict=True):
                    trimmed = compute.utf8_trim_whitespace(texts)
                    if name in numbers:
                        parts[name].append(_numbers(trimmed, numbers[name], layout.decimal))
                    else:
                        parts[name].append(_places(trimmed, parsers[name]))
    except (pa.ArrowException, OSError, UnicodeError, _Unsure):
        return None
    return {name: np.concatenate(found) for name, found in parts.items()}


def quotes_stand_around_cells(path: Path, layout: Layout) -> bool:
    """True if each quote begins or ends a cell, or is one of two within a quoted one: Arrow adds the text after a
    closing quote to the cell, and Python's reader refuses it.
    """
    signs = layout.separator + '\r\n"'
    raw = signs.encode(layout.encoding)
    if len(raw) != len(signs) or raw[1:] != b'\r\n"':
        return False
    beside, quote = np.frombuffer(raw, np.uint8), raw[-1]
    known, left = 0, b"\n"
    with path.open("rb") as file:
        left += file.read(len(BOM)).removeprefix(BOM)
        while True:
            block = file.read(BLOCK_BYTES)
            signs_here = np.frombuffer(left + (block or b"\n"), np.uint8)
            places = np.flatnonzero(signs_here[1:-1] == quote) + 1
            closes = (known + np.arange(len(places))) % 2
            if not np.isin(signs_here[places + np.where(closes, 1, -1)], beside).all():
                return False
            known += len(places)
            if not block:
                return known % 2 == 0
            left = signs_here[-2:].tobytes()


def _open(path: Path, layout: Layout, header: list[str], columns: list[str]) -> Any:
    import pyarrow as pa  # noqa: PLC0415 - as above
    from pyarrow import csv  # noqa: PLC0415 - as above

    encoding = layout.encoding.lower().replace("_", "-")
    return csv.open_csv(
        path,
        read_options=csv.ReadOptions(
            use_threads=False,
            block_size=BLOCK_BYTES,
            column_names=header,
            skip_rows=1 if layout.header else 0,
            encoding="utf8" if encoding in ("utf-8", "utf8", "utf-8-sig") else layout.encoding,
        ),
        parse_options=csv.ParseOptions(delimiter=layout.separator, newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            include_columns=columns,
            column_types=dict.fromkeys(columns, pa.string()),
            strings_can_be_null=False,
        ),
    )


def _numbers(texts: Any, codes: frozenset[str], decimal: str) -> NDArray[np.float64]:
    """Parse numbers; NaN is missing. Arrow rounds as Python does. Raises _Unsure: a text that is no code is no finite
    number.
    """
    import pyarrow as pa  # noqa: PLC0415 - as above
    from pyarrow import compute  # noqa: PLC0415 - as above

    words = sorted(MISSING | {code.lower() for code in codes})
    is_missing = compute.is_in(compute.utf8_lower(texts), value_set=pa.array(words))
    if decimal != ".":
        texts = compute.replace_substring(texts, decimal, ".")
    known = compute.if_else(is_missing, pa.scalar(None, pa.string()), texts)
    found: NDArray[np.float64] = np.array(compute.cast(known, pa.float64()).to_numpy(zero_copy_only=False))
    if not np.isfinite(found[~is_missing.to_numpy(zero_copy_only=False)]).all():
        raise _Unsure
    for code in codes:
        if NUMBER.fullmatch(code):
            found[found == float(code)] = np.nan
    return found


def _places(texts: Any, parse: Parse) -> NDArray[np.float64]:
    """Parse each different text once. Raises _Unsure: one of them is a mistake."""
    encoded = texts.dictionary_encode()
    values = np.empty(len(encoded.dictionary))
    for place, text in enumerate(encoded.dictionary.to_pylist()):
        value = parse(text)
        if isinstance(value, Cell):
            raise _Unsure
        values[place] = value
    places: NDArray[np.int64] = encoded.indices.to_numpy()
    return values[places]
