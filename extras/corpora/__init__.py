"""Pretraining corpora, which are stored as token ids in files and can be larger than memory."""
