"""``headway sample RUN``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from headway.cli.options import Json, RunArgument


def sample(
    run: RunArgument,
    /,
    *,
    prompt: Annotated[
        list[str] | None,
        Parameter(metavar="TEXT", negative="", help="Text to continue. Repeatable. Default: the recipe's prompts."),
    ] = None,
    tokens: Annotated[int | None, Parameter(metavar="N", help="Tokens to decode per prompt. Default: as in the recipe.")] = None,
    checkpoint: Annotated[
        str | None, Parameter(metavar="NAME", help="Name of a checkpoint. Default: the newest one that verifies.")
    ] = None,
    json: Json = False,
) -> None:
    """Let a checkpoint of a run continue prompts.

    Decoding is greedy: the same checkpoint gives the same text.
    """
    from headway.base.errors import ConfigError
    from headway.cli.engine import ask_engine
    from headway.cli.output import print_json
    from headway.recipe.trainable import refuse_untrainable
    from headway.rundir.layout import RunDirectory

    directory = RunDirectory.open(run)
    spec = directory.spec()
    refuse_untrainable(spec.precision)
    evaluation = spec.evaluation
    prompts, count = list(prompt or evaluation.prompts), evaluation.sample_tokens if tokens is None else tokens
    if not prompts:
        raise ConfigError("there is nothing to continue", "the recipe of this run has no prompts", 'give one: --prompt "def "')
    if count < 1:
        raise ConfigError(f"--tokens {count}", "at least one token is decoded per prompt", "--tokens 64")
    named = ["--checkpoint", checkpoint] if checkpoint else []
    answer = ask_engine(
        "sample", [str(directory.root), *named, "--prompts-json", "-"], send={"prompts": prompts, "tokens": count}
    )
    if json:
        print_json(answer)
    else:
        show(answer)


def show(answer: dict) -> None:
    """The texts for people; checkpoints that were refused on the way are named."""
    from headway.cli.output import say

    for refused in answer.get("rejected", ()):
        say(f"checkpoint {refused['checkpoint']} is refused: {refused['reason']}")
    say(f"checkpoint {answer['checkpoint']}, step {answer['step']}")
    for text in answer["texts"]:
        say()
        say(decoded(text["prompt"], text["text"]))


def decoded(prompt: str, text: str) -> str:
    """Prompt and continuation, with a mark between them, indented."""
    return "  " + f"{prompt}|{text}".replace("\n", "\n  ")
