"""The command `manyhands audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from manyhands.cli.options import takes_options
from manyhands.training.output_folder import check_writable


@takes_options("audit")
def audit(
    *,
    canaries: Annotated[int | None, Parameter(help="how many are planted")] = None,
    kind: Annotated[
        Literal["gradients", "examples"],
        Parameter(
            help="gradients with a direction each; or mislabelled digits in the tanh CNN, which is "
            "realistic and weak"
        ),
    ] = "gradients",
    output: Annotated[Path, Parameter(help="folder for record and picture")] = Path("audit"),
    **given: Any,
) -> None:
    """Attack private training: plant canaries, train, guess who was in; exit 1 if the claim broke.

    Takes the options of a private run; what it trains on, and for how long, it decides itself.
    """
    from manyhands.experiments import privacy_audit

    check_writable(output)
    found = privacy_audit.audit_all(given, canaries=canaries, kind=kind)
    print(privacy_audit.write_report(found, output))
    if any(one.broken for one in found):
        raise SystemExit(1)
