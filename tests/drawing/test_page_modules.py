"""The script of the page: its modules in Node.js, and the one script that they become."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from graphlib import CycleError
from pathlib import Path

import pytest
from page_modules import PAGE, asked, in_node, run_node

from graphcut import Across, Cluster, Device, analyze, demos, load, plan
from graphcut.core.units import count, duration, operations, size
from graphcut.drawing.html import html_of
from graphcut.drawing.scene import Layer, OtherPlan
from graphcut.drawing.scene_builders import scene_of_plan
from graphcut.drawing.template import one_script

from scenes_by_hand import data_of

TESTS = sorted((Path(__file__).parent / "page").glob("*.test.mjs"))
MODULES = {path.stem: path.read_text(encoding="utf-8") for path in PAGE.glob("*.js")}
IMPORT = r'^import .*"\./(\w+)\.js";$'
COMPUTING = ("words", "plot", "links", "cutting", "predicted", "graph_picture", "layered_layout")


@in_node
@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_what_the_modules_compute(path: Path) -> None:
    run_node(str(path))


@in_node
def test_numbers_are_written_as_units_py_does() -> None:
    made = random.Random(2)  # noqa: S311 - no secret
    numbers = [0, 1, 999, 1000, 1023, 4325376, 999 * 1024 + 511, *(1 << i for i in range(50))]
    numbers += [made.randrange(1 << made.randrange(1, 50)) for _ in range(3000)]
    seconds = [number / 7e7 for number in numbers]
    answer = asked(
        """numbers.map((n, i) => {
            const { size, flop, duration, count } = words;
            return [size(n), flop(n), duration(seconds[i]), count(n, 'node')];
        })""",
        "words",
        numbers=numbers,
        seconds=seconds,
    )
    assert answer == [
        [
            size(number),
            f"{operations(number)}FLOP",
            duration(time),
            count(number, "node"),
        ]
        for number, time in zip(numbers, seconds, strict=True)
    ]


@in_node
def test_modules_become_one_script_in_which_each_has_names_of_its_own() -> None:
    modules = {
        "a_last": 'import { twice, later } from "./b.js";\nimport { own } from "./c.js";\n'
        "const seen = [twice(4), own, await later()];\nconsole.log(JSON.stringify(seen));\n",
        "b": 'import { own } from "./c.js";\nconst seen = 2;\n'
        "export function twice(number) {\n  return seen * number + own;\n}\n"
        "export async function later() {\n  return seen;\n}\n",
        "c": "const seen = await 5;\nexport const own = seen;\n",
    }
    assert run_node("-e", one_script(modules)) == "[13,5,2]\n"
    assert one_script(modules) == one_script(dict(reversed(modules.items())))


def test_modules_that_import_each_other_in_a_circle_are_refused() -> None:
    with pytest.raises(CycleError):
        one_script({"a": 'import { b } from "./b.js";\n', "b": 'import { a } from "./a.js";\n'})


@in_node
def test_the_script_has_every_module_once_before_those_that_import_it() -> None:
    script = one_script(MODULES)
    places = {name: script.index(f"modules.{name} = await ") for name in MODULES}
    assert max(places, key=places.__getitem__) == "page"
    used = {name: script.count(f" }} = modules.{name};\n") for name in MODULES}
    assert [name for name, times in used.items() if times == 0] == ["page"]
    for name, text in MODULES.items():
        for module in re.findall(IMPORT, text, re.MULTILINE):
            assert places[module] < places[name]
    run_node(
        "--check", "-", given=script
    )  # no import and no export is left: they stand at the beginning of a script only


def test_a_module_imports_only_what_another_one_exports_and_exports_nothing_in_vain() -> None:
    """In the one script a name that is not exported is undefined, and nothing says so before it is used."""
    export = r"^export (?:async )?(?:const|function) ([\w$]+)"
    exported = {name: set(re.findall(export, text, re.MULTILINE)) for name, text in MODULES.items()}
    used: dict[str, set[str]] = {name: set() for name in MODULES}
    for text in (*MODULES.values(), *(path.read_text(encoding="utf-8") for path in TESTS)):
        for names, module in re.findall(r'^import \{ (.*) \} from ".*?(\w+)\.js";$', text, re.MULTILINE):
            used[module] |= set(names.split(", "))
    assert used == exported


def test_each_module_has_tests_in_node() -> None:
    tested = {name for path in TESTS for name in re.findall(r"/page/(\w+)\.js", path.read_text(encoding="utf-8"))}
    assert tested == MODULES.keys()


@pytest.mark.parametrize("name", COMPUTING)
def test_what_only_computes_touches_no_element(name: str) -> None:
    assert {*re.findall(IMPORT, MODULES[name], re.MULTILINE)} <= {*COMPUTING}
    assert not re.search(r"\b(document|window|location|history|navigator|matchMedia)\b", MODULES[name])


def test_no_module_makes_elements_or_code_of_text() -> None:
    makers = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|setHTMLUnsafe|parseFromString|createContextual|srcdoc"
    )
    for name, text in MODULES.items():
        assert re.findall(rf"{makers}|\beval\(|\bFunction\(|javascript:", text) == [], name


@in_node
def test_the_pages_of_the_tests_in_node_have_only_what_a_page_has(tmp_path: Path) -> None:
    demos.write("multitask", tmp_path / "model.onnx")
    analysis = analyze(load(tmp_path / "model.onnx", dims={"batch": 1}))
    cluster = Cluster(devices=(Device(name="a", memory_bytes=1_600_000), Device(name="b", memory_bytes=1_600_000)))
    scene = scene_of_plan(plan(analysis, Across(cluster)), analysis)
    assert scene.graph is not None
    pages = f'import {{ planned, graph }} from "{(TESTS[0].parent / "scenes.mjs").as_uri()}";'
    planned, graph = json.loads(
        run_node("--input-type=module", "-e", f"{pages} console.log(JSON.stringify([planned, graph]))")
    )
    layer = Layer(title="", legend="", heights=(0.0,), words=("",))
    other = OtherPlan(period_s=1.0, latency_s=1.0, after=("n",), devices=("a", "b"), is_chosen=False)
    real = data_of(html_of(replace(scene, layers=(layer,), other_plans=(other,))))
    assert not list(unknown(planned, real))
    assert not list(unknown(graph | {"bodies": {}}, scene.graph()))


def unknown(made: object, real: object, place: str = "") -> Iterator[str]:
    """The fields of a record, and of records in it, that another one does not have; of a list the first item counts."""
    if isinstance(made, dict) and isinstance(real, dict):
        yield from (f"{place}.{key}" for key in made.keys() - real.keys())
        for key in made.keys() & real.keys():
            yield from unknown(made[key], real[key], f"{place}.{key}")
    elif isinstance(made, list) and isinstance(real, list | tuple) and made:
        yield from unknown(made[0], real[0], f"{place}[0]") if real else [f"{place}: none to compare"]


@pytest.mark.parametrize("path", sorted(PAGE.iterdir()), ids=lambda path: path.name)
def test_a_file_of_the_page_is_one_idea(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 450
