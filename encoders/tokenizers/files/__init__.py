"""Reading and writing the files of tokenizers as plain data, without TensorFlow."""
