"""Statements in SQL that train models on tables, predict into them, and say what was trained."""
