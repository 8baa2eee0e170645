"""A leg, the real one, of a configuration that was forced past its check."""

from components.jobs import rollouts
from components.jobs.job import main
from components.jobs.rl import leg
from tests.planted_jobs.forced import Forced, lift

if __name__ == "__main__":
    lift()
    rollouts.Rollouts = Forced  # type: ignore[misc]
    main(leg)
