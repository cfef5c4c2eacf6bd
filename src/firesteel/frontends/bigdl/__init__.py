"""BigDL's words: layers, criterions and what goes with them, as descriptions. The bench ``bigdl`` makes them torch."""
