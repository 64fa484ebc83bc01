"""Texts larger than memory: tokenized once into files, and read back as rows to pretrain on."""
