"""Tasks to train the variants on: associative recall and a language model of characters."""
