"""The search for the best plan: space, scores, confirmation, explanation."""
