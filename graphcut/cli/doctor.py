"""The command `graphcut doctor`."""

from functools import partial

from .output import put_answer


def doctor(measured: bool = False, as_json: bool = False) -> None:
    """Say what works here, and why the rest does not.

    Packages, execution providers with the element types that they multiply matrices of, memory, disk, clock, and the
    Ray cluster that --via ray would join. A bug report needs what this prints. If graphcut itself lacks something, the
    exit code is 1.

    Examples:
        graphcut doctor
        graphcut doctor --measure --json
    """
    from .. import environment
    from .result_tables import draw_environment

    found = environment(measured=measured)
    put_answer(found, partial(draw_environment, found), as_json=as_json, is_yes=found.works)
