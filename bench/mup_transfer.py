"""Hyperparameter transfer on real text: where the best rate, warm-up and initial scale lie at each width. Prints JSON.

    python bench/mup_transfer.py [--out build/mup-sweep] [--seeds 3]      about an hour on two cores; goes on where it was cut

It is the sweep of the command line on the preset ``proxy`` and its embedded corpus, widths 64 to 256 and 512 held out, in muP and
in the standard parametrisation:

    headway mup sweep proxy --out build/mup-sweep --widths 64,128,256 --hold-out 512 --seeds 3 --json

The curves are in the records and plots of that directory; the result holds optima, drift and verdicts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WIDTHS, HELD_OUT = "64,128,256", 512
SHOWN = ("hyperparameter", "parametrization", "verdict", "reason", "optima", "drift", "held_out", "by_line")
FINDINGS = (0, 1)
"""Exit codes that say something: transfers, or does not."""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "mup-sweep")
    parser.add_argument("--recipe", default="proxy")
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args(arguments)
    command = ["mup", "sweep", asked.recipe, "--out", str(asked.out), "--widths", WIDTHS, "--hold-out", str(HELD_OUT)]
    command += ["--seeds", str(asked.seeds), "--data", str(asked.out / "data"), "--json"]
    done = subprocess.run([sys.executable, "-m", "headway.cli.main", *command], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in FINDINGS:
        raise SystemExit(done.returncode)
    outcome = json.loads(done.stdout)
    print(json.dumps({"bench": "mup_transfer", "recipe": "proxy", **summary(outcome)}, indent=1))


def summary(outcome: dict[str, Any]) -> dict[str, Any]:
    """What was found, without the curves."""
    findings = [{key: value for key, value in finding.items() if key in SHOWN} for finding in outcome["findings"]]
    named = [{"name": f"{f['hyperparameter']}, {f['parametrization']}", **f} for f in findings]
    return {"trials": outcome["trials"], "diverged": outcome["diverged"], "findings": named}


if __name__ == "__main__":
    main(sys.argv[1:])
