"""The comparison harness: replay variants side by side, with paired seeds, intervals and verdicts (extra ``study``)."""
