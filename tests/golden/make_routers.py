"""Create the tiny folders in `routers/`: sparse encoders with a separate encoder for queries.

Run `USE_TF=0 python make_routers.py` with sentence-transformers. In addition to the files of the
library, `expected.npz` contains texts and their vectors as queries and as documents. Queries use a
table of weights in `table`, and a second model in `two`.

The folders were created with version 6.2.0 and transformers 5.24.
"""

import pathlib
import shutil
import tempfile

import numpy as np
import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Router
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from tiny_bert import TEXTS, remove_needless, write_bert

HERE = pathlib.Path(__file__).parent / "routers"


def encoder(seed: int, length: int) -> Transformer:
    with tempfile.TemporaryDirectory() as written:
        write_bert(pathlib.Path(written), seed, masked_lm=True)
        return Transformer(written, max_seq_length=length, transformer_task="fill-mask")


def main() -> None:
    documents = [encoder(5, 16), SpladePooling("max", "log1p_relu")]
    torch.manual_seed(0)
    weights = 3 * torch.rand(len(documents[0].tokenizer.get_vocab()))
    prompts = {"query": "query : ", "document": ""}
    for name, queries, arguments in (
        (
            "table",
            [SparseStaticEmbedding(documents[0].tokenizer, weights, frozen=True)],
            {"prompts": prompts},
        ),
        ("two", [encoder(6, 8), SpladePooling("max")], {}),
    ):
        router = Router.for_query_document(query_modules=queries, document_modules=documents)
        model = SparseEncoder(modules=[router], device="cpu", **arguments).eval()
        shutil.rmtree(HERE / name, ignore_errors=True)
        model.save(str(HERE / name))
        remove_needless(HERE / name)
        found = {
            role: encode(TEXTS, convert_to_sparse_tensor=False).numpy()
            for role, encode in (
                ("query", model.encode_query),
                ("document", model.encode_document),
            )
        }
        np.savez_compressed(HERE / name / "expected.npz", texts=np.array(TEXTS), **found)


if __name__ == "__main__":
    main()
