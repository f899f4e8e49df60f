"""URLs name places, and some hold what opens them: a password, a token, a signature. None of that is kept or shown.

secret_in             of a place that is kept in run.json: whatever could hold one is refused, and not repeated
without_credentials   of what others wrote (origins and facts of documents, sources of a recipe): a note stands in its place
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from headway.base.errors import Problem

_NAME_FIRST = ("az", "abfs", "abfss", "sftp", "ssh", "hdfs")
"""What stands before @ is a container (abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX) or a user with a key of his own."""
_OF_THIS_MACHINE = ("file", "memory")
"""A path follows, in which ? is a letter as any."""
_USER = re.compile(r"://(?!git@)[^\s/?#]*@")
_PARAMETER = re.compile(r"([?&;#])([^\s=&;#?]{1,64})=[^\s&;#]+")
_SECRET_NAME = re.compile(
    r"(?i)token|secret|passw|pwd|signature|credential|session|api-?key|access-?key|authorization|(?:^|[-_.])(?:sig|key|auth|jwt|sid)$"
)


def is_url(where: object) -> bool:
    return "://" in str(where or "")


def secret_in(url: str, what: str) -> Problem | None:
    """Why ``url``, of ``what``, is refused: it could hold a secret, or cannot be read. The words do not repeat it."""
    problems = (_secret_in_link(link, what) for link in url.split("::") if is_url(link))  # of a chain of filesystems, each
    return next((problem for problem in problems if problem), None)


def _secret_in_link(url: str, what: str) -> Problem | None:
    protocol = url.partition("://")[0]
    try:
        parts = urlsplit(url)
        user, password, _ = parts.username, parts.password, parts.port  # no number: a password with a slash in it, perhaps
    except ValueError:
        return Problem(f"the URL of the {what} cannot be read", "a URL names a place", "write s3://BUCKET/PREFIX")
    has_user = password is not None or (user is not None and protocol not in _NAME_FIRST)
    if not has_user and (not parts.query or protocol in _OF_THIS_MACHINE):
        return None
    return Problem(
        f"the URL of the {what} holds {'a user name or a password' if has_user else 'a query, what stands behind ?'}",
        "it is kept in run.json and shown: it names a place, not a secret",
        "leave that out; the environment has it, for s3:// as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    )


def without_credentials(value: str) -> str:
    """``value`` with a note in place of what opens doors in URLs: users and passwords, tokens and signatures of queries."""
    if "://" not in value:
        return value
    return _PARAMETER.sub(_parameter, _USER.sub("://[removed]@", value))


def _parameter(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}=[removed]" if _SECRET_NAME.search(found[2]) else found[0]
