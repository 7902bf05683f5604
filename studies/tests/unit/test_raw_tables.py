"""Raw results as CSV."""

from pathlib import Path

from moefabric_studies.raw_tables import PREDICTED, read_table, source_of, table_text

from tests.support.paths import EXAMPLES, REPOSITORY


def test_table_has_its_provenance_and_rows_of_five_digits(tmp_path: Path) -> None:
    study = "studies/moefabric_studies/oracle"
    source = source_of("oracle", [EXAMPLES / "prototype.yaml", EXAMPLES / "fabrics.yaml"], study)
    file = tmp_path / "table.csv"
    file.write_text(table_text(source, [{"fabric": "eps", "last_s": 1.23456789, "lost": 3}]))
    assert read_table(file) == (source, [{"fabric": "eps", "last_s": "1.2346", "lost": "3"}])
    assert [*source.inputs] == ["examples/prototype.yaml", "examples/fabrics.yaml"]
    assert source.measured == [*PREDICTED, study]
    assert all((REPOSITORY / folder).is_dir() for folder in source.measured)
