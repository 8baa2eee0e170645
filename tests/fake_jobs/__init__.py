"""Ray jobs that do as they are told, in place of `components.jobs`."""
