"""Split a model at tensors that you name.

python split_at_tensors.py MODEL FOLDER TENSOR ...
"""

import sys

import graphcut


def main(path: str, folder: str, *tensors: str) -> None:
    """Write the parts into `folder`, and verify them."""
    cascade = graphcut.split(path, graphcut.At(tensors), folder)
    for part in cascade.parts:
        print(f"{part.file}: {part.nodes} nodes, reads {', '.join(part.reads)}, writes {', '.join(part.writes)}")
    verification = graphcut.verify(path, cascade)
    print("same bits" if verification and verification.is_identical else f"differs: {verification.first_difference}")


if __name__ == "__main__":
    main(*sys.argv[1:])
