"""Jobs of a campaign whose configuration is wrong, and was forced past the check that refuses it."""
