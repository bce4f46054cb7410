"""Attack our own private training: plant canaries, train, guess who was in, compare with the claim.

A run of its own: many canaries, nearly all of them in every step, plain SGD, so that whatever noise
or clipping lacks is seen in one run of seconds. What it tries is the very code that trains: the
sampler, noise and exchange of the strategy it is given, and every way of clipping that it has.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from manyhands import validate
from manyhands.config.options import configure, options
from manyhands.config.run import RunConfig
from manyhands.data import Data, Stored, store
from manyhands.errors import ConfigError
from manyhands.launch.machine import write_json
from manyhands.model.zoo import tanh_cnn
from manyhands.privacy.bounds import Estimate, gaussian_estimate, one_run_bound
from manyhands.privacy.canaries import (
    AuditModel,
    chain,
    coins,
    dirac,
    directions,
    least_squares,
    projections,
)
from manyhands.training.result import Result
from manyhands.training.setup import fit
from manyhands.validate import whole

Kind = Literal["gradients", "examples"]
Clipping = Literal["layers", "vmap", "stages"]
CLIPPING: Mapping[Clipping, str] = {
    "layers": "clipped layer by layer (privacy/layerwise.py)",
    "vmap": "clipped by vmap (privacy/clipping.py)",
    "stages": "clipped over the stages (privacy/staged.py)",
}

ALPHA = 1e-4  # sound code fires one time in ten thousand
SHOWN = 0.05  # the error at which the bound that assumes nothing is shown
RATE, STEPS = 0.95, 10
GUESSED = 0.1  # of the canaries: the surest guesses, as many for in as for out
DRIFT = 0.1  # the rate times the clipping norm: small beside the layers, large beside rounding
WEAK = (
    "note: mislabelled digits are a realistic attack and a weak one, which missed noise and "
    "clipping left out altogether; trust kind gradients"
)


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
        kind: What was planted.
        clipping: What clipped it.
    """

    claimed: float
    delta: float
    bound: float
    certain: float
    estimate: Estimate
    scores: np.ndarray
    inside: np.ndarray
    guesses: tuple[int, int]
    kind: Kind = "gradients"
    clipping: Clipping = "layers"

    @property
    def broken(self) -> bool:
        """Whether the claim is refuted, at an error of ALPHA."""
        return max(self.certain, self.estimate.epsilon) > self.claimed

    @property
    def ceiling(self) -> float:
        """The most that so many canaries could estimate, if every guess were right."""
        inside = int(self.inside.sum())
        whole = (0, len(self.inside) - inside), (0, inside)
        return gaussian_estimate(*whole, delta=self.delta, alpha=ALPHA).epsilon

    def as_dict(self) -> dict[str, Any]:
        """Return it as `audit.json` has it."""
        return {
            "kind": self.kind,
            "clipping": self.clipping,
            "claimed": self.claimed,
            "delta": self.delta,
            "broken": self.broken,
            "alpha": ALPHA,
            "bound": {"epsilon": self.bound, "alpha": SHOWN},
            "estimate": asdict(self.estimate),
            "ceiling": self.ceiling,
            "canaries": len(self.scores),
            "guesses": {"made": self.guesses[0], "right": self.guesses[1]},
            "scores": {
                "in": [round(float(s), 4) for s in self.scores[self.inside]],
                "out": [round(float(s), 4) for s in self.scores[~self.inside]],
            },
        }


class Canaries(NamedTuple):
    """What an audit plants, and how it looks for it.

    `score` takes the result and what turns the way that a parameter went into canaries' worth.
    """

    model: AuditModel
    data: Data
    loss: Callable[..., Any]
    lr: float
    score: Callable[[Result, float], np.ndarray]


def list_clippings(given: Mapping[str, Any], kind: Kind = "gradients") -> tuple[Clipping, ...]:
    """Return the ways in which a run with these options may clip, by its model."""
    named = {"strategy": given["strategy"]} if given.get("strategy") else {}
    if configure(named).strategy.supports.beside == "stage":
        return ("stages",)
    return ("layers", "vmap") if kind == "gradients" else ("layers",)  # as the tanh CNN is


