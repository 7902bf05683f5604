"""Adds the Debian packages of a list, and what they depend on, to a CycloneDX bill of materials."""

import json
import subprocess
import sys
from pathlib import Path


def main(bill: Path, listed: Path) -> None:
    """Add a component for each installed package that the listed ones need.

    Args:
        bill: The bill of materials, as JSON.
        listed: File with one package a line.
    """
    wanted = [line for line in listed.read_text().split("\n") if line and not line.startswith("#")]
    options = "--recurse --installed --no-recommends --no-suggests --no-conflicts --no-breaks"
    rest = "--no-replaces --no-enhances"
    tree = _output("apt-cache", "depends", *options.split(), *rest.split(), *wanted)
    names = {line.split(":")[0] for line in tree.splitlines() if line[:1].isalnum()}
    fields = "${Package}\\t${Version}\\t${Architecture}\\t${db:Status-Status}\\n"
    rows = [line.split("\t") for line in _output("dpkg-query", "-W", "-f", fields).splitlines()]
    document = json.loads(bill.read_text())
    document.setdefault("components", []).extend(
        {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:deb/debian/{name}@{version}?arch={architecture}",
        }
        for name, version, architecture, status in rows
        if status == "installed" and name in names
    )
    bill.write_text(json.dumps(document, indent=1) + "\n")
    count = len(document["components"])
    print(f"audit: {bill}: {count} components")  # noqa: T201 - a script's output


def _output(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
