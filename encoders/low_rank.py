"""Layers with low-rank updates (LoRA). Training can be continued after loading."""

from __future__ import annotations

import numpy as np
from keras import initializers, ops

from encoder_zoo.common.layers import KERNEL_UPDATES, get_frozen_kernel

LORA_SCALE = "lora_scale"


class LowRankMixin:
    """Mixin for layers that save the kernel and the low-rank updates as separate weights.

    By default, Keras saves the sum, and sets both factors of the update to 0 when loading a file.
    In this case, training cannot be continued, because the gradient of each factor is a product
    with the other factor.

    Attributes:
        update_names: Tuple of two strings. Names of the factors. Embeddings override it.
    """

    update_names = KERNEL_UPDATES

    def save_own_variables(self, store) -> None:
        if not self.lora_enabled or self.quantization_mode is not None:
            super().save_own_variables(store)
            return
        store["0"] = get_frozen_kernel(self)
        if getattr(self, "bias", None) is not None:  # embeddings do not have this attribute
            store["1"] = self.bias
        for name in self.update_names:
            store[name] = getattr(self, name)
        store[LORA_SCALE] = np.float32(self.lora_alpha / self.lora_rank)

    def load_own_variables(self, store) -> None:
        names = [*store.keys()]
        base = {name: store[name] for name in names if not name.startswith("lora_")}
        updates = {name: store[name][()] for name in self.update_names if name in names}
        if updates and not self.lora_enabled:
            product = np.matmul(*updates.values()).reshape(base["0"].shape)
            base["0"] = base["0"][()] + store[LORA_SCALE][()] * product
        super().load_own_variables(base)
        if not self.lora_enabled:
            return
        if not updates:  # Keras has set both factors to 0, so initialize them as in `enable_lora`.
            first = getattr(self, self.update_names[0])
            first.assign(initializers.HeUniform()(first.shape, dtype="float32"))
            return
        for name, value in updates.items():
            weight = getattr(self, name)
            if tuple(weight.shape) != value.shape:
                raise ValueError(
                    f"{name} of {self.path} has shape {value.shape} in the file. Expected "
                    f"{tuple(weight.shape)}, for low-rank updates of rank {self.lora_rank}."
                )
            weight.assign(ops.convert_to_tensor(value))
