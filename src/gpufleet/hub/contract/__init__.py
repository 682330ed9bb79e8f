"""Judgement of registered clusters by the adoption contract."""
