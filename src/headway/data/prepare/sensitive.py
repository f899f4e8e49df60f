"""Secrets and personal data that have a shape: found by pattern, proved by check digit or entropy where there is one.

Redacted text stands for itself ("[email removed]"), matches no pattern, and is the same for every text it replaces. No found
text reaches a record, a report or an error: they count kinds. Names and postal addresses have no shape and are not looked for.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from headway.data.prepare.characters import FOREIGN_DECIMAL, count, traits
from headway.data.prepare.steps import Piece, Step, Verdict

_BEFORE_CHARACTERS = 60
"""In which the name stands that a value is assigned to."""


@dataclass(frozen=True)
class Pattern:
    """``pattern`` finds, ``proof`` confirms; the group ``value``, or else all that was found, is replaced.

    ``needles``: one of them is in every match, and is looked for first, since few texts have any. ``shapes``: one of them is in
    the shape of every match (see ``shape_of``). ``around``: every match holds this sign, so many characters behind its begin and
    before its end at most. ``part`` is found in every text with a match, and fast, since it begins with certain letters.
    ``words``: one of them is there, in small letters. ``before`` must match up to where a match begins.
    """

    kind: str
    pattern: re.Pattern[str]
    proof: Callable[[str], bool] = lambda value: True
    needles: tuple[str, ...] = ("",)
    before: re.Pattern[str] | None = None
    shapes: tuple[bytes, ...] = ()
    around: tuple[str, int, int] | None = None
    part: re.Pattern[str] | None = None
    words: tuple[str, ...] = ()

    def matches(self, text: str) -> Iterator[re.Match[str]]:
        """As ``pattern.finditer`` finds them, without looking where there can be none."""
        if not any(needle in text for needle in self.needles):
            return
        if self.shapes and (shape := shape_of(text)) is not None and not any(part in shape for part in self.shapes):
            return
        if self.part is not None and not self.part.search(text):
            return
        if self.words and not any(word in _lowered(text) for word in self.words):
            return
        if self.around is None:
            yield from self.pattern.finditer(text)
            return
        sign, behind, ahead = self.around
        end, at = 0, text.find(sign)
        while at >= 0:
            match = self.pattern.search(text, max(end, at - behind), at + ahead)
            if match and match.start() <= at < match.end():  # one that holds a later sign may be cut off
                yield match
                end = match.end()
            at = text.find(sign, max(at + 1, end))

    def value_span(self, match: re.Match[str]) -> tuple[int, int]:
        return match.span("value" if "value" in self.pattern.groupindex else 0)

    def confirms(self, text: str, match: re.Match[str]) -> bool:
        start, stop = self.value_span(match)
        head = text[max(0, match.start() - _BEFORE_CHARACTERS) : match.start()]
        return (self.before is None or bool(self.before.search(head))) and self.proof(text[start:stop])


# --- where to look

_SHAPE = bytes(
    ord("0") if 48 <= byte < 58 else ord("A") if 65 <= byte < 91 else ord("-") if chr(byte) in "-. " else byte
    for byte in range(256)
)


@lru_cache(maxsize=1)
def shape_of(text: str) -> bytes | None:
    """``text`` with 0 for digits, A for capitals, - for what stands between digits; None where digits are of other scripts."""
    if not text.isascii() and count(traits(text), FOREIGN_DECIMAL):
        return None
    return text.encode("utf-8", "surrogatepass").translate(_SHAPE)


@lru_cache(maxsize=1)
def _lowered(text: str) -> str:
    return text.casefold()  # as the letters that patterns take for each other


# --- proofs


def entropy_bits(value: str) -> float:
    """Per character, of the characters' own frequencies."""
    return -sum(n / len(value) * math.log2(n / len(value)) for n in Counter(value).values())


def looks_random(value: str) -> bool:
    """Letters and digits mixed, hardly any repeated: neither a word nor a name of a variable."""
    mixed = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    return mixed and entropy_bits(value) >= 3.5 and not re.search(r"(?i)example|placeholder|your|xxxx|1234567|abcdef", value)


def luhn(value: str) -> bool:
    """The check digit of payment cards, which also have 13 to 19 digits and begin as an issuer's do."""
    digits = [int(c) for c in value if c.isdigit()]
    doubled = [sum(divmod(2 * d, 10)) for d in digits[-2::-2]]
    issued = re.match(r"4|5[1-5]|2[2-7]|3[47]|6(?:011|5)", "".join(map(str, digits)))
    return 13 <= len(digits) <= 19 and bool(issued) and len(set(digits)) > 3 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def iban(value: str) -> bool:
    """ISO 13616: the number modulo 97 is 1."""
    plain = value.replace(" ", "")
    return 15 <= len(plain) <= 34 and int("".join(str(int(c, 36)) for c in plain[4:] + plain[:4])) % 97 == 1


