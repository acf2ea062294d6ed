"""The work of `vitreous models --pretrained`: prints the table of :mod:`vitreous.checkpoint.pretrained`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rich.box import SIMPLE_HEAD
from rich.table import Table

from vitreous.checkpoint.pretrained import LICENCES, ROWS, Row, find_row
from vitreous.cli.options.outputs import write_document
from vitreous.cli.output.terminal import narrate, print_table
from vitreous.errors import UsageError, did_you_mean
from vitreous.files.writing import Outputs

__all__ = ["pretrained_models"]

_DROP_ORDER = ("trained on", "fine-tuned", "revision", "patch", "k-NN", "hub id", "image", "download")


def pretrained_models(names: Sequence[str], json: str | None, files: Outputs) -> int:
    """Print the rows, or only those named; return the exit code."""
    rows = [_named(name) for name in names] or list(ROWS)
    if json != "-":
        print_table(_table(rows), drop=_DROP_ORDER)
        for row in rows if names else ():
            narrate(f"{row.name}: {row.full_id}: {row.licence}, {LICENCES[row.licence].terms}")
        for source in dict.fromkeys(row.source for row in rows):
            narrate(f"source of {', '.join(row.name for row in rows if row.source == source)}: {source}")
        narrate(
            "linear, k-NN, fine-tuned: published top-1 on ImageNet-1k in %, - where none is stated. `vitreous finetune "
            "DATA --from NAME` starts from a row; without --from, one is chosen"
        )
    if json:
        write_document(files, json, {"pretrained": [_to_dict(row) for row in rows]})
    return 0


def _named(name: str) -> Row:
    row = find_row(name)
    if row is None:
        names = [row.name for row in ROWS]
        raise UsageError(f"there is no pretrained model '{name}'.{did_you_mean(name, names)} Known: {', '.join(names)}")
    return row


def _to_dict(row: Row) -> dict[str, object]:
    """Return a row as JSON values; a download in megabytes, accuracies in percent, null where nothing is stated."""
    licence = LICENCES[row.licence]
    return {
        **asdict(row),
        "commercial_use": licence.commercial,
        "licence_terms": licence.terms,
    }


def _table(rows: Sequence[Row]) -> Table:
    table = Table("name", box=SIMPLE_HEAD)
    for title in ("parameters", "image", "patch", "linear", "k-NN", "fine-tuned", "download"):
        table.add_column(title, justify="right")
    for title in ("licence", "commercial", "gated", "trained on", "hub id", "revision"):
        table.add_column(title)
    for row in rows:
        commercial = LICENCES[row.licence].commercial
        table.add_row(
            row.name,
            f"{row.parameters / 1e6:,.1f} M",
            *(str(n) for n in (row.image_size, row.patch_size)),
            *("-" if value is None else f"{value:.1f}" for value in (row.linear, row.knn, row.fine_tuned)),
            row.download(),
            row.licence,
            ("conditions" if not LICENCES[row.licence].permissive else "yes") if commercial else "no",
            "yes" if row.gated else "no",
            row.data,
            row.hub_id,
            row.revision[:12],
        )
    return table
