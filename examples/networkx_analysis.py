"""Analyze a model with networkx.

python networkx_analysis.py MODEL
"""

import sys

import networkx as nx

import graphcut


def main(path: str) -> None:
    """Print the longest path, and the nodes that every path from the first node passes: cuts of a single node."""
    model = graphcut.load(path)
    view = graphcut.to_networkx(model.graph)
    names = nx.get_node_attributes(view, "name")
    print(f"{view.number_of_nodes()} nodes, {view.number_of_edges()} edges")
    print("longest path:", len(nx.dag_longest_path(view)), "nodes")
    order = list(nx.topological_sort(view))
    above = nx.immediate_dominators(view, order[0])
    node, chain = order[-1], []
    while above.get(node) not in {None, node}:
        node = above[node]
        chain.append(names[node])
    print("every path to the last node passes:", ", ".join(reversed(chain)))


if __name__ == "__main__":
    main(*sys.argv[1:])
