"""The default learning rate of each optimizer."""

SGD_LR = 0.02
ADAM_LR = 0.001  # Adam and AdamW
HELP = (
    f"learning rate; by default {ADAM_LR} for adam and adamw, and {SGD_LR} for sgd, divided by "
    "the number of workers where workers update independently (see lr_scaling)"
)
