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


FLIP = {"point": "step.gradients", "action": "flip", "step": 2, "tensor": "w", "bit": 11}


def test_a_flip_turns_one_bit_of_one_tensor(tmp_path):
    failpoints.arm(make_run(tmp_path, True, [FLIP]))
    memory = {"w": bytearray(4), "other": bytearray(4)}
    for step in (1, 2, 2, 3):
        failpoints.hit("step.gradients", step, lambda name: memoryview(memory[name]))
    assert memory == {"w": b"\x00\x08\x00\x00", "other": bytes(4)}


@pytest.mark.parametrize("wrong", [{"point": "save.begin"}, {"tensor": ""}])
def test_a_flip_without_memory_is_refused(tmp_path, wrong):
    with pytest.raises(ConfigError, match="no bit can be flipped"):
        failpoints.arm(make_run(tmp_path, True, [FLIP | wrong]))
