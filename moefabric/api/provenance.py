"""Provenance of a run: commit of the source, model of the CPU, digests of the inputs."""

import hashlib
import json
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import moefabric
from moefabric.config.code_inputs import code_digests
from moefabric.config.experiment import ExperimentSpec
from moefabric.config.inputs import digest_of, named_paths
from moefabric.config.plugins import is_foreign
from moefabric.config.references import named_parts
from moefabric.results.model import Provenance

_PARTS: Final = (
    "core", "runtime", "simulator", "workload", "planner", "config", "traces", "results",
    "prediction", "testbed", "execution",
)  # fmt: skip
MEASURED: Final = ("agents", "controller", "emulator", *(f"moefabric/{part}" for part in _PARTS))
"""Folders of the source on which a measurement depends."""
_SOURCE: Final = Path(moefabric.__file__).resolve().parents[1]
_CPU: Final = Path("/proc/cpuinfo")


def provenance(
    spec: ExperimentSpec,
    file: Path,
    settings: Sequence[str] = (),
    command: str = "run",
    options: Sequence[str] = (),
) -> Provenance:
    """Return the provenance of an experiment that is about to be run.

    Args:
        settings: Changes to the file, as in `--set`.
        command: Subcommand of `moefabric` that runs the experiment.
        options: Further words of that command.
    """
    model = spec.model.build()
    values = {name: value for name, value in asdict(model).items() if name != "notes"}
    sizes = json.dumps(values, sort_keys=True, default=str)
    references = [reference for _, reference in named_parts(spec)]
    in_file = [one for one in references if not any(one in setting for setting in settings)]
    words = [*options, *(["--plugins", "any"] if any(map(is_foreign, in_file)) else [])]
    source = provenance_of(file, settings, command, _inputs(spec, file.parent), words)
    inputs = source.inputs | {f"{key}: {name}": digest for key, name, digest in code_digests(spec)}
    inputs[f"model {model.name}"] = hashlib.sha256(sizes.encode()).hexdigest()
    return source.model_copy(update={"inputs": inputs})


def command_options(
    hosts_file: Path | None = None,
    external: Iterable[str] = (),
    cluster: str | None = None,
    spread: str = "pack",
    *,
    flows: bool = False,
) -> list[str]:
    """Return the options of `moefabric run` that change a result; no address is among them."""
    words = ["--flows"] if flows else []
    words += ["--hosts", hosts_file.name] if hosts_file is not None else []
    words += ["--external", ",".join(sorted(external))] if external else []
    words += ["--cluster", "auto"] if cluster is not None else []
    return words + (["--spread", spread] if cluster is not None and spread != "pack" else [])


def provenance_of(
    file: Path,
    settings: Sequence[str],
    command: str,
    others: Iterable[Path] = (),
    options: Sequence[str] = (),
) -> Provenance:
    """Return the provenance of a result that a command computes from a file.

    Args:
        settings: Changes to the file, as in `--set`.
        command: Subcommand of `moefabric`.
        others: Files that the file names.
        options: Further words of the command.
    """
    words = ["moefabric", command, _name(file)]
    words += [*(word for setting in settings for word in ("--set", setting)), *options]
    inputs = {_name(path): digest_of(path, _name(path)) for path in (file, *others)}
    commit, modified = commit_of(_SOURCE)
    return Provenance(
        commit=commit,
        modified=modified,
        measured=list(MEASURED),
        command=shlex.join(words),
        cpu=_cpu(),
        inputs=inputs,
    )


def _inputs(spec: ExperimentSpec, folder: Path) -> Iterator[Path]:
    """Yield the files that an experiment names."""
    for _, path in named_paths(spec):
        if (file := folder / path.expanduser()).exists():
            yield file


def _name(path: Path) -> str:
    """Return a path from the root of the source, or its last part if it is elsewhere."""
    whole = path.resolve()
    return str(whole.relative_to(_SOURCE)) if whole.is_relative_to(_SOURCE) else path.name


def commit_of(source: Path, folders: Sequence[str] = MEASURED) -> tuple[str | None, bool]:
    """Return the commit of a checkout, and whether folders differ from it.

    An installed package is no checkout, even if a folder above it is one.
    """
    if not (source / ".git").exists():
        return None, False
    commit = _git(source, "rev-parse", "HEAD")
    changes = _git(source, "status", "--porcelain", "--untracked-files=no", "--", *folders)
    return commit or None, bool(commit and changes)


def _git(source: Path, *arguments: str) -> str:
    """Return the output of git in the source, whoever owns it; empty if git fails or is missing."""
    command = ["git", "-c", f"safe.directory={source}", "-C", str(source), *arguments]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return completed.stdout.strip() if completed.returncode == 0 else ""


def _cpu() -> str:
    """Return the model of the CPU; empty if the kernel doesn't tell it."""
    lines = _CPU.read_text().splitlines() if _CPU.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "")
