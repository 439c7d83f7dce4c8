import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";

import { command, linkTo, linkToCuts, quoted, readAddress, thingAt } from "../../../graphcut/drawing/page/links.js";

const nodes = ["twin", "twin", "a b#/%", "", "\ud800", "x,y&on=z"];
const tensors = [{ tensor: "t" }, { tensor: "part=1&node=é" }];
const cards = [{}, {}];

test("the link to a thing leads back to it", () => {
  for (const [kind, all] of [["card", cards], ["tensor", tensors], ["node", nodes.slice(0, 4)]]) {
    for (const index of all.keys()) {
      const link = linkTo({ kind, index }, tensors, nodes);
      assert.deepEqual(thingAt(readAddress(`#${link}`).link, cards, tensors, nodes), { kind, index }, link);
    }
  }
});

test("a node has a link by its name where that tells it from others", () => {
  const links = nodes.map((_, index) => linkTo({ kind: "node", index }, tensors, nodes));
  assert.deepEqual(links.slice(0, 5), ["node=twin", "at=2", "node=a%20b%23%2F%25", "at=4", "node=%EF%BF%BD"]);
  assert.equal(linkTo({ kind: "bus", index: 0 }, tensors, nodes), "");
});

test("cuts, devices and a thing are read from one address", () => {
  const address = `#${linkToCuts(["x,y&on=z", "a b#/%"], ["d 1", "d,2"])}&node=twin`;
  assert.deepEqual(readAddress(address), { cuts: ["x,y&on=z", "a b#/%"], on: ["d 1", "d,2"], link: "node=twin" });
  assert.deepEqual(readAddress(`#${linkToCuts(["a"], null)}`), { cuts: ["a"], on: [], link: "" });
  assert.deepEqual(readAddress("#part=1"), { cuts: [], on: [], link: "part=1" });
  assert.deepEqual(readAddress(""), { cuts: [], on: [], link: "" });
});

test("what names nothing is no thing", () => {
  for (const link of ["part=2", "part=x", "part=-1", "part=1.5", "tensor=none", "node=none", "at=0", "at=7", "node=%", "other=1", "part=", ""]) {
    assert.equal(thingAt(link, cards, tensors, nodes), null, link);
  }
  assert.deepEqual(thingAt("at=6", cards, tensors, nodes), { kind: "node", index: 5 });
  assert.equal(thingAt("node=x", cards, tensors, []), null);
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
