"""Verbs that examine: this machine, runs, images and models; and how fast a model is here."""
