"""One sentence per strategy, for readers who meet it here first."""

STRATEGIES = {
    "sequential": "One worker, plain minibatch SGD: what every speed-up is measured against.",
    "sync": "Each worker takes a part of every batch; the gradients are summed by an all-reduce "
    "and all workers make the same update.",
    "averaging": "Each worker runs SGD on its own part of the data; the parameters are averaged at "
    "the end or every so many steps (PSGD, local SGD).",
    "hogwild": "All workers update the same parameters in shared memory, without locks.",
    "server": "Masters hold the parameters, each some of the layers; workers send gradients and "
    "receive parameters without waiting for each other.",
    "gossip": "Each worker averages its parameters with its neighbours' only; there is no centre.",
    "pipeline": "The model is cut into stages, one per worker; micro-batches flow through them.",
    "tensor": "Each fully connected layer is cut within the layer; each process has a slice of it.",
    "model-parallel": "The model is cut into parts that live on different workers.",
}
