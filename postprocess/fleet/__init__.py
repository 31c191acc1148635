"""Plan, map, reduce: the same partials whether one process is analysed or many."""
