import pytest

from ledger.errors import LedgerError
from ledger.model import ModelSpec
from ledger.parallel import ParallelConfig
from ledger.presets import preset
from ledger.stages import chunk_layers, pipeline_stage, stages

SIX = ModelSpec(layers=6, hidden=64, ffn=256, heads=8, vocab=128)


def counts(model, config, **how):
    return [len(chunk) for chunk in chunk_layers(model, config, **how)]


def test_layers_that_divide_are_dealt_evenly():
    assert counts(SIX, ParallelConfig(pp=3)) == [2, 2, 2]
    assert counts(SIX, ParallelConfig(pp=3, virtual_stages=2, schedule="interleaved_1f1b")) == [1] * 6


def test_layers_that_do_not_divide_spare_the_ends():
    # 126 layers and the two ends are 128 slots of 16 stages, as Llama 3 405B was cut
    assert counts(preset("llama3-405b"), ParallelConfig(pp=16)) == [7, *[8] * 14, 7]
    assert counts(SIX, ParallelConfig(pp=4)) == [1, 2, 2, 1]


def test_torchtitan_counts_embedding_and_output_as_layers():
    eight = ModelSpec(layers=8, hidden=64, ffn=256, heads=8, vocab=128)
    assert counts(eight, ParallelConfig(pp=4), weighted=True) == [2, 3, 2, 1]


def test_declared_stages_are_used():
    config = ParallelConfig(pp=2, layers_per_stage=(2, 4))
    assert [stage.layers for stage in stages(SIX, config)] == [2, 4]
    with pytest.raises(LedgerError, match="adds up to 5"):
        stages(SIX, ParallelConfig(pp=2, layers_per_stage=(2, 3)))


def test_ends_belong_to_the_first_and_last_chunk():
    looped = stages(SIX, ParallelConfig(pp=3, virtual_stages=2, schedule="interleaved_1f1b"))
    assert [(stage.embeddings, stage.heads) for stage in looped] == [(1, 0), (0, 0), (0, 1)]
    # in a V the first rank holds both
    folded = stages(SIX, ParallelConfig(pp=3, virtual_stages=2, schedule="zbv"))
    assert [(stage.embeddings, stage.heads) for stage in folded] == [(1, 1), (0, 0), (0, 0)]
    assert folded[0].layer_ids == (0, 5)


def test_dualpipe_holds_two_stages_and_halves_the_microbatches():
    both = stages(SIX, ParallelConfig(pp=2, schedule="dualpipe", microbatches=8))
    assert [stage.layers for stage in both] == [6, 6]
    assert [(stage.embeddings, stage.heads, stage.runs) for stage in both] == [(1, 1, 4), (1, 1, 4)]


def test_mtp_adds_a_layer_and_a_second_pass_through_the_output():
    last = pipeline_stage(preset("deepseek-v3"), ParallelConfig(pp=4), 3)
    assert (last.layers, last.heads, last.embeddings, last.embedding_copies) == (15, 2, 1, 1)


def test_tied_embeddings_are_held_at_both_ends():
    tied = ModelSpec(layers=4, hidden=64, ffn=256, heads=8, vocab=128, tied=True)
    first, last = stages(tied, ParallelConfig(pp=2))
    assert first.embedding_copies == last.embedding_copies == 1
    assert pipeline_stage(tied, ParallelConfig(), 0).embedding_copies == 1


def test_more_chunks_than_layers_are_refused():
    with pytest.raises(LedgerError, match="6 layers cannot fill 8"):
        stages(SIX, ParallelConfig(pp=8))
    with pytest.raises(LedgerError, match="outside"):
        pipeline_stage(SIX, ParallelConfig(pp=2), 2)
