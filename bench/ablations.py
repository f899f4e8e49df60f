"""Three habits of stable training, each left out, over three orders of the data. Prints JSON.

    python bench/ablations.py [--width 128] [--rate 8e-3] [--out build/ablations]         about ten minutes on two cores

The preset ``proxy`` at one width, at a rate at which the habits can matter (above the best one), against the same without
warm-up, with beta2 = 0.999, and without decay. Only the order of the data differs between the repeats: differences that are
smaller than the spread over orders say nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from headway.base.files import make_directory, read_json, write_json
from headway.data.build import build_data
from headway.data.freeze import freeze
from headway.recipe.load import load_recipe

ROOT = Path(__file__).resolve().parents[1]
ARMS: dict[str, tuple[str, ...]] = {
    "baseline": (),
    "no warm-up": ("stages.0.rate.warmup=0",),
    "beta2 .999": ("optimizer.beta2=0.999",),
    "no decay": ("optimizer.weight_decay=0",),
}
ORDERS = (1, 2, 3)


def plan_trials(root: Path, data: Path, common: list[str]) -> Path:
    """Specs and plan under ``root``; the data is the same for all, its order is not."""
    manifest = build_data(load_recipe("proxy", common), data)
    trials = []
    for arm, changes in ARMS.items():
        for order in ORDERS:
            recipe = load_recipe("proxy", [*common, *changes, f"data.seed={order}"])
            name = f"{arm.replace(' ', '-')}-{order}"
            write_json(root / f"{name}.json", freeze(recipe, manifest).to_json())
            model = recipe.recipe.model
            settings = {"parametrization": "mup", "width": model.width, "rate": recipe.recipe.optimizer.peak_rate}
            trials.append({"id": name, "spec": f"{name}.json", "arm": arm, "order": order, **settings})
    write_json(root / "plan.json", {"kind": "mup_plan", "schema_version": 1, "trials": trials})
    return root / "plan.json"


def summary(out: Path) -> list[dict[str, Any]]:
    """Per arm: held-out losses over the orders, and how far they are from the baseline's of the same order."""
    losses = {(r["arm"], r["order"]): r["loss"] for path in (out / "trials").iterdir() if (r := read_json(path, "mup_trial"))}
    rows = []
    for arm in ARMS:
        mine = [losses[arm, order] for order in ORDERS]
        pairs = [(losses[arm, order], losses["baseline", order]) for order in ORDERS]
        worse = [found - base for found, base in pairs if found is not None and base is not None]
        kept = [loss for loss in mine if loss is not None]
        rows.append(
            {
                "name": arm,
                "held_out_losses": mine,
                "diverged": mine.count(None),
                "mean_loss": round(statistics.fmean(kept), 4) if kept else None,
                "spread_over_orders": round(statistics.stdev(kept), 4) if len(kept) > 1 else None,
                "nats_over_baseline": [round(x, 4) for x in worse],
            }
        )
    return rows


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--rate", default="8e-3")
    parser.add_argument("--tokens", default="524_288")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "ablations")
    asked = parser.parse_args(arguments)
    heads = asked.width // 32
    shape = [f"model.width={asked.width}", f"model.heads={heads}", f"model.kv_heads={heads // 2}"]
    shape += [f"model.ffn_width={asked.width * 11 // 4}"]
    common = [*shape, f"optimizer.peak_rate={asked.rate}", f"stages.0.tokens={asked.tokens}"]
    from headway.train.trials import run_trials

    root = make_directory(asked.out, "directory of the ablations")
    counts = run_trials(plan_trials(root, root / "data", common), root, root / "data", workers=2)
    settings = {"width": asked.width, "rate": float(asked.rate), "tokens": asked.tokens, "orders": len(ORDERS)}
    print(json.dumps({"bench": "ablations", **settings, **counts, "arms": summary(root)}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
