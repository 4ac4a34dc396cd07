"""A rollout file in which a bit was flipped is named as damaged, and no value of it is shown."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlep.core.errors import DataError
from rlep.driver.wings.rollout_files import write_tables
from rlep.view.rollouts import read_rows

COLUMNS = {"reward": [1.0, -1.0, 0.5], "prompt_id": ["a", "b", "c"]}


@pytest.mark.parametrize("column", range(len(COLUMNS)))
def test_a_bit_flipped_in_a_rollout_file_is_found_when_it_is_read(tmp_path: Path, column: int) -> None:
    path = tmp_path / "step-000001.parquet"
    write_tables(path, [pa.table(COLUMNS)])
    run: Any = SimpleNamespace(file=lambda *_: path)
    rows = read_rows(run, ("rollouts", path.name), tuple(COLUMNS))
    assert rows == [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(column)
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    whole = path.read_bytes()
    found = 0
    for at in range(begin, begin + chunk.total_compressed_size):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            assert read_rows(run, ("rollouts", path.name), tuple(COLUMNS)) == rows  # of no account: a statistic, say
        except DataError as error:
            assert "rollouts/step-000001.parquet is damaged: " in str(error)  # noqa: PT017 - one of two outcomes
            found += 1
    assert found > chunk.total_compressed_size // 2
