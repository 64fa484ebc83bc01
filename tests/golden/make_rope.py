"""Create `rope.npz` with the outputs of transformers for texts that are longer than in pretraining.

Run this script with the extra `peers` installed. The model is `checkpoints/NomicBert_Model` with
dynamic scaling for more than 8 tokens. Each text is a separate batch in a new model, because
transformers scales all texts in a batch by the longest text.
"""

import pathlib

import numpy as np
import torch
import transformers

HERE = pathlib.Path(__file__).parent
LENGTHS = (5, 8, 12, 20)

if __name__ == "__main__":
    rng, arrays = np.random.default_rng(0), {}
    for length in LENGTHS:
        config = transformers.AutoConfig.from_pretrained(HERE / "checkpoints" / "NomicBert_Model")
        config.max_position_embeddings = 8
        config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1000.0}
        model = transformers.AutoModel.from_pretrained(
            HERE / "checkpoints" / "NomicBert_Model", config=config
        ).eval()
        ids = rng.integers(5, config.vocab_size, (1, length))
        with torch.inference_mode():
            arrays[f"outputs_{length}"] = model(torch.tensor(ids)).last_hidden_state[0].numpy()
        arrays[f"token_ids_{length}"] = ids[0].astype("int32")
    np.savez_compressed(HERE / "rope.npz", **arrays)
