"""``headway mup`` from the outside: a real recipe and real data; the engine is a fake that trains on a known loss surface."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.base.digests import sealed
from headway.base.errors import RunError
from headway.cli.main import run_guarded
from headway.recipe.spec import Spec

RECIPE = """
kind = "recipe"
schema_version = 1
name = "proxy"

[tokenizer]
vocabulary = 300

[model]
layers = 1
width = 32
heads = 2

[model.mup]
base_width = 32

[data]
held_out = 200

[[data.sources]]
name = "text"
kind = "jsonl"
path = "PATH"
licence = "CC0-1.0"

[[stages]]
name = "main"
tokens = 2048
sequence = 32
batch = 128
rate = { warmup = 256, shape = "linear" }
mixture = { text = 1.0 }

[optimizer]
peak_rate = 1e-3

[evaluation]
every = 512
tokens_per_source = 64
sample_tokens = 0
"""
BEST = {"rate": math.log2(1.2e-3), "warmup_tokens": 8.2, "init_std": math.log2(0.018)}
BEND = {"rate": 0.04, "warmup_tokens": 0.02, "init_std": 0.03}


def surface(trial: dict[str, Any], drift: float, noise: float) -> float | None:
    """Held-out loss of a trial: parabolas whose minimum stays under muP but for ``drift``, and falls with width without it."""
    doublings = math.log2(trial["width"] / 32)
    slope = drift if trial["parametrization"] == "mup" else -1.0
    rng = np.random.default_rng([trial["seed"], trial["width"], *trial["id"].encode()])
    loss = 4.0 - 0.2 * doublings + 0.03 * np.random.default_rng(trial["seed"]).normal() + noise * rng.normal()
    for name, best in BEST.items():
        place = best + (slope * doublings if name == "rate" else 0.0)
        loss += BEND[name] * (math.log2(trial[name]) - place) ** 2
    too_high = math.log2(trial["rate"]) > BEST["rate"] + slope * doublings + 2.8
    return None if too_high else float(loss)


class Engine:
    """Stands in for the engine's two verbs; counts what it was asked to train."""

    def __init__(self) -> None:
        self.drift, self.noise, self.stop_after, self.trained = 0.0, 0.002, 10**9, []
        self.check_slopes = {"mup": 0.0, "standard": 0.5}
        self.requests: list[dict] = []

    def ask(self, verb: str, arguments: list[str], send: Any = None) -> Any:
        return {"mup-trials": self.train, "mup-check": self.measure}[verb](*arguments)

    def train(self, plan: str, out: str, data: str) -> dict[str, int]:
        planned = json.loads(Path(plan).read_text())
        assert planned["kind"] == "mup_plan"
        assert (Path(data) / "manifest.json").is_file()
        counts = {"done": 0, "skipped": 0, "failed": 0}
        for trial in planned["trials"]:
            path = Path(out) / "trials" / f"{trial['id']}.json"
            if path.exists():
                counts["skipped"] += 1
                continue
            if len(self.trained) >= self.stop_after:
                raise RunError("the engine was stopped")
            path.write_text(json.dumps(self.record(Path(plan).parent, trial)))
            self.trained.append(trial["id"])
            counts["done"] += 1
        return counts

    def record(self, root: Path, trial: dict[str, Any]) -> dict[str, Any]:
        spec = Spec.from_json(json.loads((root / trial["spec"]).read_text()))
        assert spec.model.width == trial["width"]
        assert spec.model.heads == 2 * trial["width"] // 32
        assert spec.model.head_width == 16
        assert (spec.model.mup is None) is (trial["parametrization"] == "standard")
        assert spec.optimizer.peak_rate == trial["rate"]
        assert spec.stages[0].rate.warmup_tokens == trial["warmup_tokens"]
        assert (spec.model.init_std, spec.seed) == (trial["init_std"], trial["seed"])
        assert not spec.is_draft
        loss = surface(trial, self.drift, self.noise)
        measured = {"spec_digest": spec.digest(), "tokens": 2048, "steps": 16, "loss": loss, "train_loss": loss}
        known = {"kind": "mup_trial", "schema_version": 2, "diverged": loss is None, "seconds": 0.1, "versions": {"torch": "2"}}
        return sealed({key: value for key, value in trial.items() if key != "spec"} | measured | known)

    def measure(self, path: str) -> dict[str, Any]:
        request = json.loads(Path(path).read_text())
        self.requests.append(request)
        arms = []
        for arm in request["arms"]:
            specs = [Spec.from_json(json.loads(Path(p).read_text())) for p in arm["specs"]]
            assert all(spec.is_draft for spec in specs)
            slope = self.check_slopes[arm["parametrization"]]
            rows = [
                {"width": s.model.width, "step": step, "seed": s.seed, "module": module, "quantity": quantity, "value": value}
                for s in specs
                for step in range(1, request["steps"] + 1)
                for module in ("embedding", "layers.0.ffn", "head")
                for quantity in ("activation_change", "gradient", "update")
                for value in [0.5 * (s.model.width / 32) ** (slope if step > 1 else 0.0)]
            ]
            arms.append({"parametrization": arm["parametrization"], "rows": rows})
        return {"kind": "mup_coordinates", "schema_version": 1, "arms": arms}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A directory with a recipe and its data."""
    root = tmp_path_factory.mktemp("proxy")
    words = ["the cat sat on the mat", "a dog ran in the fog", "birds sing words in spring"]
    documents = [{"text": f"{words[i % 3]} number {i} and {words[(i * 7 + 1) % 3]} " * 3} for i in range(120)]
    (root / "text.jsonl").write_text("\n".join(map(json.dumps, documents)) + "\n")
    recipe = RECIPE.replace("PATH", str(root / "text.jsonl"))
    (root / "proxy.toml").write_text(recipe)
    target = recipe.replace("width = 32\nheads = 2", "width = 256\nheads = 16").replace("layers = 1", "layers = 2")
    (root / "target.toml").write_text(target.replace("[model.mup]\nbase_width = 32\n", "").replace('"proxy"', '"target"'))
    assert run_guarded(["data", "build", str(root / "proxy.toml"), "--out", str(root / "data")]) == 0
    return root


@pytest.fixture
def engine(monkeypatch) -> Engine:
    fake = Engine()
    monkeypatch.setattr("headway.cli.engine.ask_engine", fake.ask)
    monkeypatch.setattr("headway.cli.engine.require_engine", lambda: None)
    return fake


def sweep(built: Path, out: Path, *more: str) -> int:
    widths = () if "--widths" in more else ("--widths", "32,64,128")
    return run_guarded(
        ["mup", "sweep", str(built / "proxy.toml"), "--data", str(built / "data"), "--out", str(out), *widths, *more]
    )


@pytest.fixture(scope="module")
def finished(built, tmp_path_factory) -> Path:
    """A whole sweep, with a held-out width and three seeds."""
    fake, out = Engine(), tmp_path_factory.mktemp("finished") / "sweep"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headway.cli.engine.ask_engine", fake.ask)
        patch.setattr("headway.cli.engine.require_engine", lambda: None)
        assert sweep(built, out, "--hold-out", "256", "--seeds", "3") == 0
    return out


@pytest.fixture
def swept(finished, tmp_path) -> Path:
    return shutil.copytree(finished, tmp_path / "sweep")


# --- check


def check(built: Path, *more: str) -> int:
    return run_guarded(["mup", "check", str(built / "proxy.toml"), *more])


def test_check_passes_and_writes_what_it_saw(built, engine, tmp_path, capsys):
    assert check(built, "--widths", "32,64,128", "--out", str(tmp_path / "check")) == 0
    out = capsys.readouterr().out
    assert "verdict: passes" in out
    assert "+0.500 *" in out
    assert (tmp_path / "check" / "coordinates.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "check" / "coordinates.json").read_text())["verdict"] == "passes"
    (request,) = engine.requests
    assert request["steps"] == 4
    assert [len(arm["specs"]) for arm in request["arms"]] == [12, 12]  # three widths, four seeds


def test_check_fails_or_cannot_tell_with_exit_code_one(built, engine, capsys):
    engine.check_slopes = {"mup": 0.2, "standard": 0.5}
    assert check(built, "--json") == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "fails"
    engine.check_slopes = {"mup": 0.0, "standard": 0.05}
    assert check(built) == 1
    assert "verdict: the check cannot tell: the control passed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--widths", "32"], "two or more"),
        (["--widths", "40,64"], "choose multiples of 16"),
        (["--widths", "32,wide"], "'wide' is not a positive whole number"),
        (["--widths", "32,,64"], "is not a positive whole number"),
        (["--widths", "32,-64"], "is not a positive whole number"),
        (["--steps", "1"], "judged from step 2 on"),
        (["--seeds", "0"], "1 to 100 seeds"),
        (["--set", "model.mup.base_width=0"], "base_width"),
    ],
)
def test_check_says_what_is_wrong(built, engine, capsys, arguments, said):
    assert check(built, *arguments) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err
    assert not engine.requests


def test_a_recipe_without_a_base_width(built, engine, capsys):
    assert run_guarded(["mup", "check", str(built / "target.toml")]) == 2
    assert "--set model.mup.base_width=256" in capsys.readouterr().err


def test_an_answer_that_is_none_is_the_runs_error(built, engine, capsys, monkeypatch):
    monkeypatch.setattr("headway.cli.engine.ask_engine", lambda *_: {"kind": "mup_coordinates"})
    assert check(built) == 4
    assert "the coordinate measurements" in capsys.readouterr().err


# --- sweep


def test_a_sweep_finds_the_known_optima_and_transfers(built, engine, tmp_path, capsys):
    assert sweep(built, tmp_path / "sweep", "--hold-out", "256", "--seeds", "3", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "transfers", found["reason"]
    by_name = {(f["parametrization"], f["hyperparameter"]): f for f in found["findings"]}
    for name, place in BEST.items():
        for width, optimum in by_name["mup", name]["optima"].items():
            assert optimum["state"] == "bracketed", (name, width, optimum)
            assert optimum["low"] <= 2**place * 1.02, (name, width)
            assert optimum["high"] >= 2**place * 0.98, (name, width)
    standard = by_name["standard", "rate"]
    assert standard["verdict"] == "does not transfer"
    assert standard["drift"]["slope"] == pytest.approx(-1, abs=0.15)
    held_out = by_name["mup", "rate"]["held_out"]
    assert held_out["width"] == 256
    assert held_out["ratio"] == pytest.approx(1, rel=0.15)
    assert held_out["lost"] < 0.005
    assert by_name["standard", "rate"]["optima"].keys() == {"32", "64", "128"}, "no fit saw the held-out width"
    saved = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert saved["kind"] == "mup_sweep"
    assert saved["outcome"]["verdict"] == "transfers"
    assert {p.name for p in (tmp_path / "sweep").glob("*.png")} == {
        f"{name}-{what}.png" for name in ("rate", "warmup-tokens", "init-std") for what in ("curves", "optima")
    }


def test_phases_vary_one_thing_at_a_time(built, engine, swept):
    plan = json.loads((swept / "plan.json").read_text())["trials"]
    assert len(plan) == len({t["id"] for t in plan}) == len(list((swept / "trials").iterdir()))
    base = [t for t in plan if t["seed"] == 0]
    moved = [(t["warmup_tokens"] != 256) + (t["init_std"] != 0.02) for t in base]
    assert max(moved) == 1
    assert sum(m == 0 for m in moved) == 2 * 4 * 7  # parametrisations, widths with the held-out one, rates
    assert sum(m == 1 for m in moved) == 3 * (4 + 4)  # muP at three widths; the recipe's own values were phase 1
    assert not any(t["width"] == 256 for t, m in zip(base, moved, strict=True) if m)
    more = [t for t in plan if t["seed"]]  # two more seeds at three rates; the widest standard model's best is an end: at two
    assert len(more) == 2 * (4 * 3 + 3 * 3 + 2)


def test_a_drifting_optimum_is_no_transfer(built, engine, tmp_path, capsys):
    engine.drift = -0.8
    assert sweep(built, tmp_path / "sweep") == 1
    out = capsys.readouterr().out
    assert "verdict: does not transfer" in out
    assert "carry it over" not in out


def test_an_optimum_outside_of_the_rates_is_undecided(built, engine, tmp_path, capsys):
    assert sweep(built, tmp_path / "sweep", "--rates", "2e-3,4e-3,8e-3") == 1
    out = capsys.readouterr().out
    assert "not bracketed: the lowest loss is at the lower end" in out
    assert "verdict: undecided" in out


def test_a_sweep_goes_on_where_it_was_stopped(built, engine, tmp_path, capsys):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert sweep(built, whole, "--seeds", "2", "--json") == 0
    expected, count = json.loads(capsys.readouterr().out), len(engine.trained)
    for stop in (5, 30, 50, 60):  # in the middle of every phase
        engine.trained, engine.stop_after = list(engine.trained[:0]), stop - len(list((stopped / "trials").glob("*.json")))
        assert sweep(built, stopped, "--seeds", "2") == 4
        assert "the engine was stopped" in capsys.readouterr().err
        assert len(list((stopped / "trials").glob("*.json"))) == stop
        assert not (stopped / "sweep.json").exists()
    engine.trained, engine.stop_after = [], 10**9
    assert sweep(built, stopped, "--seeds", "2", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(engine.trained) == count - 60
    assert found["findings"] == expected["findings"]


def test_a_sweep_says_how_many_trials_there_will_be_and_each_that_ends(built, engine, tmp_path, capsys):
    plain = ("--no-standard", "--seeds", "2")
    assert sweep(built, tmp_path / "sweep", *plain) == 0
    said = capsys.readouterr().out.splitlines()
    count = len(engine.trained)
    assert "- up to 54 trials: 21 of rates, 24 of warm-ups and init scales, 9 of seeds" in said
    assert count == 54
    lines = [line for line in said if " of 21: mup-w" in line]
    assert [line.split()[0] for line in lines] == [str(place) for place in range(1, 22)]
    assert all("held-out loss" in line or "diverged" in line for line in lines)
    assert all(line.endswith("100 ms") for line in lines)
    assert said.index("- phase rates: 21 trials") < said.index(lines[0])
    assert sweep(built, tmp_path / "sweep", *plain, "--json") == 0
    done = capsys.readouterr()
    json.loads(done.out)
    assert "- phase rates: 21 trials, 21 of them ended before" in done.err
    assert " of 21: " not in done.err


def test_trials_are_told_while_the_engine_trains(built, engine, tmp_path, capsys, monkeypatch):
    """The second trial waits until the first one was told."""
    from headway.experiment import asking

    told, seen = threading.Event(), []

    def train(verb: str, arguments: list[str]) -> dict:
        engine.stop_after = 1
        with pytest.raises(RunError):
            engine.train(*arguments)
        seen.append(told.wait(20))
        engine.stop_after = 10**9
        return engine.train(*arguments)

    monkeypatch.setattr(asking, "POLL_SECONDS", 0.01)
    monkeypatch.setattr("headway.cli.engine.ask_engine", train)
    monkeypatch.setattr("headway.cli.mup.trial_line", lambda *facts: told.set() or "told")
    narrow = ("--no-standard", "--warmups", "256", "--init-stds", "0.02", "--widths", "32,64")
    sweep(built, tmp_path / "sweep", *narrow)
    assert seen == [True]


def test_a_record_as_the_engine_writes_it_is_read(built, swept, tmp_path, monkeypatch):
    """And the fake of these tests writes the same keys."""
    trials = pytest.importorskip("headway.train.trials")
    from headway.experiment.records import TRIALS, read_record

    trial = json.loads((swept / "plan.json").read_text())["trials"][0]
    monkeypatch.setattr(trials, "build_trainee", lambda spec: None)
    monkeypatch.setattr(trials, "train_losses", lambda trainee, feed, schedule: [4.0] * schedule.total_steps)
    monkeypatch.setattr(trials, "_held_out", lambda trainee, feed: 3.5)
    path = tmp_path / "real" / TRIALS / f"{trial['id']}.json"
    path.parent.mkdir(parents=True)
    assert not trials.run_trial(trials.Job(trial, swept / trial["spec"], path, built / "data"))
    record = read_record(tmp_path / "real", trial["id"])
    assert (record.loss, record.train_loss, record.tokens, record.steps, record.diverged) == (3.5, 4.0, 2048, 16, False)
    assert record.spec_digest == Spec.from_json(json.loads((swept / trial["spec"]).read_text())).digest()
    assert record.versions["torch"]
    assert json.loads(path.read_text()).keys() == Engine().record(swept, trial).keys()


def test_a_name_of_a_size_holds_at_one_width(built, engine, tmp_path):
    """Other widths are refused by it: it goes from every trial."""
    from headway.experiment.grid import Proxy
    from headway.recipe.load import load_recipe

    proxy = Proxy.of(load_recipe(built / "proxy.toml", ["model.nominal_parameters=32k"]))
    made = proxy.recipe(dataclasses.replace(proxy.base, width=128)).recipe.model
    assert (made.width, made.nominal_parameters) == (128, None)
    assert sweep(built, tmp_path / "sweep", "--set", "model.nominal_parameters=32k") == 0


def test_a_long_warm_up_is_not_swept_by_default(built, engine, tmp_path, capsys):
    assert sweep(built, tmp_path / "sweep", "--set", "stages.0.rate.warmup=1100", "--json") in (0, 1), capsys.readouterr().err
    found = json.loads(capsys.readouterr().out)["findings"]
    assert {finding["hyperparameter"] for finding in found} == {"rate", "init_std"}


def test_more_rates_run_those_only(built, engine, tmp_path, capsys):
    narrow = ("--no-standard", "--warmups", "256", "--init-stds", "0.02")
    sweep(built, tmp_path / "sweep", *narrow, "--rates", "5e-4,1e-3,2e-3")
    assert len(engine.trained) == 9
    sweep(built, tmp_path / "sweep", *narrow, "--rates", "5e-4,1e-3,2e-3,4e-3")
    assert len(engine.trained) == 12
    assert "phase rates: 12 trials, 9 of them ended before" in capsys.readouterr().out


def test_a_trial_that_left_no_record_is_named(built, engine, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("headway.cli.engine.ask_engine", lambda *_: {"done": 0, "skipped": 0, "failed": 42})
    assert sweep(built, tmp_path / "sweep") == 4
    err = capsys.readouterr().err
    assert "42 of 42 trials have no record" in err
    assert "goes on" in err


def test_trials_of_another_recipe_are_not_mixed_in(built, engine, swept, capsys):
    again = ("--hold-out", "256", "--seeds", "3", "--set", "model.layers=2")
    assert sweep(built, swept, *again) == 2
    assert "another recipe" in capsys.readouterr().err


@pytest.mark.parametrize(
    "spoil",
    [
        {"id": "other"},
        {"width": 48},
        {"loss": None},
        {"loss": "low"},
        {"loss": 0.5},
        100,
        {"kind": "mup_plan"},
        {"surprise": 1},
    ],
    ids=str,
)
def test_a_damaged_record_is_refused(built, engine, swept, capsys, spoil):
    path = next(p for p in sorted((swept / "trials").iterdir()) if json.loads(p.read_text())["loss"] is not None)
    text = json.dumps(json.loads(path.read_text()) | spoil) if isinstance(spoil, dict) else path.read_text()[:spoil]
    path.write_text(text)
    assert sweep(built, swept, "--hold-out", "256", "--seeds", "3") in (2, 4)
    err = capsys.readouterr().err
    assert path.stem in err
    assert "remove it: it is run again" in err
    assert "Traceback" not in err
    assert "internal" not in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rates", "1e-3,2e-3"], "three or more"),
        (["--rates", "0,1e-3,2e-3"], "'0' is not a positive number"),
        (["--rates", "nan,1e-3,2e-3"], "'nan' is not a positive number"),
        (["--rates", "0.5,1,2"], "peak_rate"),
        (["--warmups", "0,256,512"], "not a positive number of tokens"),
        (["--warmups", "1k,2k,1M"], "longer than stage"),
        (["--warmups", "128,256"], "three or more"),
        (["--init-stds", "x"], "'x' is not a positive number"),
        (["--hold-out", "64"], "swept and held out"),
        (["--hold-out", "40"], "choose multiples of 16"),
        (["--seeds", "0"], "1 to 100 seeds"),
    ],
)
def test_sweep_says_what_is_wrong(built, engine, tmp_path, capsys, arguments, said):
    assert sweep(built, tmp_path / "sweep", *arguments) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err
    assert not engine.trained, "what a later phase would be refused for is said before the first trial"


# --- transfer


def transfer(built: Path, swept: Path, *more: str) -> int:
    return run_guarded(["mup", "transfer", str(swept), str(built / "target.toml"), *more])


def test_a_transfer_sets_the_base_rate_and_leaves_a_record(built, engine, swept, capsys):
    assert transfer(built, swept) == 0
    out = capsys.readouterr().out
    assert "--set model.mup.base_width=32" in out
    assert "model.layers: 1 in the sweep, 2 in the target" in out
    record = json.loads((swept / "transfer-target.json").read_text())
    assert (record["kind"], record["schema_version"], record["verdict"]) == ("mup_transfer", 1, "transfers")
    set_ = dict(o.split("=", 1) for o in record["overrides"])
    assert math.log2(float(set_["optimizer.peak_rate"])) == pytest.approx(BEST["rate"], abs=0.1)
    assert math.log2(int(set_["stages.0.rate.warmup"])) == pytest.approx(BEST["warmup_tokens"], abs=0.2)
    assert math.log2(float(set_["model.init_std"])) == pytest.approx(BEST["init_std"], abs=0.1)
    rate = record["values"][0]
    assert rate["low"] < rate["value"] < rate["high"]
    assert record["evidence"]["findings"]
    from headway.recipe.load import load_recipe

    assert load_recipe(built / "target.toml", record["overrides"]).digest == record["result_recipe_digest"]
    assert load_recipe(built / "target.toml").digest == record["target_recipe_digest"]


def test_what_was_set_can_be_planned(built, engine, swept, capsys):
    assert transfer(built, swept, "--json") == 0
    overrides = json.loads(capsys.readouterr().out)["overrides"]
    more = [word for override in overrides for word in ("--set", override)]
    assert run_guarded(["plan", str(built / "target.toml"), "--json", *more]) in (0, 1)


def test_a_depth_of_the_target_alone_is_no_base(built, engine, swept, capsys):
    """The sweep's recipe has one layer and counts no depth."""
    base = ("--set", "model.mup.base_width=32", "--set")
    assert transfer(built, swept, *base, "model.mup.base_layers=2") == 2
    err = capsys.readouterr().err
    assert "the target has model.mup.base_layers = 2, the sweep's recipe has 1 layers" in err
    assert "remove base_layers" in err
    assert not (swept / "transfer-target.json").exists()
    assert transfer(built, swept, *base, "model.mup.base_layers=1") == 0


