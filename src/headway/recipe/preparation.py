"""[data.prepare] of the recipe: what is done to documents before they become tokens.

Every step is a section of its own, and off where it is left out; but wherever [data.prepare] stands, text evens out line ends.
They run in the order in which they stand here; ``data/prepare`` says what each of them does.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headway.recipe.fields import Bytes, Listed, Section, Seed, Share, Some, Whole, WholeOrZero, said

Handling = Literal["drop", "redact"]
Language = Literal[
    "ar", "de", "el", "en", "es", "fr", "he", "hi", "it", "ja", "ko", "nl", "pl", "pt", "ru", "sv", "th", "tr", "uk", "zh"
]
PersonalKind = Literal["email", "phone", "ip-address", "iban", "card", "social-security", "author"]
StepName = Literal[
    "extensions",
    "code",
    "languages",
    "secrets",
    "personal",
    "quality",
    "repeats",
    "contamination",
    "quality_axes",
    "duplicates",
    "near_duplicates",
    "lines",
    "repositories",
]


class Text(Section):
    """Unicode and line ends. Line ends always become \\n, and a byte order mark at the head is removed."""

    unicode: Literal["as written", "nfc", "nfkc"] = said("normal form of Unicode; nfkc changes code and formulas", "as written")
    control: Literal["keep", "remove"] = said("control characters other than tab, line feed and form feed", "keep")
    trailing_space: Literal["keep", "remove"] = said("white space at the ends of lines", "keep")


class Extensions(Section):
    """Which files are taken, by the end of their names."""

    keep: Listed[str] = said('extensions that are kept, such as ".py"; empty: all', ())
    drop: Listed[str] = said("extensions that are left out", ())


class Code(Section):
    """Files that are not the source's own work, told by name and by what their first lines say."""

    vendored: Literal["keep", "drop"] = said("files in directories such as vendor, third_party or node_modules", "drop")
    generated: Literal["keep", "drop"] = said("lock files, minified files, and files that say they were generated", "drop")


class Languages(Section):
    """Natural languages, told by script and by the most frequent words. Meant for prose of some sentences."""

    keep: Some[Language] = said("languages that are kept")
    unknown: Literal["keep", "drop"] = said("documents whose language cannot be told, as most code", "keep")


class Secrets(Section):
    """Keys, tokens and passwords, by the shape that their issuers gave them and by entropy where they are assigned. Facts of
    documents (origin, path, url and the others) are redacted by the same patterns, whatever the policy; users, passwords and
    tokens in their URLs are redacted without this section too."""

    policy: Handling = said("redact: replaced by a note of its kind; drop: the whole document is left out", "redact")


class Personal(Section):
    """Personal data that has a shape: addresses, numbers. Names are not looked for. Facts of documents (origin, path, url and the
    others) are redacted by the same patterns, whatever the policy."""

    policy: Handling = said("redact: replaced by a note of its kind; drop: the whole document is left out", "redact")
    kinds: Some[PersonalKind] = said(
        "what is looked for; numbers with a check digit are checked, addresses reserved for examples are no personal data; "
        'author: names in "From:", "Author:", "Signed-off-by:" and such lines of patches and threads',
        ("email", "phone", "ip-address", "iban", "card", "social-security"),
    )


class Quality(Section):
    """Rules that a document must meet, each with a reason of its own in the counts."""

    least_characters: WholeOrZero = said("characters without white space at the ends; 0: no rule", 50)
    least_letters: Share = said("share of letters in all that is not white space; 0: no rule", 0.3)
    most_digits: Share = said("share of digits in all that is not white space; 1: no rule", 0.3)
    longest_word: WholeOrZero = said("characters without white space between them, as in encoded data; 0: no rule", 1_000)
    mean_line: WholeOrZero = said("characters of a line on average; 0: no rule, right for prose whose lines are paragraphs", 0)
    most_repeated_lines: Share = said("share of characters in lines that stood in the document before; 1: no rule", 0.5)


class Repeats(Section):
    """Leaves out documents in which a few words follow each other again and again: such text makes the loss spike."""

    words: Whole = said("longest n-gram looked at, in words, numbers and runs of a sign", 13, le=64)
    times: Annotated[int, Field(ge=2)] = said("n-grams in a row that are too many", 32)


