"""From one library's names and layouts to another's, and the proof."""
