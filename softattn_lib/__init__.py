"""Softmax attention as a sum of recurrent networks."""