def test_a_sweep_of_an_earlier_format_is_written_anew(built, engine, swept, capsys):
    path = swept / "sweep.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 1}))
    assert transfer(built, swept) == 4
    assert "run headway mup sweep again with the same options" in capsys.readouterr().err
    assert sweep(built, swept, "--hold-out", "256", "--seeds", "3") == 0
    assert not engine.trained
    assert transfer(built, swept) == 0


def test_a_drift_is_refused_unless_a_reason_is_given(built, engine, tmp_path, capsys):
    engine.drift = -0.8
    assert sweep(built, tmp_path / "sweep") == 1
    assert transfer(built, tmp_path / "sweep") == 1
    out = capsys.readouterr().out
    assert "refused: nothing is set" in out
    assert "headway run" not in out
    record = json.loads((tmp_path / "sweep" / "transfer-target.json").read_text())
    assert (record["overrides"], record["despite"], record["result_recipe_digest"]) == ([], None, None)
    assert transfer(built, tmp_path / "sweep", "--despite", "only to see", "--out", str(tmp_path / "forced.json")) == 0
    assert "set despite that: only to see" in capsys.readouterr().out
    record = json.loads((tmp_path / "forced.json").read_text())
    assert (record["verdict"], record["despite"]) == ("does not transfer", "only to see")
    assert record["overrides"]
    assert transfer(built, tmp_path / "sweep", "--despite", " ") == 2


