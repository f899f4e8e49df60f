"""``headway plan worksheet FILE``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from headway.base.errors import EXIT_FINDINGS, EXIT_OK
from headway.cli.options import Html, Json, Markdown, Why


def worksheet(
    file: Annotated[str, Parameter(help="A worksheet file, or the name of a shipped one such as example.")],
    /,
    *,
    overrides: Annotated[
        list[str] | None,
        Parameter(
            name="--set",
            metavar="KEY=VALUE",
            negative="",
            help="Override one value of the worksheet, such as reservation.devices=512. Repeatable.",
        ),
    ] = None,
    json: Json = False,
    markdown: Markdown = False,
    html: Html = False,
    why: Why = None,
) -> int:
    """Show what a reservation of devices buys: shares, tokens affordable, cost, energy.

    Reserved post-training and context stages are taken off first, then the shares, which sum to 100 %. The rate declares
    what it counts, so that nothing is discounted twice. The exit code is 1 when risks are named.
    """
    from headway.cli.plan import show, show_why
    from headway.cli.plan_build import one_form
    from headway.plan.worksheet.worksheet import worksheet_plan

    one_form(json=json, markdown=markdown, html=html, why=why)
    made = worksheet_plan(file, tuple(overrides or ()))
    if why is not None:
        show_why(made, why, json=json)
        return EXIT_OK
    show(made, json=json, markdown=markdown, html=html)
    return EXIT_FINDINGS if made.risks else EXIT_OK
