"""The proof of an exact resume, from the records of a run alone.

segment 1   ... 41 42 43 44 | killed in 45        digest after every step
segment 2   ... 41 42 43 44 45 46 ... end         the same steps again: equal digests are equal weights and moments
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.base.digests import short
from headway.base.errors import RunError

PROVEN, DIFFERS, NOTHING = "proven", "differs", "nothing to prove"
"""Verdicts: all that was done twice is equal; something is not; the records hold nothing, or not enough, to compare."""


def prove(run: Any, twin: Any = None) -> dict[str, Any]:
    """What the records say: the kill, both digests of each step that was done twice, the final states, the verdict.

    ``holds`` only if the trainer was killed, steps were done again, each of them left equal digests, and the twin (where
    there is one) ended in the same state.
    """
    from headway.report.facts import gather
    from headway.report.replay import interruptions, replay

    facts = gather(run)
    kills = [cut for cut in interruptions(facts) if cut.before.killed]
    steps = [{"step": step.step, "before": step.digests[0], "after": step.digests[1]} for step in replay(facts).steps]
    end, twin_end = facts.final_digest, gather(twin).final_digest if twin is not None else None
    verdict = _verdict(bool(kills), steps, twin is None or (end is not None and end == twin_end))
    return {
        "holds": verdict == PROVEN,
        "verdict": verdict,
        "killed_in_step": kills[0].last_step + 1 if kills else None,
        "restored_step": kills[0].restored_step if kills else None,
        "steps_done_twice": steps,
        "equal": sum(step["before"] is not None and step["before"] == step["after"] for step in steps),
        "final_digest": end,
        "twin_digest": twin_end,
    }


def _verdict(killed: bool, steps: list[dict[str, Any]], same_end: bool) -> str:
    whole = [step for step in steps if step["before"] is not None and step["after"] is not None]
    if any(step["before"] != step["after"] for step in whole) or not same_end:
        return DIFFERS
    return PROVEN if killed and steps and len(whole) == len(steps) else NOTHING


def failure(proof: dict[str, Any], root: Path) -> RunError:
    """A proof that does not hold, as an error: what is different is not what could not be compared."""
    if proof["verdict"] == DIFFERS:
        return RunError(
            "the resumed run is not the run that was killed",
            "every step that is done again leaves the same weights and moments, to the bit",
            f"see the report and the records under {root}",
        )
    if proof["killed_in_step"] is None:
        seen = "nothing was proven: the trainer was not killed"
    elif not proof["steps_done_twice"]:
        seen = "nothing was proven: no step was done twice"
    else:
        missing = len(proof["steps_done_twice"]) - proof["equal"]
        seen = f"not all was proven: {missing} of the steps that were done twice lack a digest; no difference was seen"
    rule = "the proof compares the digests of steps that were done before a kill and again after the restart"
    return RunError(seen, rule, f"see the records under {root}, and run the demo again")


def proof_lines(proof: dict[str, Any]) -> list[str]:
    """The proof for people."""
    steps, restored = proof["steps_done_twice"], proof["restored_step"]
    if proof["killed_in_step"] is None:
        return ["The trainer was not killed: there is nothing to prove.", *_twin_lines(proof)]
    stood = f"The last committed checkpoint held step {restored}," if restored else "No checkpoint had been committed,"
    lines = [f"The trainer was killed in step {proof['killed_in_step']}. {stood}"]
    if not steps:
        return [*lines, "so no step was done again: there is nothing to compare.", *_twin_lines(proof)]
    many = "1 step was" if len(steps) == 1 else f"{len(steps)} steps were"
    lines += [
        f"so {many} done again. Digest of all weights and moments after each of them:",
        "",
        "    step  before the kill  after the restart",
    ]
    lines += [step_line(step) for step in steps]
    verdict = "all of them" if proof["equal"] == len(steps) else "NOT all of them"
    lines += ["", f"{proof['equal']} of {len(steps)} are equal, {verdict}. The final state is {shown(proof['final_digest'])}."]
    return lines + _twin_lines(proof)


def _twin_lines(proof: dict[str, Any]) -> list[str]:
    if not proof["twin_digest"]:
        return []
    same = "the same" if proof["twin_digest"] == proof["final_digest"] else "ANOTHER state"
    return [f"The twin that was never killed ended in {shown(proof['twin_digest'])}: {same}."]


def step_line(step: dict[str, Any]) -> str:
    before, after = step["before"], step["after"]
    word = "not recorded" if before is None or after is None else "equal" if before == after else "DIFFERENT"
    return f"    {step['step']:>4}  {shown(before):<15}  {shown(after):<17}  {word}"


def shown(digest: str | None) -> str:
    return short(digest) if digest else "none"
