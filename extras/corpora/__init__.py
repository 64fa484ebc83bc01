"""Pretraining corpora: documents as token ids in files, larger than memory."""
