"""Builds a private run's sampler, mechanism and ledger. Collective."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from manyhands.data import Plan
from manyhands.errors import ConfigError
from manyhands.model.dropout import Masks
from manyhands.privacy import keys, ledger, split_model_clipping
from manyhands.privacy.accountant import Event
from manyhands.privacy.clipping import probe, refuse
from manyhands.privacy.generator import seed_secretly
from manyhands.privacy.layerwise import Layerwise
from manyhands.privacy.ledger import Ledger
from manyhands.privacy.mechanism import Mechanism
from manyhands.privacy.noise import RoundedNormals
from manyhands.privacy.sampling import PoissonPlan
from manyhands.privacy.split_model_clipping import StageClipping
from manyhands.privacy.steps_rate_noise import Terms, solve, steps_per_epoch

if TYPE_CHECKING:
    from manyhands.comm import Communicator
    from manyhands.config.run import RunConfig
    from manyhands.data.batch_tree import Tree
    from manyhands.model.replica import Replica
    from manyhands.privacy.weights_provenance import Provenance
    from manyhands.worker.worker import Worker


def make_private(
    config: RunConfig,
    plan: Plan,
    replica: Replica,
    example: tuple[Tree, Tree],
    group: Communicator,
    before: tuple[Event, ...] = (),
) -> tuple[PoissonPlan, Mechanism]:
    """Return the secret sampler that replaces the plan, and the mechanism that adds noise.

    Refuses a model that cannot be private, trying `example` on it. Keys are drawn here, shared
    where the workers share their samples, and kept in memory only. `before` was spent on the
    initial weights.
    """
    privacy = config.privacy
    assert privacy is not None
    refuse(replica.module)
    if Layerwise.unknown(replica):  # known layers neither mix examples nor keep traces of them
        probe(replica, *example)
    if config.strategy.supports.beside == "stage":
        split_model_clipping.check(replica)
    terms = _shared_terms(config, plan.examples, group, before)
    shared = config.partition_kind == "balanced"
    root = keys.new_key() if privacy.fixed_key is None else keys.fixed_key(privacy.fixed_key)
    own = keys.derive_key(root, "own", group.rank)
    common = b""
    if shared:  # rank 0's; what each worker draws its noise from stays its own
        sent = keys.derive_key(root, "common").hex() if group.rank == 0 else None
        common = bytes.fromhex(group.gather(sent)[0])
    sample = keys.PoissonSample(common if shared else own, terms.rate, secure=privacy.secure_noise)
    split = 1 if config.strategy.supports.whole_batches else config.workers
    sampler = PoissonPlan(
        sample=sample,
        records=None if shared else np.sort(plan.shard),
        examples=plan.examples,
        rank=plan.rank,
        size=config.workers,
        total=config.batch_size,
        share=config.batch_size / split,
        per_epoch=steps_per_epoch(config, plan.examples),
        partition=config.partition_kind,
    )
    noise = RoundedNormals(None if privacy.secure_noise else own, secure=privacy.secure_noise)
    # Dropout masks are secret too. They belong to records: one record more changes no other's.
    root = common if shared else own
    replica.masks = Masks(keys.derive_key(root, "dropout"), replica.params.device)
    seed_secretly(keys.derive_key(own, "random calls"))  # for what masks do not cover
    mechanism = Mechanism(config, replica, terms, noise, example[0])
    return Mechanism.watch(mechanism, sampler) if Mechanism.watch else sampler, mechanism


def split_mechanism(
    mechanism: Mechanism, part: Replica, group: Communicator, config: RunConfig
) -> None:
    """Make this process clip and noise its part of a split model. Collective."""
    from manyhands.comm.mpi import MPICommunicator
    from manyhands.strategies.pipeline.stage import Stage

    assert config.privacy is not None
    assert isinstance(part, Stage)
    assert isinstance(group, MPICommunicator)
    team = group.split(config.strategy.follows(group.rank, config.workers))

    def total(squares: torch.Tensor) -> None:
        with team.meter.off():  # as many numbers as examples
            team.allreduce(squares)

    mechanism.replica = part
    part.passes = StageClipping(mechanism, part, total, chunk_mb=config.privacy.chunk_mb)


def _shared_terms(
    config: RunConfig, examples: int, group: Communicator, before: tuple[Event, ...]
) -> Terms:
    """Return the terms, which rank 0 computes."""
    mine = solve(config, examples, before).as_dict() if group.rank == 0 else None
    return Terms(**group.gather(mine)[0])


def open_ledger(
    worker: Worker,
    output: Path,
    remembered: dict[str, Any] | None,
    provenance: Provenance | None = None,
) -> None:
    """Open or resume this worker's ledger; determine how many steps the budget allows.

    Args:
        worker: With its mechanism, at the step it begins from.
        output: The run's folder.
        remembered: What the checkpoint says of the account; None where there is no checkpoint.
        provenance: What the run started from.

    Raises:
        ConfigError: If the ledger cannot be trusted, or the budget is spent already.
    """
    mechanism = worker.computation.mechanism
    assert mechanism is not None
    terms, path = mechanism.terms, output / f"ledger-{worker.rank}.jsonl"
    reserved = provenance.planned if provenance else None
    if reserved and reserved != Event(terms.steps, terms.rate, terms.noise_multiplier):
        raise ConfigError(
            f"the budget of the data set has reserved {reserved}, but this run would take {terms}; "
            "start it again"
        )
    own = (provenance.run if provenance else "") or secrets.token_hex(8)
    run = worker.comm.gather(own)[0]
    spent = 0
    together = worker.config.strategy.supports.together
    before = ledger.steps_paid(output) if together and remembered else 0  # fewer workers may go on
    pays = worker.role != "master"  # each who adds noise of its own
    if pays:
        if remembered or path.exists():
            known = remembered or {}
            mechanism.ledger = Ledger.resume(
                path, run=known.get("run"), terms=terms.as_dict(), at_least=known.get("spent", 0)
            )
        else:
            head = {"run": run, "limit": terms.steps, "terms": terms.as_dict()}
            mechanism.ledger = Ledger.begin(
                path,
                **head,
                data=worker.data.name,
                provenance=provenance.as_dict() if provenance else None,
            )
        spent = mechanism.ledger.spent
    if together:  # they can only end together
        spent = int(worker.comm.maximum(np.array([max(spent, before)]))[0])
    left = terms.steps - spent if pays else 0
    if int(worker.comm.maximum(np.array([left]))[0]) <= 0:
        raise ConfigError(
            f"the privacy budget of {terms.steps} steps is spent; this run cannot go on: start a "
            "new one, with a budget of its own"
        )
    if worker.step + left < terms.steps:
        mechanism.last = worker.step + max(0, left)
