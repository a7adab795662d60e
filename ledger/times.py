"""How long what a layout sends takes on the links of a cluster, per dimension."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.clusters import Cluster
from ledger.report import Prediction
from ledger.rows import CommRow
from ledger.transfer import expected_us, least_us


@dataclass(frozen=True)
class DimensionTime:
    """Transfers of one dimension in a step of a rank of one kind of stage; waiting for others is no part of it.

    Attributes:
        stage: first | middle | last | all.
        dim: as in the ledger's rows.
        link: intra_node | inter_node | mixed.
        overlap: whether compute can run beside it: yes | partial | no.
        sent_bytes: per step and rank.
        least_us: at line rate, without latency, as if calls never shared a link.
        expected_us: with latency, at the bandwidth that collectives reach.
    """

    stage: str
    dim: str
    link: str
    overlap: str
    sent_bytes: int
    least_us: float
    expected_us: float


def dimension_times(prediction: Prediction, cluster: Cluster) -> tuple[DimensionTime, ...]:
    """The times of a prediction's rows, summed per stage, dimension, link and possible overlap; in the rows' order."""
    sums: dict[tuple[str, str, str, str], tuple[int, float, float]] = {}
    for row in prediction.rows:
        key = (row.stage, row.dim, row.link, row.overlap)
        sent, least, expected = sums.get(key, (0, 0.0, 0.0))
        one_least, one_expected = row_us(row, cluster)
        sums[key] = (sent + row.sent_bytes_per_step, least + one_least, expected + one_expected)
    return tuple(
        DimensionTime(*key, sent, round(least, 3), round(expected, 3)) for key, (sent, least, expected) in sums.items()
    )


def row_us(row: CommRow, cluster: Cluster) -> tuple[float, float]:
    """Least and expected time of a row's calls in µs per step."""
    if not row.calls_per_step:
        return 0.0, 0.0
    each = row.sent_bytes_per_step / row.calls_per_step
    least = least_us(cluster, row.primitive, row.group_size, row.per_node, each)
    expected = expected_us(cluster, row.primitive, row.group_size, row.per_node, each)
    return least * row.calls_per_step, expected * row.calls_per_step
