"""Patches and threads: one document each, who wrote them in lines that can be redacted, what is damaged counted."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from data_helpers import small_recipe
from prepare_helpers import prepared

from headway.base.errors import ConfigError
from headway.data.build import build_data
from headway.data.sources import documents, patches

QUILT = """Description: Do not fail on an empty list
Author: Jane Q. Public <jane@there.org>
Origin: upstream, https://there.org/commit/1
--- a/list.c
+++ b/list.c
@@ -1,2 +1,3 @@
 int first(struct list *l) {
+    if (!l) return 0;
     return l->value;
"""


def found(root: Path) -> list:
    source = SimpleNamespace(name="p", kind="patches", path=str(root), include=(), exclude=(), field="text")
    return list(documents(source))


@pytest.fixture(scope="module")
def series(tmp_path_factory) -> Path:
    """What git format-patch writes, of a repository made here: three commits, one of them with an umlaut in its subject."""
    root = tmp_path_factory.mktemp("git")

    def git(*arguments: str) -> None:
        identity = {
            "GIT_AUTHOR_NAME": "Jörg Müller",
            "GIT_AUTHOR_EMAIL": "joerg@there.org",
            "GIT_AUTHOR_DATE": "2026-03-04T05:06:07+0100",
        }
        identity |= {"GIT_COMMITTER_NAME": "Ann Other", "GIT_COMMITTER_EMAIL": "ann@there.org", "HOME": str(root)}
        environment = identity | {"PATH": "/usr/local/bin:/usr/bin:/bin", "GIT_CONFIG_NOSYSTEM": "1"}
        subprocess.run(["git", *arguments], cwd=root, env=environment, check=True, capture_output=True)

    git("init", "-q")
    for number, subject in enumerate(
        ["first", "größer and a rather long subject that mailers fold over several lines of the head", "third"]
    ):
        (root / "code.c").write_text("".join(f"int f{line}(void) {{ return {line}; }}\n" for line in range(number + 2)))
        git("add", "-A")
        git("commit", "-q", "-s", "-m", f"{subject}\n\nWhy it was done: {number}.")
    git("format-patch", "-q", "--root", "-o", "patches")
    return root / "patches"


def test_a_series_of_git_is_a_document_per_patch(series):
    one, two, three = found(series)
    assert one.text.startswith(
        "From: Jörg Müller <joerg@there.org>\nDate: Wed, 04 Mar 2026 05:06:07 +0100\nSubject: [PATCH 1/3] first\n\n"
    )
    assert "größer and a rather long subject that mailers fold over several lines of the head" in two.text.split("\n")[2]
    assert "\n+int f0(void) { return 0; }\n" in one.text
    assert "Signed-off-by: Ann Other <ann@there.org>" in three.text
    assert two.facts["time"] == "2026-03-04T05:06:07+01:00"


def test_several_in_a_mailbox_are_the_same_documents(series, tmp_path):
    whole = b"".join(path.read_bytes() for path in sorted(series.iterdir()))
    (tmp_path / "all.mbox").write_bytes(whole)
    assert [document.text for document in found(tmp_path)] == [document.text for document in found(series)]
    assert [document.origin for document in found(tmp_path)] == ["all.mbox:1", "all.mbox:2", "all.mbox:3"]


def test_a_patch_of_a_package_is_taken_as_it_is(tmp_path):
    (tmp_path / "fix.patch").write_text(QUILT)
    (tmp_path / "broken.diff").write_bytes(b"--- a\n+++ b\n+\xff\xfe\n")
    (tmp_path / "series").write_text("fix.patch\n")
    broken, fix = found(tmp_path)
    assert (broken.text, broken.dropped) == (None, "undecodable")
    assert (fix.text, fix.origin) == (QUILT, "fix.patch")


def test_a_message_is_decoded_as_its_mail_says(tmp_path):
    body = "From: A <a@there.org>\nSubject: =?utf-8?q?gr=C3=B6=C3=9Fer?=\nContent-Type: text/plain; charset=utf-8\n"
    body += "Content-Transfer-Encoding: quoted-printable\n\n>From here=\n on: =C3=A4\n"
    (tmp_path / "a.mbox").write_text(f"From x Mon Sep 17 00:00:00 2001\n{body}\nFrom y Mon Sep 17 00:00:00 2001\n{body}")
    one, two = found(tmp_path)
    assert one.text.split("\n\n", 1)[0] == "From: A <a@there.org>\nSubject: größer"
    assert one.text.rstrip().endswith("\nFrom here on: ä")
    assert one.text.strip() == two.text.strip()


def test_a_charset_that_nobody_has_is_counted(tmp_path):
    (tmp_path / "a.mbox").write_text("From x Mon Sep 17 00:00:00 2001\nFrom: a\nContent-Type: text/plain; charset=klingon\n\nx\n")
    assert [document.dropped for document in found(tmp_path)] == ["undecodable"]


BEGIN = "From x Mon Sep 17 00:00:00 2001\nFrom: a\nSubject: {}\n\n"


@pytest.mark.parametrize("name", ["fix.patch", "all.mbox"])
def test_what_stands_before_the_first_message_is_a_document(series, tmp_path, name):
    mails = [path.read_text() for path in sorted(series.iterdir())]
    head = "Description: Do not fail\nOrigin: upstream\n\n"
    (tmp_path / name).write_text(head + "".join(mails))
    (tmp_path / "blank.mbox").write_text("\n\n" + mails[0])
    documents = {document.origin: document.text for document in found(tmp_path)}
    assert documents[f"{name}:0"] == head
    assert [documents[f"{name}:{number}"] for number in (1, 2, 3)] == [document.text for document in found(series)]
    assert [origin for origin in documents if "blank" in origin] == ["blank.mbox:1"]


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_line_of_many_times_is_looked_through_once(tmp_path, end):
    """Of each length in the time of its length: a quadratic search would take minutes here."""
    (tmp_path / "a.mbox").write_text("From x " + "00:00:00 " * 100_000 + end)
    (document,) = found(tmp_path)
    assert document.origin == "a.mbox"


def test_the_largest_size_is_that_of_a_message(tmp_path, monkeypatch):
    monkeypatch.setattr(patches, "LARGEST_DOCUMENT_BYTES", 1_000)
    monkeypatch.setattr(patches, "_PIECE", 100)
    bodies = ["x" * 900, "line of text\n" * 60, "y" * 2_000, "line of text\n" * 200, "z\n", "From here at 10:10:10 on\nno head\n"]
    parts = [BEGIN.format(number) + body.rstrip("\n") + "\n" for number, body in enumerate(bodies)]
    (tmp_path / "all.mbox").write_text("".join(parts))
    (tmp_path / "plain.diff").write_text("+line of text\n" * 200)
    (tmp_path / "short.diff").write_text("+line\n")
    assert [(document.origin, document.dropped) for document in found(tmp_path)] == [
        *((f"all.mbox:{number}", "too_large" if number in (3, 4) else "") for number in range(1, 7)),
        ("plain.diff", "too_large"),
        ("short.diff", ""),
    ]
    assert found(tmp_path)[5].text.endswith("\n\nFrom here at 10:10:10 on\nno head\n")


@pytest.mark.parametrize(
    "line",
    [
        "Date: Mon, 01 Jan 2020 00:00:00 +999999999999999999999999",
        "Date: 1 Jan 20200000000000000000000000 00:00:00",
        "Date: Mon, 99 Jan 0000 99:99:99 +9999",
        "Date: \x00",
        "Subject: =?utf-8?q?" + "=" * 50,
        "Subject: " + "(" * 5_000,
        "From: " + "<" * 500 + "@" * 500,
        "Content-Type: text/plain; charset=\x00",
        "Content-Type: ;;;=;",
        "Content-Transfer-Encoding: base64",
        "MIME-Version: 1.0\nContent-Type: multipart/mixed",
        "MIME-Version: 1.0\nContent-Type: message/rfc822",
    ],
)
def test_no_damage_of_a_head_ends_the_build(tmp_path, line):
    (tmp_path / "a.mbox").write_text(BEGIN.format("whole") + "text\n" + BEGIN.format("b").replace("Subject: b", line) + "=x\n")
    whole, damaged = found(tmp_path)
    assert whole.text.endswith("text\n")
    assert damaged.dropped in ("", "undecodable")


THREAD = {
    "title": "It crashes",
    "repository": "a/b",
    "resolved": True,
    "events": [
        {"kind": "opened", "author": "Jane Q. Public", "time": "2026-01-01", "text": "It crashes on start."},
        {"kind": "comment", "author": "ann", "text": "Does it still? Write to ann@there.org"},
    ],
}


def test_a_thread_is_its_events_in_order(tmp_path):
    with gzip.open(tmp_path / "issues.jsonl.gz", "wt") as file:
        file.write(json.dumps(THREAD) + "\n\n")
    (thread,) = found(tmp_path)
    assert thread.text == (
        "It crashes\n\nAuthor: Jane Q. Public\nDate: 2026-01-01\nEvent: opened\n\nIt crashes on start.\n\n"
        "Author: ann\nEvent: comment\n\nDoes it still? Write to ann@there.org\n"
    )
    assert (thread.facts["repository"], dict(thread.numbers)) == ("a/b", {"resolved": 1.0})


@pytest.mark.parametrize("line", ['{"title": "x"}', '{"events": ["x"]}', '{"events": [{"text": 1}]}', "[1]", "nothing"])
def test_what_is_no_thread_is_one_clear_error(tmp_path, line):
    (tmp_path / "issues.jsonl").write_text(line + "\n")
    with pytest.raises(ConfigError, match=r"issues\.jsonl:1"):
        found(tmp_path)


def test_names_of_authors_are_the_business_of_the_personal_step(series, tmp_path):
    (tmp_path / "fix.patch").write_text(QUILT)
    (tmp_path / "issues.jsonl").write_text(json.dumps(THREAD) + "\n")
    texts = {document.origin: document.text for root in (series, tmp_path) for document in found(root)}
    result = prepared(texts, personal={"kinds": ["author", "email"]})
    assert result.found("personal")["author"] == 3 * 2 + 1 + 2
    whole = "\n".join(result.kept.values())
    assert not any(name in whole for name in ("Jörg", "Ann Other", "Jane", "Public", "ann@", "joerg@", "Author: ann"))
    assert "Author: [author removed] <[email removed]>" in whole
    assert "It crashes on start." in whole
    assert all(
        record.found.total() == 0 for record in prepared(result.kept, personal={"kinds": ["author", "email"]}).record.steps
    )
    code = {"a.py": "From: the beginning\n", "b.py": "x = 1  # Author: nobody\nTo: do\n"}
    assert prepared(code, personal={}).found("personal").total() == 0  # names only where they are asked for


def test_patches_are_built(series, tmp_path):
    for number in range(12):
        (tmp_path / f"{number}.patch").write_text(QUILT.replace("value", f"value_{number}"))
    sources = [{"name": "patches", "kind": "patches", "path": str(tmp_path)}]
    manifest = build_data(small_recipe(sources, vocabulary=280), tmp_path / "data")
    assert manifest.sources[0].kind == "patches"
    assert manifest.sources[0].documents + manifest.sources[0].held_out.documents == 12
