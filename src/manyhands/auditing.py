"""Attack our own private training: plant canaries, train, guess who was in, compare with the claim.

A run of its own: many canaries, nearly all of them in every step, plain SGD, so that whatever noise
or clipping lacks is seen in one run of seconds. What it tries is the very code that trains: the
sampler, clipping, noise and exchange of the strategy it is given.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from manyhands import validate
from manyhands.config import RunConfig
from manyhands.data import Data
from manyhands.errors import ConfigError
from manyhands.fitting import fit
from manyhands.options import audited, configure, options
from manyhands.privacy.bounds import Estimate, gaussian_estimate, one_run_bound
from manyhands.privacy.canaries import Planted, Pull, coins
from manyhands.record import write_json

ALPHA = 1e-4  # sound code fires one time in ten thousand
SHOWN = 0.05  # the error at which the bound that assumes nothing is shown
RATE, STEPS, LR = 0.95, 10, 1.0
GUESSED = 0.1  # of the canaries: the surest guesses, as many for in as for out


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What an audit found.

    Attributes:
        claimed: The epsilon that the run states.
        delta: Its delta.
        bound: The epsilon refuted at an error of SHOWN with nothing assumed; loose.
        certain: The same at an error of ALPHA.
        estimate: The epsilon of the distance seen, at ALPHA, if the mechanism is Gaussian.
        scores: One number per canary; about 1 for those in, 0 for the others; (canaries,).
        inside: Which were in; (canaries,) bool.
        guesses: How many canaries were guessed for `bound`, and how many of them rightly.
    """

    claimed: float
    delta: float
    bound: float
    certain: float
    estimate: Estimate
    scores: np.ndarray
    inside: np.ndarray
    guesses: tuple[int, int]

    @property
    def broken(self) -> bool:
        """Whether the claim is refuted, at an error of ALPHA."""
        return max(self.certain, self.estimate.epsilon) > self.claimed

    def as_dict(self) -> dict[str, Any]:
        """Return it as `audit.json` has it."""
        return {
            "claimed": self.claimed,
            "delta": self.delta,
            "broken": self.broken,
            "alpha": ALPHA,
            "bound": {"epsilon": self.bound, "alpha": SHOWN},
            "estimate": asdict(self.estimate),
            "canaries": len(self.scores),
            "guesses": {"made": self.guesses[0], "right": self.guesses[1]},
            "scores": {
                "in": [round(float(s), 4) for s in self.scores[self.inside]],
                "out": [round(float(s), 4) for s in self.scores[~self.inside]],
            },
        }


def audit(
    given: Mapping[str, Any],
    *,
    canaries: int = 10_000,
    before: Callable[[], None] | None = None,
    progress: bool | None = None,
) -> Audit:
    """Plant canaries, train with the strategy and the privacy that are given, and guess.

    Args:
        given: Options of a private run; those that the audit decides itself are refused.
        canaries: How many; each is in by a fair coin.
        before: Runs in every worker before the model is built: for tests, to plant bugs.
        progress: Show a progress bar; by default on a terminal.
    """
    validate.at_least(100, canaries=canaries)
    chosen = {name: value for name, value in given.items() if value is not None}
    _refuse_own(chosen)
    chosen = {"noise_multiplier": math.sqrt(STEPS), **chosen} if _bare(chosen) else chosen
    seed = chosen.get("seed", 0)
    inside = coins(canaries, seed)
    members = np.flatnonzero(inside)
    plain = configure({**chosen, "private": True, "batch_size": 1 << 20})
    split = plain.workers if plain.strategy.supports.whole_batches else 1
    chosen |= {
        "private": True,
        "optimizer": "sgd",
        "lr": LR,
        "momentum": 0.0,
        "kernels": "default",
        "batch_size": max(1, round(RATE * len(members) / split)),
        "epochs": STEPS,
        "max_steps": STEPS,
        "name": "audit",
    }
    data = Data((members[:, None], np.zeros(len(members), dtype=np.int64)), classes=2)
    assert plain.privacy is not None
    with tempfile.TemporaryDirectory() as folder:
        result = fit(
            Planted(canaries, before),
            data,
            loss=Pull(plain.privacy.clip),
            progress=progress,
            **{**chosen, "output": str(Path(folder) / "run")},
        )
        weight = result.model.state_dict()["weight"].numpy()
    scores = -weight * _unit(result.run.config, len(members))
    return judge(scores, inside, result.record["privacy"])


