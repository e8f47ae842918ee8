"""Independent oracles: a float32 forward pass, and tiny models with random weights. They share no code with the product."""
