"""`split`: a model and a plan become a cascade, whether layers are divided among devices or not."""

from pathlib import Path

from ..core.arguments import Progress, Storage
from ..core.errors import UsageError
from ..core.manifest import Cascade
from ..costs.weighing import weigh
from ..loading.model import Model
from ..loading.opening import ModelLike, load
from ..planning import planner
from ..planning.goals import Goal
from ..planning.planner import with_metrics
from ..planning.plans import Plan
from .ranks import prepare_groups
from .splitting import PreparedFiles, prepare_parts, write


def split(  # noqa: PLR0913 - independent settings
    model: ModelLike,
    plan: Plan | Goal,
    output: str | Path | None = None,
    *,
    weights: Storage = "copy",
    max_shard_bytes: int | None = None,
    digest: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Cascade:
    """Split `model` into the parts of a plan, and write them.

    The files are written to a scratch folder and renamed at the end, so that a reader sees either the old cascade or
    the new one. The same model, plan and options give the same bytes.

    Args:
        model: the model or its path.
        plan: a plan for this model, or a goal to plan for.
        output: the folder to make; by default `STEM.parts` in the current folder, and the model's folder for shared
            weights.
        weights: `copy`: each part gets a data file with exactly the weights that it reads. `share`: the parts refer to
            the files of the model.
        max_shard_bytes: copied weights of a part are divided among data files of at most so many bytes, with an index.
            A larger weight has a file of its own.
        digest: compute digests of shared weights, which reads them once. Copied weights always get digests.
        force: replace another cascade; only files that its manifest lists are deleted. One with the same files stays as
            it is, with or without.
        progress: called for the bytes written.

    Raises:
        UsageError: another file, or another cascade, is in the way, or the plan is for another model.
        ModelError: a boundary tensor has an unknown type.
        PlanError: a part needs more than its budget.
        GraphcutError: there is too little disk space, or writing failed.
    """
    prepared = prepare(model, plan, output, weights=weights, max_shard_bytes=max_shard_bytes)
    return write(prepared, digest=digest, force=force, progress=progress)


def prepare(
    model: ModelLike,
    plan: Plan | Goal,
    output: str | Path | None = None,
    *,
    weights: Storage = "copy",
    max_shard_bytes: int | None = None,
) -> PreparedFiles:
    """The files that `split` would write, for `write`.

    Args:
        model: as for `split`.
        plan: as for `split`.
        output: as for `split`.
        weights: as for `split`.
        max_shard_bytes: as for `split`.

    Raises:
        UsageError: the plan is for another model, a part would have nothing to do, or the weights can't be shared.
        ModelError: a boundary tensor has an unknown type.
        PlanError: no plan meets the goal, or a part needs more than its budget.
    """
    if not isinstance(plan, Plan):
        plan = planner.plan(model, plan)
    if not isinstance(model, Model):
        model = load(model, dims=plan.model.dims, states=plan.model.states) if plan.model else load(model)
    if plan.graph is not model.graph and plan.graph != model.graph:
        raise UsageError(f"the plan is for another model than {model.title}", hint="plan this one, then split it")
    if not plan.metrics:  # it was made by hand
        plan = with_metrics(model, plan, weigh(model, plan.dims))
    if max_shard_bytes is not None and (weights == "share" or plan.has_groups):
        what = "only copied weights are divided among files, and those of a rank are in one file"
        raise UsageError(what, hint="leave out `max_shard_bytes`")
    if plan.has_groups:
        return prepare_groups(model, plan, output, weights)
    return prepare_parts(model, plan, output, weights=weights, max_shard_bytes=max_shard_bytes)