def _bare(given: Mapping[str, Any]) -> bool:
    return given.get("epsilon") is None and given.get("noise_multiplier") is None


def _refuse_own(given: Mapping[str, Any]) -> None:
    table = options()
    for name in given:
        if name in table and not audited(table[name]):
            raise ConfigError(f"{name} is given, but an audit decides it itself: leave it out")


def _unit(config: RunConfig, examples: int) -> float:
    """Return what turns the way a parameter went into steps' worth of one canary's gradient."""
    assert config.privacy is not None
    masters = config.strategy.exposure == "masters"
    expected = config.batch_size * (config.workers if masters else 1)
    split = config.workers if config.strategy.supports.whole_batches else 1
    rate = config.batch_size * split / examples
    return expected / (LR * config.privacy.clip * STEPS * rate)


def judge(scores: np.ndarray, inside: np.ndarray, claim: Mapping[str, Any]) -> Audit:
    """Guess from the scores, count the errors, and say what they refute.

    The threshold, one half, is where a canary that was in is as likely as one that was not.
    """
    delta, canaries = float(claim["delta"]), len(scores)
    taken = scores > 0.5
    outs, ins = int((~inside).sum()), int(inside.sum())
    estimate = gaussian_estimate(
        (int((taken & ~inside).sum()), outs), (int((~taken & inside).sum()), ins), delta, ALPHA
    )
    each = max(1, round(GUESSED * canaries / 2))
    order = np.argsort(scores, kind="stable")
    right = int(inside[order[-each:]].sum() + (~inside[order[:each]]).sum())
    return Audit(
        claimed=float(claim["epsilon_pld"]),
        delta=delta,
        bound=one_run_bound(canaries, 2 * each, right, delta, SHOWN),
        certain=one_run_bound(canaries, 2 * each, right, delta, ALPHA),
        estimate=estimate,
        scores=scores,
        inside=inside,
        guesses=(2 * each, right),
    )


def told(found: Audit, output: Path) -> str:
    """Write record and picture into a folder; return what was found, in words."""
    output.mkdir(parents=True, exist_ok=True)
    write_json(output / "audit.json", found.as_dict())
    figure(found, output / "audit.png")
    verdict = "the claim is broken" if found.broken else "nothing speaks against the claim"
    made, right = found.guesses
    return "\n".join(
        [
            f"{verdict}: epsilon {found.claimed:.3f} at delta {found.delta:g}",
            f"estimate      {found.estimate.epsilon:.3f}  if the mechanism is Gaussian; "
            f"canaries are not independent (error {ALPHA:g})",
            f"lower bound   {found.bound:.3f}  with nothing assumed, and loose "
            f"({right} of {made} guesses right, error {SHOWN:g})",
            f"record and picture: {output}",
        ]
    )


def figure(found: Audit, path: Path) -> None:
    """Draw the scores of the canaries that were in, and of those that were not."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture = Figure(figsize=(7, 3.5), layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.add_subplot()
    low, high = np.quantile(found.scores, [0.001, 0.999])
    bins = np.linspace(low, max(high, low + 1e-9), 80).tolist()
    for name, which in (("in", found.inside), ("out", ~found.inside)):
        axes.hist(found.scores[which], bins, alpha=0.6, label=name)
    axes.axvline(0.5, color="black", linewidth=1, linestyle=":")
    axes.set_xlabel("score: what the model holds of the canary, 1 if all of it")
    axes.set_ylabel("canaries")
    axes.set_title(
        f"claimed epsilon {found.claimed:.2f}; estimate {found.estimate.epsilon:.2f}, "
        f"lower bound {found.bound:.2f}"
    )
    axes.legend()
    picture.savefig(path, dpi=120)
