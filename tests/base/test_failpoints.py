import json

import pytest

from headway.base import failpoints
from headway.base.errors import ConfigError


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    failpoints.disarm()


def make_run(path, drill, faults):
    (path / "run.json").write_text(json.dumps({"kind": "run", "drill": drill}))
    if faults is not None:
        (path / "drill.json").write_text(json.dumps({"faults": faults}))
    return path


FAULT = {"point": "step.begin", "action": "raise", "step": 3}


def test_a_drill_fires_once_at_its_step(tmp_path):
    run = make_run(tmp_path, True, [FAULT])
    assert failpoints.arm(run)
    failpoints.hit("step.begin", 2)
    with pytest.raises(RuntimeError, match="drill"):
        failpoints.hit("step.begin", 3)
    failpoints.hit("step.begin", 3)
    assert failpoints.arm(run) == []  # after a restart it has fired already


def test_a_production_run_refuses_faults(tmp_path):
    run = make_run(tmp_path, False, [FAULT])
    with pytest.raises(ConfigError, match="not a drill"):
        failpoints.arm(run)
    failpoints.hit("step.begin", 3)


def test_a_production_run_has_none(tmp_path):
    assert failpoints.arm(make_run(tmp_path, False, None)) == []


@pytest.mark.parametrize("fault", [{"point": "step.nowhere"}, {"point": "step.begin", "action": "explode"}])
def test_unknown_words_are_refused(tmp_path, fault):
    with pytest.raises(ConfigError, match="unknown"):
        failpoints.arm(make_run(tmp_path, True, [fault]))


def test_disk_full_is_an_os_error(tmp_path):
    failpoints.arm(make_run(tmp_path, True, [{"point": "save.data_partial", "action": "disk_full"}]))
    with pytest.raises(OSError, match="No space left"):
        failpoints.hit("save.data_partial", 1)
