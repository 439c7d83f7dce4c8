"""Plan with costs of your own, one row a module.

    python own_cost_model.py MODEL COSTS.csv PARTS

A row needs module, num_params, num_bytes and num_flops, and may have time_s:

    module,num_params,num_bytes,num_flops,time_s
    model.layers.0.self_attn,16384,65536,1048576,0.0012
"""

import sys

import graphcut


def main(path: str, costs: str, parts: str) -> None:
    """Print where the model is cut with these costs, and with graphcut's own."""
    analysis = graphcut.analyze(path)
    table = graphcut.read_table(costs)
    goal = graphcut.Into(int(parts))
    limits = graphcut.Limits(inside_layers=True)
    for title, plan in (
        ("your costs", graphcut.plan(analysis, goal, limits=limits, table=table)),
        ("own costs", graphcut.plan(analysis, goal, limits=limits)),
    ):
        print(title, [len(block.nodes) for block in plan.partition.blocks])


if __name__ == "__main__":
    main(*sys.argv[1:])
