"""`Profile`: the rules one framework follows, and the defaults it sets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ledger.config import ParallelConfig
from ledger.model import ModelSpec
from ledger.rules.flow import Flow, Rule
from ledger.stages import Stage, average_stage, pipeline_stage


@dataclass(frozen=True)
class Profile:
    """How one framework communicates.

    Attributes:
        title: one line for people.
        rules: each yields the flows of one kind; their order is the order rows are printed in.
        grad_dtype: of gradients as reduced where the config does not say; null is the parameters' type.
        expert_tp: tensor-parallel degree of experts where the config does not say; null is tp.
        sequence_parallel: whether layer boundaries are split where the config does not say.
        average: stages are not told apart: L/p layers, no ends.
        weighted_layers: embedding and output layer count as a layer each when layers are dealt to stages.
        training: there is a backward pass and an optimizer.
        precision: how state is stored (`ledger.memory.PRECISIONS`): two-byte parameters with a float32 master copy, or
            float32 parameters that are cast when gathered.
    """

    name: str
    title: str
    rules: tuple[Rule, ...]
    grad_dtype: str | None = None
    expert_tp: int | None = None
    sequence_parallel: bool = True
    average: bool = False
    weighted_layers: bool = False
    training: bool = True
    precision: str = "bf16"

    def resolve(self, config: ParallelConfig) -> ParallelConfig:
        """The config with this framework's defaults where it leaves them open.

        Raises:
            LedgerError: the defaults do not fit the degrees.
        """
        return replace(
            config,
            grad_dtype=config.grad_dtype or self.grad_dtype or config.param_dtype,
            expert_tp=config.expert_tp or self.expert_tp or config.tp,
            sequence_parallel=self.sequence_parallel if config.sequence_parallel is None else config.sequence_parallel,
        )

    def stages(self, model: ModelSpec, config: ParallelConfig) -> tuple[Stage, ...]:
        """The stages to tell apart: one per pipeline rank, or the average."""
        if self.average:
            return (average_stage(model, config),)
        return tuple(self.stage(model, config, index) for index in range(config.pp))

    def stage(self, model: ModelSpec, config: ParallelConfig, index: int) -> Stage:
        """Pipeline rank ``index``.

        Raises:
            LedgerError: no such rank, or layers that cannot fill the pipeline.
        """
        if self.average:
            return average_stage(model, config)
        return pipeline_stage(model, config, index, weighted=self.weighted_layers)

    def flows(self, stage: Stage) -> Iterator[Flow]:
        """Everything the stage sends, rule by rule."""
        for rule in self.rules:
            yield from rule(stage)
