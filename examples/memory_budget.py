"""Split a model into parts that fit in memory.

python memory_budget.py MODEL FOLDER 2GB
"""

import sys

import graphcut


def main(path: str, folder: str, memory: str) -> None:
    """Write the fewest parts each of which loads and runs in `memory`."""
    goal = graphcut.Within(memory)
    try:
        cascade = graphcut.split(path, goal, folder)
    except graphcut.PlanError as error:
        sys.exit(f"{error}; {error.hint}")
    for part in cascade.parts:
        print(f"{part.file}: {part.weight_bytes:,} bytes of weights, {part.activation_bytes:,} of activations")


if __name__ == "__main__":
    main(*sys.argv[1:])
