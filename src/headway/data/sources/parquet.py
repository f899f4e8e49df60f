"""One document per row of Parquet files: the text is a column, read a few rows at a time.

A row group is read page by page and nothing of it is kept, so memory follows the size of a page and of the longest texts, not
of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headway.base.errors import ConfigError, EnvironmentFault
from headway.data.sources.document import LARGEST_DOCUMENT_BYTES, TOO_LARGE, Document, Documents, SourceRecipe
from headway.data.sources.jsonl import FIELDS_OF_FACTS, facts_of, numbers_of
from headway.data.sources.places import Opened, SourceFile, files, need_path, optional, reading
from headway.recipe.plain_values import printable

PARQUET_FILES = ("*.parquet",)
_ROWS = 64
_BUFFER_BYTES = 2**20


def open_parquet(source: SourceRecipe) -> Opened:
    return Opened(need_path(source), lambda: files(source, PARQUET_FILES), lambda file: read_rows(file, source.field))


def read_rows(file: SourceFile, column: str) -> Documents:
    library = optional("pyarrow.parquet", "pyarrow", f"reading {file.where}")
    arrow = optional("pyarrow", "pyarrow", f"reading {file.where}")
    with reading(file.where), file.open() as opened:
        try:
            table = library.ParquetFile(opened, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True)
            columns = _columns(table.schema_arrow, column, file, arrow)
            yield from _rows(table, columns, column, file)
        except (arrow.ArrowException, OSError) as error:  # a damaged page is an OSError to it
            said = str(error).splitlines()[0][:300]
            raise EnvironmentFault(f"Parquet file is damaged: {said}", f"path: {file.where}", "fetch the file again") from error


def _columns(schema: Any, column: str, file: SourceFile, arrow: Any) -> list[str]:
    """The text's column, which holds text, those of facts that do, and all that hold a number."""
    types = arrow.types

    def is_text(name: str) -> bool:
        kind = schema.field(name).type
        return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)

    def is_number(name: str) -> bool:
        kind = schema.field(name).type
        return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)

    if column not in schema.names or not is_text(column):
        held = f" is {schema.field(column).type}" if column in schema.names else " is not there"
        raise ConfigError(
            f"no text in column {column!r}: it{held}",
            f"the file holds: {printable(', '.join(map(str, schema.names)), 300)}",
            "set field of that source to the column of the text",
            file.where,
        )
    known = {name for names in FIELDS_OF_FACTS.values() for name in names}
    facts = [name for name in schema.names if name in known and name != column and is_text(name)]
    return [column, *facts, *(name for name in schema.names if name not in facts and is_number(name))]


def _rows(table: Any, columns: list[str], column: str, file: SourceFile) -> Iterator[Document]:
    number = 0
    for group in range(table.num_row_groups):
        for batch in table.iter_batches(batch_size=_ROWS, row_groups=[group], columns=columns, use_threads=False):
            for row in range(batch.num_rows):
                number += 1
                yield _document(batch, row, column, f"{file.relative}:{number}")


def _document(batch: Any, row: int, column: str, origin: str) -> Document:
    try:
        values = {name: batch.column(name)[row].as_py() for name in batch.schema.names}
    except UnicodeDecodeError:
        return Document(None, origin, "undecodable")
    text = values.pop(column)
    if text is None:
        return Document(None, origin, "no_text")
    if len(text) > LARGEST_DOCUMENT_BYTES:
        return Document(None, origin, TOO_LARGE)
    return Document(text, origin, facts=facts_of(values), numbers=numbers_of(values))
