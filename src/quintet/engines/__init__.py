"""A model's name -> an engine: names, aliases and patterns; each model's engine loaded, watched, and freed when nobody asks for it."""