def audit_all(
    given: Mapping[str, Any], *, canaries: int | None = None, kind: Kind = "gradients"
) -> list[Audit]:
    """Audit every way of clipping that a run with these options may use."""
    return [
        audit(given, canaries=canaries, kind=kind, clipping=clipping)
        for clipping in list_clippings(given, kind)
    ]


def audit(
    given: Mapping[str, Any],
    *,
    canaries: int | None = None,
    kind: Kind = "gradients",
    clipping: Clipping | None = None,
    before: Callable[[], None] | None = None,
    progress: bool | None = None,
) -> Audit:
    """Plant canaries, train with the strategy and the privacy that are given, and guess.

    Args:
        given: Options of a private run; those that the audit decides itself are refused.
        canaries: How many, each in by a fair coin; by default 10,000 gradients or 1,000 examples.
        kind: Gradients with a direction each (the strongest), or mislabelled digits in the tanh
            CNN (an attack that could really happen, and a weak one).
        clipping: Which code is to clip, of those in `list_clippings`; by default the first of them.
        before: Runs in every worker before the model is built: for tests, to plant bugs.
        progress: Show a progress bar; by default on a terminal.
    """
    validate.one_of(get_args(Kind), kind=kind)
    whole(100, 1_000_000).check("canaries", canaries)
    canaries = canaries or {"gradients": 10_000, "examples": 1_000}[kind]
    chosen = {name: value for name, value in given.items() if value is not None}
    _refuse_own(chosen)
    if chosen.get("epsilon") is None and chosen.get("noise_multiplier") is None:
        chosen["noise_multiplier"] = math.sqrt(STEPS)
    plain = configure({**chosen, "private": True, "batch_size": 1 << 20})
    inside = coins(canaries, plain.seed)
    clipping = clipping or list_clippings(given, kind)[0]
    validate.one_of(list_clippings(given, kind), clipping=clipping)
    if kind == "gradients":
        planted = _plant_gradients(plain, inside, before, clipping)
    else:
        planted = _plant_examples(plain, inside, before)
    members, split = int(inside.sum()), _count_batches(plain)
    chosen |= {
        "private": True,
        "optimizer": "sgd",
        "lr": planted.lr,
        "momentum": 0.0,
        "kernels": "default",
        "batch_size": max(1, round(RATE * members / split)),
        "epochs": STEPS,
        "max_steps": STEPS,
        "name": "audit",
    }
    with tempfile.TemporaryDirectory() as folder:
        output = str(Path(folder) / "run")
        run = {**chosen, "output": output, "progress": progress}
        result = fit(planted.model, planted.data, loss=planted.loss, **run)
        scores = planted.score(result, _compute_unit(result.run.config, members, planted.lr))
    found = estimate(scores, inside, result.record["privacy"])
    return replace(found, kind=kind, clipping=clipping)


def _plant_gradients(
    config: RunConfig, inside: np.ndarray, before: Callable[[], None] | None, clipping: Clipping
) -> Canaries:
    from torch.nn.functional import nll_loss

    assert config.privacy is not None
    clip = config.privacy.clip
    x, y = dirac(len(inside), clip)
    # Two layers or more, so that who clips each of them on its own lets too much through.
    depth = max(2, getattr(config.strategy, "stages", 1))
    build = partial(chain, x.shape[1], depth, opaque=clipping == "vmap")

    def score(result: Result, unit: float) -> np.ndarray:
        return unit * projections(result.model, len(inside))

    return Canaries(
        model=AuditModel(build, before),
        data=Data((x[inside], y[inside]), classes=x.shape[1]),
        loss=nll_loss,
        lr=DRIFT / clip,
        score=score,
    )


def _plant_examples(
    config: RunConfig, inside: np.ndarray, before: Callable[[], None] | None
) -> Canaries:
    import torch
    from torch.nn.functional import cross_entropy

    assert config.privacy is not None
    clip = config.privacy.clip
    x, y = _mislabel_digits(len(inside), config.seed)
    data = Data((x[inside], y[inside]), classes=10)

    def score(result: Result, unit: float) -> np.ndarray:
        torch.manual_seed(config.seed)
        first, last = tanh_cnn(), result.model
        pairs = zip(last.parameters(), first.parameters(), strict=True)
        way = -unit * torch.cat([(b - a).detach().flatten() for b, a in pairs])
        images = torch.from_numpy(x).float() / 255
        u = directions(first, cross_entropy, images, torch.from_numpy(y), clip)
        said = result.record["privacy"]
        variance = said["noise_multiplier"] ** 2 / (STEPS * said["rate"] ** 2)
        return least_squares(u, way, variance)

    return Canaries(AuditModel(tanh_cnn, before), data, cross_entropy, 0.01, score)


