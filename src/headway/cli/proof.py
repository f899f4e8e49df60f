"""The proof of an exact resume, from the records of a run alone.

segment 1   ... 41 42 43 44 | killed in 45        digest after every step
segment 2   ... 41 42 43 44 45 46 ... end         the same steps again: equal digests are equal weights and moments
"""

from __future__ import annotations

from typing import Any

from headway.base.digests import short


def prove(run: Any, twin: Any = None) -> dict[str, Any]:
    """What the records say: the kill, both digests of each step that was done twice, the final states.

    ``holds`` only if the trainer was killed, steps were done again, each of them left equal digests, and the twin (where
    there is one) ended in the same state.
    """
    from headway.report.facts import gather
    from headway.report.replay import interruptions, replay

    facts = gather(run)
    kills = [cut for cut in interruptions(facts) if cut.before.killed]
    steps = [{"step": step.step, "before": step.digests[0], "after": step.digests[1]} for step in replay(facts).steps]
    equal = [step for step in steps if step["before"] is not None and step["before"] == step["after"]]
    end, twin_end = facts.final_digest, gather(twin).final_digest if twin is not None else None
    same_end = twin is None or (end is not None and end == twin_end)
    return {
        "holds": bool(kills) and bool(steps) and len(equal) == len(steps) and same_end,
        "killed_in_step": kills[0].last_step + 1 if kills else None,
        "restored_step": kills[0].restored_step if kills else None,
        "steps_done_twice": steps,
        "equal": len(equal),
        "final_digest": end,
        "twin_digest": twin_end,
    }


def proof_lines(proof: dict[str, Any]) -> list[str]:
    """The proof for people."""
    steps, restored = proof["steps_done_twice"], proof["restored_step"]
    if proof["killed_in_step"] is None:
        return ["The trainer was not killed: there is nothing to prove."]
    lines = [
        f"The trainer was killed in step {proof['killed_in_step']}. The last committed checkpoint held step {restored},",
        f"so {len(steps)} steps were done again. Digest of all weights and moments after each of them:",
        "",
        "    step  before the kill  after the restart",
    ]
    lines += [step_line(step) for step in steps]
    verdict = "all of them" if proof["equal"] == len(steps) else "NOT all of them"
    lines += ["", f"{proof['equal']} of {len(steps)} are equal, {verdict}. The final state is {shown(proof['final_digest'])}."]
    if proof["twin_digest"]:
        same = "the same" if proof["twin_digest"] == proof["final_digest"] else "ANOTHER state"
        lines.append(f"The twin that was never killed ended in {shown(proof['twin_digest'])}: {same}.")
    return lines


def step_line(step: dict[str, Any]) -> str:
    equal = step["before"] is not None and step["before"] == step["after"]
    return f"    {step['step']:>4}  {shown(step['before']):<15}  {shown(step['after']):<17}  {'equal' if equal else 'DIFFERENT'}"


def shown(digest: str | None) -> str:
    return short(digest) if digest else "none"
