from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa

from analyzer import intervals
from analyzer.exposure import Timeline
from analyzer.occupancy import condensed
from analyzer.reading.one import Job, summarized
from analyzer.summary.file import write_table
from analyzer.summary.table import from_table, to_table
from tests.analyzer.kineto_files import write_job

CALLS, KERNELS = 10_000, 200_000


def test_ten_thousand_calls_at_irregular_times_stay_below_a_megabyte_and_a_half(tmp_path: Path) -> None:
    """No two gaps, lengths, sizes or splits of compute alike, which is worse than any real job."""
    known = from_table(summarized(Job(str(write_job(tmp_path) / "rank0.json"))))[0]
    random = np.random.default_rng(0)
    start = np.sort(random.integers(0, 10**11, CALLS)) + 1_767_189_312_000_000_000
    length = random.integers(20_000, 5_000_000, CALLS)
    rows = known.collectives.num_rows
    table = pa.concat_tables([known.collectives] * (-(-CALLS // rows))).slice(0, CALLS).combine_chunks()
    for name, values in (
        ("ts_ns", start),
        ("dur_ns", length),
        ("launch_ts_ns", start - random.integers(10_000, 90_000_000, CALLS)),
        ("size_bytes", random.integers(0, 10**9, CALLS)),
        ("sent_bytes", random.integers(0, 10**9, CALLS)),
        ("seq", np.arange(CALLS)),
    ):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(name), pa.array(values))
    kernel = np.sort(random.integers(0, 10**11, KERNELS)) + 1_767_189_312_000_000_000
    line = Timeline(
        on_gpu=True,
        compute=intervals.union(kernel, kernel + random.integers(1_000, 400_000, KERNELS)),
        memcpy=intervals.NOTHING,
        comm_start=start,
        comm_end=start + length,
        comm_call=np.arange(CALLS),
        call_start=start,
        call_end=start + length,
        clipped=0,
        left_out=0,
        first=int(start[0]),
        last=int((start + length).max()),
    )
    view = dataclasses.replace(
        known.view,
        family_of_call=random.integers(0, 20, CALLS),
        sequence=random.integers(0, 20, CALLS),
        phases=random.integers(0, 4, CALLS),
        attention_before=random.integers(0, 3, CALLS),
        backward_before=random.random(CALLS) < 0.5,
    )
    small = condensed(line, known.steps.edges)
    write_table(
        to_table([dataclasses.replace(known, collectives=table, line=small, view=view)]), tmp_path / "big.parquet"
    )
    assert (tmp_path / "big.parquet").stat().st_size < 1_500_000
