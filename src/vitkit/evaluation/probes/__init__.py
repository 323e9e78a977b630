"""The quality of features: closed-form heads, few-shot classifiers, nearest neighbours, heads that can be
updated."""
