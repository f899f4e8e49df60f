"""Secrets and personal data: all that is planted is found, and real text is left alone."""

from __future__ import annotations

import random
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prepare_helpers import library, prepared, share, some_files

from headway.data.prepare.sensitive import PERSONAL, SECRETS, iban, luhn, redacted

ALL = string.ascii_letters + string.digits


def any_of(characters: str, count: int, seed: int) -> str:
    return "".join(random.Random(seed).choices(characters, k=count))


def secrets_of(seed: int) -> dict[str, str]:
    """One made-up secret of each kind. Put together here, so that no scanner of this repository takes them for real."""
    body = "\n".join(any_of(ALL + "+/", 64, seed + line) for line in range(8))
    return {
        "private key": f"-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----",
        "AWS key": "AKIA" + any_of(string.ascii_uppercase + "234567", 16, seed),
        "GitHub token": "ghp_" + any_of(ALL, 36, seed),
        "GitLab token": "glpat-" + any_of(ALL, 20, seed),
        "Slack token": "xoxb-" + any_of(string.digits, 12, seed) + "-" + any_of(ALL, 24, seed),
        "Google key": "AIza" + any_of(ALL, 35, seed),
        "Stripe key": "sk_live_" + any_of(ALL, 24, seed),
        "OpenAI key": "sk-" + any_of(ALL, 48, seed),
        "Hugging Face token": "hf_" + any_of(string.ascii_letters, 34, seed),
        "PyPI token": "pypi-AgEIcHlwaS5vcmc" + any_of(ALL, 60, seed),
        "npm token": "npm_" + any_of(ALL, 36, seed),
        "SendGrid key": f"SG.{any_of(ALL, 22, seed)}.{any_of(ALL, 43, seed)}",
        "JSON web token": f"eyJ{any_of(ALL, 20, seed)}.eyJ{any_of(ALL, 40, seed)}.{any_of(ALL, 43, seed)}",
        "password in a URL": f"postgres://admin:{any_of(ALL, 12, seed)}@db.internal.net/x",
        "assigned secret": f'DB_PASSWORD = "{any_of(ALL, 24, seed)}"',
    }


def personal_of(seed: int) -> dict[str, str]:
    number = random.Random(seed)
    card = "4" + any_of(string.digits, 14, seed)
    bank = any_of(string.digits, 18, seed)
    return {
        "email": f"{any_of(string.ascii_lowercase, 8, seed)}@{any_of(string.ascii_lowercase, 6, seed)}mail.com",
        "phone": f"+49 {number.randint(30, 89)} {number.randint(2345678, 9345678)}",
        "ip-address": f"{number.randint(81, 99)}.{number.randint(1, 254)}.{number.randint(1, 254)}.{number.randint(1, 254)}",
        "iban": next(f"DE{check:02d}{bank}" for check in range(2, 99) if iban(f"DE{check:02d}{bank}")),
        "card": next(f"{card[:4]} {card[4:8]} {card[8:12]} {card[12:]}{d}" for d in range(10) if luhn(f"{card}{d}")),
        "social-security": f"{number.randint(100, 599)}-{number.randint(10, 99)}-{number.randint(1000, 9999)}",
    }


