import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";

import { command, linkTo, quoted, thingIn } from "../../../graphcut/drawing/page/links.js";

const nodes = ["twin", "twin", "a b#/%", "", "\ud800", "x,y&on=z"];
const tensors = [{ tensor: "t" }, { tensor: "part=1&node=é" }];
const cards = [{}, {}];

const follow = (address, known = nodes) => thingIn(new URLSearchParams(address), cards, tensors, known);

test("the link to a thing leads back to it", () => {
  for (const [kind, all] of [["card", cards], ["tensor", tensors], ["node", nodes.slice(0, 4)]]) {
    for (const index of all.keys()) {
      const link = String(new URLSearchParams(linkTo({ kind, index }, tensors, nodes)));
      assert.deepEqual(follow(link), { kind, index }, link);
    }
  }
});

test("a node has a link by its name where that tells it from others", () => {
  const links = nodes.map((_, index) => linkTo({ kind: "node", index }, tensors, nodes));
  assert.deepEqual(links.slice(0, 4), [[["node", "twin"]], [["at", 2]], [["node", "a b#/%"]], [["at", 4]]]);
  assert.deepEqual(linkTo({ kind: "bus", index: 0 }, tensors, nodes), []);
});

test("what names nothing is no thing", () => {
  for (const link of ["part=2", "part=x", "part=-1", "part=1.5", "tensor=none", "node=none", "at=0", "at=7", "node=%", "other=1", "part=", ""]) {
    assert.equal(follow(link), undefined, link);
  }
  assert.deepEqual(follow("at=6"), { kind: "node", index: 5 });
  assert.deepEqual(follow("cut=a&on=part&node=twin"), { kind: "node", index: 0 });
  assert.equal(follow("node=x", []), undefined);
});

test("a shell reads a quoted word as it is", () => {
  for (const word of ["/plain/Add_1", "it's $(rm) `x` \"y\"", "two\nlines\x1b[2J\\'", "-x", "é;👩", "a b", "$HOME", "\\", "\x7f\x9f"]) {
    assert.equal(execFileSync("bash", ["-c", `printf %s ${quoted(word)}`], { env: { LC_ALL: "C.UTF-8" } }).toString(), word);
  }
});

test("the command names the model, the nodes, the devices and the sizes", () => {
  assert.equal(command("my model.onnx", { n: 4, "a b": 1 }, ["x", "y,z", 'say "hi"'], ["one", "two"]),
    `graphcut split 'my model.onnx' --at-nodes='x,"y,z","say ""hi"""' --device=one,two --dim n=4 --dim 'a b=1'`);
  assert.equal(command("m.onnx", {}, ["x"]), "graphcut split m.onnx --at-nodes=x");
});
