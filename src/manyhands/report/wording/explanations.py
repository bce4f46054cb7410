"""What each strategy does and why, in prose: the one source for reports and `docs/algorithms`.

`make results` copies these texts into the pages of the documentation, where a mark such as
`<!-- explained server how -->` asks for them. Nothing here depends on a run; what was measured is
said by `topics`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """One strategy, for readers who meet it here first; a user's own has `line` and `how` only.

    Attributes:
        line: What it does, in one line.
        how: How it is implemented: a paragraph.
        sends: How much data it sends, as a formula.
        benefits: When it is the better choice.
        drawbacks: What it costs.
        division: Why it does, or does not, depend on how the data is divided over the workers.
        masters: Why the parameters are split over several masters, where there are any.
        staleness: Why gradients that arrive late slow down or prevent learning, where they do.
    """

    line: str
    how: str
    sends: str = ""
    benefits: str = ""
    drawbacks: str = ""
    division: str = ""
    masters: str = ""
    staleness: str = ""


STRATEGIES = {
    "sequential": Explanation(
        line="one process trains; the baseline of every speed-up",
        how="One process trains the model by plain minibatch SGD. It is the baseline: speed-ups "
        "compare the training time of every other configuration with this run.",
        sends="Nothing.",
        benefits="No communication; the result is reproducible.",
        drawbacks="It uses one worker, however many cores there are.",
    ),
    "sync": Explanation(
        line="workers share every batch and sum their gradients, so their models stay equal",
        how="All workers hold the same model. At every step each worker takes its share of the "
        "global batch, computes the gradient of that share and weights it by the share's size. "
        "The gradients of all layers are packed into one vector. An all-reduce sums these vectors "
        "over the workers. Each worker then makes the same optimizer step with the sum, so the "
        "models stay identical without sending any weights. "
        "The hand-written all-reduces use non-blocking point-to-point messages. The naive one "
        "sends each worker's vector to all others, which add them up. The ring cuts the vector "
        "into P pieces. In P − 1 steps each worker passes a partial sum to its right neighbour, "
        "and then holds one finished piece. In P − 1 more steps the finished pieces travel once "
        "around the ring.",
        sends="For a gradient of n bytes and P workers, each worker sends (P − 1) n per step by "
        "the naive all-reduce and 2 n (P − 1) / P by the ring; all workers together send "
        "P (P − 1) n and 2 (P − 1) n.",
        benefits="The result does not depend on timing. Up to rounding it is that of one worker "
        "with the same global batch, so more workers do not make the model worse.",
        drawbacks="Every step waits for the slowest worker and for the all-reduce. With a fixed "
        "global batch each worker's share shrinks while the gradient keeps its size, so "
        "communication takes a growing part of the time.",
        division="sums the gradients of all workers at every step, so every update uses examples "
        "from all shards, however the data is divided",
    ),
    "averaging": Explanation(
        line="each worker trains its own copy; now and then all copies are replaced by their mean",
        how="Each worker trains its own copy of the model on its own part of the data, without "
        "any communication. At the end, or every so many steps (`--period`), an all-reduce "
        "replaces all copies by their mean, weighted by the examples behind each (PSGD; local "
        "SGD where it is done regularly).",
        sends="One all-reduce of n bytes per averaging: with the ring each worker sends "
        "2 n (P − 1) / P, once in the whole run or once per period.",
        benefits="Almost no communication and no waiting, so it is fast on slow networks.",
        drawbacks="Each copy sees 1/P of the examples between averagings and the mean of the "
        "copies is an approximation: the model can get worse with P, and more where shards differ.",
        division="lets each worker learn alone from its own shard. Where shards hold different "
        "classes, each model learns a different task, and the mean of such models can be worse "
        "than any of them",
    ),
    "hogwild": Explanation(
        line="workers update one model in shared memory, without locks",
        how="The parameters are one vector in shared memory. Each worker process reads it, "
        "computes the gradient of one of its own batches and adds the update to the shared "
        "vector, element by element and without locks. Concurrent updates may overwrite each "
        "other in single elements.",
        sends="Nothing: all workers read and write the same memory of one machine.",
        benefits="No messages, no barriers and no waiting for slow workers.",
        drawbacks="It works on one machine only, the result depends on timing, and gradients are "
        "computed from parameters that others change meanwhile.",
        division="applies every worker's updates to the same parameters, so all shards contribute "
        "throughout the run",
        staleness="While a worker computes, the P − 1 others update the parameters about once "
        "each, so a gradient is about P − 1 updates late when it is applied. On a quadratic loss "
        "with curvature λ a gradient that is τ updates late is stable only while the learning "
        "rate η satisfies η λ < π / (2 τ + 1), approximately: the more workers, the smaller the "
        "rate must be. Beyond that each correction comes too late and overshoots.",
    ),
    "server": Explanation(
        line="masters hold the model; workers send gradients and wait for no other worker",
        how="M masters (parameter servers) hold the parameters, each some of the layers; the "
        "other processes are workers. Each batch of an epoch goes to one worker. The worker "
        "computes its gradient, sends to every master the gradient of that master's layers, and "
        "receives their new parameters. A master waits for a message from "
        "any worker, updates its layers with this one gradient, and answers that worker alone. "
        "At the end the masters send out the final parameters. All messages are non-blocking and "
        "point to point, so no worker waits for another one (unless `--staleness` sets a limit).",
        sends="For n bytes of parameters and M masters, a worker sends n bytes and M message "
        "headers per batch, and receives as many bytes from the masters. The volume per batch "
        "does not grow with the number of workers.",
        benefits="No worker waits for a slower one and no step needs a barrier, so it suits "
        "workers of different speed, or with pauses. Every batch of every worker becomes an "
        "update at once.",
        drawbacks="Gradients are late: the model depends on timing and is worse with many workers; "
        "no two runs are identical; masters occupy processes that compute no gradients.",
        division="applies every worker's gradients to the same parameters in turn, so all shards "
        "contribute throughout the run",
        masters="In a round of W workers, a single master receives W n bytes, sends W n bytes and "
        "runs the optimizer W times over all parameters. Its network link and its one core limit "
        "how fast all workers can go. M masters divide the traffic, the optimizer's "
        "work and its memory by up to M, and a worker exchanges with all of them at once. The "
        "price is M times as many messages, a worker that waits for the slowest of M answers, and "
        "parameters whose parts are not of exactly the same moment. The largest layer stays with "
        "one master, so more masters than layers bring nothing.",
        staleness="Between a worker's pull and its push each of the other W − 1 workers pushes "
        "about once, so a gradient is about W − 1 updates late when a master applies it. On a "
        "quadratic loss with curvature λ a gradient that is τ updates late is stable only while "
        "the learning rate η satisfies η λ < 2 sin(π / (4 τ + 2)) ≈ π / (2 τ + 1). The bound is "
        "2 without delay and falls like 1/τ. Beyond that bound each correction comes too late and "
        "overshoots, until the loss is no longer finite. Momentum lowers the bound further. "
        "Remedies: a learning rate divided by the workers, less momentum, `--staleness-aware`, or "
        "`--staleness 0`.",
    ),
    "gossip": Explanation(
        line="each worker trains its own copy and averages it with its neighbours' at each step",
        how="Each worker trains its own copy of the model and, at every step, averages its "
        "weights with those of its neighbours in a graph (`--topology`), by non-blocking "
        "point-to-point messages. There is no master and no collective; at the end the copies "
        "are averaged.",
        sends="n bytes to each neighbour per step: 2 n in a ring of three or more workers, "
        "whatever P is.",
        benefits="No worker is a bottleneck, and the volume per worker does not grow with P.",
        drawbacks="The copies differ; what one worker learns needs several steps to reach the far "
        "side of the graph.",
        division="mixes weights with neighbours at every step, which holds the copies together "
        "as long as the graph mixes faster than different shards pull them apart",
    ),
    "pipeline": Explanation(
        line="the model is cut into stages, one per process; parts of each batch flow through them",
        how="The model is cut into stages, one per process. A batch is divided into micro-batches "
        "that flow through the stages: each process receives activations from the stage before "
        "it, computes, and sends its own on; gradients return the same way. Every stage then "
        "updates its own parameters.",
        sends="Per batch the activations at every cut, and as many bytes of gradients back; the "
        "volume depends on where the model is cut, not on the number of parameters.",
        benefits="A model that does not fit into one process can be trained, with the same result.",
        drawbacks="Stages wait for each other at the start and the end of every batch, and the "
        "slowest stage sets the pace.",
    ),
    "tensor": Explanation(
        line="each fully connected layer is cut across the processes, which compute it together",
        how="Each fully connected layer is cut within the layer: every process holds a slice of "
        "its weights, computes with that slice, and an all-reduce in the forward and one in the "
        "backward pass add up the parts.",
        sends="Two all-reduces of the activations per pair of layers and batch.",
        benefits="Layers that are too large for one process can be trained, with the same result.",
        drawbacks="It communicates within every pass, so it needs a fast connection.",
    ),
    "model-parallel": Explanation(
        line="the model is cut into parts that live on different processes",
        how="The model is cut into parts that live on different processes; activations and "
        "gradients travel between them.",
        sends="Per batch the activations at every cut, and as many bytes of gradients back.",
        benefits="A model that does not fit into one process can be trained, with the same result.",
        drawbacks="Only one part computes at a time.",
    ),
}

# What is otherwise where runs are private; the rest of a strategy's explanation stays.
PRIVATE = {
    "sequential": {
        "how": "One process trains the model by DP-SGD. It is the baseline: speed-ups compare the "
        "training time of every other configuration with this run.",
        "benefits": "No communication, and no other process to trust.",
    },
    "sync": {
        "benefits": "The noise of one process is enough for all, so the accuracy is that of one "
        "worker with the same sampling rate and noise, up to chance.",
    },
}
DP_SGD = Explanation(
    line="clipped gradients and noise, so that the model says little about any one example",
    how="At every step each example is drawn with the same small probability, by a generator with "
    "a secret key (Poisson sampling). The gradient of each drawn example is scaled down to a norm "
    "of at most C (clipping), the clipped gradients are added, and Gaussian noise of standard "
    "deviation σ C is added to the sum before the optimizer's step.",
    sends="What the strategy sends; samples and keys are never sent.",
    benefits="The model says little about any one example: how little is stated by ε and δ.",
    drawbacks="Clipping and noise cost accuracy, gradients of single examples cost time, and no "
    "two runs are alike.",
)
