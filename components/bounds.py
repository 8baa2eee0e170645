"""Bounds of numbers that configuration, gateway and samplers check alike.

Invariant: nothing is imported here, since configuration is also read where our boxes run under Harbor, whose Python has
no numpy.
"""

LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.01, 100.0
"""Between these an answer is drawn as it is recorded: what is next to 0 servers take for greedy, with log-probs at
temperature 1; what is far above is no distribution of the model's any more, or no float32."""

MOST_TOP_K = 2**31 - 1
"""What every server can hold: no vocabulary is larger."""