def _mislabel_digits(canaries: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return digits of MNIST, (canaries, 1, 28, 28) bytes, and a wrong class for each."""
    random = np.random.default_rng([seed, 1])
    with tempfile.TemporaryDirectory() as folder:
        train = Stored.open(store("mnist", Path(folder) / "mnist")).train
        rows = np.sort(random.permutation(len(train))[:canaries])
        x, y = train.x[rows].numpy().copy(), train.y[rows].numpy().copy()
    return x, (y + random.integers(1, 10, canaries)) % 10


def _refuse_own(given: Mapping[str, Any]) -> None:
    table = options()
    for name in given:
        if name in table and not table[name].is_taken_by("audit"):
            raise ConfigError(f"{name} is given, but an audit decides it itself: leave it out")


def _count_batches(config: RunConfig) -> int:
    """Return how many batches of that size all workers take in a step."""
    return config.workers if config.strategy.supports.whole_batches else 1


def _compute_unit(config: RunConfig, members: int, lr: float) -> float:
    """Return what turns the way a parameter went into canaries' worth of clipped gradients."""
    assert config.privacy is not None
    masters = config.strategy.exposure == "masters"
    expected = config.batch_size * (config.workers if masters else 1)
    rate = config.batch_size * _count_batches(config) / members
    return expected / (lr * config.privacy.clip * STEPS * rate)


def estimate(scores: np.ndarray, inside: np.ndarray, claim: Mapping[str, Any]) -> Audit:
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


def write_report(found: Sequence[Audit], output: Path) -> str:
    """Write record and picture into a folder; return what was found, in words."""
    output.mkdir(parents=True, exist_ok=True)
    broken = any(one.broken for one in found)
    each = [one.as_dict() for one in found]
    write_json(output / "audit.json", {"broken": broken, "audits": each})
    draw_scores(found, output / "audit.png")
    lines = [line for one in found for line in _format_audit(one)]
    if any(one.kind == "examples" for one in found):
        lines.append(WEAK)
    return "\n".join([*lines, f"record and picture: {output}"])


def _format_audit(found: Audit) -> list[str]:
    verdict = "the claim is broken" if found.broken else "nothing speaks against the claim"
    if not found.broken and found.ceiling <= found.claimed:
        verdict = f"too few canaries to tell, which refute {found.ceiling:.3g} at the most"
    made, right = found.guesses
    return [
        f"{found.kind} {CLIPPING[found.clipping]}",
        f"{verdict}: epsilon {found.claimed:.3f} at delta {found.delta:g}",
        f"estimate      {found.estimate.epsilon:.3f}  if the mechanism is Gaussian; "
        f"canaries are not independent (error {ALPHA:g})",
        f"lower bound   {found.bound:.3f}  with nothing assumed, and loose "
        f"({right} of {made} guesses right, error {SHOWN:g})",
    ]


def draw_scores(found: Sequence[Audit], path: Path) -> None:
    """Draw the scores of the canaries that were in, and of those that were not."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture = Figure(figsize=(7, 3.5 * len(found)), layout="constrained")
    FigureCanvasAgg(picture)
    for one, axes in zip(found, picture.subplots(len(found), squeeze=False)[:, 0], strict=True):
        low, high = np.quantile(one.scores, [0.001, 0.999])
        bins = np.linspace(low, max(high, low + 1e-9), 80).tolist()
        for name, which in (("in", one.inside), ("out", ~one.inside)):
            axes.hist(one.scores[which], bins, alpha=0.6, label=name)
        axes.axvline(0.5, color="black", linewidth=1, linestyle=":")
        axes.set_xlabel("score: what the model holds of the canary, 1 if all of it")
        axes.set_ylabel("canaries")
        axes.set_title(
            f"{one.kind}, {one.clipping}: claimed epsilon {one.claimed:.2f}, "
            f"estimate {one.estimate.epsilon:.2f}, lower bound {one.bound:.2f}"
        )
        axes.legend()
    picture.savefig(path, dpi=120)
