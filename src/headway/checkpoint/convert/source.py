"""Where a conversion reads: a run, a checkpoint of a run, or a path in any of the formats."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headway.base.errors import ConfigError, HeadwayError, RunError
from headway.checkpoint.convert import FORMATS
from headway.data.place import CacheOptions
from headway.data.reader import frozen_tokenizer
from headway.data.tokenizer import Tokenizer
from headway.recipe.spec import Spec
from headway.rundir.layout import RunDirectory
from headway.rundir.segments import current_chain, deployment_of, read_segments
from headway.store.admissible import choose, list_checkpoints

WAYS = "a source is RUN, RUN:NAME, or the path of a checkpoint"


@dataclass(frozen=True, kw_only=True)
class Source:
    """``run``: the run that a checkpoint lies in; None elsewhere. ``rejected``: newer ones that were refused on the way."""

    path: Path
    format: str
    run: RunDirectory | None = None
    rejected: tuple[dict[str, str], ...] = ()

    def spec(self, state: dict | None) -> Spec | None:
        """The spec of the run, where the state does not say that it belongs to another."""
        if self.run is None or not self.run.spec_file.is_file():
            return None
        spec = self.run.spec()
        return spec if (state or {}).get("spec_digest") in (None, spec.digest()) else None

    def tokenizer(self, spec: Spec | None) -> Tokenizer | None:
        """The one that the run was trained with, where its data still lies in its place."""
        if self.run is None or spec is None:
            return None
        try:
            return frozen_tokenizer(self.run.info()["data"], spec, CacheOptions.of(deployment_of(self.run)))
        except (HeadwayError, KeyError):
            return None


def locate(text: str, named_format: str | None) -> Source:
    """Find the source and its format; ConfigError where there is none."""
    path = Path(text)
    if (path / "run.json").is_file():
        return _newest(RunDirectory.open(path), named_format)
    head, colon, name = text.rpartition(":")
    if not path.exists() and colon and (Path(head) / "run.json").is_file():
        return _named(RunDirectory.open(Path(head)), name, named_format)
    if not path.exists():
        raise ConfigError(f"{text} does not exist", WAYS, "check the path")
    around = path.absolute().parent.parent
    run = RunDirectory.open(around) if (around / "run.json").is_file() else None
    return Source(path=path, format=_format(path, named_format), run=run)


def _newest(run: RunDirectory, named_format: str | None) -> Source:
    choice = choose(run, current_chain(read_segments(run)))
    if choice.checkpoint is None:
        raise RunError("this run has no committed checkpoint yet", "a conversion reads one", "wait for the first save")
    path = run.checkpoints / choice.checkpoint
    return Source(path=path, format=_format(path, named_format), run=run, rejected=tuple(choice.rejected))


def _named(run: RunDirectory, name: str, named_format: str | None) -> Source:
    """Also one that the run would not go on from: what it holds is proven as it is read."""
    path = run.checkpoints / name
    if "/" in name or not name or not path.is_dir():
        there = ", ".join(info.name for info in list_checkpoints(run, current_chain(read_segments(run))) if info.committed)
        raise ConfigError(f"checkpoint {name!r} does not exist", f"path: {path}", f"committed: {there or 'none'}")
    return Source(path=path, format=_format(path, named_format), run=run)


def _format(path: Path, named: str | None) -> str:
    """As said, or as the files tell."""
    if named is not None:
        return named
    found = next((name for name, form in FORMATS.items() if form.recognise(path)), None)
    if found is None:
        raise ConfigError(
            f"{path} is in no format that is known here",
            "by its files: MANIFEST.json (headway), .metadata (dcp), model.safetensors or its index (huggingface), "
            "*.safetensors (safetensors)",
            "check the path, or name the format with --from",
        )
    return found
