"""How fast Firesteel is, beside others in the same run: ``make bench``."""