def plant(make, seeds: int) -> tuple[dict[str, str], dict[str, str]]:
    """Real files with one thing each in their middle; origin -> text, and origin -> kind."""
    texts, kinds = {}, {}
    files = list(some_files().values())
    for seed in range(seeds):
        for number, (kind, value) in enumerate(make(100 * seed).items()):
            lines = redacted(files[(7 * seed + number) % len(files)], PERSONAL)[0].split("\n")
            lines.insert(len(lines) // 2, f"# see {value} for more")
            origin = f"planted/{kind}/{seed}"
            texts[origin], kinds[origin] = "\n".join(lines), kind
    return texts, kinds


def test_planted_secrets_are_found_and_none_in_the_standard_library():
    texts, kinds = plant(secrets_of, 10)
    result = prepared(library() | texts, secrets={"policy": "drop"})
    found = set(result.dropped)
    assert share(len(found & set(texts)), len(texts)) >= 0.98  # recall; measured 1.00 of 150
    assert share(len(found & set(texts)), len(found)) >= 0.98  # precision; measured 1.00
    assert set(result.dropped.values()) == {"secret"}
    assert all(result.details[origin] == f"1 {kinds[origin]}" for origin in found & set(texts))


def test_planted_personal_data_is_found():
    texts, kinds = plant(personal_of, 15)
    result = prepared(texts, personal={"policy": "drop"})
    assert share(len(result.dropped), len(texts)) >= 0.95  # recall; measured 1.00 of 90
    right = [origin for origin in result.dropped if result.details[origin] == f"1 {kinds[origin]}"]
    assert share(len(right), len(result.dropped)) >= 0.95


PLACEHOLDERS = {"me@my.org", "somebody@here.my.org", "one@one.org", "two@two.org", "three@three.org", "four@four.org"}
"""In examples of the standard library, read through by hand: what else is found there is addresses of its authors and lists."""
DOMAINS = (
    "com",
    "org",
    "net",
    "edu",
    "gov",
    "de",
    "uk",
    "se",
    "at",
    "au",
    "ca",
    "fi",
    "nl",
    "nz",
    "fr",
    "jp",
    "dk",
    "no",
    "ch",
    "it",
)


def test_personal_data_that_is_found_in_the_standard_library_is_personal():
    found = [
        match[0] for text in library().values() for p in PERSONAL for match in p.pattern.finditer(text) if p.confirms(text, match)
    ]
    right = [value for value in found if value.lower() not in PLACEHOLDERS and value.rpartition(".")[2].lower() in DOMAINS]
    assert len(right) > 50
    assert share(len(right), len(found)) >= 0.95  # precision; measured 0.98, 110 of 112


@pytest.mark.parametrize("make", [secrets_of, personal_of])
def test_what_is_redacted_is_gone_counted_and_found_no_more(make):
    step = "secrets" if make is secrets_of else "personal"
    texts, kinds = plant(make, 2)
    result = prepared(texts, **{step: {"policy": "redact"}})
    assert not result.dropped
    for origin, kind in kinds.items():
        assert f"[{kind} removed]" in result.kept[origin]
        seed = int(origin.rpartition("/")[2])
        value = make(100 * seed)[kind]
        assert (value.split('"')[1] if '"' in value else value) not in result.kept[origin]
    assert result.found(step).total() == len(texts)
    again = prepared(result.kept, **{step: {"policy": "drop"}})
    assert not again.dropped


@pytest.mark.parametrize(
    "text",
    [
        "write to nobody@example.com or user@host.example",
        "git clone git@github.com:owner/name.git",
        "@decorator\ndef f(): pass  # a@b",
        "version 1.2.3.4, 127.0.0.1, 10.0.0.7, 192.168.1.1, 255.255.255.0",
        "call 555-0123 or (212) 555-0199",
        "4012 8888 8888 1882 and Visa 4111111111111112 fail the check digit",
        "the product is 4031078400000 * 4012888888881881",
        "pi = 3.14159265358979, 0xDEADBEEF, 2**61 - 1, 2001-02-03, 1970-01-01",
        'password = "your-password-here"',
        'api_key = os.environ["API_KEY"]',
        'secret_name = "the_name_of_the_secret"',
        'password = "aaaaaaaaaaaaaaa1"',
        "AKIAIOSFODNN7EXAMPLE",
        "https://user:password@host.net/",
    ],
)
def test_what_only_looks_like_it_is_left_alone(text):
    assert redacted(text, (*SECRETS, *PERSONAL)) == (text, {})


@pytest.mark.parametrize(
    "number", ["+49 30 2345 6789", "+1-212-736-5000", "1-212-736-5000", "(212) 736-5000", "212-736-5000", "+44 (0)20 7946 1234"]
)
def test_numbers_are_found_as_people_write_them(number):
    assert redacted(f"call {number} now", PERSONAL)[0] == "call [phone removed] now"


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("iban", "DE89 3704 0044 0532 0130 00"),
        ("iban", "GB82WEST12345698765432"),
        ("card", "4012 8888 8888 1881"),
        ("card", "3782-822463-10005"),
    ],
)
def test_published_numbers_pass_their_check_digits_and_with_one_digit_changed_do_not(kind, number):
    """Those that banks and card issuers publish for tests."""
    assert redacted(f"pay {number} now", PERSONAL)[0] == f"pay [{kind} removed] now"
    wrong = number[:-1] + str((int(number[-1]) + 1) % 10)
    assert not redacted(f"pay {wrong} now", PERSONAL)[1]


def test_a_long_number_is_a_cards_where_a_word_before_it_says_so():
    assert redacted("Visa: 4012888888881881", PERSONAL)[0] == "Visa: [card removed]"
    assert not redacted("discard 4012888888881881", PERSONAL)[1]


def test_only_the_kinds_that_were_asked_for_are_looked_for():
    text = " ".join(personal_of(1).values())
    assert set(prepared({"a": text}, personal={"kinds": ["email", "card"]}).found("personal")) == {"email", "card"}


def test_patterns_take_linear_time_on_what_could_make_them_backtrack():
    """A megabyte each; a pattern that backtracks would take hours, and this test would not end."""
    for hostile in (
        "a" * 10**6,
        "a." * 5 * 10**5,
        "1" * 10**6,
        "1-" * 5 * 10**5,
        "password" * 10**5,
        "://a:" * 10**5,
        "a@" * 10**5,
    ):
        text, found = redacted(hostile, (*SECRETS, *PERSONAL))
        assert found or text == hostile
    assert "PRIVATE KEY" in redacted("-----BEGIN PRIVATE KEY-----\n" * 1_000, SECRETS)[0], "no key stands behind it"


PARTS_OF_TEXT = (
    *("a@b.de ", "@", "x.y", "someone@host-1.example.net", "A", "DE44 5001 0517 5407 3249 31", " ", "-", ".", "é", "٣٤٥-٦٧", "1"),
    *("4111 1111 1111 1111", "4111-1111-1111-1111", "card 4111111111111111", "212-736-5000", "(212) 736-5000", "8.8.8.8"),
    *("123-45-6789", "10.1.2.3.4", "+49 30 1234567", "q" * 70 + "@q.com", "b." * 70 + "com"),
)


@example("@" + " " * 300 + "this.person@a-domain-that-goes-on.over.the-edge.org")  # of what is looked at around the first sign
@given(st.lists(st.sampled_from(PARTS_OF_TEXT), max_size=14).map("".join))
def test_where_nothing_can_be_found_it_is_not_looked_for_and_nothing_is_missed(text):
    for pattern in (*PERSONAL, *SECRETS):
        assert [m.span() for m in pattern.matches(text)] == [m.span() for m in pattern.pattern.finditer(text)], pattern.kind
