"""Encoders: layers, backbones, tokenizers; one file and one line here per family."""

import importlib

# family name (a checkpoint's `model_type`): module that defines its `FAMILY` record
FAMILIES = {
    "bert": "encoder_zoo.encoders.families.bert",
    "roberta": "encoder_zoo.encoders.families.roberta",
}


def get_family(name: str):
    """The `Family` record of a name in `FAMILIES`; importing it is put off until here."""
    return importlib.import_module(FAMILIES[name]).FAMILY
