"""Change a model with onnx_graphsurgeon, and split the result.

python graphsurgeon_graph.py MODEL FOLDER OUTPUT
"""

import sys

import graphcut


def main(path: str, folder: str, output: str) -> None:
    """Keep one output of a model with what it needs, and cut that in two."""
    graph = graphcut.to_graphsurgeon(path)
    before = len(graph.nodes)
    graph.outputs = [tensor for tensor in graph.outputs if tensor.name == output]
    graph.cleanup().toposort()
    print(f"{len(graph.nodes)} of {before} nodes compute {output}")
    model = graphcut.load(graph)
    cascade = graphcut.split(model, graphcut.Into(2), folder)
    print("verified" if graphcut.verify(model, cascade) else "differs")


if __name__ == "__main__":
    main(*sys.argv[1:])
