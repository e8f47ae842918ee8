"""What any engine is given: prompts, limits, sampling controls, fill-in-the-middle and think tags, checked and resolved."""
