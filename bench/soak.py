"""The supervisor through two hundred faults of a real history at 1:1000, with a toy trainer on six nodes. Prints JSON.

    python bench/soak.py [--faults 200] [--scale 1000]

What is asserted on the way (``tests/supervise/soak.py``): committed state never shrinks, every step is in the final lineage once,
the ledger adds up.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"


def main() -> None:
    paths = [str(TESTS / "supervise"), str(TESTS / "rundir"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, str(TESTS / "supervise" / "soak.py"), directory, *sys.argv[1:]]
        sys.exit(subprocess.run(command, env=environment).returncode)


if __name__ == "__main__":
    main()
