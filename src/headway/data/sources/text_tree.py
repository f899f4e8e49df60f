"""One document per regular UTF-8 file under the source's path."""

from __future__ import annotations

from headway.data.sources.document import LARGEST_DOCUMENT_BYTES, TOO_LARGE, Document, Documents, SourceRecipe
from headway.data.sources.places import Opened, SourceFile, files, need_path, read


def open_text_tree(source: SourceRecipe) -> Opened:
    return Opened(need_path(source), lambda: files(source, ("*",)), _read)


def _read(file: SourceFile) -> Documents:
    facts = {"path": file.relative}
    if file.size > LARGEST_DOCUMENT_BYTES:
        yield Document(None, file.relative, TOO_LARGE, facts)
        return
    try:
        yield Document(read(file).decode("utf-8-sig"), file.relative, facts=facts)
    except UnicodeDecodeError:
        yield Document(None, file.relative, "undecodable", facts)