def email(value: str) -> bool:
    """At a domain that could be somebody's: RFC 2606 reserves some for examples, and hosts of code are no person's."""
    local, _, domain = value.lower().rpartition("@")
    labels = domain.split(".")
    reserved = labels[-1] in ("example", "invalid", "test", "localhost", "local") or labels[-2] in ("example", "domain", "host")
    impersonal = labels[-2] == local or not any(map(str.isalpha, local))  # one@one.org, and identities of messages
    impersonal |= (
        local in ("git", "noreply", "no-reply", "user", "username", "foo", "bar", "name", "you", "somebody")
        or "example" in domain
    )
    return labels[-1].isalpha() and 2 <= len(labels[-1]) <= 12 and not reserved and not impersonal


def phone(value: str) -> bool:
    """9 to 15 digits, not those that are kept free for fiction."""
    digits = re.sub(r"\D", "", value)
    return 9 <= len(digits) <= 15 and len(set(digits)) > 3 and "55501" not in digits


def public_address(value: str) -> bool:
    if value in ("123.45.67.89", "12.34.56.78", "98.76.54.32"):  # what people type who need an example
        return False
    try:
        return ipaddress.ip_address(value).is_global and not value.endswith((".0", ".255")) and int(value.split(".")[0]) > 9
    except ValueError:
        return False


def social_security(value: str) -> bool:
    area, group, serial = value.split("-")
    return area not in ("000", "666") and area < "900" and group != "00" and serial != "0000" and value != "123-45-6789"


# --- patterns

_HEAD, _TAIL = r"(?<![A-Za-z0-9_-])", r"(?![A-Za-z0-9_-])"


def _token(kind: str, pattern: str, *needles: str) -> Pattern:
    return Pattern(kind, re.compile(_HEAD + pattern + _TAIL), lambda value: not value.endswith("EXAMPLE"), needles)