class Contamination(Section):
    """Leaves out documents that hold an example of the evaluation registry."""

    registry: str = said("the registry's file, from the working directory; its content, not its place, decides the digest")
    words: Whole = said("length of the n-grams that are compared, in words without case and punctuation", 13, le=64)
    overlap: Share = said("share of an example's n-grams from which on a document holds it; 0: one is enough", 0.5)
    shortest: Whole = said("words of the shortest example that is looked for; shorter ones are counted in the report", 8)


class Axis(Section):
    """One axis of quality. A document's score on it is from 0 to 1, or unknown."""

    field: str | None = said(
        'number that documents of jsonl, parquet, patches carry, such as "scores.clarity"; true is 1, false 0; '
        "None: the axis's own rule",
        None,
    )
    scale: Annotated[float, Field(gt=0)] = said("the number that means 1; larger ones count as 1, negative ones as 0", 1.0)
    least: Share = said("documents that score less are left out; 0: none", 0.0)
    most: Share = said("documents that score more are left out; 1: none", 1.0)
    unknown: Literal["keep", "drop"] = said("documents without a score", "keep")


class QualityAxes(Section):
    """Axes of quality, kept apart: each has scores, thresholds and counts of its own, and nothing adds them up. How scores are
    spread among what is kept, and the mean per source, stand in the report and the manifest."""

    correctness: Axis | None = said("what it says is right: given only, as whether code builds or passes its tests", None)
    coherence: Axis | None = said("it hangs together: given only", None)
    density: Axis | None = said("given, or what zlib leaves of the text: 1 is text that says nothing twice", None)
    authority: Axis | None = said("who says it: given only", None)
    parse_integrity: Axis | None = said(
        "given, or 1 where .py, .json and .toml files parse and brackets of C, C++, Java, Go and Rust close, else 0",
        None,
    )
    difficulty: Axis | None = said("what a reader must know: given only", None)
    harm: Axis | None = said("given only; 1 is worst, so that most is its threshold", None)


class Duplicates(Section):
    """Leaves out documents whose text was kept before, here or in the sources whose names sort before."""

    compare: Literal["as written", "folded"] = said("folded: without regard to case and white space", "as written")


class NearDuplicates(Section):
    """Leaves out documents that are nearly one that was kept, by MinHash; what it proposes is compared exactly."""

    threshold: Annotated[float, Field(ge=0.3, le=1)] = said("Jaccard similarity of the sets of shingles, 0.3 to 1", 0.8)
    words: Whole = said("words and signs of a shingle", 5, le=64)
    permutations: Annotated[int, Field(ge=16, le=1024)] = said("hashes of a signature, at most", 128)
    seed: Seed = said("seed of the hashes", 0)


class Lines(Section):
    """Removes lines that stand in many documents, as menus and notices do. Conventions are kept: see ``keep_conventions``."""

    copies: Whole = said("documents that may hold a line; it is removed from those that follow", 10)
    shortest: Whole = said("characters of the shortest line that counts, without white space at its ends", 40)
    keep_conventions: bool = said("the comment at the head of a file (its licence), imports and includes stay", True)


class Repositories(Section):
    """Joins the files of a repository to one document, in the order of their paths, after everything else."""

    depth: Whole = said("first parts of a file's path that name its repository", 1, le=64)
    most: Bytes = said("bytes of text of a document; a larger repository becomes several, cut between files", 2**20)


class Prepare(Section):
    """What is done to documents before they become tokens: text always, any other step where it is asked for. Steps and settings
    are part of the build's identity, and each counts what it left out, by reason, in the manifest and in preparation.json."""

    text: Text = said("Unicode and line ends", Text())
    extensions: Extensions | None = said("which files, by name; None: all", None)
    code: Code | None = said("vendored and generated files; None: kept", None)
    languages: Languages | None = said("which languages; None: all", None)
    secrets: Secrets | None = said("keys and passwords; None: not looked for", None)
    personal: Personal | None = said("personal data; None: not looked for", None)
    quality: Quality | None = said("rules of quality; None: none", None)
    repeats: Repeats | None = said("n-grams in a row; None: not looked for", None)
    contamination: Contamination | None = said("texts of evaluations; None: not looked for", None)
    quality_axes: QualityAxes | None = said("scores by axis, each with its threshold; None: none", None)
    duplicates: Duplicates | None = said(
        "equal documents; None: the build leaves out those that are the same to the byte as one before them in the recipe", None
    )
    near_duplicates: NearDuplicates | None = said("similar documents; None: kept", None)
    lines: Lines | None = said("lines of many documents; None: kept", None)
    repositories: Repositories | None = said("files to repositories; None: a file is a document", None)
