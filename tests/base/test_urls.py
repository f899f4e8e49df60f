"""What URLs may hold: it is refused in places of a run, and hidden in what others wrote."""

from __future__ import annotations

import pytest

from headway.base.errors import ConfigError
from headway.base.urls import secret_in, without_credentials
from headway.data.remote import Remote
from headway.data.sources import open_source
from headway.recipe.load import load_deployment
from headway.recipe.schema import Source
from headway.store.mirror.objects import Objects

SECRETS = {
    "sftp://me:hunter2@host/x": "a user name or a password",
    "s3://hunter2@bucket/x": "a user name or a password",
    "https://host/x?sig=hunter2": "a query",
    "s3://bucket/x?hunter2": "a query",
    "abfs://hunter2:hunter2@account.dfs.core.windows.net/x": "a user name or a password",
    "filecache::s3://hunter2@bucket/x": "a user name or a password",
    "s3://bucket:hunter2/x@y": "cannot be read",
}
PLACES = [
    "s3://bucket/runs",
    "abfs://container@account.dfs.core.windows.net/x",
    "sftp://me@host/x",
    "file:///a/b?c=d",
    "/a/b?c=d",
]


@pytest.mark.parametrize("url", SECRETS)
def test_what_could_be_a_secret_is_refused_and_not_repeated(url):
    problem = secret_in(url, "mirror")
    assert problem is not None
    assert SECRETS[url] in problem.seen
    assert "hunter2" not in str(problem)


@pytest.mark.parametrize("url", PLACES)
def test_a_place_is_none(url):
    assert secret_in(url, "mirror") is None


@pytest.mark.parametrize("opens", [Remote.open, lambda url: Objects.open(url, None)], ids=["data", "mirror"])
@pytest.mark.parametrize("url", ["s3://bucket/x?sig=hunter2", "s3://hunter2@bucket/x", "s3://bucket:hunter2/x@y"])
def test_data_and_mirror_refuse_alike(opens, url):
    with pytest.raises(ConfigError) as error:
        opens(url)
    assert "hunter2" not in str(error.value)


def test_a_deployment_with_one_is_refused_before_a_run_has_it():
    with pytest.raises(ConfigError, match="the URL of the mirror holds a query") as error:
        load_deployment(None, ["checkpoints.mirror=s3://bucket/x?sig=hunter2"])
    assert "hunter2" not in str(error.value)


def test_sources_are_told_without():
    """Many a public file has a query, so that a source may have one; its manifest does not say what opens a door."""
    fields = {"name": "s", "kind": "jsonl", "path": "https://me:hunter2@host/a.jsonl?download=1&sig=hunter2"}
    assert open_source(Source.model_validate(fields)).where == "https://[removed]@host/a.jsonl?download=1&sig=[removed]"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("ssh://git@host/a.git", "ssh://git@host/a.git"),
        ("https://host/a@b?keyword=x&monkey=y", "https://host/a@b?keyword=x&monkey=y"),
        ("https://ghp_abc@host/", "https://[removed]@host/"),
        ("a?token=x.txt", "a?token=x.txt"),
        ("see https://u:p@h and s3://b?sig=1", "see https://[removed]@h and s3://b?sig=[removed]"),
    ],
)
def test_credentials_in_urls(value, shown):
    assert without_credentials(value) == shown
