"""What a storage's errors mean for the mirror: whether they may pass, and how they are told. No secret appears in a message."""

from __future__ import annotations

import errno
import os

from headway.base.errors import EnvironmentFault

_LASTING = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ENOSYS, errno.ELOOP}
_LASTING_CLASSES = (PermissionError, FileNotFoundError, NotADirectoryError, IsADirectoryError)
_LASTING_NAMES = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "ParamValidationError", "NoRegionError"}
_LASTING_NAMES |= {"InvalidRegionError", "TokenRetrievalError", "UnauthorizedSSOTokenError", "SSOTokenLoadError"}
"""Of botocore, which is not imported here."""
_SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "FSSPEC_S3_SECRET", "FSSPEC_S3_TOKEN")


class MirrorFault(EnvironmentFault):
    """The second place cannot be used, now or as it is set up; what lies here is not concerned."""


def fault_of(error: Exception, doing: str, url: str, tries: int) -> MirrorFault:
    """``tries``: that were made before an error that may pass is told."""
    if isinstance(error, FileNotFoundError):
        rule, way_out = "the bucket is there before the run", "make it, or correct checkpoints.mirror"
    elif isinstance(error, PermissionError) or type(error).__name__ in _LASTING_NAMES:
        rule = "the mirror is read, written, listed and deleted from"
        way_out = "give these credentials those rights, or others to this process, by its environment"
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        rule, way_out = "a copy needs the room of the checkpoint", "free space there, or mirror less often"
    else:
        rule = f"tried {tries} times" if may_pass(error) else ""
        way_out = "check the network and the storage; what was copied stays, and copying goes on from there"
    return MirrorFault(f"{doing}: {in_words(error)}", f"mirror: {url}" + (f"; {rule}" if rule else ""), way_out)


def is_bug(error: Exception) -> bool:
    """Not from the storage: an error of Python's own that is no OSError, or one of ours."""
    return not isinstance(error, OSError) and type(error).__module__.partition(".")[0] in ("builtins", "headway")


def may_pass(error: Exception) -> bool:
    """Throttling, time-outs, broken connections, a server's own errors, and whatever is not known to last."""
    lasting = isinstance(error, _LASTING_CLASSES) or getattr(error, "errno", None) in _LASTING
    return not lasting and type(error).__name__ not in _LASTING_NAMES


def is_missing_object(error: Exception) -> bool:
    """Not there, in a place that is: S3 says both alike, but for its code."""
    response = getattr(error.__cause__, "response", None)
    code = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
    return isinstance(error, FileNotFoundError) and code != "NoSuchBucket"


def in_words(error: Exception) -> str:
    """The error's own words, less any secret of the environment."""
    text = (error.strerror if isinstance(error, OSError) and error.strerror else str(error)) or type(error).__name__
    for secret in filter(None, (os.environ.get(name) for name in _SECRETS)):
        text = text.replace(secret, "***")
    return text
