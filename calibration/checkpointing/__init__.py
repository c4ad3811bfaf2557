"""A checkpointer and a resumable iterator for torch, and what they cost, measured."""
