"""Style and figures: what is drawn, and that it is drawn the same way every time."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from synthetic_run import Story, tell

from headway.report import plots
from headway.report.closeup import closeup_figure
from headway.report.curves import loss_figure
from headway.report.facts import RunFacts, gather
from headway.report.figures import figures
from headway.report.material import Material
from headway.report.positions import bucket_name, position_figure
from headway.report.rows import Buckets
from headway.report.timelines import BINS, drawable, segments_figure


def test_thin_keeps_every_spike() -> None:
    x = np.linspace(0, 1, 100_000)
    y = np.sin(7 * x)
    y[[123, 54_321, 99_998]] = 50.0
    y[77_777] = np.nan
    thin_x, thin_y = plots.thin(x, y, 500)
    assert len(thin_x) <= 502
    assert (thin_y == 50.0).sum() == 3
    assert np.all(np.diff(thin_x) > 0)
    assert not np.isnan(thin_y).any()


def test_smooth_is_the_mean_of_the_window() -> None:
    position = np.arange(50.0)
    values = np.random.default_rng(0).normal(size=50)
    values[20] = np.nan
    smoothed = plots.smooth(position, values, 3.0)
    for i in range(50):
        inside = np.abs(position - position[i]) <= 3
        assert smoothed[i] == pytest.approx(np.nanmean(values[inside]))


def test_spread_keeps_labels_apart_and_in_order() -> None:
    places = plots.spread([1.0, 1.01, 1.02, 5.0], 0.2)
    assert np.all(np.diff(places) >= 0.2 - 1e-9)
    assert places[3] == 5.0
    assert np.mean(places[:3]) == pytest.approx(1.01)


def test_E5_rolled_back_points_are_not_joined_to_the_history(facts: RunFacts, material: Material) -> None:
    """No drawn line holds both kept and discarded losses, and the discarded stretch is there once, whole."""
    lost = facts.discarded
    axis = loss_figure(facts, material.breaks).axes[0]
    drawn = [line for line in axis.lines if len(line.get_xdata()) > 2]
    own = [line for line in drawn if np.array_equal(np.asarray(line.get_xdata(), float), lost.tokens.astype(float))]
    assert len(own) == 1
    np.testing.assert_array_equal(np.asarray(own[0].get_ydata(), float), lost.loss)
    history = next(line for line in drawn if len(line.get_xdata()) == len(facts.kept))
    np.testing.assert_allclose(np.asarray(history.get_xdata(), float), facts.kept.tokens)


def test_closeup_shows_both_executions(facts: RunFacts, material: Material) -> None:
    axis, strip = closeup_figure(facts, material.breaks[0], material.proof).axes
    second, first = (np.asarray(line.get_xdata(), float) for line in axis.lines[:2])
    assert first.max() == 57
    assert second.min() == 41
    assert [text.get_text() for text in strip.texts] == ["="] * 17


def test_segments_figure_fills_the_whole_time(facts: RunFacts) -> None:
    assert facts.ledger is not None
    axis = segments_figure(facts, facts.ledger).axes[0]
    painted = [path.get_extents() for collection in axis.collections for path in collection.get_paths()]
    assert min(box.x0 for box in painted) == pytest.approx(0)
    assert max(box.x1 for box in painted) == pytest.approx(facts.ledger.total_ns / 1e9)
    assert sum(box.width for box in painted) == pytest.approx(facts.ledger.total_ns / 1e9, rel=1e-6)


def test_short_pieces_do_not_swallow_long_ones(tmp_path: Path) -> None:
    """A long run has tens of thousands of short intervals: what fills most of a bin is what the bin shows."""
    facts = gather(tell(tmp_path / "run", Story(kill_step=None, steps=2400, save_every=5000, plan=False, evaluate=False)))
    assert facts.ledger is not None
    pieces = drawable(facts.ledger)
    assert len(pieces) <= BINS
    assert sum(piece.ns for piece in pieces) == facts.ledger.total_ns
    shown = sum(piece.ns for piece in pieces if piece.category == "productive")
    assert shown / facts.ledger.total_ns == pytest.approx(facts.ledger.goodput, abs=0.01)


def test_every_figure_is_deterministic(material: Material) -> None:
    for name, function in figures(material).items():
        assert plots.draw(function) == plots.draw(function), name


def test_inline_svg_follows_the_scheme_and_has_its_own_ids(material: Material) -> None:
    seen: set[str] = set()
    for name, function in figures(material).items():
        standalone = plots.draw(function)
        inline = plots.inline_svg(standalone, name)
        assert "w3.org/2000/svg" in standalone
        assert not re.findall(r"#[0-9a-f]{6}\b", inline), name
        assert "http" not in inline
        ids = re.findall(r'\bid="([^"]+)"', inline)
        assert len(ids) == len(set(ids))
        assert not seen & set(ids)
        seen |= set(ids)
        references = re.findall(r'(?:href="#|url\(#)([^")]+)', inline)
        assert set(references) <= set(ids)


def test_palettes_have_the_same_names_and_no_colour_twice() -> None:
    """A colour that two names share could not be told apart when it becomes a variable."""
    assert plots.LIGHT.keys() == plots.DARK.keys()
    assert len(set(plots.LIGHT.values())) == len(plots.LIGHT)


def test_categories_differ_in_lightness_or_hatch() -> None:
    """The four categories that fill most pages stay apart in greyscale."""

    def lightness(name: str) -> float:
        value = plots.LIGHT[name.partition("/")[0]]
        return sum(w * int(value[i : i + 2], 16) / 255 for w, i in ((0.299, 1), (0.587, 3), (0.114, 5)))

    levels = [lightness(plots.CATEGORY_COLOURS[name]) for name in ("productive", "evaluation", "blocking_save", "init")]
    gaps = [abs(a - b) for i, a in enumerate(levels) for b in levels[:i]]
    assert min(gaps) > 0.05
    assert all("/hatched" in plots.CATEGORY_COLOURS[name] for name in ("rolled_back", "unknown", "hang", "skipped"))


def test_positions_are_drawn_where_enough_targets_were_scored(facts: RunFacts) -> None:
    """Against the numbers that were told; a bucket without targets is a gap, not a zero."""
    figure = position_figure(facts)
    evaluation = facts.evaluations[-1]
    for axis, kind in zip(figure.axes, ("window", "document"), strict=True):
        assert len(axis.lines) == len(evaluation.by_position) == 2
        for line, parts in zip(axis.lines, evaluation.by_position.values(), strict=True):
            buckets = parts[kind]
            shown = np.flatnonzero(buckets.targets >= 30)
            assert np.asarray(line.get_xdata()).tolist() == shown.tolist()
            np.testing.assert_allclose(np.asarray(line.get_ydata(), float), buckets.loss[shown])
    assert math.isnan(evaluation.by_position["code"]["document"].loss[2])
    assert [bucket_name(b) for b in (0, 1, 2, 5)] == ["0", "1", "2 to 3", "16 to 31"]


@pytest.mark.parametrize(
    "plain", [None, [], {}, {"targets": [1]}, {"targets": [1], "nll": [1.0, 2.0]}, {"targets": [], "nll": []}]
)
def test_a_record_of_positions_that_is_none_is_left_out(plain: object) -> None:
    assert Buckets.of(plain) is None
