"""How tokens know where they lie: tables, rotations, biases, and other grids."""
