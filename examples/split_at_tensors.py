"""Split a model at tensors that you name.

python split_at_tensors.py MODEL FOLDER TENSOR ...
"""

import sys

import graphcut


def main(path: str, folder: str, *tensors: str) -> None:
    """Write the parts into `folder`, and verify them."""
    model = graphcut.load(path)
    plan = graphcut.plan(graphcut.analyze(model), graphcut.At(tensors))
    cascade = graphcut.split(model, plan, folder)
    for part in cascade.parts:
        print(f"{part.file}: {part.nodes} nodes, reads {', '.join(part.reads)}, writes {', '.join(part.writes)}")
    verification = graphcut.verify(model, cascade)
    print("same bits" if verification and verification.is_identical else f"differs: {verification.first_difference}")


if __name__ == "__main__":
    main(*sys.argv[1:])
