"""Writes rows.json anew: what `moefabric paper` predicts now."""

import json
from pathlib import Path

from moefabric.paper.tables import predicted

HERE = Path(__file__).parent

if __name__ == "__main__":
    made = predicted(HERE.parents[2] / "examples/paper")
    rows = {
        f"{table.name}: {row.name}, {row.on}": round(row.ours, 5)
        for table in made.tables
        for row in table.rows
    }
    (HERE / "rows.json").write_text(json.dumps(rows, indent=1) + "\n")
