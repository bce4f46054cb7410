"""A model as one vector, its metrics, its learning rate, its kernels."""
