"""The dependency matrix holds the sequential and the residual dependency map, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphcut import analyze, load
from graphcut.drawing.dependency_matrix import matrix_of
from graphcut.drawing.scene_builders import scene_of_analysis

from scenes_by_hand import KIB, card, scene, tensor, uncut

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"


@pytest.mark.parametrize("name", ["clip.onnx", "unet.onnx", "tiny-llama-int4/model.onnx"])
def test_the_matrix_of_a_model_is_the_dependency_maps_of_its_segments(name: str) -> None:
    analysis = analyze(load(FIXTURES / name))
    matrix, wiring = matrix_of(scene_of_analysis(analysis), 1000), analysis.segments.wiring
    maps: dict[tuple[int, int], set[str]] = {}
    for found in (wiring.sequential, wiring.residual):
        maps |= {(source, reader): set(names) for source, row in found.items() for reader, names in row.items()}
    assert {(cell.source, cell.readers[0]): set(cell.tensors) for cell in matrix.cells} == maps
    assert [cell.is_residual for cell in matrix.cells] == [cell.readers[0] > cell.source + 1 for cell in matrix.cells]
    sizes = analysis.sized.tensor_bytes
    assert all(cell.bytes == sum(sizes[name][0] for name in cell.tensors) for cell in matrix.cells)


def test_neighbours_share_a_row_where_there_are_too_many() -> None:
    cut = scene([card(i) for i in range(5)], [tensor("a", 0, 1, size=KIB), tensor("b", 1, 2, 4, size=KIB - 1)])
    matrix = matrix_of(cut, 3)
    assert matrix.names == ("part-0 to part-1", "part-2 to part-3", "part-4")
    # What part 1 reads of part 0 is inside a row.
    found = [(cell.source, cell.readers, cell.tensors) for cell in matrix.cells]
    assert found == [(0, (1,), ("b",)), (0, (2,), ("b",))]


def test_half_the_bytes_are_a_sixteenth_less() -> None:
    cut = scene([card(i) for i in range(3)], [tensor("a", 0, 1, size=1023), tensor("b", 1, 2, size=511)])
    assert [cell.share for cell in matrix_of(cut, 64).cells] == [1, 1 - 1 / 16]


def test_a_scene_without_segments_has_no_cells() -> None:
    assert matrix_of(uncut(), 64).cells == ()
