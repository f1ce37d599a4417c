"""How the demo's reader was made: its examples, its training, its figures."""
