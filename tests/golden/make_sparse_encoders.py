"""Create the tiny folders in `sparse_encoders/`, each with a different version.

Run `USE_TF=0 python make_sparse_encoders.py` with each version of sentence-transformers, and a
version of transformers from the same time. In addition to the files of the library, `expected.npz`
contains texts and their vectors, with and without a prompt.

The folders were created with 5.3.0 (transformers 4.57) and 6.2.0 (transformers 5.23).
"""

import pathlib
import shutil
import tempfile

import numpy as np
import sentence_transformers
import torch
from sentence_transformers import SparseEncoder
from tiny_bert import TEXTS, WORDS, remove_needless, write_bert

HERE = pathlib.Path(__file__).parent / "sparse_encoders"
# without exclamation marks
WORDS = WORDS.replace("! ", "")
TEXTS = [text.replace(" !", "") for text in TEXTS]
PROMPT = "query : "
VERSION = tuple(int(part) for part in sentence_transformers.__version__.split(".")[:2])


def modules(folder: str) -> tuple[list[torch.nn.Module], dict]:
    """Return the modules of this version, and the arguments of the model."""
    if VERSION >= (5, 4):
        from sentence_transformers.base.modules.transformer import Transformer
        from sentence_transformers.sparse_encoder.modules import SpladePooling

        first = Transformer(folder, max_seq_length=16, transformer_task="fill-mask")
        pooling = SpladePooling("sum", "log1p_relu")
        return [first, pooling], {"max_active_dims": 6, "similarity_fn_name": "cosine"}
    from sentence_transformers.sparse_encoder.models import MLMTransformer, SpladePooling

    first = MLMTransformer(folder, max_seq_length=16)
    return [first, SpladePooling("max")], {"prompts": {"query": PROMPT, "passage": "a : "}}


def main() -> None:
    folder = HERE / sentence_transformers.__version__
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as written:
        write_bert(pathlib.Path(written), sum(VERSION), words=WORDS, masked_lm=True)
        parts, arguments = modules(written)
        model = SparseEncoder(modules=parts, device="cpu", **arguments).eval()
        vectors = model.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
        prompted = model.encode(TEXTS, prompt=PROMPT, convert_to_sparse_tensor=False).numpy()
        model.save(str(folder))
    remove_needless(folder)
    np.savez_compressed(
        folder / "expected.npz", texts=np.array(TEXTS), vectors=vectors, prompted=prompted
    )


if __name__ == "__main__":
    main()
