"""Corpora larger than memory: tokenized once into files, and read as examples to pretrain on."""
