"""The learner: what is done with demonstrations and with a batch of graded trajectories.

Who takes a reward here needs no torch: each module is imported by its own name.
"""
