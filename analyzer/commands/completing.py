"""What a shell is offered for an argument or option: files, presets, terms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click
from click.shell_completion import CompletionItem

Offered = list[CompletionItem]


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> Offered:  # noqa: ARG001 click's signature
    """Whatever the shell finds."""
    return [CompletionItem(incomplete, type="file")]


def _names(known: Iterable[str], incomplete: str) -> Offered:
    return [CompletionItem(name) for name in known if name.startswith(incomplete)]


def models(ctx: click.Context, param: click.Parameter, incomplete: str) -> Offered:
    """Presets, or files."""
    from ledger.presets import PRESETS

    return [*_names(filter(None, PRESETS), incomplete), *files(ctx, param, incomplete)]


def clusters(ctx: click.Context, param: click.Parameter, incomplete: str) -> Offered:
    """Presets, or files."""
    from ledger.clusters import CLUSTERS

    return [*_names(CLUSTERS, incomplete), *files(ctx, param, incomplete)]


def profiles(ctx: click.Context, param: click.Parameter, incomplete: str) -> Offered:  # noqa: ARG001
    """Profiles of the ledger."""
    from ledger.profiles import PROFILES

    return _names(("auto", *PROFILES), incomplete)


def terms(ctx: click.Context, param: click.Parameter, incomplete: str) -> Offered:  # noqa: ARG001
    """Words of the glossary."""
    from analyzer.glossary import entries

    known: Sequence[str] = [name for entry in entries() for name in entry.names if " " not in name and "*" not in name]
    return _names(known, incomplete)
