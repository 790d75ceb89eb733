"""Other schedules of kernels than the heuristic's: a user's (`by_hand.py`), and what a search on the device finds."""
