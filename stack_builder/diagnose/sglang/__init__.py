"""Judgements about SGLang: launch lines, gates, a model and its draft. Pure functions of facts."""
