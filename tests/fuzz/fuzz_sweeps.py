"""Records of a sweep whose folder it goes on with."""

import shutil
import tempfile
from pathlib import Path

from moefabric.api.sweeps.folder import SweepFolder
from moefabric.api.sweeps.plan import plan_sweep
from moefabric.core.errors import SpecError
from tests.support.fuzzing import FuzzTarget
from tests.support.sweep_runs import sweep_spec

_PLAN = plan_sweep(sweep_spec(), Path())
_SHM = Path("/dev/shm")


def read_records(data: bytes) -> None:
    """Go on with a folder whose records are the input; each run has a result."""
    folder = Path(tempfile.mkdtemp(prefix="moefabric-fuzz-", dir=_SHM))
    try:
        (folder / "runs").mkdir()
        for run in _PLAN.runs:
            (folder / f"runs/{run}.json").touch()
        (folder / "runs.jsonl").write_bytes(data)
        sweep = SweepFolder(folder, _PLAN, resume=True)
        assert len(sweep.ordered()) <= len(_PLAN.runs)
    except SpecError:
        pass  # what the reader documents
    finally:
        shutil.rmtree(folder)


TARGETS = (FuzzTarget("sweep-records", read_records),)
