"""Models as they answer: fewer tokens, fewer blocks, other sizes, faster dense layers."""
