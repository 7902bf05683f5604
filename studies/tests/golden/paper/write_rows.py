"""Writes rows.json with the values that `moefabric paper` predicts now."""

import json
from pathlib import Path

from moefabric_studies.paper.results import predict_tables

FOLDER = Path(__file__).parent

if __name__ == "__main__":
    results = predict_tables(FOLDER.parents[3] / "examples/paper")
    rows = {
        f"{table.name}: {row.name}, {row.subject}": round(row.value, 5)
        for table in (*results.tables, results.aims)
        for row in table.rows
        if row.value is not None
    }
    (FOLDER / "rows.json").write_text(json.dumps(rows, indent=1) + "\n")
