"""Masks that a model predicts: their shares and regions, and the files that hold them"""
