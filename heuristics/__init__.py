"""Heuristics: tables to meaning. Pure functions over tables; one file per question, one file per dimension."""
