"""The methods: one room each, around an algorithm that reads like the paper's."""
