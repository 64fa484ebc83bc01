"""Makes the tiny folders in `sparse_encoders/`, each by another version of sentence-transformers.

Run as `USE_TF=0 python make_sparse_encoders.py` with each version installed, and transformers of
its time. Beside the files of the library, `expected.npz` has texts and the vectors that it computes
for them, without a prompt and with one.

Made by 5.3.0 with transformers 4.57 and by 6.2.0 with 5.23.
"""

import json
import pathlib
import shutil
import tempfile

import numpy as np
import sentence_transformers
import torch
import transformers
from sentence_transformers import SparseEncoder

HERE = pathlib.Path(__file__).parent / "sparse_encoders"
WORDS = "the a cat dog mat sat ran on under good bad film was is it not very query : . , ##s ##ing"
TEXTS = [
    "the cat sat on the mat .",
    "Good film",
    "it was not very good , it was bad",
    "dogs",
    "the dog ran under the mat , the cat ran , the dog sat , it was bad . " * 2,
]
PROMPT = "query : "
VERSION = tuple(int(part) for part in sentence_transformers.__version__.split(".")[:2])


def write_model(folder: pathlib.Path) -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split(" ")]
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", "utf-8")
    settings = {"do_lower_case": True, "tokenizer_class": "BertTokenizer", "model_max_length": 24}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(sum(VERSION))
    config = transformers.BertConfig(
        vocab_size=len(tokens),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=32,
        initializer_range=0.5,
    )
    model = transformers.BertForMaskedLM(config).eval()
    for parameter in model.parameters():  # biases and LayerNorm away from 0 and 1
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)


def modules(folder: str) -> tuple[list[torch.nn.Module], dict]:
    """The modules of this version, and arguments of the model."""
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
        write_model(pathlib.Path(written))
        parts, arguments = modules(written)
        model = SparseEncoder(modules=parts, device="cpu", **arguments).eval()
        vectors = model.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
        prompted = model.encode(TEXTS, prompt=PROMPT, convert_to_sparse_tensor=False).numpy()
        model.save(str(folder))
    (folder / "README.md").unlink(missing_ok=True)
    np.savez_compressed(
        folder / "expected.npz", texts=np.array(TEXTS), vectors=vectors, prompted=prompted
    )


if __name__ == "__main__":
    main()
