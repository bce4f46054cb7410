"""The command `manyhands audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from manyhands.cli.options import takes_options
from manyhands.errors import ConfigError
from manyhands.training.output_folder import check_writable


@takes_options("audit")
def audit(
    *,
    canaries: Annotated[
        int | None, Parameter(help="records with a planted gradient [default: 1000]")
    ] = None,
    kind: Annotated[str | None, Parameter(show=False)] = None,
    output: Annotated[Path, Parameter(help="folder for the record")] = Path("audit"),
    **options: Any,
) -> None:
    """Test a private run: record every message, test the mechanism, guess canaries.

    Takes the options of `train`. With any of the recipe (model, data, batch size, learning rate …)
    it audits that run; without them, two small models of the audit's own. Exits with 1 if any test
    refutes the claim.
    """
    from manyhands.experiments.audit import run

    if kind not in (None, "gradients"):
        raise ConfigError(
            f"kind is {kind!r}, but the audit plants gradients only: mislabelled digits told "
            "nothing of noise and clipping that were left out; leave kind out"
        )
    check_writable(output)
    audits = run.audit_all(options, canaries=canaries)
    print(run.write_report(audits, output))
    if run.fired(audits):
        raise SystemExit(1)