SECRETS = (
    Pattern(
        "private key",
        re.compile(
            r"-----BEGIN (?P<name>(?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?)-----"
            r"[\sA-Za-z0-9+/=:,.()-]{64,16384}?-----END (?P=name)-----"
        ),
        needles=("PRIVATE KEY",),
    ),
    _token("AWS key", r"(?:AKIA|ASIA)[A-Z2-7]{16}", "AKIA", "ASIA"),
    _token(
        "GitHub token",
        r"(?:gh[pousr]_[A-Za-z0-9]{36,251}|github_pat_[A-Za-z0-9_]{82})",
        "ghp_",
        "gho_",
        "ghu_",
        "ghs_",
        "ghr_",
        "github_pat_",
    ),
    _token("GitLab token", r"glpat-[A-Za-z0-9_-]{20,}", "glpat-"),
    _token("Slack token", r"xox[abposr]-[A-Za-z0-9-]{10,250}", "xox"),
    _token("Google key", r"AIza[A-Za-z0-9_-]{35}", "AIza"),
    _token("Stripe key", r"[sr]k_(?:live|test)_[A-Za-z0-9]{24,99}", "k_live_", "k_test_"),
    _token("OpenAI key", r"sk-(?:proj-|ant-[a-z0-9]+-)?[A-Za-z0-9_-]{40,200}", "sk-"),
    _token("Hugging Face token", r"hf_[A-Za-z]{34}", "hf_"),
    _token("PyPI token", r"pypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,}", "pypi-"),
    _token("npm token", r"npm_[A-Za-z0-9]{36}", "npm_"),
    _token("SendGrid key", r"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}", "SG."),
    _token("JSON web token", r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{20,}", "eyJ"),
    Pattern(
        "password in a URL",
        re.compile(
            r"\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@'\"<>{}$%\[\]]{1,64}:(?P<value>[^\s/:@'\"<>{}$%\[\]]{6,64})@[\w-]+\.[\w.-]+"
        ),
        lambda value: value.lower() not in ("password", "passwd", "secret"),
        needles=("://",),
        part=re.compile(r"://[^\s/:@]{1,64}:[^\s/:@]{6,64}@"),
    ),
    Pattern(
        "assigned secret",
        re.compile(r"""[=:][=>]?\s{0,4}["'](?P<value>[A-Za-z0-9+/=_.~!@#$%^&*-]{12,200})["']"""),
        looks_random,
        before=re.compile(
            r"(?i)(?:passw(?:or)?d|secret|api_?-?key|access_?-?key|auth_?-?token|private_?-?key|client_?-?secret)"
            r"[\w-]{0,20}[\"']?\s{0,4}$"
        ),
        words=("passw", "secret", "key", "token"),
    ),
)

PERSONAL = (
    Pattern(
        "author",
        re.compile(
            r"^(?:From|Author|Committer|To|Cc|Reported-by|Suggested-by|Signed-off-by|Co-authored-by|Co-developed-by|Acked-by"
            r"|Reviewed-by|Tested-by|Forwarded-by):[ \t]*(?P<value>[^\s<>@\[\]\"][^<>@\n\[\]]*[^\s<>@\[\]\"])(?=[ \t\"]*(?:<|$))",
            re.MULTILINE,
        ),
        lambda value: any(map(str.isalpha, value)) and "://" not in value,
        ("From:", "Author:", "Committer:", "To:", "Cc:", "-by:"),
    ),
    Pattern(
        "email",
        re.compile(
            r"[A-Za-z0-9](?<![\w.+@/:-][A-Za-z0-9])[\w.+-]{0,63}@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,5}"
            r"[A-Za-z]{2,12}(?![\w@-])"
        ),
        email,
        ("@",),
        around=("@", 64, 337),
    ),
    Pattern(
        "iban",
        re.compile(r"[A-Z](?<![A-Za-z0-9][A-Z])[A-Z]\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?![A-Za-z0-9])"),
        iban,
        shapes=(b"AA00",),
    ),
    Pattern(
        "card",
        re.compile(r"\d(?<![\w.+/-]\d)\d{3}([ -])(?:\d{4}\1\d{4}\1\d{4}|\d{6}\1\d{5})(?![\w.+/-])"),
        luhn,
        shapes=(b"0000-0000-0000-0000", b"0000-000000-00000"),
    ),
    Pattern(
        "card",
        re.compile(r"[3-6](?<![\w.+/-]\d)\d{14,15}(?![\w.+/-])"),
        luhn,  # one long number of ten passes: it takes a word before it to be a card's
        before=re.compile(r"(?i)(?<![a-z])(?:(?:credit|debit|master)? ?card|visa|amex|american express|maestro)(?![a-z])[^\n]*$"),
        shapes=(b"0" * 15,),
    ),
    Pattern(
        "social-security",
        re.compile(r"\d(?<![\w.-]\d)\d{2}-\d{2}-\d{4}(?![\w-])"),
        social_security,
        ("-",),
        shapes=(b"000-00-0000",),
    ),
    Pattern(
        "phone",
        re.compile(r"\+(?<![\w.+*/-]\+)[1-9]\d{0,2}[ .-]?(?:\(0?\d{1,4}\)[ .-]?)?\d{2,4}(?:[ .-]?\d{2,4}){2,4}(?![\w*+-]|\.\d)"),
        phone,
        ("+",),
    ),
    Pattern(
        "phone",
        re.compile(
            r"[(1-9](?<![\w.+*/-][(1-9])(?:(?<=1)[ .-](?:\([2-9]\d{2}\) ?|[2-9]\d{2}[-.])|(?<=\()[2-9]\d{2}\) ?"
            r"|(?<=[2-9])\d{2}[-.])[2-9]\d{2}[-.]\d{4}(?![\w*+-]|\.\d)"
        ),
        phone,
        shapes=(b"000-0000",),
    ),
    Pattern(
        "ip-address",
        re.compile(r"\d(?<![\w.-]\d)\d{0,2}(?:\.\d{1,3}){3}(?![\w-]|\.\d)"),
        public_address,
        (".",),
        shapes=tuple(b"0-%b-%b-0" % (b"0" * second, b"0" * third) for second in (1, 2, 3) for third in (1, 2, 3)),
    ),
)
"""In this order: what one has replaced, the next does not see. Patterns begin with a character and then look behind it, since
the search for one character of a set is fast."""


def redacted(text: str, patterns: Iterable[Pattern]) -> tuple[str, Counter[str]]:
    """``text`` with a note in place of what was found, and how much of each kind that was."""
    found: Counter[str] = Counter()
    for pattern in patterns:
        parts, end = [], 0
        for match in pattern.matches(text):
            start, stop = pattern.value_span(match)
            if pattern.confirms(text, match):
                parts += [text[end:start], f"[{pattern.kind} removed]"]
                found[pattern.kind] += 1
                end = stop
        text = "".join([*parts, text[end:]]) if parts else text
    return text, found


class Scan(Step):
    """In texts; facts of documents (origin, path, url) are redacted by the same patterns, whatever the policy."""

    reason: str
    patterns: tuple[Pattern, ...]

    def check(self, piece: Piece) -> Verdict:
        text, found = redacted(piece.text, self.patterns)
        if found and self.settings["policy"] == "drop":
            return Verdict(piece.text, self.reason, ", ".join(f"{number} {kind}" for kind, number in sorted(found.items())))
        return Verdict(text, found=found)


class Secrets(Scan):
    name, reason, patterns = "secrets", "secret", SECRETS


class Personal(Scan):
    name, reason = "personal", "personal_data"

    def __init__(self, settings):
        super().__init__(settings)
        self.patterns = tuple(pattern for pattern in PERSONAL if pattern.kind in settings["kinds"])
