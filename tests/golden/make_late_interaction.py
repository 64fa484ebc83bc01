"""Create the tiny folders in `late_interaction/`, each in the format of a different library.

Run `USE_TF=0 python make_late_interaction.py FORM`. FORM is one of the following:

- `stanford`: The vectors are computed in torch with the formula of the ColBERT authors and with the
  encoder of transformers.
- `pylate`: PyLate 1.6.0, sentence-transformers 5.3.0 and transformers 4.57.
- `sentence_transformers`: Version 6.2.0 with transformers 5.23.

In addition to the files of the library, `expected.npz` contains texts and their token vectors as
queries and as documents, concatenated over the texts.
"""

import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import torch
import transformers
from tiny_bert import TEXTS, remove_needless, write_bert

HERE = pathlib.Path(__file__).parent / "late_interaction"
QUERY_LENGTH, DOCUMENT_LENGTH, WIDTH = 12, 16, 4


def stanford(folder: pathlib.Path) -> tuple[list, list]:
    """Write the files of the released ColBERTv2 (Khattab and Zaharia 2020, section 3.2)."""
    from safetensors.torch import load_file, save_file

    tokens = write_bert(folder, 1, ("[unused0]", "[unused1]"))
    weights = {f"bert.{name}": v for name, v in load_file(folder / "model.safetensors").items()}
    projection = torch.randn(WIDTH, 8)
    weights["linear.weight"] = projection
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["HF_ColBERT"]}))
    metadata = {
        "query_token_id": "[unused0]",
        "doc_token_id": "[unused1]",
        "query_maxlen": QUERY_LENGTH,
        "doc_maxlen": DOCUMENT_LENGTH,
        "mask_punctuation": True,
        "attend_to_mask_tokens": False,
        "similarity": "cosine",
        "dim": WIDTH,
    }
    (folder / "artifact.metadata").write_text(json.dumps(metadata))

    encoder = transformers.BertModel(
        transformers.BertConfig.from_pretrained(folder), add_pooling_layer=False
    )
    state = {n.removeprefix("bert."): v for n, v in weights.items() if n.startswith("bert.")}
    encoder.load_state_dict(state)
    encoder.eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    number = {token: i for i, token in enumerate(tokens)}
    start, end, mask = (number[token] for token in ("[CLS]", "[SEP]", "[MASK]"))
    skipped = [number[token] for token in (".", ",", "!", ":")]

    def vectors(text: str, marker: str, length: int, is_query: bool) -> np.ndarray:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"][: length - 3]
        ids = [start, number[marker], *ids, end]
        attended = [1] * len(ids)
        if is_query:
            attended += [0] * (length - len(ids))
            ids += [mask] * (length - len(ids))
        with torch.no_grad():
            inputs = torch.tensor([ids]), torch.tensor([attended])
            x = encoder(inputs[0], attention_mask=inputs[1]).last_hidden_state[0] @ projection.T
        x = torch.nn.functional.normalize(x, dim=-1).numpy()
        kept = [is_query or token not in skipped for token in ids]
        return x[kept]

    queries = [vectors(text, "[unused0]", QUERY_LENGTH, True) for text in TEXTS]
    return queries, [vectors(text, "[unused1]", DOCUMENT_LENGTH, False) for text in TEXTS]


def pylate(folder: pathlib.Path) -> tuple[list, list]:
    from pylate import models

    with tempfile.TemporaryDirectory() as encoder:
        write_bert(pathlib.Path(encoder), 2)
        torch.manual_seed(3)
        model = models.ColBERT(
            encoder,
            device="cpu",
            embedding_size=WIDTH,
            query_length=QUERY_LENGTH,
            document_length=DOCUMENT_LENGTH,
        )
    model.save(str(folder))
    return tuple(list(model.encode(TEXTS, is_query=is_query)) for is_query in (True, False))


def sentence_transformers(folder: pathlib.Path) -> tuple[list, list]:
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    with tempfile.TemporaryDirectory() as encoder:
        write_bert(pathlib.Path(encoder), 4)
        expansion = {"strategy": "min", "attend": True, "length": 8}
        transformer = Transformer(
            encoder,
            query_length=QUERY_LENGTH,
            document_length=DOCUMENT_LENGTH,
            query_expansion=expansion,
        )
    torch.manual_seed(5)
    options = {"activation_function": torch.nn.Identity(), "module_input_name": "token_embeddings"}
    layers = [
        Dense(8, 6, bias=False, use_residual=True, **options),
        Dense(6, WIDTH, bias=True, **options),
    ]
    after = [MultiVectorMask([".", ","]), Normalize(module_input_name="token_embeddings")]
    prompts = {"query": "query : ", "document": "a film : "}
    model = MultiVectorEncoder(modules=[transformer, *layers, *after], prompts=prompts)
    model = model.to("cpu").eval()
    model.save(str(folder))
    numpy = {"convert_to_numpy": True}
    return model.encode_query(TEXTS, **numpy), model.encode_document(TEXTS, **numpy)


def main(form: str) -> None:
    folder = HERE / form
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    queries, documents = {
        "stanford": stanford,
        "pylate": pylate,
        "sentence_transformers": sentence_transformers,
    }[form](folder)
    remove_needless(folder)
    np.savez_compressed(
        folder / "expected.npz",
        texts=np.array(TEXTS),
        queries=np.concatenate(queries),
        query_lengths=[len(x) for x in queries],
        documents=np.concatenate(documents),
        document_lengths=[len(x) for x in documents],
    )


if __name__ == "__main__":
    main(sys.argv[1])