def test_the_factor_is_stated(built, engine, tmp_path, capsys):
    engine.drift = -0.8
    sweep(built, tmp_path / "sweep")
    assert transfer(built, tmp_path / "sweep", "--factor", "8") == 0
    assert transfer(built, tmp_path / "sweep", "--factor", "1") == 2
    assert "above 1" in capsys.readouterr().err


def test_what_does_not_transfer_stays_as_the_proxy_has_it(built, engine, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(BEND, "warmup_tokens", 0.0)
    assert sweep(built, tmp_path / "sweep", "--seeds", "2", "--init-stds", "0.02") == 0
    assert transfer(built, tmp_path / "sweep", "--json") == 0
    capsys_out = capsys.readouterr().out
    record = json.loads(capsys_out[capsys_out.index('{\n "sweep"') :])
    by_path = {value["path"]: value for value in record["values"]}
    assert by_path["stages.0.rate.warmup"]["value"] == 256
    assert "as the target has it" in by_path["stages.0.rate.warmup"]["source"]
    assert not any("warmup" in override for override in record["overrides"])
    assert by_path["model.init_std"]["verdict"] == "not swept"
    assert any("init_std" in override for override in record["overrides"])


@pytest.mark.parametrize(
    ("change", "said"),
    [("optimizer.kind=muon", "optimizer.kind: adamw in the sweep, muon in the target"), ("model.norm=layernorm", "model.norm: ")],
)
def test_another_kind_of_model_or_update_is_no_transfer(built, engine, swept, capsys, change, said):
    assert transfer(built, swept, "--set", change) == 1
    out = capsys.readouterr().out
    assert f"another kind of thing was tuned: {said}" in out
    assert "headway run" not in out
    assert transfer(built, swept, "--set", change, "--despite", "to see") == 0
    assert f"--set {change} --set optimizer.peak_rate" in capsys.readouterr().out


def test_no_record_of_a_transfer_is_overwritten(built, engine, swept, capsys):
    before = set(swept.glob("transfer-target*.json"))
    assert transfer(built, swept) == transfer(built, swept) == 0
    assert len(set(swept.glob("transfer-target*.json")) - before) == 2


def test_one_value_is_what_every_trial_has(built, engine, tmp_path):
    assert sweep(built, tmp_path / "sweep", "--no-standard", "--warmups", "128", "--init-stds", "0.05") in (0, 1)
    trials = json.loads((tmp_path / "sweep" / "plan.json").read_text())["trials"]
    assert {(trial["warmup_tokens"], trial["init_std"]) for trial in trials} == {(128, 0.05)}


def test_a_directory_that_is_another_sweeps_or_no_sweep_is_left_alone(built, engine, swept, tmp_path, capsys):
    before = (swept / "sweep.json").read_bytes()
    assert sweep(built, swept, "--widths", "256,512", "--set", "model.layers=2") == 2
    assert "the sweep of another recipe" in capsys.readouterr().err
    assert (swept / "sweep.json").read_bytes() == before
    (tmp_path / "letter.txt").write_text("mine")
    assert sweep(built, tmp_path) == 2
    assert "no sweep" in capsys.readouterr().err
    assert not engine.trained


def test_changed_records_are_no_evidence(built, engine, swept, capsys):
    path = next(p for p in sorted((swept / "trials").iterdir()) if json.loads(p.read_text())["loss"] is not None)
    record = json.loads(path.read_text())
    record["loss"] -= 1.0
    path.write_text(json.dumps(record))
    assert transfer(built, swept) == 4
    assert "altered after the trial had ended" in capsys.readouterr().err
    path.write_text(json.dumps(sealed({key: value for key, value in record.items() if key != "digest"})))
    assert transfer(built, swept) == 4
    assert "not those that sweep.json was written for" in capsys.readouterr().err


@pytest.mark.parametrize(
    "spoil", [{"kind": "run"}, {"schema_version": 9}, {"settings": {}}, {"mup": [1]}, {"surprise": 1}], ids=str
)
def test_a_damaged_sweep_is_refused(built, engine, swept, capsys, spoil):
    path = swept / "sweep.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | spoil))
    assert transfer(built, swept) == 4
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert "internal" not in err


def test_no_sweep_there(built, engine, tmp_path, capsys):
    assert transfer(built, tmp_path) == 2
    assert "no finished sweep" in capsys.readouterr().err
