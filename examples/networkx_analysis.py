"""Analyze a model with networkx.

python networkx_analysis.py MODEL
"""

import sys

import networkx as nx

import graphcut


def main(path: str) -> None:
    """Print the longest path, and the nodes that every path passes: cuts of a single node."""
    analysis = graphcut.analyze(path)
    digraph = analysis.digraph
    print(f"{digraph.number_of_nodes()} nodes, {digraph.number_of_edges()} edges")
    print("longest path:", len(nx.dag_longest_path(digraph)), "nodes")
    print("every path passes:", ", ".join(digraph.nodes[node]["name"] for node in analysis.dominators))


if __name__ == "__main__":
    main(*sys.argv[1:])
