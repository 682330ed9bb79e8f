"""Statements of people: which views they may read, which words they may use, and asking for them within bounds."""
